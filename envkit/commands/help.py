"""``envkit help``."""

from pathlib import Path

import click
from click.shell_completion import CompletionItem

from envkit.cli import COMMANDS, run, usage


def commands(_context: click.Context, _parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Offer the commands."""
    return [CompletionItem(name) for name in COMMANDS if name.startswith(word)]


@click.command(name="help")
@click.argument("command", nargs=-1, shell_complete=commands)
@click.option(
    "--man", "folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Write man pages into DIR."
)
def help_(command: tuple[str, ...], folder: Path | None) -> int:
    """Show the help of a command: 'envkit help job slurm' is 'envkit job slurm --help'.

    Without one, that of envkit. With --man it is written as pages for man, one for each command:

    \b
    envkit help --man ~/.local/share/man/man1
    man envkit-install
    """
    if folder is None:
        return run([*command, "--help"])
    if command:
        usage("--man writes the pages of all commands: leave out COMMAND.")
    from envkit.commands import manual
    from envkit.errors import NotWritable
    from envkit.system.files import deliver

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritable(what=f"{folder} cannot be made.", why=f"{error.strerror}.", fix="Name another.") from error
    for name, text in manual.pages().items():
        deliver(folder / name, text.encode(), "A page")
    click.echo(f"The pages are in {folder}: man -l {folder / 'envkit.1'}")
    return 0
