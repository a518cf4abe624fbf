"""A batch system as envkit uses it: it writes, takes, shows, explains and cancels jobs.

Each has a module and a TOML file beside it; ``knowledge/schedulers.toml`` names them all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from envkit.errors import EnvkitError
from envkit.jobs.job import Job
from envkit.jobs.submit import Submitted

if TYPE_CHECKING:
    from envkit.environments.receipt import Receipt
    from envkit.machine.site import Site

# States have the names that Slurm gives them; other schedulers translate theirs.
WAITING = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING", "RESV_DEL_HOLD"}
LOST = {
    *("TIMEOUT", "DEADLINE", "CANCELLED", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "REVOKED"),
    *("KILLED", "FORGOTTEN"),
}


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """A scheduler's record of a job, or of a task of an array; ``seconds`` is how long it has run, where asked."""

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
        return self.state in {"COMPLETED", "FAILED"} or self.is_lost

    @property
    def is_lost(self) -> bool:
        """Whether it has ended before its command did, or nobody knows how."""
        return self.state in LOST


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """The scheduler says nothing of a job. If that goes on, or at once if ``final``, ``outcome`` is used or raised."""

    outcome: JobStatus | EnvkitError
    final: bool = False


@dataclass(frozen=True, kw_only=True)
class JobReason:
    """Why a job waits, or how it ended: what the scheduler says, what that means, and what to do."""

    said: str
    cause: str = ""
    remedy: str = ""
    never_starts: bool = False

    @property
    def meaning(self) -> str:
        """The cause, and what to do; nothing where neither is known."""
        return f"{self.cause} {self.remedy}".strip()


class Scheduler(Protocol):
    """A batch system: a module with these names and functions.

    ``NAME`` is its sub-command of ``envkit job``, whose help is ``HELP``; ``TITLE`` is what people call it. ``SUBMITS``
    and ``CANCELS`` are its programs for that, ``QUEUE`` is its word for a queue, and ``TASK`` the variable that tells a
    task of an array which it is, empty where envkit writes no arrays for it.
    """

    NAME: str
    TITLE: str
    HELP: str
    SUBMITS: str
    CANCELS: str
    QUEUE: str
    TASK: str

    def text(self, job: Job, environment: "Receipt", site: "Site | None", *, array: str, is_followed: bool) -> str:
        """Return the batch script of a job in an environment. Raises UsageProblem for what cannot be written."""

    def submit(self, script: bytes) -> Submitted:
        """Hand a script over. Raises JobRefused, which says what to do."""

    def poll(self, job: Submitted, last: Sequence[JobStatus]) -> Sequence[JobStatus] | NoAnswer:
        """Ask once how a job is, a record for each task of an array; ``last`` is what was said before."""

    def explain(self, number: str, job_status: JobStatus) -> JobReason:
        """Say why a job waits, or how one ended that is lost."""

    def position(self, job: Submitted, job_status: JobStatus) -> str | None:
        """Return where a job stands in its queue, empty if nobody knows; None where there is nothing to ask for."""

    def cancel(self, job: Submitted) -> str | None:
        """Cancel a job; return what the scheduler says if it did not, which may be nothing, None if it did."""
