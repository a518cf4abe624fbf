"""``envkit activate``."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from envkit.cli import usage
from envkit.commands import options


class Evaluated(click.Command):
    """A command whose output a shell evaluates: where it fails, that is 'false', so that the shell sees it."""

    def make_context(self, *words: Any, **named: Any) -> click.Context:
        """Parse the command line."""
        with print_false_on_error():
            return super().make_context(*words, **named)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it."""
        with print_false_on_error():
            return super().invoke(ctx)


@contextmanager
def print_false_on_error() -> Iterator[None]:
    """Print what fails in bash, zsh and fish if the block fails, except for a person to read."""
    try:
        yield
    except click.exceptions.Exit:  # after --help
        raise
    except BaseException:
        if not sys.stdout.isatty():
            with suppress(OSError):
                click.echo("false")
        raise


@click.command(cls=Evaluated)
@options.name
@click.option(
    "--shell",
    type=click.Choice(["bash", "zsh", "fish"]),
    help="The shell. Default: the one that calls this, else $SHELL.",
)
@options.prefix
def activate(name: str | None, shell: str | None, prefix: str | None) -> None:
    """Print shell code that enters the environment NAME, or a virtual environment on top of one, in the current shell.

    \b
    bash, zsh:  eval "$(envkit activate pytorch)"
    fish:       envkit activate pytorch | source

    'envkit_deactivate' leaves it: each variable that was changed is then as it was. It is for environments by
    EasyBuild; into images and EESSI lead 'envkit shell' and 'envkit run'. Where it fails, it prints 'false', so that
    the shell that evaluates it fails, too (set -e).
    """
    import os

    from envkit.environments import activation
    from envkit.environments import prefix as place
    from envkit.methods import installed

    if name == "eessi":
        options.refuse_eessi("be entered in a shell that runs already")
    receipt = installed.find(place.locate(prefix), name)
    inside = receipt.require_modules()
    entered = os.environ.get("ENVKIT_NAME", inside.name)
    if entered != inside.name:
        usage(
            f"This shell is in {entered} already: leave it first (envkit_deactivate; of 'envkit shell', exit), or "
            "begin where nothing of it is inherited (sbatch --export=NONE)."
        )
    variables = activation.changed(inside, os.environ)
    chosen = shell or activation.shell_of(os.environ, activation.parent())
    click.echo(activation.text(chosen, inside.name, variables, os.environ), nl=False)
    if sys.stdout.isatty():
        line = activation.line(chosen, f"envkit activate {receipt.called}")
        click.echo(f"envkit: this changes nothing unless the shell evaluates it: {line}", err=True)
