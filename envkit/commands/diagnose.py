"""``envkit diagnose``."""

import io
import os
import sys
import time
from typing import TYPE_CHECKING, cast

import click

from envkit.cli import echo, echo_json, usage
from envkit.commands import complete

if TYPE_CHECKING:
    from envkit.diagnose.reader import Reader

UNKNOWN = 9  # exit code: it failed, and nobody knows why
BELOW = 4  # lines of the log that are shown behind the first that tells of an unknown failure


@click.command()
@click.argument("log", required=False, metavar="LOG|-", shell_complete=complete.files)
@click.option("--here", is_flag=True, help="The log comes from this machine and environment: check these, too.")
@click.option("--list", "as_list", is_flag=True, help="List the known causes.")
@click.option("--explain", metavar="ID", help="Explain a cause.", shell_complete=complete.rules)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diagnose(log: str | None, here: bool, as_list: bool, explain: str | None, as_json: bool) -> int:
    """Find the first cause of a failed build, launch or run in its log.

    LOG is a file, compressed by gzip, bzip2, xz or zstd if need be; '-' reads standard input. Ends with 0 if a cause
    was found, with 1 if the log shows no failure, with 9 if it shows one whose cause is not known: its first lines are
    then shown, and whose they are. What cannot be read as a log ends with 2. If reading takes too long, it stops and
    says how much of the log it has read.
    """
    if sum([log is not None, as_list, explain is not None]) != 1:
        usage("Give one of LOG, '-' for standard input, --list and --explain ID.")
    if here and log is None:
        usage("--here goes with LOG.")
    if log is None:
        told(explain, as_json)
        return 0
    from envkit.diagnose import Certainty, judged, seen_in, source, words
    from envkit.diagnose.scan import Deadline
    from envkit.diagnose.surroundings import Surroundings

    stream = cast("io.BufferedReader", sys.stdin.buffer) if log == "-" else None
    name = "standard input" if log == "-" else log
    limit = Deadline(time.thread_time if stream else time.monotonic)  # who writes to a pipe takes a time of their own
    with source.opened(name, limit, stream) as blocks:
        seen = seen_in(blocks)
    diagnosis = judged(seen, Surroundings(env=os.environ) if here else None, reader() if here else None)
    unknown = diagnosis is not None and diagnosis.certainty is Certainty.UNKNOWN
    if not seen.whole:
        echo(words.cut(name, seen), err=True)
    if as_json:
        echo_json(words.to_json(name, diagnosis, whole=seen.whole))
    else:
        below = (
            source.lines(name, diagnosis.number, BELOW, limit)
            if diagnosis is not None and unknown and stream is None
            else []
        )
        echo(words.text(name, diagnosis, width(), below))
    return UNKNOWN if unknown else int(diagnosis is None)


def reader() -> "Reader":
    """Return what is known of who reads here: the environment entered, else the only one installed; the scheduler."""
    from envkit.diagnose.reader import Reader, scheduler

    return Reader(environment=os.environ.get("ENVKIT_NAME") or only_one(), scheduler=scheduler(os.environ))


def only_one() -> str:
    """Return the name of the only environment that is installed, "" where there is not one."""
    from envkit.environments import prefix
    from envkit.errors import EnvkitError
    from envkit.methods import installed

    try:
        return installed.find(prefix.locate(None), None).name
    except EnvkitError:
        return ""


def told(wanted: str | None, as_json: bool) -> None:
    """Print every rule, or one; ends with a usage error for one that is not there."""
    import difflib

    from envkit.diagnose import rules, words

    chosen = tuple(rule for rule in rules() if wanted in (None, rule.id))
    if not chosen:
        near = difflib.get_close_matches(str(wanted), [rule.id for rule in rules()], 1)
        hint = f"Did you mean '{near[0]}'?" if near else "See envkit diagnose --list."
        usage(f"--explain: there is no cause {wanted!r}. {hint}")
    if as_json:
        echo_json(words.list_json(chosen))
    else:
        echo(words.explained(chosen[0], width()) if wanted else words.listed(chosen))


def width() -> int:
    """Return how wide a line may be (characters)."""
    import shutil

    return min(shutil.get_terminal_size((100, 24)).columns, 100)
