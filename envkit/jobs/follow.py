"""Following a job of Slurm: why it waits, where it runs, what it says, how it ends."""

import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from envkit.errors import EnvkitError, Interrupted, JobLost, JobRefused
from envkit.jobs.submit import ANSWER_S, Submitted, table
from envkit.system import process

LOG_S = 0.2
POSITION_S = 30.0
PATIENCE_S = 60.0
HOPELESS = 3
WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING", "RESV_DEL_HOLD"}
FIELD = re.compile(r"^\s*(JobState|Reason|ExitCode|StdOut|Partition|NodeList|ArrayTaskId)=(.*)$")
INLINE = re.compile(r"\b(JobState|Reason|ExitCode|ArrayTaskId)=(\S*)")


@dataclass(frozen=True, kw_only=True)
class Record:
    """What Slurm says of a job, or of a task of an array; ``seconds`` is how long it has run, where that was asked."""

    state: str
    reason: str = ""
    status: int = 0
    log: str = ""
    partition: str = ""
    nodes: str = ""
    task: str = ""
    seconds: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in {"COMPLETED", "FAILED"} or self.state in table()["ended"]


@dataclass(kw_only=True)
class Said:
    """What the user knows already: the last message, the place in the queue and when it was asked for, how much of the
    log; how often in a row Slurm gave a reason for which the job never starts; ``to`` is where the log goes."""

    to: TextIO = field(default_factory=lambda: sys.stdout)
    message: str = ""
    place: str = ""
    hopeless: int = 0
    offset: int = 0
    queue_asked: float = field(default=-POSITION_S)


def follow(job: Submitted, to: TextIO | None = None) -> int:
    """Tell of a job until it ends, and pour its log to standard output or another stream; return its command's status.

    Raises JobLost where it ended before its command did, JobRefused where it would never start, after it was cancelled,
    and Interrupted, after it was cancelled on Ctrl-C.
    """
    with process.interruptible():
        try:
            return outcome(job, watch(job, to or sys.stdout))
        except Interrupted as stop:
            raise cancelled(job, stop) from None


def watch(job: Submitted, to: TextIO) -> list[Record]:
    """Follow a job to its end; return its last records."""
    said, began = Said(to=to), time.monotonic()
    while True:
        found = look(job)
        tell(job, found, said)
        give_up(job, found, said)
        if found and all(record.has_ended for record in found):
            pour(found, said)
            return found
        asked = time.monotonic()
        while time.monotonic() - asked < pause_s(asked - began):
            pour(found, said)
            time.sleep(LOG_S)


def pause_s(since: float) -> float:
    """Return how long to wait before Slurm is asked again: many follow their jobs on a busy cluster."""
    return 1.0 if since < 60 else 5.0 if since < 600 else 10.0


def look(job: Submitted) -> list[Record]:
    """Ask Slurm for a job. Raises JobRefused where it has not answered for long, or does not know it."""
    end = time.monotonic() + PATIENCE_S
    while True:
        done = process.capture(["scontrol", *job.place, "show", "job", job.number], timeout_s=ANSWER_S)
        if done.status == 0 and (found := records(done.stdout)):
            return found
        gone = "Invalid job id" in done.stderr
        if gone and (found := accounted(job)):
            return found
        if gone or time.monotonic() > end:
            raise JobRefused(
                what=f"Slurm does not say any more how job {job.number} is.",
                why=done.stderr.strip(),
                fix=f"See with 'squeue -j {job.number}', or 'sacct -j {job.number}', and in its log.",
            )
        time.sleep(min(5.0, PATIENCE_S))


def records(text: str) -> list[Record]:
    """Read what ``scontrol show job`` prints."""
    return [record(block) for block in re.split(r"\n\s*\n", text) if "JobState=" in block]


def record(block: str) -> Record:
    """Read what is said of one job. Values with spaces stand alone on their lines, but for the first."""
    found = dict[str, str]()
    for line in block.splitlines():
        if match := FIELD.match(line):
            found.setdefault(match[1], match[2] if match[1] == "StdOut" else match[2].partition(" ")[0])
        if not line.lstrip().startswith(("Command=", "WorkDir=", "Std", "Comment=")):
            for name, value in INLINE.findall(line):
                found.setdefault(name, value)
    return Record(
        state=found.get("JobState", ""),
        reason=found.get("Reason", ""),
        status=status(found.get("ExitCode", "")),
        log=found.get("StdOut", ""),
        partition=found.get("Partition", ""),
        nodes=found.get("NodeList", "").replace("(null)", ""),
        task=found.get("ArrayTaskId", ""),
    )


def status(exit_code: str) -> int:
    """Return the status that Slurm writes as STATUS:SIGNAL."""
    number, _, signal_number = exit_code.partition(":")
    if signal_number.isdigit() and int(signal_number):
        return 128 + int(signal_number)
    return int(number) if number.isdigit() else 0


def accounted(job: Submitted) -> list[Record]:
    """Ask Slurm's accounting, which not every cluster has, for a job that the controller has forgotten."""
    argv = ["sacct", *job.place, "-nPX", "-j", job.number, "-o", "State,ExitCode"]
    rows = [line.split("|") for line in process.capture(argv, timeout_s=ANSWER_S).stdout.splitlines()]
    return [Record(state=row[0].split()[0], status=status(row[1])) for row in rows if len(row) == 2 and row[0]]


def tell(job: Submitted, found: Sequence[Record], said: Said) -> None:
    """Say on standard error what has changed."""
    message = summary(found) if len(found) > 1 or found[0].task else news(job, found[0])
    if message and message != said.message:
        print(f"envkit: job {job.number} {message}", file=sys.stderr, flush=True)
        said.message = message
    waits = found[0].state == "PENDING" and found[0].reason in {"Priority", "Resources"}
    if waits and time.monotonic() - said.queue_asked >= POSITION_S:
        said.queue_asked = time.monotonic()
        place = position(job, found[0].partition)
        if place and place != said.place:
            print(f"envkit: job {job.number} is {place}", file=sys.stderr, flush=True)
            said.place = place


def news(job: Submitted, found: Record) -> str:
    """Return what is to be said of a job; of one that has ended, nothing yet."""
    if found.has_ended:
        return ""
    if found.state in WAITING:
        return f"waits: {found.reason or found.state}. {explained(job, found.reason)}".rstrip()
    if found.state == "RUNNING":
        return f"runs on {found.nodes}; its log is {found.log}"
    return "is ending" if found.state == "COMPLETING" else f"is {found.state}"


def summary(found: Sequence[Record]) -> str:
    """Return what is to be said of an array."""
    states = Counter(record.state for record in found)
    return "has " + ", ".join(f"{number} {state}" for state, number in sorted(states.items()))


def explained(job: Submitted, reason: str) -> str:
    """Return the cause and the remedy of a reason to wait, as far as they are known."""
    row = known(reason)
    return f"{row['cause']} {row['remedy']}".replace("{job}", job.number) if row else ""


def known(reason: str) -> Mapping[str, Any]:
    """Return what the table says of a reason to wait; nothing where it is not in it."""
    return next((row for row in table()["reason"] if re.match(row["match"], reason)), {})


def give_up(job: Submitted, found: Sequence[Record], said: Said) -> None:
    """Cancel a job that never starts: Slurm gave such a reason some times in a row. Raises JobRefused."""
    row = known(found[0].reason) if found else {}
    hopeless = row.get("never_starts") and all(record.state == "PENDING" for record in found)
    said.hopeless = said.hopeless + 1 if hopeless else 0
    if said.hopeless == HOPELESS:
        done = process.capture(["scancel", *job.place, job.number], timeout_s=ANSWER_S)
        left = f" It could not be cancelled: {done.stderr.strip()}" if done.status else " It was cancelled."
        raise JobRefused(
            what=f"Job {job.number} would never start.{left}",
            why=f"Slurm says: {found[0].reason}. {row['cause']}",
            fix=row["remedy"],
        )


def position(job: Submitted, partition: str) -> str:
    """Return where a job stands in the queue of its partition."""
    words = ["--noheader", "--states=PENDING", f"--partition={partition}", "--sort=-p,i", "--format=%A"]
    queue = process.capture(["squeue", *job.place, *words], timeout_s=ANSWER_S).stdout.split()
    return f"{queue.index(job.number) + 1} of {len(queue)} in the queue of {partition}" if job.number in queue else ""


def pour(found: Sequence[Record], said: Said) -> None:
    """Write what is new in the log of a job; those of an array are left to their files."""
    if len(found) != 1 or found[0].task or not found[0].log:
        return
    with suppress(FileNotFoundError, PermissionError), Path(found[0].log).open("rb") as stream:
        stream.seek(said.offset)
        while block := stream.read(1 << 16):
            said.offset += len(block)
            said.to.buffer.write(block)
            said.to.buffer.flush()


def outcome(job: Submitted, found: Sequence[Record]) -> int:
    """Return the status of a job that has ended: the first that is not 0 of an array. Raises JobLost."""
    for one in found:
        task = f"{job.number}_{one.task}" if one.task else job.number
        if one.state in table()["ended"]:
            raise lost(task, one)
        if one.state == "FAILED":
            if not one.status:
                raise JobLost(what=f"Job {task} failed before its command ran.", why=f"Slurm says: {one.reason}.")
            print(f"envkit: job {task} ended with status {one.status}", file=sys.stderr)
            return one.status
    print(f"envkit: job {job.number} is done", file=sys.stderr)
    return 0


def lost(task: str, found: Record) -> JobLost:
    """Say how a job ended whose command did not."""
    row = table()["ended"][found.state]
    where = f" It ran on {found.nodes}." if found.nodes else ""
    reason = f", {found.reason}" if found.reason not in {"", "None"} else ""
    return JobLost(
        what=f"Job {task} {row['what']}.",
        why=f"Slurm says: {found.state}{reason}.{where}" + (f" Its log is {found.log}" if found.log else ""),
        fix=row["fix"].replace("{job}", task),
    )


def cancelled(job: Submitted, stop: EnvkitError) -> Interrupted:
    """Cancel a job after Ctrl-C, and say so; a lost terminal leaves it alone."""
    number = stop.exit_code - 128
    if number != signal.SIGINT:
        return Interrupted(
            signal_number=number,
            what=f"{stop.what} Job {job.number} goes on.",
            fix=f"Cancel it with: scancel {job.number}",
        )
    done = process.capture(["scancel", *job.place, job.number], timeout_s=ANSWER_S)
    if done.status:
        return Interrupted(
            signal_number=number,
            what=f"{stop.what} Job {job.number} could not be cancelled.",
            why=done.stderr.strip(),
            fix=f"Cancel it with: scancel {job.number}",
        )
    return Interrupted(signal_number=number, what=f"{stop.what} Slurm was asked to cancel job {job.number}.")
