"""``envkit completion``."""

import click

from envkit.cli import PROGRAM, envkit


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what has a shell complete commands, options, environments, stacks, examples, sites and causes.

    \b
    bash  eval "$(envkit completion bash)"    in ~/.bashrc
    zsh   eval "$(envkit completion zsh)"     in ~/.zshrc, after compinit
    fish  envkit completion fish > ~/.config/fish/completions/envkit.fish

    For all users of a system, as root:

    \b
    bash  envkit completion bash > /usr/share/bash-completion/completions/envkit
    zsh   envkit completion zsh > /usr/share/zsh/site-functions/_envkit
    fish  envkit completion fish > /usr/share/fish/vendor_completions.d/envkit.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  (click has these three)
    completer = kind(envkit, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE")
    click.echo(completer.source_template % completer.source_vars(), nl=False)
