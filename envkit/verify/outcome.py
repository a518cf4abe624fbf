"""The question to a check, and its answer. The words of the answers are in checks/*.toml."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from shlex import quote

import msgspec

from envkit.binary.build_flags import BuildFlags
from envkit.environments.manifest import Damage
from envkit.knowledge.known import catalogue
from envkit.system.stopped import Stopped
from envkit.verify.facts import RankFacts
from envkit.verify.presence import LATE, Absent

VALUE_LENGTH = 120
PATHS = {"folder", "path", "program"}  # values that a remedy or command has as a word of a shell
SECRET = re.compile("SECRET|KEY|TOKEN|PASS|COOKIE|CRED|AUTH", re.IGNORECASE)


class Status(StrEnum):
    """What a check found."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """A file not as it was installed; `kind`: horovod, packages, modules or mpi; `how`: changed, added or gone."""

    kind: str
    path: str
    how: str


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A setting in force: a variable, a line of a file, a limit, a folder of PATH, or packages in the home folder.

    `kind` is variable, line (of a file of the user), machine (of one of the machine), limit, folder or packages;
    `where` is the file or the folder, the number of the limit, "" for a variable.
    """

    kind: str
    name: str
    value: str
    where: str = ""

    def __str__(self) -> str:
        """The setting in words."""
        if self.kind == "folder":
            return f"{self.where}/{self.value.partition(', ')[0]} in PATH"
        if self.kind == "packages":
            return f"the packages in {self.where}"
        if self.kind == "limit":
            return f"the limit '{self.name} {self.value}'"
        if SECRET.search(self.name):
            return f"{self.name} (its value is not shown)"
        text = f"{self.name}={self.value[:VALUE_LENGTH]}"
        return f"{text} (set in {self.where})" if self.where else text


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The same ranks started otherwise: `name` says how, `without` which settings, `passed` whether they passed.

    `is_least`: with any of these settings they fail, as far as it was tried. `was_cut`: they neither passed nor failed
    in a time that was too short to tell.
    """

    name: str
    without: tuple[Setting, ...] = ()
    passed: bool
    seconds: float
    is_least: bool = False
    was_cut: bool = False


class HostFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the machine's own MPI that is not as it was installed: `how` is gone, changed or cut.

    `package` is what the machine's package manager has it from ("": not known).
    """

    path: str
    how: str
    package: str = ""

    def __str__(self) -> str:
        """The file, and what became of it."""
        return f"{self.path} ({self.how})"


class EndedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a scheduler that runs no more, whose variables are still set."""

    scheduler: str
    job: str
    variables: tuple[str, ...]


class SessionLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of the session: its name in knowledge/settings.toml, and what it is (bytes, seconds or a number)."""

    name: str
    value: int


class UnusablePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that ranks write to, or a host that they run on, and why that cannot be: the error in words.

    `where` is the file of settings that names a host ("": whoever verifies has named it), and `variable` names another.
    """

    path: str
    error: str
    where: str = ""
    variable: str = ""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The request that ranks are held against.

    `size` is the number of ranks, `left_out` names frameworks that Horovod is for and that are not verified,
    `required` names flags, `stacks` for those that an environment of envkit's is not built with the stack that is ("":
    none is), `built` is what the files say, `measures` names the facts about speed that were asked for.
    `gpus` demands that the collectives ran on GPUs too, `nodes` is on how many nodes the ranks should be (None: no
    matter), `granted` how many nodes the job has (0: it is none, or does not tell), `outside` are the named hosts that
    it does not have, `shared` is the folder where they met. `launcher_status` is how the launcher ended (None: somebody
    else's), `launcher_said` what it said, `launcher` which it was and `stopped` which processes of it, or of its ranks,
    a signal has stopped for good, `again` whether it started ranks anew that had ended.
    `drift` is what has changed since the installation (None: unknown), `broken` the
    first library, program or module file that has another size than it was built with, or has gone. `leftover` are
    variables of another launch in the environment of this one, `horovod` is the folder of the package that is to be
    verified ("": whichever is there). `environment` is what a command of envkit is told to name the environment ("":
    envkit has not installed it), `wheel_mpi` the MPI of a wheel that stands in for the machine's own ("": none does).
    `shadows` are files of the working folder that a script in it imports in place of the environment's packages,
    `cores` those that this process may use, where ranks inherit that (0: they do not), `unseen` the variables that name
    this rank, where nothing is to be seen of a launcher, `told` the signal by which this rank was told to stop ("": it
    was not), so that the others may be at work yet, and `absent` are ranks whose own envkit did not come to its end.
    `venv` is the folder of the virtual environment that was named
    ("": none was), `in_venv` what pip has put there of packages that the environment has, too, and `fixed` the versions
    that the environment has, by normalized name. `added` are the modules that ranks import of what was added to the
    stack, each after its extra's name, `software` is the folder of each extra, and `replaced` says which packages of
    the stack they have in another version. `origin` is the cache that its Horovod was taken from ("": it was built).

    What is looked at only where something failed: `damage` are the files that are not as they were built, `settings`
    those of the user that may matter, `trials` what was tried without some of them, `limits` those of the session that
    are low, `places` the folders for temporary files that cannot be written to, `host_files` what of the machine's MPI
    is not as it was installed, `mute` hosts that ssh does not reach, `ended_job` the one that the variables tell of and
    that is none any more, `noexec` the environment's folders from which nothing may be run, `interposed` preloaded
    libraries that define functions of MPI, `unknown` settings that ask Open MPI for a component which it says
    that it lacks.
    """

    size: int
    frameworks: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    stacks: dict[str, str] = msgspec.field(default_factory=dict)
    built: BuildFlags | None = None
    gpus: bool = False
    nodes: int | None = None
    granted: int = 0
    outside: tuple[str, ...] = ()
    shared: str = ""
    launcher_status: int | None = None
    launcher_said: str = ""
    launcher: str = ""
    stopped: tuple[Stopped, ...] = ()
    again: bool = False
    measures: frozenset[str] = frozenset()
    drift: tuple[FileChange, ...] | None = None
    broken: Damage | None = None
    leftover: tuple[str, ...] = ()
    horovod: str = ""
    environment: str = ""
    wheel_mpi: str = ""
    shadows: tuple[str, ...] = ()
    venv: str = ""
    in_venv: tuple[str, ...] = ()
    fixed: dict[str, str] = msgspec.field(default_factory=dict)
    added: tuple[tuple[str, str], ...] = ()
    software: dict[str, str] = msgspec.field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    origin: str = ""
    cores: int = 0
    unseen: tuple[str, ...] = ()
    told: str = ""
    absent: tuple[Absent, ...] = ()
    damage: tuple[Damage, ...] = ()
    settings: tuple[Setting, ...] = ()
    trials: tuple[Trial, ...] = ()
    limits: tuple[SessionLimit, ...] = ()
    places: tuple[UnusablePlace, ...] = ()
    host_files: tuple[HostFile, ...] = ()
    ended_job: EndedJob | None = None
    noexec: tuple[str, ...] = ()
    interposed: tuple[str, ...] = ()
    mute: tuple[UnusablePlace, ...] = ()
    unknown: tuple[Setting, ...] = ()

    def is_at_work(self, rank: int | None) -> bool:
        """Say whether a rank that has not ended goes on where this one was told to stop; of other nodes none does."""
        return bool(self.told) and not any(one.rank == rank and one.why == LATE and not one.pid for one in self.absent)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one framework; `required` tells whether a skip keeps the verdict from PASS.

    `case` is what the check found, `commands` are what the remedy says to type, and `because_of` names the check that
    found the root cause, where this follows from it.
    """

    id: str
    case: str
    status: Status
    framework: str
    message: str
    cause: str = ""
    remedy: str = ""
    commands: tuple[str, ...] = ()
    required: bool = True
    because_of: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether it keeps the verdict from PASS."""
        return self.status is Status.FAIL or (self.status is Status.SKIP and self.required)

    @property
    def is_unmeasured(self) -> bool:
        """Whether it says only that an earlier step failed."""
        return self.status is Status.SKIP


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one framework, in rank order, and what is expected of them."""

    framework: str
    facts: tuple[RankFacts, ...]
    expected: Expected

    @property
    def is_world(self) -> bool:
        """Whether Horovod told every rank once, in a world of the size that was asked for."""
        size = self.expected.size
        ranks = [facts.rank for facts in self.facts]
        return ranks == list(range(size)) and all(facts.size == size for facts in self.facts)

    @property
    def are_singletons(self) -> bool:
        """Whether every process was alone, as rank 0 of 1, where more ranks were asked for."""
        return self.expected.size > 1 and all((facts.size, facts.rank) == (1, 0) for facts in self.facts)

    def outcome(self, check: str, case: str, /, **values: object) -> Result:
        """The result that the catalogue words as `case` of `check`, under the id `check_id` if given.

        Its commands are about an environment that envkit installed.
        """
        words = catalogue()[check][case]
        values = {"environment": self.expected.environment, **values}
        typed = {**values, **{key: quote(str(values[key])) for key in PATHS & values.keys()}}
        texts = {key: words.get(key, "").format(**values) for key in ("message", "cause")}
        texts["remedy"] = words.get("remedy", "").format(**typed)
        commands = words.get("commands", ()) if self.expected.environment else ()
        return Result(
            id=str(values.get("check_id", check)),
            case=case,
            status=Status(words["status"]),
            framework=self.framework,
            required=words.get("required", True),
            commands=tuple(command.format(**typed) for command in commands),
            **texts,
        )

    def not_measured(self, check: str, facts: RankFacts, *, required: bool = True) -> Result:
        """The result for a check whose facts one rank does not have."""
        case = "required" if required else "optional"
        reason = "after an error there" if facts.finished else f"it got as far as '{facts.phase}'"
        return self.outcome("not-measured", case, check_id=check, rank=facts.label, reason=reason)

    def said(self) -> Iterator[str]:
        """Yield every line that tells of a failure: errors that ranks met, their last words, the launcher's output."""
        for facts in self.facts:
            for name in ("horovod", "imported", "load", "init", "collectives_cpu", "exchanges_cpu", "values_cpu"):
                fact = getattr(facts, name)
                yield from ((fact.traceback or fact.error) if fact and fact.error else "").splitlines()
            if facts.ended:
                yield from (facts.ended.said or "").splitlines()
                yield facts.ended.signal or ""
        yield from self.expected.launcher_said.splitlines()

    def lacking(self, fact: str) -> RankFacts | None:
        """The first rank that has no such fact at all."""
        return next((facts for facts in self.facts if getattr(facts, fact) is None), None)


def verdict(results: Sequence[Result]) -> Status:
    """PASS where nothing failed, nothing required was skipped, and something was checked; else FAIL."""
    return Status.FAIL if not results or any(result.is_bad for result in results) else Status.PASS
