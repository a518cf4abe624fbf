"""Following a job: why it waits, where it runs, what it says, how it ended; whatever its scheduler."""

import codecs
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from envkit.errors import EnvkitError, Interrupted, JobLost, JobRefused
from envkit.jobs.registry import SCHEDULERS
from envkit.jobs.scheduler import WAITING, JobReason, JobStatus, NoAnswer, Scheduler
from envkit.jobs.submit import Submitted
from envkit.report.words import shown
from envkit.system import files, process

LOG_S = 0.2
POSITION_S = 30.0
PATIENCE_S = 60.0
HOPELESS = 3


@dataclass(kw_only=True)
class SaidSoFar:
    """All that the user knows already: the last message, the place in the queue and when it was asked for, how much of
    the log; how often in a row the scheduler gave a reason for which the job never starts. The log goes to ``to``."""

    to: TextIO = field(default_factory=lambda: sys.stdout)
    message: str = ""
    place: str = ""
    hopeless: int = 0
    offset: int = 0
    queue_asked: float = field(default=-POSITION_S)
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))


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


def watch(job: Submitted, to: TextIO) -> Sequence[JobStatus]:
    """Follow a job to its end; return its last records."""
    so_far, began = SaidSoFar(to=to), time.monotonic()
    records: Sequence[JobStatus] = ()
    while True:
        records = poll(job, records)
        tell(job, records, so_far)
        give_up(job, records, so_far)
        if records and all(record.has_ended for record in records):
            pour(records, so_far)
            return records
        polled = time.monotonic()
        while time.monotonic() - polled < pause_s(polled - began):
            pour(records, so_far)
            time.sleep(LOG_S)


def pause_s(since: float) -> float:
    """Return how long to wait before the scheduler is asked again: many follow their jobs on a busy cluster."""
    return 1.0 if since < 60 else 5.0 if since < 600 else 10.0


def poll(job: Submitted, last: Sequence[JobStatus] = ()) -> Sequence[JobStatus]:
    """Ask for a job, again and again where its scheduler is silent; ``last`` is what it said before.

    Raises JobRefused where it has not answered for long, or does not know the job.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        answer = SCHEDULERS[job.scheduler].poll(job, last)
        if not isinstance(answer, NoAnswer):
            return answer
        if answer.final or time.monotonic() > end:
            if isinstance(answer.outcome, EnvkitError):
                raise answer.outcome
            return [answer.outcome]
        time.sleep(min(5.0, PATIENCE_S))


def tell(job: Submitted, statuses: Sequence[JobStatus], said: SaidSoFar) -> None:
    """Say on standard error what has changed."""
    message = summary(statuses) if len(statuses) > 1 or statuses[0].task else news(job, statuses[0])
    if message and message != said.message:
        print(f"envkit: job {job.number} {shown(message)}", file=sys.stderr, flush=True)
        said.message = message
    if statuses[0].state == "PENDING" and time.monotonic() - said.queue_asked >= POSITION_S:
        place = SCHEDULERS[job.scheduler].position(job, statuses[0])
        if place is not None:
            said.queue_asked = time.monotonic()
        if place and place != said.place:
            print(f"envkit: job {job.number} is {shown(place)}", file=sys.stderr, flush=True)
            said.place = place


def news(job: Submitted, status: JobStatus) -> str:
    """Return what is to be said of a job; of one that has ended, nothing yet."""
    if status.has_ended:
        return ""
    if status.state in WAITING:
        words = SCHEDULERS[job.scheduler].explain(job.number, status)
        return f"waits: {words.said}. {words.meaning}".rstrip()
    if status.state == "RUNNING":
        return f"runs on {status.nodes}; its log is {status.log}"
    return "is ending" if status.state == "COMPLETING" else f"is {status.state}"


def summary(statuses: Sequence[JobStatus]) -> str:
    """Return what is to be said of an array."""
    states = Counter(record.state for record in statuses)
    return "has " + ", ".join(f"{number} {state}" for state, number in sorted(states.items()))


def give_up(job: Submitted, statuses: Sequence[JobStatus], said: SaidSoFar) -> None:
    """Cancel a job that never starts: its scheduler gave such a reason some times in a row. Raises JobRefused."""
    scheduler = SCHEDULERS[job.scheduler]
    words = scheduler.explain(job.number, statuses[0]) if statuses else JobReason(said="")
    hopeless = words.never_starts and all(record.state == "PENDING" for record in statuses)
    said.hopeless = said.hopeless + 1 if hopeless else 0
    if said.hopeless == HOPELESS:
        why = scheduler.cancel(job)
        ending = " It was cancelled." if why is None else f" It could not be cancelled: {why}"
        raise JobRefused(
            what=f"Job {job.number} would never start.{ending}",
            why=f"{scheduler.TITLE} says: {words.said}. {words.cause}",
            fix=words.remedy,
        )


def pour(statuses: Sequence[JobStatus], said: SaidSoFar) -> None:
    """Write what is new in the log of a job; those of an array are left to their files."""
    if len(statuses) != 1 or statuses[0].task or not statuses[0].log:
        return
    try:
        stream = files.open_plain(Path(statuses[0].log))
    except OSError:  # not there yet, closed to this user, no plain file
        return
    with stream:  # what standard output says, such as that nobody reads it any more, is not for here
        stream.seek(said.offset)
        while block := stream.read(1 << 16):
            said.offset += len(block)
            said.to.buffer.write(harmless(said, block) if said.to.isatty() else block)
            said.to.buffer.flush()


def harmless(said: SaidSoFar, block: bytes) -> bytes:
    """Return a block of a log without what a terminal obeys; a carriage return ends a line."""
    return shown(said.decoder.decode(block).replace("\r\n", "\n").replace("\r", "\n")).encode()


def outcome(job: Submitted, statuses: Sequence[JobStatus]) -> int:
    """Return the status of a job that has ended: the first that is not 0 of an array. Raises JobLost."""
    scheduler = SCHEDULERS[job.scheduler]
    for record in statuses:
        task = f"{job.number}_{record.task}" if record.task else job.number
        if record.is_lost:
            raise lost(scheduler, task, record)
        if record.state == "FAILED":
            if not record.status:
                why = f"{scheduler.TITLE} says: {record.reason}."
                raise JobLost(what=f"Job {task} failed before its command ran.", why=why)
            print(f"envkit: job {task} ended with status {record.status}", file=sys.stderr)
            return record.status
    print(f"envkit: job {job.number} is done", file=sys.stderr)
    return 0


def lost(scheduler: Scheduler, task: str, status: JobStatus) -> JobLost:
    """Say how a job ended whose command did not."""
    words = scheduler.explain(task, status)
    where = f" It ran on {status.nodes}." if status.nodes else ""
    return JobLost(
        what=f"Job {task} {words.cause}.",
        why=f"{scheduler.TITLE} says: {words.said}.{where}" + (f" Its log is {status.log}" if status.log else ""),
        fix=words.remedy,
    )


def cancelled(job: Submitted, stop: EnvkitError) -> Interrupted:
    """Cancel a job after Ctrl-C, and say so; a lost terminal leaves it alone."""
    scheduler, number = SCHEDULERS[job.scheduler], stop.exit_code - 128
    fix = f"Cancel it with: {scheduler.CANCELS} {job.number}"
    if number != signal.SIGINT:
        return Interrupted(signal_number=number, what=f"{stop.what} Job {job.number} goes on.", fix=fix)
    why = scheduler.cancel(job)
    if why is not None:
        what = f"{stop.what} Job {job.number} could not be cancelled."
        return Interrupted(signal_number=number, what=what, why=why, fix=fix)
    what = f"{stop.what} {scheduler.TITLE} was asked to cancel job {job.number}."
    return Interrupted(signal_number=number, what=what)
