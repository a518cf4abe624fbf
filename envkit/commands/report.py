"""``envkit report``."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from envkit.cli import echo, printed, usage
from envkit.commands import options

if TYPE_CHECKING:
    from envkit.ticket.gather import Ticket

DEFAULT = Path("envkit-report.html")


@click.command()
@click.argument("name", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE|-",
    help=f"Where to write it: a page if it ends in .html, JSON in .json, else Markdown. Default: {DEFAULT}.",
)
@click.option("--log", "logs", multiple=True, metavar="FILE", help="The log of what failed. May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON; to standard output if --output names no file.")
@options.prefix
def report(name: str | None, output: Path | None, logs: tuple[str, ...], as_json: bool, prefix: str | None) -> int:
    """Write one file to attach to a ticket, on the environment NAME or the only one.

    It has the last verdict of verify, what diagnose says of each --log, with the lines about it, what the doctor says
    of this machine, the lock, and versions. Secrets, user names, home folders and names of hosts are left out. What
    cannot be told, as where the environment is damaged or there is none, is said in the report. '-' writes to
    standard output. Ends with 0 if the report was written, with 2 if a log cannot be read, with 6 if NAME is neither an
    environment nor a stack, with 7 if the report cannot be written.
    """
    import os

    from envkit.diagnose.reader import Reader, scheduler
    from envkit.environments import prefix as place
    from envkit.report import words
    from envkit.ticket import gather
    from envkit.ticket import logs as read

    to_stdout, is_usual = output == Path("-") or (as_json and output is None), output is None
    if output is None and not to_stdout:
        require_own(DEFAULT)
    output = output or DEFAULT
    if not to_stdout and output.is_dir():
        usage(f"--output: {output} is a folder.")
    if "-" in logs:
        usage("--log takes the file of a log, which is read more than once, and no standard input. Write it into one.")
    reader = Reader(environment=name or os.environ.get("ENVKIT_NAME", ""), scheduler=scheduler(os.environ))
    contents, where = [read.read(path, reader) for path in logs], place.locate(prefix)
    if name:
        gather.require_known(name, where)
    ticket = gather.gather(name or os.environ.get("ENVKIT_NAME"), where, contents)
    text = formed(ticket, "json" if as_json else output.suffix.lstrip(".").lower())
    if to_stdout:
        if words.on_github():
            text = words.inert_json(text) if as_json else words.inert(text)
        return printed(text)
    from envkit.system.files import deliver
    from envkit.ticket.forms import LEFT_OUT

    deliver(
        output,
        text.encode(errors="replace"),
        "The report",
        own=is_usual,  # what somebody has put in its place meanwhile is not followed
        fix="Name another file: -o FILE, or '-' for standard output.",
    )
    echo(f"envkit: the report is in {output}. {LEFT_OUT}", err=True)
    return 0


def require_own(path: Path) -> None:
    """Require of the file that is written where none was named that it is not there, or a plain one of this user's."""
    import os
    import stat

    from envkit.errors import NotWritable

    with suppress(FileNotFoundError):
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid():
            raise NotWritable(
                what=f"{path} is not written to.",
                why="It is there, and no plain file of yours: whoever made it may have it lead elsewhere.",
                fix="Name another file: -o FILE, or '-' for standard output.",
            )


def formed(ticket: "Ticket", ending: str) -> str:
    """Return a report in the form that a file of this name has."""
    from envkit.ticket import forms

    if ending == "json":
        return forms.to_json(ticket)
    return forms.to_html(ticket) if ending in ("html", "htm") else forms.to_markdown(ticket)
