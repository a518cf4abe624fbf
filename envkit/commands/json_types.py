"""The JSON that commands print with --json, as types: the reference makes its schemas of them.

``version`` changes with the form; fields may be added without that. Sizes are bytes, times ISO 8601.
"""

from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union

import msgspec

from envkit.binary.build_flags import BuildFlags
from envkit.environments.lockfile import Lock
from envkit.environments.manifest import Damage
from envkit.install.listing import Lacking
from envkit.jobs.registry import SCHEDULERS
from envkit.jobs.submit import Submitted
from envkit.planning.method import Offered, PlannedMpi

TYPES = {
    "list": "install.listing:Listing",
    "install --dry-run": "commands.json_types:ReportedPlan",
    "fetch": "commands.json_types:Fetched",
    "upgrade": "install.upgrade:Upgrade",
    "repair": "commands.json_types:Repaired",
    "remove": "commands.json_types:Removed",
    "clean": "install.cleaning:Cleaning",
    "cache push": "install.cache_push:Pushed",
    "cache pull": "install.cache_pull:Pulled",
    "cache list": "cache.contents:CacheListing",
    "cache show": "cache.manifest:Manifest",
    "cache verify": "cache.contents:Verified",
    "cache prune": "cache.contents:Gone",
    "check-build": "commands.json_types:BuildCheck",
    "compat": "compat.report:Report",
    "doctor": "doctor.report:Report",
    "verify": "verify.report.model:Report",
    "eessi list": "commands.json_types:Sessions",
    "eessi repositories": "commands.json_types:Repositories",
    **{f"job {name}": "commands.json_types:WrittenJob" for name in SCHEDULERS},
}  # by command; the receipts of 'show' are of the method's own type


class ReportedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A module or layer of a plan; ``there``: it need not be made."""

    name: str
    there: bool


class ListedSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source of a plan, or one that was fetched."""

    name: str
    sha256: str | None
    there: bool


class ReportedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of ``envkit install --dry-run``: ``problems`` is what stands in its way, ``cached`` what caches have.

    ``cache_problems`` is why caches, keys, or builds that lack a trusted signature are passed over.
    ``unanswered`` is which files no place has answered about in time; that stops nothing yet. ``mpi`` is null where the
    stack brings its own.
    """

    version: int = 1
    name: str
    method: str
    framework: str
    accelerator: str
    prefix: str
    steps: tuple[ReportedStep, ...]
    sources: tuple[ListedSource, ...]
    problems: tuple[Lacking, ...]
    unanswered: tuple[Lacking, ...] = ()
    lock: Lock
    mpi: PlannedMpi | None = None
    cached: tuple[Offered, ...] = ()
    cache_problems: tuple[str, ...] = ()


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``envkit fetch``: the sources in the cache, the bundle that was written.

    ``to`` is the cache of builds that they were put into, ``sent`` how many of them were not there before.
    """

    version: int = 1
    name: str
    cache: str
    sources: tuple[ListedSource, ...]
    damaged: tuple[str, ...]
    bundle: str | None
    to: str | None = None
    sent: int = 0


class Repaired(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``envkit repair``; ``state``: nothing is damaged, something is, it is mended, or did not pass."""

    version: int = 1
    name: str
    state: Literal["whole", "damaged", "repaired", "kept"]
    damaged: tuple[Damage, ...]
    files: int
    size: int
    unlisted: tuple[str, ...]


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``envkit remove``: which of its modules have gone, and which are kept."""

    version: int = 1
    name: str
    removed: tuple[str, ...]
    kept: tuple[str, ...]


class BuildCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``envkit check-build``; ``works``: the extension of the environment's framework loads."""

    version: int = 1
    name: str
    works: bool
    build: BuildFlags


class WrittenJob(msgspec.Struct, frozen=True, kw_only=True):
    """The report of ``envkit job slurm`` and ``envkit job pbs``: the script, the file it was written to, the job.

    ``job`` is the number that the scheduler gave it, null where it was not submitted; ``log`` is "" where the scheduler
    says that later.
    """

    version: int = 1
    name: str
    scheduler: str
    script: str
    file: str | None
    job: str | None
    cluster: str
    log: str


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions that ``envkit eessi list`` shows."""

    version: int
    sessions: tuple["ReportedSession", ...]


class ReportedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session of EESSI."""

    name: str
    repository: str
    release: str
    access: str
    target: str
    modules: tuple[str, ...]
    created: str
    in_use: bool


class Repositories(msgspec.Struct, frozen=True, kw_only=True):
    """The repositories that ``envkit eessi repositories`` shows."""

    version: int
    repositories: tuple["Repository", ...]


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """A repository of EESSI's layout; ``file`` is the file that has it, "" for envkit's own list."""

    name: str
    release: str
    mounted: bool
    what: str
    file: str


def job(name: str, scheduler: str, script: bytes, file: Path | None, taken: Submitted | None) -> WrittenJob:
    """Return what is told of a job."""
    return WrittenJob(
        name=name,
        scheduler=scheduler,
        script=script.decode(errors="replace"),
        file=str(file.absolute()) if file else None,
        job=taken.number if taken else None,
        cluster=taken.cluster if taken else "",
        log=taken.log if taken else "",
    )


def type_of(command: str) -> Any:
    """Return the type of what a command prints."""
    if command == "show":
        from envkit.methods.registry import NAMES, receipt_of

        return Union[tuple(map(receipt_of, NAMES))]  # noqa: UP007  (made while running)
    module, _, name = TYPES[command].partition(":")
    return getattr(import_module(f"envkit.{module}"), name)


def text(fact: msgspec.Struct) -> str:
    """Return what is told as JSON."""
    return msgspec.json.format(msgspec.json.encode(fact)).decode()
