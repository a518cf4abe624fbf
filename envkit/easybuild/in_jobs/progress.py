"""Modules that are built in jobs of Slurm, one for each: how they are, for people."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from envkit.jobs import slurm
from envkit.jobs.scheduler import WAITING, JobStatus
from envkit.planning.plan import Step
from envkit.report.progress import QUIET_S, Events, clock, say

WAITS_FOR = "waits for"
UNSAID = {"", "None", "Dependency"}  # reasons to wait that say nothing more
UNKNOWN_S = 5.0  # what a module counts of which it is not known how long it takes


@dataclass(kw_only=True)
class ModuleJob:
    """A module, and the job that builds it: what Slurm says of it, and what its eb has told.

    ``doing`` is the step that eb is in, ``log`` its log, ``said`` why it failed; ``ended`` is a time in s since the
    epoch. ``culprit`` is the module that failed, because of which this one is not built: its own name where it is that.
    """

    step: Step
    number: str
    told: Events
    record: JobStatus = field(default_factory=lambda: JobStatus(state="PENDING"))
    doing: str = ""
    log: Path | None = None
    said: str = ""
    ended: float = 0.0
    culprit: str = ""

    @property
    def module(self) -> str:
        """What it builds."""
        return self.step.module

    @property
    def is_done(self) -> bool:
        """Whether it has built its module."""
        return self.record.state == "COMPLETED"

    @property
    def is_settled(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.record.has_ended or bool(self.culprit)

    def take(self, record: JobStatus) -> None:
        """Take what Slurm says now, and what eb has told since."""
        self.record = record
        for event in self.told.new():
            if event["event"] == "begin":
                self.log = Path(event["log"])
            elif event["event"] == "step":
                self.doing = event["step"].removesuffix("_step")
            elif event["event"] == "failed":
                self.said, self.ended = event["message"], event["time"]
        if record.has_ended and not self.ended:
            self.ended = time.time()


def blame(jobs: Sequence[ModuleJob]) -> None:
    """Name the culprit of each job, given in the order of building, that has failed or can never start."""
    culprits = dict[str, str]()
    for one in jobs:
        above = next((culprits[name] for name in one.step.dependencies if name in culprits), "")
        has_failed = one.record.has_ended and not one.is_done
        one.culprit = above or (one.module if has_failed else "")
        if one.culprit:
            culprits[one.module] = one.culprit


def left_s(jobs: Sequence[ModuleJob], seconds: Mapping[str, int]) -> float | None:
    """Return how long it takes if nothing waits for a node; None if that is unknown, or a job takes longer than known.

    ``jobs`` are in the order of building. It is the longest way through what needs each other.
    """
    left = [one for one in jobs if not one.is_settled]
    is_late = any(one.record.seconds > seconds.get(one.module, UNKNOWN_S) for one in left)
    if is_late or not any(seconds.get(one.module) for one in left):
        return None
    ends = dict[str, float]()
    for one in left:
        own = seconds.get(one.module, UNKNOWN_S) - one.record.seconds
        ends[one.module] = own + max((ends[name] for name in one.step.dependencies if name in ends), default=0.0)
    return max(ends.values())


def state(job: ModuleJob, jobs: Sequence[ModuleJob]) -> str:
    """Return what is to be said of a job now."""
    record = job.record
    if job.culprit and job.culprit != job.module:
        return f"is not built: it needs {job.culprit}"
    if job.culprit:
        why = slurm.table()["ended"].get(record.state, {}).get("what", "failed")
        return f"{why}{f' in step {job.doing}' if job.doing else ''} after {clock(record.seconds)}"
    if job.is_done:
        return f"is done after {clock(record.seconds)}"
    if record.state == "RUNNING":
        return f"runs on {record.nodes}"
    needs = [other.module for other in jobs if other.module in job.step.dependencies and not other.is_done]
    if record.state in WAITING and needs:
        return f"{WAITS_FOR} {', '.join(needs)}"
    if record.state in WAITING:
        return "waits" if record.reason in UNSAID else f"waits: {record.reason}"
    return f"is {record.state.lower()}"


class JobsProgress:
    """Shows how every job is: on a terminal those that are not done, always up to date; elsewhere a line per change.

    ``seconds`` maps modules to the time they are known to take; without it no time left is shown.
    """

    def __init__(self, console: Console, jobs: Sequence[ModuleJob], seconds: Mapping[str, int]) -> None:
        self.console = console
        self.jobs = jobs
        self.seconds = seconds
        self.began = self.told = time.monotonic()
        self.known = dict[str, str]()
        self.live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.live = Live(get_renderable=self.screen, console=self.console, refresh_per_second=2, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def tell(self) -> None:
        """Say what has changed."""
        done = sum(one.is_done for one in self.jobs)
        for one in self.jobs:
            text, before = state(one, self.jobs), self.known.get(one.module, "")
            is_news = text != before and not (text.startswith(WAITS_FOR) and before.startswith(WAITS_FOR))
            if is_news and (self.live is None or one.is_settled):
                say(self.console, f"[{done}/{len(self.jobs)}] {one.module}: job {one.number} {text}")
            self.known[one.module] = text
            self.explain(one)
        if self.live is None and time.monotonic() - self.told > QUIET_S:
            self.told = time.monotonic()
            say(self.console, f"  {self.summary()}")

    def explain(self, job: ModuleJob) -> None:
        """Say once what it means why a job waits, where that is not another of these."""
        reason = job.record.reason
        waits = job.record.state in WAITING and reason not in UNSAID and not job.culprit
        if waits and reason not in self.known and (text := slurm.explain(job.number, job.record).meaning):
            self.known[reason] = text
            say(self.console, f"  {reason}: {text}")

    def summary(self) -> str:
        """Return how many jobs are in which state, how long it has taken and how long it will."""
        states = Counter(one.record.state.lower() for one in self.jobs)
        counted = ", ".join(f"{number} {name}" for name, number in sorted(states.items()))
        left = left_s(self.jobs, self.seconds)
        about = f", about {clock(left)} left" if left is not None else ""
        return f"{counted}; {clock(time.monotonic() - self.began)} elapsed{about}"

    def screen(self) -> Text:
        """Return what a terminal shows."""
        rows = [
            f"  {one.module}: job {one.number} {self.known.get(one.module, '')}{running(one)}"
            for one in sorted(self.jobs, key=lambda one: one.record.state in WAITING)
            if not one.is_settled
        ]
        room = max(self.console.height - 3, 1)
        more = [f"  and {len(rows) - room} more"] if len(rows) > room else []
        return Text("\n".join([self.summary(), *rows[:room], *more]), no_wrap=True, overflow="ellipsis")


def running(job: ModuleJob) -> str:
    """Return for how long a job has run, and in which step it is."""
    if job.record.state != "RUNNING":
        return ""
    return f" for {clock(job.record.seconds)}{f', step {job.doing}' if job.doing else ''}"
