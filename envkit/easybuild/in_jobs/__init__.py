"""Building what is missing of a plan in jobs of Slurm, one for each module.

eb submits them, each after those that it needs; envkit follows them all.
"""

import re
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from filelock import FileLock
from rich.console import Console

from envkit.easybuild import eb_command
from envkit.easybuild.build import cause, claimed, durations, record
from envkit.easybuild.in_jobs.failed import UNSEEN, failure
from envkit.easybuild.in_jobs.progress import JobsProgress, ModuleJob, blame
from envkit.environments import receipt
from envkit.environments.prefix import Tree
from envkit.errors import BuildFailed, EnvkitError, Interrupted, JobRefused
from envkit.jobs import several, slurm
from envkit.jobs.follow import HOPELESS, pause_s
from envkit.jobs.scheduler import JobStatus
from envkit.jobs.submit import remedy
from envkit.planning.plan import Plan
from envkit.report.progress import Events, say
from envkit.system import process

NUMBER = re.compile(r"^Submitted batch job (\d+)", re.MULTILINE)
SEEN_S = 60.0  # a file system that nodes share may show late what they have written
LOOK_S = 0.2


def build(
    job: eb_command.Build, words: Sequence[str], seconds: Mapping[str, int], console: Console, earlier: Path | None
) -> None:
    """Build what is missing; ``words`` are what sbatch is told of each job.

    Jobs that an ``earlier`` call has left, which had its logs there, are followed first. Raises BuildFailed, DiskFull,
    HostProblem, JobLost, JobRefused and Interrupted.
    """
    with claimed(job, console) as held:
        times = durations(job.tree, list(held), seconds)
        left = left_over(earlier, job) if earlier else []
        if left and earlier:
            say(console, f"{len(left)} jobs of an earlier call are still there: {', '.join(o.number for o in left)}")
            follow(left, replace(job, folder=earlier), times, held, console)
        missing = [module for module in held if not job.tree.has(module)]
        if missing:
            say(console, f"Building {len(missing)} of {len(job.plan.steps)} modules in jobs; logs: {job.told}")
            follow(submitted(job, words), job, times, held, console)
    shutil.rmtree(job.folder / "tmp", ignore_errors=True)


def read(folder: Path, plan: Plan) -> list[ModuleJob]:
    """Return the jobs that were submitted, in the order of building, from what eb's hooks have told."""
    events = [event for event in Events(folder / "events.jsonl").new() if event["event"] == "submitted"]
    found = dict[str, str]()
    for event in events:
        if match := NUMBER.search(event["output"] or ""):
            found |= {s.module: match[1] for s in plan.steps if f" {s.easyconfig} " in event["command"]}
    return [
        ModuleJob(step=step, number=number, told=Events(folder / "jobs" / f"{number}.jsonl"))
        for step in plan.steps
        if (number := found.get(step.module))
    ]


def are_left(folder: Path, plan: Plan) -> bool:
    """Say whether jobs of an earlier call, which had its logs in a folder, have not ended."""
    jobs = read(folder, plan)
    return bool(jobs) and any(not one.has_ended for one in settled([one.number for one in jobs]).values())


def left_over(folder: Path, job: eb_command.Build) -> list[ModuleJob]:
    """Return the jobs of an earlier call that have not ended; what others have built since is recorded."""
    jobs = read(folder, job.plan)
    there = settled([one.number for one in jobs]) if jobs else {}
    left = [one for one in jobs if one.number in there and not there[one.number].has_ended]
    for one in jobs:
        if one not in left and job.tree.has(one.module) and receipt.built(job.tree, one.module) is None:
            record(job, one.step, there[one.number].seconds if one.number in there else 0.0)
    return left


def settled(numbers: Sequence[str]) -> dict[str, JobStatus]:
    """Return how jobs are, after those that are being ended have ended, for which a while is allowed."""
    end = time.monotonic() + SEEN_S
    while True:
        found = several.poll(numbers)
        ending = [number for number, one in found.items() if one.state == "COMPLETING"]
        if not ending or time.monotonic() > end:
            return {number: one for number, one in found.items() if number not in ending}
        time.sleep(1)


def submitted(job: eb_command.Build, words: Sequence[str]) -> list[ModuleJob]:
    """Have eb submit the jobs; return them in the order of building. Where not all are taken, none is left."""
    try:
        status = eb_command.submit(job, words, lambda: None)
    except Interrupted as stop:
        left = several.printing_into(job.told)  # eb may have been stopped before its hooks told of the last
        why = several.cancel(left)
        stop.what += f" The {len(left)} jobs that were submitted are cancelled." if left and not why else ""
        stop.why = why
        raise
    jobs = read(job.folder, job.plan)
    if status or not jobs:
        several.cancel([one.number for one in jobs])
        raise not_submitted(job, len(jobs))
    return jobs


def not_submitted(job: eb_command.Build, taken: int) -> JobRefused | BuildFailed:
    """Say why eb did not submit every job."""
    events = Events(job.events).new()
    cancelled = f" The {taken} that were taken are cancelled." if taken else ""
    refused = [event["output"].strip() for event in events if event["event"] == "submitted" and event["status"]]
    if refused:
        said = refused[-1].replace("sbatch: error: ", "")
        fix = remedy(said, slurm.table()["refusal"])
        return JobRefused(what=f"A job was not taken.{cancelled}", why=f"sbatch says: {said}", fix=fix)
    why = "\n".join(event["message"] for event in events if event["event"] == "failed")
    found = cause((job.log,), why or f"See {job.log}.", job.prefix)
    return BuildFailed(what=f"eb submitted no jobs.{cancelled}", why=found.why, fix=f"{found.fix}\nLog: {found.log}")


def follow(
    jobs: Sequence[ModuleJob],
    job: eb_command.Build,
    seconds: Mapping[str, int],
    held: Mapping[str, FileLock],
    console: Console,
) -> None:
    """Tell of the jobs until the last has ended; Ctrl-C cancels them, a lost terminal leaves them alone."""
    try:
        with process.interruptible(), JobsProgress(console, jobs, seconds) as shown:
            watch(jobs, job, held, shown)
    except Interrupted as stop:
        raise stopped(jobs, stop) from None
    if not all(one.is_done for one in jobs):
        raise failure(jobs, job)


def watch(jobs: Sequence[ModuleJob], job: eb_command.Build, held: Mapping[str, FileLock], shown: JobsProgress) -> None:
    """Follow the jobs; what is built is recorded at once, and what can never be is cancelled at once."""
    began, in_vain = time.monotonic(), 0
    cancelled, recorded = set[str](), set[str]()
    while True:
        ask(jobs, job.tree)
        for one in jobs:
            if one.is_done and one.module not in recorded:
                recorded.add(one.module)
                record(job, one.step, one.record.seconds)
                if one.module in held:
                    held[one.module].release(force=True)
        never = {one.number for one in jobs if one.culprit and not one.record.has_ended} - cancelled
        several.cancel(sorted(never))
        cancelled |= never
        shown.tell()
        if all(one.is_settled for one in jobs):
            return
        in_vain = in_vain + 1 if any(hopeless(one) for one in jobs) else 0
        if in_vain == HOPELESS:
            raise never_starts(jobs)
        asked = time.monotonic()
        while time.monotonic() - asked < pause_s(asked - began):
            time.sleep(LOOK_S)


def ask(jobs: Sequence[ModuleJob], tree: Tree) -> None:
    """Bring what is known of the jobs up to date."""
    open_ones = [one for one in jobs if not one.record.has_ended]
    found = several.poll([one.number for one in open_ones])
    for one in open_ones:
        one.take(seen(one, found.get(one.number, JobStatus(state="COMPLETED", seconds=one.record.seconds)), tree))
    blame(jobs)


def seen(job: ModuleJob, status: JobStatus, tree: Tree) -> JobStatus:
    """Return what is known of a job: it is done when its module is there, for which a while is allowed."""
    if status.state != "COMPLETED" or tree.has(job.module):
        return status
    job.ended = job.ended or time.time()
    if time.time() - job.ended < SEEN_S:
        return replace(status, state="COMPLETING")
    return replace(status, state="FAILED", reason=UNSEEN)


def hopeless(job: ModuleJob) -> bool:
    """Say whether Slurm gives a reason for which a job never starts; that of jobs which another fails is not meant."""
    reason = job.record.reason
    return (
        job.record.state == "PENDING"
        and not reason.startswith("Dependency")
        and bool(slurm.why_waiting(reason).get("never_starts"))
    )


def never_starts(jobs: Sequence[ModuleJob]) -> JobRefused:
    """Cancel all jobs, for one of them never starts."""
    one = next(one for one in jobs if hopeless(one))
    left = several.cancel([other.number for other in jobs if not other.record.has_ended])
    row = slurm.why_waiting(one.record.reason)
    return JobRefused(
        what=f"Job {one.number}, which builds {one.module}, would never start. "
        + (f"The jobs could not be cancelled: {left}" if left else "The jobs were cancelled."),
        why=f"Slurm says: {one.record.reason}. {row['cause']}",
        fix=row["remedy"],
    )


def stopped(jobs: Sequence[ModuleJob], stop: EnvkitError) -> Interrupted:
    """Cancel the jobs after Ctrl-C, and say so."""
    number = stop.exit_code - 128
    left = [one.number for one in jobs if not one.record.has_ended]
    named, end = ", ".join(left), f"scancel {' '.join(left)}"
    if number != signal.SIGINT:
        return Interrupted(
            signal_number=number,
            what=f"{stop.what} Jobs {named} go on.",
            fix=f"Run the same command again: it follows them. Cancel them with: {end}",
        )
    if why := several.cancel(left):
        what = f"{stop.what} Jobs {named} could not be cancelled."
        return Interrupted(signal_number=number, what=what, why=why, fix=f"Cancel them with: {end}")
    return Interrupted(signal_number=number, what=f"{stop.what} Slurm was asked to cancel jobs {named}.")
