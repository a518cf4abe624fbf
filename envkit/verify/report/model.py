"""The contents of a report. Everything that its forms show is made from this."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

import envkit.report.words as words
from envkit.binary.build_flags import FLAGS, FRAMEWORKS
from envkit.verify.facts import RankFacts, ordered
from envkit.verify.outcome import Expected, Result, Status, Trial, verdict
from envkit.verify.speed import Bandwidth, Scaling
from envkit.verify.upstream import FileResult

VERSION: Final = 2
SAID_CHARACTERS = 4000
INDENTED_RANKS = 64
FIELDS = RankFacts.__struct_fields__


class StartedBy(msgspec.Struct, frozen=True, kw_only=True):
    """What started the ranks, why that, with which command, in which job and on which nodes."""

    launcher: str
    why: str
    command: tuple[str, ...]
    job: str | None = None
    nodes: tuple[str, ...] = ()


class FrameworkRow(msgspec.Struct, frozen=True, kw_only=True):
    """What Horovod was built with, by the loaded library or else by its file; None: unknown."""

    name: str
    flags: dict[str, int | None]
    built_for: str | None
    installed: str | None

    @property
    def version(self) -> str:
        """The framework's version, and the one that Horovod was built for where that is another."""
        if self.built_for is None or self.built_for == self.installed:
            return self.installed or "-"
        return f"{self.installed or 'none'}, built for {self.built_for}"


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank: where it ran, as whom, on which device, how far it came."""

    framework: str
    host: str
    pid: int
    rank: int | None
    local_rank: int | None
    size: int | None
    device: str
    phase: str
    ended: str

    @property
    def done(self) -> bool:
        """Whether this rank came to its end."""
        return self.ended == "done"


class HostRow(msgspec.Struct, frozen=True, kw_only=True):
    """One host: its processes and those of their ranks that are known; how many used what, and ended how.

    `devices` counts the GPUs used by name, a GPU that ranks share once, and under CPU the ranks that used none;
    `gpus` is the number of GPUs that the host has.
    """

    framework: str
    name: str
    processes: int
    ranks: tuple[int, ...]
    devices: dict[str, int]
    gpus: int
    ended: dict[str, int]

    @property
    def used(self) -> str:
        """The devices that the ranks used: 8 x NVIDIA H200, or 2 x NVIDIA H200 (of 8 GPUs)."""
        used = [name if name == "CPU" else f"{number} x {name}" for name, number in self.devices.items()]
        idle = self.gpus > sum(number for name, number in self.devices.items() if name != "CPU")
        return ", ".join(used) + (f" (of {words.count(self.gpus, 'GPU')})" if idle else "")

    @property
    def ends(self) -> str:
        """How the ranks ended: done, or how many of them how."""
        if len(self.ended) == 1:
            return next(iter(self.ended))
        return ", ".join(f"{number} {how}" for how, number in self.ended.items())


class TrialRow(msgspec.Struct, frozen=True, kw_only=True):
    """The same ranks, started otherwise, and without some settings; `seconds` is how long that took."""

    name: str
    without: tuple[str, ...]
    passed: bool
    seconds: float


class SomeFacts(RankFacts, frozen=True, kw_only=True, omit_defaults=True):
    """Part of a rank's record: what it has in common with all ranks, with those of its host, or with none."""

    framework: str = ""
    host: str = ""
    pid: int = 0
    phase: str = ""


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The records of the ranks on one host."""

    common: SomeFacts
    ranks: tuple[SomeFacts, ...]


class FrameworkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one framework's ranks: a rank's is what all have in common, what its host has, and its own."""

    common: SomeFacts
    hosts: tuple[HostFacts, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A verification: verdict, what was verified, what was found.

    `world_size` is the number of ranks asked for; `seconds` is the whole time, `timings` the longest that any rank
    took, in seconds by framework and phase; `launcher_said` is the end of what the launcher printed. `origin` is the
    cache that its Horovod was taken from ("": it was built, or nobody knows). `tests` are Horovod's own, where they
    were asked for. `more` is the command that tells what else a check can find: that of the cause, or of the first
    warning if there is one.
    """

    version: Literal[2] = VERSION
    verdict: Literal["pass", "fail"]
    environment: str
    started: StartedBy | None
    world_size: int
    launcher_status: int | None
    launcher_said: str
    seconds: float | None
    frameworks: tuple[FrameworkRow, ...]
    hosts: tuple[HostRow, ...]
    ranks: tuple[RankRow, ...]
    cause: Result | None
    results: tuple[Result, ...]
    trials: tuple[TrialRow, ...]
    timings: dict[str, float]
    bandwidth: tuple[Bandwidth, ...]
    scaling: tuple[Scaling, ...]
    facts: tuple[FrameworkFacts, ...]
    origin: str = ""
    tests: tuple[FileResult, ...] = ()
    more: str = ""

    @property
    def world(self) -> str:
        """The world that was asked for and the worlds that were found, in words."""
        wanted = words.count(self.world_size, "rank")
        sizes = Counter(row.size for row in self.ranks)
        if sizes == {self.world_size: self.world_size}:
            return f"{wanted} in one world"
        worlds = [
            f"{number} {'without a world' if size is None else f'in a world of {size}'}"
            for size, number in sorted(sizes.items(), key=str)
        ]
        return f"{wanted} asked for; found: {', '.join(worlds) or 'none'}"

    @property
    def has_fabric(self) -> bool:
        """Whether a node has a fast network."""
        return any(facts.fabric and (facts.fabric.infiniband or facts.fabric.cxi) for facts in records(self))

    @property
    def problems(self) -> tuple[Result, ...]:
        """The results that failed by themselves, the root cause first, then the warnings."""
        return problems(self.results)

    @property
    def consequences(self) -> tuple[Result, ...]:
        """The results that failed because of the root cause."""
        return tuple(result for result in self.results if result.status is Status.FAIL and result.because_of)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """The required checks whose facts are lacking because of a root cause that was found."""
        ids = (result.id for result in self.results if result.is_bad and result.is_unmeasured and result.because_of)
        return tuple(dict.fromkeys(ids))

    @property
    def odd(self) -> tuple[RankRow, ...]:
        """The ranks that did not come to their end, are not in the world asked for, or use another kind of device."""
        kinds = Counter(row.device.split()[0] for row in self.ranks)
        usual = max(kinds, key=kinds.__getitem__, default="")
        return tuple(
            row for row in self.ranks if not row.done or row.size != self.world_size or row.device.split()[0] != usual
        )

    def alike(self, most: int) -> list[list[HostRow]]:
        """The hosts one by one, or those that are alike together where there are more than `most`."""
        if len(self.hosts) <= most:
            return [[row] for row in self.hosts]
        groups: dict[str, list[HostRow]] = {}
        for row in self.hosts:
            groups.setdefault(f"{row.framework} {row.processes} {row.devices} {row.ended}", []).append(row)
        return list(groups.values())

    def passed(self, framework: str) -> list[str]:
        """The checks of a framework that passed in every respect."""
        of_framework = [result for result in self.results if result.framework == framework]
        others = {result.id for result in of_framework if result.status is not Status.PASS}
        return [name for name in dict.fromkeys(result.id for result in of_framework) if name not in others]

    def skipped(self, *, required: bool) -> list[str]:
        """The checks that were skipped, by reason; what is lacking because of the root cause is none of it."""
        skips: dict[tuple[str, str], list[str]] = {}
        for result in self.results:
            if result.status is Status.SKIP and result.required is required and not result.because_of:
                skips.setdefault((result.framework, result.message), []).append(result.id)
        return [
            f"{', '.join(dict.fromkeys(ids))} ({framework}): {message}" for (framework, message), ids in skips.items()
        ]


def make_report(
    environment: str,
    facts: Sequence[RankFacts],
    results: Sequence[Result],
    *,
    expected: Expected,
    said: str = "",
    seconds: float | None = None,
    started: StartedBy | None = None,
    bandwidth: Sequence[Bandwidth] = (),
    scaling: Sequence[Scaling] = (),
    tests: Sequence[FileResult] = (),
) -> Report:
    """The report on an environment; `said` is what the launcher printed, `seconds` the whole time."""
    in_order = ordered(facts)
    by_host: dict[str, dict[str, list[RankFacts]]] = {}
    for record in in_order:
        by_host.setdefault(record.framework, {}).setdefault(record.host, []).append(record)
    groups = [list(hosts.values()) for hosts in by_host.values()]
    cause = results[0] if results and results[0].is_bad else None
    told = cause or next(iter(problems(results)), None)
    return Report(
        verdict="pass" if verdict(results) is Status.PASS else "fail",
        environment=environment,
        started=started,
        world_size=expected.size,
        launcher_status=expected.launcher_status,
        launcher_said=said[-SAID_CHARACTERS:],
        seconds=seconds,
        frameworks=tuple(framework_row(name, in_order, expected) for name in expected.frameworks),
        hosts=tuple(host_row(host, expected) for hosts in groups for host in hosts),
        ranks=tuple(rank_row(record, expected) for record in in_order),
        cause=cause,
        more=f"envkit verify --explain {told.id}" if told else "",
        results=tuple(results),
        trials=tuple(map(trial_row, expected.trials)),
        timings=slowest_phases(in_order),
        bandwidth=tuple(bandwidth),
        scaling=tuple(scaling),
        facts=tuple(framework_facts(hosts) for hosts in groups),
        origin=expected.origin,
        tests=tuple(tests),
    )


def problems(results: Sequence[Result]) -> tuple[Result, ...]:
    """Return those that failed by themselves, the root cause first, then the warnings."""
    failed = [result for result in results if result.status is Status.FAIL and not result.because_of]
    return (*failed, *(result for result in results if result.status is Status.WARN))


def to_json(report: Report) -> bytes:
    """The report as JSON, ending in a newline; indented unless there are very many ranks."""
    encoded = msgspec.json.encode(report)
    indent = 2 if len(report.ranks) <= INDENTED_RANKS else -1
    return (msgspec.json.format(encoded, indent=indent) if indent > 0 else encoded) + b"\n"


def raw_rate(measured: Bandwidth) -> float | None:
    """The raw library's bus bandwidth in bytes per second, or None where it was not measured."""
    return measured.bus_bytes_per_s * measured.seconds / measured.raw_seconds if measured.raw_seconds else None


def records(report: Report) -> Iterator[RankFacts]:
    """Every rank's whole record, host by host."""
    for framework in report.facts:
        everywhere = given(framework.common)
        for host in framework.hosts:
            here = {**everywhere, **given(host.common)}
            for own in host.ranks:
                yield RankFacts(**{**here, **given(own)})


def given(facts: SomeFacts) -> dict[str, Any]:
    """Return the facts of a part of a record that are stated there, by name."""
    empty = SomeFacts()
    values = ((name, getattr(facts, name)) for name in FIELDS)
    return {name: value for name, value in values if value != getattr(empty, name)}


def framework_facts(hosts: Sequence[Sequence[RankFacts]]) -> FrameworkFacts:
    """The records of all ranks, each fact stated once where it is the same for all, or for all on a host."""
    ranks = [facts for host in hosts for facts in host]
    shared = shared_names(ranks, FIELDS)
    others = [name for name in FIELDS if name not in shared]
    return FrameworkFacts(common=some(ranks[0], shared), hosts=tuple(host_facts(host, others) for host in hosts))


def host_facts(host: Sequence[RankFacts], names: Sequence[str]) -> HostFacts:
    """Return the records of the ranks on a host, each fact stated once where it is the same for all."""
    shared = shared_names(host, names)
    own = [name for name in names if name not in shared]
    return HostFacts(common=some(host[0], shared), ranks=tuple(some(facts, own) for facts in host))


def shared_names(ranks: Sequence[RankFacts], names: Sequence[str]) -> list[str]:
    """Return the names of the facts that are the same for all ranks."""
    first = ranks[0]
    return [name for name in names if all(same(getattr(first, name), getattr(other, name)) for other in ranks)]


def same(one: object, other: object) -> bool:
    """Say whether two facts are the same."""
    return one is other or one == other


def some(facts: RankFacts, names: Sequence[str]) -> SomeFacts:
    """Return a part of a rank's record: the facts of these names."""
    return SomeFacts(**{name: getattr(facts, name) for name in names})


def framework_row(name: str, facts: Sequence[RankFacts], expected: Expected) -> FrameworkRow:
    """Return the row of a framework: the flags, and the versions built for and installed."""
    of_framework = [record for record in facts if record.framework == name]
    horovod = next((record.horovod for record in of_framework if record.horovod), None)
    imported = next((record.imported.version for record in of_framework if record.imported), None)
    flags = next((record.flags for record in of_framework if record.flags), None)
    built = expected.built.flags_of(name) if expected.built else {}
    key = next((framework.metadata_key for framework in FRAMEWORKS if framework.name == name), name)
    return FrameworkRow(
        name=name,
        flags={flag: flags.get(flag) if flags else built.get(flag) for flag in FLAGS},
        built_for=horovod.metadata.get(key) if horovod else None,
        installed=imported or next((f.installed.get(name) for f in of_framework), None),
    )


def host_row(group: Sequence[RankFacts], expected: Expected) -> HostRow:
    """Return the row of a host, from the records of its ranks."""
    used = {(f.device.uuid or f"{f.device.index} {f.pid}", f.device.name) for f in group if f.device}
    devices = Counter(name or "GPU" for _, name in used)
    on_cpu = sum(not facts.device for facts in group)
    return HostRow(
        framework=group[0].framework,
        name=group[0].host,
        processes=len(group),
        ranks=tuple(facts.rank for facts in group if facts.rank is not None),
        devices={**devices, **({"CPU": on_cpu} if on_cpu else {})},
        gpus=max(map(gpus_present, group)),
        ended=dict(Counter(how_ended(facts, expected) for facts in group)),
    )


def trial_row(trial: Trial) -> TrialRow:
    """Return the row of a trial."""
    without = tuple(map(str, trial.without))
    return TrialRow(name=trial.name, without=without, passed=trial.passed, seconds=trial.seconds)


def gpus_present(facts: RankFacts) -> int:
    """Return the number of GPUs that the node of a rank has, as far as anything tells."""
    present = len(facts.node_gpus.nvidia) + len(facts.node_gpus.amd) if facts.node_gpus else 0
    return max(present, facts.gpus.count if facts.gpus else 0)


def rank_row(facts: RankFacts, expected: Expected) -> RankRow:
    """Return the row of a rank."""
    local = facts.world.local_rank if facts.world else None
    device = f"GPU {facts.device.index} {facts.device.name}" if facts.device else "CPU"
    return RankRow(
        framework=facts.framework,
        host=facts.host,
        pid=facts.pid,
        rank=facts.rank,
        local_rank=local if isinstance(local, int) else None,
        size=facts.size,
        device=device.strip(),
        phase=facts.phase,
        ended=how_ended(facts, expected),
    )


def how_ended(facts: RankFacts, expected: Expected) -> str:
    """Return how a rank ended: done, or how and in which phase; it may be at work where another was told to stop."""
    if facts.finished:
        return "done"
    if facts.ended is None:
        how = "at work" if expected.is_at_work(facts.launcher_rank) else "vanished"
    elif facts.ended.how == "exit":
        how = f"status {facts.ended.status}"
    else:
        how = facts.ended.signal or facts.ended.how
    return f"{how} in {facts.phase}"


def slowest_phases(facts: Sequence[RankFacts]) -> dict[str, float]:
    """The longest that any rank took for each phase, in seconds."""
    slowest: dict[str, float] = {}
    for record in facts:
        for phase in record.phases:
            name = f"{record.framework}.{phase.name}"
            slowest[name] = max(slowest.get(name, 0.0), phase.seconds or 0.0)
    return slowest
