"""Several jobs of Slurm at once, which no other scheduler is asked for: one question, and one end, for all of them."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from envkit.errors import JobRefused
from envkit.jobs.follow import PATIENCE_S
from envkit.jobs.job import span
from envkit.jobs.scheduler import JobStatus
from envkit.jobs.submit import ANSWER_S
from envkit.system import process

FORMAT = "%i|%T|%r|%M|%N"


def poll(numbers: Sequence[str]) -> dict[str, JobStatus]:
    """Ask Slurm for jobs; one that it has forgotten is left out. Raises JobRefused where it does not answer."""
    argv = ["squeue", "--noheader", "--states=all", f"--jobs={','.join(numbers)}", f"--format={FORMAT}"]
    end = time.monotonic() + PATIENCE_S
    while True:
        done = process.capture(argv, timeout_s=ANSWER_S)
        if done.status == 0 or "Invalid job id" in done.stderr:
            return records(done.stdout)
        if time.monotonic() > end:
            raise JobRefused(
                what="Slurm does not say any more how the jobs are.",
                why=done.stderr.strip(),
                fix=f"See with 'squeue --jobs={','.join(numbers)}', or with sacct.",
            )
        time.sleep(5)


def records(text: str) -> dict[str, JobStatus]:
    """Read what squeue prints, by the numbers of the jobs."""
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == FORMAT.count("|")]
    return {
        number: JobStatus(state=state, reason=reason, seconds=span(ran), nodes=nodes)
        for number, state, reason, ran, nodes in rows
    }


def printing_into(folder: Path) -> list[str]:
    """Return the jobs of this user that wait or run, and whose logs lie in a folder."""
    argv = ["squeue", f"--user={os.getuid()}", "--noheader", "--Format=JobID:20,STDOUT:4096"]
    rows = [line.split(maxsplit=1) for line in process.capture(argv, timeout_s=ANSWER_S).stdout.splitlines()]
    return [row[0] for row in rows if len(row) == 2 and Path(row[1].strip()).parent == folder]


def cancel(numbers: Sequence[str]) -> str:
    """Cancel jobs; return what keeps Slurm from it, nothing if nothing does."""
    done = process.capture(["scancel", *numbers], timeout_s=ANSWER_S) if numbers else None
    return done.stderr.strip() if done and done.status else ""
