"""Handing a job to its scheduler."""

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envkit.errors import JobRefused
from envkit.system import process, temporary

ANSWER_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A job that a scheduler, by its name in the registry, has taken.

    ``cluster`` is named where Slurm has several; ``log`` is the file of its log, where that is known by now.
    """

    number: str
    scheduler: str
    cluster: str = ""
    log: str = ""


def submit(
    argv: Sequence[str], script: bytes, rows: Sequence[Mapping[str, Any]], env: Mapping[str, str] | None = None
) -> str:
    """Return the last line that a scheduler answers to a script. Raises JobRefused, explained by ``rows``."""
    with temporary.folder("job") as folder:
        path = folder / "job.sh"
        path.write_bytes(script)
        done = process.capture([*argv, str(path)], env=env, timeout_s=ANSWER_S)
    answer = done.stdout.strip().rpartition("\n")[2]
    if done.status or not re.fullmatch(r"[\w.\[\]-]+(;[\w-]+)?", answer):
        raise refused(argv[0], done, rows)
    return answer


def refused(program: str, done: process.Completed, rows: Sequence[Mapping[str, Any]] = ()) -> JobRefused:
    """Say why a scheduler did not take a job."""
    complaint = (done.stderr.strip() or done.stdout.strip()).replace(f"{program}: error: ", "")
    if done.status == 127:
        return cannot_start(program, complaint) if shutil.which(program) else absent(program)
    return JobRefused(what="The job was not taken.", why=f"{program} says: {complaint}", fix=remedy(complaint, rows))


def cannot_start(program: str, said: str) -> JobRefused:
    """Say that the program of a scheduler is here, and does not start."""
    return JobRefused(
        what=f"The job cannot be submitted: {shutil.which(program)} does not start.",
        why=re.sub(r"^\[Errno \d+\] ", "", said),
        fix="Ask whoever keeps the scheduler of this machine, or leave --submit out.",
    )


def absent(program: str) -> JobRefused:
    """Say that there is no scheduler here."""
    return JobRefused(
        what=f"The job cannot be submitted: there is no {program} on PATH.",
        fix="Submit it from a login node of the cluster, or leave --submit out.",
    )


def remedy(said: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what to do about an answer of a scheduler."""
    fitting = (row["fix"] for row in rows if re.match(row["match"], said, re.DOTALL))
    return next(fitting, "See what the scheduler says; without --submit envkit prints the script.")
