"""The words of a CernVM-FS client that gave up, and their meaning. For mount_namespace.py: standard library alone."""

import signal
import sys
import tomllib
from pathlib import Path
from typing import Any

CRASHES = tuple(str(-number) for number in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV))


def read(name: str) -> dict[str, Any]:
    """Return a file of what is known."""
    return tomllib.loads(Path(__file__).parents[1].joinpath("knowledge", name).read_text())


def said_in(log: Path) -> str:
    """Return what a client has said on its streams, and what it would have told the system's log."""
    texts = [path.read_text(errors="replace") for path in (log.with_suffix(".syslog"), log) if path.exists()]
    return "\n".join(texts)


def cause(said: str) -> dict[str, Any] | None:
    """Return what the words of a client mean, None if that is not known."""
    return next(
        (entry for entry in read("cvmfs_client.toml")["cause"] if any(word in said for word in entry["says"])), None
    )


def is_damaged(status: str, log: Path) -> bool:
    """Say whether a client has failed for its cache: it says so, or ends by a signal of its own."""
    meant = cause(said_in(log))
    return bool(meant["id"] == "cache") if meant else status in CRASHES


def say_aside(aside: Path) -> None:
    """Say that a damaged cache has another name now."""
    words = read("eessi_symptoms.toml")["cache-aside"]
    print(f"envkit: {words['what'].format(aside=aside)}. {words['fix']}", file=sys.stderr)


def explain(program: str, status: str, log: Path) -> int:
    """Say why a program has not mounted, by its own words, else by its status; return the status to end with."""
    output = said_in(log)
    symptoms, meant = read("eessi_symptoms.toml"), cause(output)
    words = symptoms.get(f"cvmfs2-{status}", symptoms["cvmfs2-other"])
    what = words["what"].format(program=program, status=status)
    if meant:
        words = meant
        what = f"{program} could not mount the repository: {meant['what'].rstrip('.')} (status {status})."
    print(f"envkit: {what}\n", file=sys.stderr)
    last = [line for line in output.splitlines() if line.strip()][-5:]
    for line in (words["why"], *last, *([f"All that it said: {log}, {log.with_suffix('.syslog')}"] if output else [])):
        print(f"  {line}", file=sys.stderr)
    print(f"\nWhat to do: {words['fix']}", file=sys.stderr)
    return 3
