"""How fast the collectives are, and how well training scales: arithmetic only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from envkit.verify.facts import RankFacts, Sweep, Throughput

UNITS = ("", "K", "M", "G")
FLOAT_BYTES = 4
SHORTEST_S, LONGEST_S = 1e-9, 86400  # of a message in a baseline


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """One size of message: the time of Horovod's allreduce and of the raw library's (median, in seconds).

    `ratio` is Horovod's bus bandwidth over the raw library's: 1 is as fast, 0.5 half as fast.
    """

    size_bytes: int
    seconds: float
    bus_bytes_per_s: float
    raw_seconds: float | None = None
    ratio: float | None = None


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Training on that many ranks: samples per second of all together, and the share of ideal scaling (0 to 1)."""

    ranks: int
    framework: str
    model: str
    samples_per_s: float
    efficiency: float
    ddp_samples_per_s: float | None = None
    ddp_efficiency: float | None = None


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """Bandwidths to hold later ones against: seconds by size in bytes, and where and when they were measured.

    `nodes` is the number of hosts, `when` a date.
    """

    version: Literal[1] = 1
    framework: str
    ranks: int
    nodes: int
    where: Literal["cpu", "gpu"]
    when: str
    seconds: dict[int, Annotated[float, msgspec.Meta(ge=SHORTEST_S, le=LONGEST_S)]]

    @property
    def world(self) -> str:
        """The things that have to be the same for a comparison, in words."""
        return f"{self.ranks} ranks of {self.framework} on {self.nodes} {self.where.upper()} node(s)"


def bus_bandwidth(size: int, seconds: float, ranks: int) -> float:
    """The bus bandwidth of an allreduce in bytes/s: size / seconds * 2 (n - 1) / n.

    That is what each link of a ring must carry, so that worlds of different sizes compare (as in NCCL's tests).
    """
    return size / seconds * 2 * (ranks - 1) / ranks


def message_sizes(text: str, factor: int) -> tuple[int, ...]:
    """The sizes in bytes that "1K:256M" means, each `factor` times the one before, the last one included.

    Units are powers of 1024; sizes are whole numbers of float32. Raises ValueError with the reason.
    """
    first, _, last = text.partition(":")
    smallest, largest = bytes_of(first), bytes_of(last or first)
    if largest < smallest:
        raise ValueError(f"{last} is less than {first}")
    sizes = [smallest]
    while sizes[-1] * factor < largest:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes if sizes[-1] == largest else [*sizes, largest])


def bandwidth(facts: Sequence[RankFacts]) -> tuple[Bandwidth, ...]:
    """Return what was measured of the allreduce, by size; the raw library's where it moved the same between as many."""
    own = swept(facts, "bandwidth")
    if own is None:
        return ()
    times = raw_times(facts, own)
    return tuple(
        Bandwidth(
            size_bytes=row.size,
            seconds=row.seconds,
            bus_bytes_per_s=bus_bandwidth(row.size, row.seconds, own.ranks),
            raw_seconds=times.get(row.size),
            ratio=times[row.size] / row.seconds if row.size in times else None,
        )
        for row in own.rows
    )


def raw_times(facts: Sequence[RankFacts], own: Sweep) -> dict[int, float]:
    """Return the raw library's seconds by size, nothing where it did not move the same between as many ranks."""
    raw = swept(facts, "raw_bandwidth")
    alike = raw is not None and (raw.where, raw.ranks) == (own.where, own.ranks)
    return {row.size: row.seconds for row in raw.rows} if raw is not None and alike else {}


def swept(facts: Sequence[RankFacts], name: str) -> Sweep | None:
    """Return what ranks measured together (`bandwidth` or `raw_bandwidth`): each states the same, so the first's."""
    sweeps = (getattr(rank, name) for rank in facts)
    return next((sweep for sweep in sweeps if sweep is not None and not sweep.error and sweep.rows), None)


def baseline(facts: Sequence[RankFacts], when: str) -> Baseline | None:
    """Return what was measured, as a baseline; None where nothing was."""
    own = swept(facts, "bandwidth")
    if own is None:
        return None
    return Baseline(
        framework=facts[0].framework,
        ranks=own.ranks,
        nodes=len({rank.host for rank in facts}),
        where="gpu" if own.where == "gpu" else "cpu",
        when=when,
        seconds={row.size: row.seconds for row in own.rows},
    )


def slower(own: Baseline, saved: Baseline, tolerance: float) -> dict[int, float]:
    """The sizes whose bandwidth is lower than the saved one by more than `tolerance` (0.2: 20 %), and by how much."""
    common = sorted(own.seconds.keys() & saved.seconds.keys())
    lost = {size: 1 - saved.seconds[size] / own.seconds[size] for size in common}
    return {size: part for size, part in lost.items() if part > tolerance}


def scaling(runs: Sequence[Sequence[RankFacts]]) -> tuple[Scaling, ...]:
    """The scaling over several runs, by model and number of ranks.

    The run with the fewest ranks is the standard: `efficiency` is samples/s of a rank over those of a rank there.
    """
    trainings = [(own, trained(run, "ddp_throughput"), run) for run in runs if (own := trained(run, "throughput"))]
    trainings.sort(key=lambda each: each[0].ranks)
    rows = [
        scaling_row(model, number, trainings) for number, (own, _, _) in enumerate(trainings) for model in own.models
    ]
    return tuple(sorted(rows, key=lambda row: (row.model, row.ranks)))


def scaling_row(
    model: str, number: int, runs: Sequence[tuple[Throughput, Throughput | None, Sequence[RankFacts]]]
) -> Scaling:
    """Return the scaling of a model in one of the runs, of which the first is the standard."""
    own, ddp, facts = runs[number]
    ddp_standard = runs[0][1]
    beside = ddp if ddp is not None and model in ddp.models else None
    compared = beside is not None and ddp_standard is not None and model in ddp_standard.models
    return Scaling(
        ranks=own.ranks,
        framework=facts[0].framework,
        model=model,
        samples_per_s=own.models[model].samples_per_s,
        efficiency=efficiency(own, runs[0][0], model),
        ddp_samples_per_s=beside.models[model].samples_per_s if beside else None,
        ddp_efficiency=efficiency(beside, ddp_standard, model) if compared and beside and ddp_standard else None,
    )


def efficiency(run: Throughput, standard: Throughput, model: str) -> float:
    """Samples/s of a rank over those of a rank of the standard: 1 is ideal."""
    own, ideal = run.models[model].samples_per_s, standard.models[model].samples_per_s
    return (own / run.ranks) / (ideal / standard.ranks)


def trained(facts: Sequence[RankFacts], name: str) -> Throughput | None:
    """How fast the ranks trained together (`throughput` or `ddp_throughput`): the first's word, as for `swept`."""
    trainings = (getattr(rank, name) for rank in facts)
    return next((run for run in trainings if run is not None and not run.error and run.models), None)


def oversubscribed(facts: Sequence[RankFacts]) -> str:
    """The first host that has fewer cores for its ranks than ranks, in words; nothing where there is none."""
    for host in dict.fromkeys(rank.host for rank in facts):
        here = [rank for rank in facts if rank.host == host]
        cores = {core for rank in here if isinstance(rank.affinity, tuple) for core in rank.affinity}
        machine = here[0].machine
        granted = machine.granted if machine and isinstance(machine.granted, int) else None
        number = min(len(cores), granted or len(cores))
        if number and number < len(here):
            return f"{len(here)} ranks on {number} cores of {host}"
    return ""


def bytes_of(text: str) -> int:
    """Return the bytes that a size like "64M" means. Raises ValueError for what is no size of a message."""
    match = re.fullmatch(r"(\d+)([KMG]?)(i?B)?", text.strip(), re.IGNORECASE)
    size = int(match[1]) * 1024 ** UNITS.index(match[2].upper()) if match else 0
    if size < FLOAT_BYTES or size % FLOAT_BYTES:
        raise ValueError(f"{text!r} is no size of a message: write 4, 1K, 64M, 1G, ... (bytes, a multiple of 4)")
    return size
