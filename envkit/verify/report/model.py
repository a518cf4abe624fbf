"""What a report holds. Everything that its forms show is made from this."""

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
_SAID_CHARACTERS = 4000
_INDENTED_RANKS = 64
_FIELDS = RankFacts.__struct_fields__


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
        """What the ranks used: 8 x NVIDIA H200, or 2 x NVIDIA H200 (of 8 GPUs)."""
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
    were asked for.
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

    @property
    def world(self) -> str:
        """What was asked for and what was found, in words."""
        asked = words.count(self.world_size, "rank")
        found = Counter(row.size for row in self.ranks)
        if found == {self.world_size: self.world_size}:
            return f"{asked} in one world"
        worlds = [
            f"{number} {'without a world' if size is None else f'in a world of {size}'}"
            for size, number in sorted(found.items(), key=str)
        ]
        return f"{asked} asked for; found: {', '.join(worlds) or 'none'}"

    @property
    def has_fabric(self) -> bool:
        """Whether a node has a fast network."""
        return any(one.fabric and (one.fabric.infiniband or one.fabric.cxi) for one in records(self))

    @property
    def problems(self) -> tuple[Result, ...]:
        """What failed by itself, the root cause first, then what is a warning."""
        failed = [one for one in self.results if one.is_bad and one.status is Status.FAIL and not one.because_of]
        return (*failed, *(one for one in self.results if one.status is Status.WARN))

    @property
    def consequences(self) -> tuple[Result, ...]:
        """What failed because of the root cause."""
        return tuple(one for one in self.results if one.status is Status.FAIL and one.because_of)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """The required checks whose facts are lacking because of a root cause that was found."""
        found = (one.id for one in self.results if one.is_bad and one.is_unmeasured and one.because_of)
        return tuple(dict.fromkeys(found))

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
        """What was skipped, by reason; what is lacking because of the root cause is none of it."""
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
    for one in in_order:
        by_host.setdefault(one.framework, {}).setdefault(one.host, []).append(one)
    groups = [list(hosts.values()) for hosts in by_host.values()]
    return Report(
        verdict="pass" if verdict(results) is Status.PASS else "fail",
        environment=environment,
        started=started,
        world_size=expected.size,
        launcher_status=expected.launcher_status,
        launcher_said=said[-_SAID_CHARACTERS:],
        seconds=seconds,
        frameworks=tuple(_framework_row(name, in_order, expected) for name in expected.frameworks),
        hosts=tuple(_host_row(host) for hosts in groups for host in hosts),
        ranks=tuple(_rank_row(one) for one in in_order),
        cause=results[0] if results and results[0].is_bad else None,
        results=tuple(results),
        trials=tuple(map(_trial_row, expected.trials)),
        timings=_slowest(in_order),
        bandwidth=tuple(bandwidth),
        scaling=tuple(scaling),
        facts=tuple(_framework_facts(hosts) for hosts in groups),
        origin=expected.origin,
        tests=tuple(tests),
    )


def to_json(report: Report) -> bytes:
    """The report as JSON, ending in a newline; indented unless there are very many ranks."""
    encoded = msgspec.json.encode(report)
    indent = 2 if len(report.ranks) <= _INDENTED_RANKS else -1
    return (msgspec.json.format(encoded, indent=indent) if indent > 0 else encoded) + b"\n"


def raw_rate(measured: Bandwidth) -> float | None:
    """The raw library's bus bandwidth in bytes per second, or None where it was not measured."""
    return measured.bus_bytes_per_s * measured.seconds / measured.raw_seconds if measured.raw_seconds else None


def records(report: Report) -> Iterator[RankFacts]:
    """Every rank's whole record, host by host."""
    for framework in report.facts:
        everywhere = _given(framework.common)
        for host in framework.hosts:
            here = {**everywhere, **_given(host.common)}
            for own in host.ranks:
                yield RankFacts(**{**here, **_given(own)})


def _given(facts: SomeFacts) -> dict[str, Any]:
    empty = SomeFacts()
    values = ((name, getattr(facts, name)) for name in _FIELDS)
    return {name: value for name, value in values if value != getattr(empty, name)}


def _framework_facts(hosts: Sequence[Sequence[RankFacts]]) -> FrameworkFacts:
    """The records of all ranks, each fact stated once where it is the same for all, or for all on a host."""
    ranks = [facts for host in hosts for facts in host]
    shared = _shared(ranks, _FIELDS)
    others = [name for name in _FIELDS if name not in shared]
    return FrameworkFacts(common=_some(ranks[0], shared), hosts=tuple(_host_facts(host, others) for host in hosts))


def _host_facts(host: Sequence[RankFacts], names: Sequence[str]) -> HostFacts:
    shared = _shared(host, names)
    own = [name for name in names if name not in shared]
    return HostFacts(common=_some(host[0], shared), ranks=tuple(_some(facts, own) for facts in host))


def _shared(ranks: Sequence[RankFacts], names: Sequence[str]) -> list[str]:
    first = ranks[0]
    return [name for name in names if all(_same(getattr(first, name), getattr(other, name)) for other in ranks)]


def _same(one: object, other: object) -> bool:
    return one is other or one == other


def _some(facts: RankFacts, names: Sequence[str]) -> SomeFacts:
    return SomeFacts(**{name: getattr(facts, name) for name in names})


def _framework_row(name: str, facts: Sequence[RankFacts], expected: Expected) -> FrameworkRow:
    of_framework = [one for one in facts if one.framework == name]
    horovod = next((one.horovod for one in of_framework if one.horovod), None)
    imported = next((one.imported.version for one in of_framework if one.imported), None)
    told = next((one.flags for one in of_framework if one.flags), None)
    built = expected.built.flags_of(name) if expected.built else {}
    key = next((framework.metadata_key for framework in FRAMEWORKS if framework.name == name), name)
    return FrameworkRow(
        name=name,
        flags={flag: told.get(flag) if told else built.get(flag) for flag in FLAGS},
        built_for=horovod.metadata.get(key) if horovod else None,
        installed=imported or next((f.installed.get(name) for f in of_framework), None),
    )


def _host_row(group: Sequence[RankFacts]) -> HostRow:
    used = {(f.device.uuid or f"{f.device.index} {f.pid}", f.device.name) for f in group if f.device}
    devices = Counter(name or "GPU" for _, name in used)
    on_cpu = sum(not facts.device for facts in group)
    return HostRow(
        framework=group[0].framework,
        name=group[0].host,
        processes=len(group),
        ranks=tuple(facts.rank for facts in group if facts.rank is not None),
        devices={**devices, **({"CPU": on_cpu} if on_cpu else {})},
        gpus=max(map(_gpus_present, group)),
        ended=dict(Counter(_ended(facts) for facts in group)),
    )


def _trial_row(trial: Trial) -> TrialRow:
    without = tuple(map(str, trial.without))
    return TrialRow(name=trial.name, without=without, passed=trial.passed, seconds=trial.seconds)


def _gpus_present(facts: RankFacts) -> int:
    present = len(facts.node_gpus.nvidia) + len(facts.node_gpus.amd) if facts.node_gpus else 0
    return max(present, facts.gpus.count if facts.gpus else 0)


def _rank_row(facts: RankFacts) -> RankRow:
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
        ended=_ended(facts),
    )


def _ended(facts: RankFacts) -> str:
    if facts.finished:
        return "done"
    if facts.ended is None:
        how = "vanished"
    elif facts.ended.how == "exit":
        how = f"status {facts.ended.status}"
    else:
        how = facts.ended.signal or facts.ended.how
    return f"{how} in {facts.phase}"


def _slowest(facts: Sequence[RankFacts]) -> dict[str, float]:
    """The longest that any rank took for each phase, in seconds."""
    slowest: dict[str, float] = {}
    for one in facts:
        for phase in one.phases:
            name = f"{one.framework}.{phase.name}"
            slowest[name] = max(slowest.get(name, 0.0), phase.seconds or 0.0)
    return slowest
