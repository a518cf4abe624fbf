"""Handing a job to its scheduler."""

import functools
import re
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.errors import JobRefused
from envkit.system import process
from envkit.system.resources import data

ANSWER_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A job that a scheduler has taken; ``cluster`` is named where Slurm has several."""

    number: str
    cluster: str = ""

    @property
    def place(self) -> tuple[str, ...]:
        """The words that tell Slurm's commands which cluster."""
        return ("-M", self.cluster) if self.cluster else ()


def sbatch(script: bytes) -> Submitted:
    """Submit a batch script to Slurm. Raises JobRefused."""
    answer = submit(["sbatch", "--parsable"], script)
    number, _, cluster = answer.partition(";")
    return Submitted(number=number, cluster=cluster)


def qsub(script: bytes) -> Submitted:
    """Submit a batch script to PBS. Raises JobRefused."""
    return Submitted(number=submit(["qsub"], script))


def submit(argv: Sequence[str], script: bytes) -> str:
    """Return the last line that a scheduler answers to a script."""
    with tempfile.TemporaryDirectory(prefix="envkit-job-") as folder:
        path = Path(folder) / "job.sh"
        path.write_bytes(script)
        done = process.capture([*argv, str(path)], timeout_s=ANSWER_S)
    answer = done.stdout.strip().rpartition("\n")[2]
    if done.status or not re.fullmatch(r"[\w.\[\]-]+(;[\w-]+)?", answer):
        raise refused(argv[0], done)
    return answer


def refused(program: str, done: process.Completed) -> JobRefused:
    """Say why a scheduler did not take a job."""
    said = (done.stderr.strip() or done.stdout.strip()).replace(f"{program}: error: ", "")
    if done.status == 127:
        return absent(program, said)
    return JobRefused(what="The job was not taken.", why=f"{program} says: {said}", fix=remedy(said))


def absent(program: str, said: str = "") -> JobRefused:
    """Say that there is no scheduler here."""
    return JobRefused(
        what=f"The job cannot be submitted: there is no {program} on PATH.",
        why=said,
        fix="Submit it from a login node of the cluster, or leave --submit out.",
    )


def remedy(said: str) -> str:
    """Return what to do about an answer of a scheduler."""
    rows = table()["refusal"]
    fitting = (row["fix"] for row in rows if re.match(row["match"], said, re.DOTALL))
    return next(fitting, "See what the scheduler says; without --submit envkit prints the script.")


@functools.cache
def table() -> Mapping[str, Any]:
    """Return slurm.toml."""
    return tomllib.loads(data("jobs/slurm.toml").read_text())
