"""The geometry of the page's plots: where things are, in percent of the plot's width and height."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

import envkit.report.words as words
from envkit.verify.facts import RankFacts
from envkit.verify.report.model import raw_rate
from envkit.verify.speed import Bandwidth, Scaling

_KINDS = 6
_LANES = 64
_LETTERS = "ABCDEF"
_ROOM_FOR_A_LETTER = 4.0
_ROOM_FOR_A_NAME = 18.0
_ROOM_FOR_THE_LOST = 1.2


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A place in percent, from the left and from the top, with what is written there."""

    x: float
    y: float
    text: str


class PlotLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line through points; `kind` is its look: 0 the first measured, 1 the second, 2 a theoretical one."""

    name: str
    kind: int
    points: tuple[Point, ...]

    @property
    def path(self) -> str:
        """The points as SVG writes them, in a square of 100 by 100."""
        return " ".join(f"{point.x:.2f},{point.y:.2f}" for point in self.points)


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """Lines between axes, each axis with a title and ticks."""

    title: str
    x_title: str
    y_title: str
    x_ticks: tuple[Point, ...]
    y_ticks: tuple[Point, ...]
    lines: tuple[PlotLine, ...]


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a rank: where it begins and how wide it is, in percent; `kind` 0 is any of the short steps.

    `letter` and `name` are empty where there is no room for them.
    """

    kind: int
    x: float
    width: float
    letter: str
    name: str
    text: str


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's steps; `unreturned` is the one that it did not come back from, `late_s` how late it began."""

    rank: str
    host: str
    bars: tuple[Bar, ...]
    unreturned: Bar | None
    late_s: float

    @property
    def text(self) -> str:
        """The lane in words."""
        steps = [
            bar.text for bar in (*self.bars, *filter(None, [self.unreturned])) if bar.kind or bar is self.unreturned
        ]
        return f"{self.rank} on {self.host}: began after {words.duration(self.late_s)}; {', '.join(steps)}"


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of ranks side by side; `steps` names the kinds from 1 on, `left_out` counts hosts without a lane."""

    lanes: tuple[Lane, ...]
    steps: tuple[str, ...]
    ticks: tuple[Point, ...]
    seconds: float
    one_per_host: bool
    left_out: int


def bandwidth_plot(measured: Sequence[Bandwidth]) -> Plot:
    """Bus bandwidth over size of message, both axes logarithmic."""
    raw = [(one.size_bytes, rate) for one in measured if (rate := raw_rate(one))]
    horovod = [(one.size_bytes, one.bus_bytes_per_s) for one in measured]
    sizes = _bounds([size for size, _ in horovod], 2.0)
    rates = _bounds([rate for _, rate in (*horovod, *raw)], 1.3)
    return Plot(
        title="Bus bandwidth of allreduce over the size of the message",
        x_title="size of the message",
        y_title="bus bandwidth",
        x_ticks=tuple(Point(x=_log(size, sizes), y=100, text=words.size(size)) for size in _powers(sizes)),
        y_ticks=tuple(Point(x=0, y=100 - _log(rate, rates), text=_round_rate(rate)) for rate in _rates(rates)),
        lines=tuple(
            PlotLine(
                name=name,
                kind=kind,
                points=tuple(
                    Point(
                        x=_log(size, sizes), y=100 - _log(rate, rates), text=f"{words.size(size)}: {words.rate(rate)}"
                    )
                    for size, rate in points
                ),
            )
            for kind, (name, points) in enumerate((("Horovod", horovod), ("raw library", raw)))
            if points
        ),
    )


def scaling_plots(measured: Sequence[Scaling]) -> list[tuple[Plot, list[Scaling]]]:
    """For each framework and model: samples per second over ranks with the ideal line, and what is drawn."""
    series: dict[tuple[str, str], list[Scaling]] = {}
    for one in sorted(measured, key=operator.attrgetter("ranks")):
        series.setdefault((one.framework, one.model), []).append(one)
    return [(_scaling_plot(f"{model} with {framework}", ones), ones) for (framework, model), ones in series.items()]


def _scaling_plot(name: str, measured: Sequence[Scaling]) -> Plot:
    ideal = [(one.ranks, one.samples_per_s / one.efficiency) for one in measured if one.efficiency]
    horovod = [(one.ranks, one.samples_per_s) for one in measured]
    ddp = [(one.ranks, one.ddp_samples_per_s) for one in measured if one.ddp_samples_per_s is not None]
    most_ranks = max(ranks for ranks, _ in horovod)
    most = max(rate for _, rate in (*ideal, *horovod, *ddp)) * 1.05
    return Plot(
        title=f"Samples per second over ranks: {name}",
        x_title="ranks",
        y_title="samples per second",
        x_ticks=tuple(Point(x=100 * n / most_ranks, y=100, text=f"{n:g}") for n in _steps(most_ranks, whole=True)),
        y_ticks=tuple(Point(x=0, y=100 - 100 * rate / most, text=f"{rate:,.10g}") for rate in _steps(most)),
        lines=tuple(
            PlotLine(
                name=label,
                kind=kind,
                points=tuple(
                    Point(x=100 * n / most_ranks, y=100 - 100 * rate / most, text=f"{n} ranks: {rate:,.0f} samples/s")
                    for n, rate in points
                ),
            )
            for kind, label, points in ((2, "ideal", ideal), (0, "Horovod", horovod), (1, "DDP", ddp))
            if points
        ),
    )


def timeline(records: Iterable[RankFacts]) -> Timeline | None:
    """The steps of each rank; of each host's last rank where there are more than 64; None without any."""
    begun = [facts for facts in records if facts.phases]
    if not begun:
        return None
    zero = min(facts.phases[0].at for facts in begun)
    hosts = {facts.host for facts in begun}
    shown = begun if len(begun) <= _LANES else _last_of_hosts(begun)
    room = 1.0 if all(facts.finished for facts in shown) else _ROOM_FOR_THE_LOST
    seconds = max(max(map(_end, begun)) - zero, 1e-3) * room
    steps = _longest(shown)
    return Timeline(
        lanes=tuple(_lane(facts, zero, seconds, steps) for facts in shown),
        steps=steps,
        ticks=tuple(Point(x=100 * at / seconds, y=100, text=f"{at:g} s") for at in _steps(seconds)),
        seconds=seconds,
        one_per_host=shown is not begun,
        left_out=len(hosts - {facts.host for facts in shown}),
    )


def _last_of_hosts(facts: Sequence[RankFacts]) -> list[RankFacts]:
    """The rank of each host that came last to its end, those hosts that were last of all."""
    last: dict[str, RankFacts] = {}
    for one in facts:
        if one.host not in last or (one.finished, -_end(one)) < (last[one.host].finished, -_end(last[one.host])):
            last[one.host] = one
    worst = sorted(last, key=lambda host: (last[host].finished, -_end(last[host])))[:_LANES]
    return [one for host, one in last.items() if host in worst]


def _end(facts: RankFacts) -> float:
    return max(phase.at + (phase.seconds or 0.0) for phase in facts.phases)


def _longest(facts: Sequence[RankFacts]) -> tuple[str, ...]:
    """The steps that took longest on all ranks together, in the order in which they happened."""
    total: Counter[str] = Counter()
    for one in facts:
        for phase in one.phases:
            total[phase.name] += int(1e6 * (phase.seconds or 0.0))
    longest = {name for name, spent in total.most_common(_KINDS) if spent}
    return tuple(name for name in total if name in longest)


def _lane(facts: RankFacts, zero: float, seconds: float, steps: Sequence[str]) -> Lane:
    done = [phase for phase in facts.phases if phase.seconds is not None]
    bars = [_bar(phase.name, phase.at - zero, phase.seconds or 0.0, seconds, steps) for phase in done]
    rank = facts.launcher_rank if facts.rank is None else facts.rank
    reached = max((phase.at + (phase.seconds or 0.0) for phase in done), default=facts.phases[0].at) - zero
    return Lane(
        rank=f"pid {facts.pid}" if rank is None else f"rank {rank}",
        host=facts.host,
        bars=tuple(bar for bar in bars if bar.kind or bar.width > 0.3),
        unreturned=None if facts.finished else _unreturned(facts, reached, seconds),
        late_s=facts.phases[0].at - zero,
    )


def _bar(name: str, at: float, took: float, seconds: float, steps: Sequence[str]) -> Bar:
    kind = steps.index(name) + 1 if name in steps else 0
    width = 100 * took / seconds
    return Bar(
        kind=kind,
        x=100 * at / seconds,
        width=width,
        letter=_LETTERS[kind - 1] if kind and width > _ROOM_FOR_A_LETTER else "",
        name=name if kind and width > _ROOM_FOR_A_NAME else "",
        text=f"{name} {words.duration(took)}",
    )


def _unreturned(facts: RankFacts, reached: float, seconds: float) -> Bar:
    x = min(100 * reached / seconds, 97.0)
    return Bar(
        kind=0, x=x, width=100 - x, letter=facts.phase, name=facts.phase, text=f"did not return from {facts.phase}"
    )


def _bounds(values: Sequence[float], room: float) -> tuple[float, float]:
    return min(values) / room, max(values) * room


def _log(value: float, bounds: tuple[float, float]) -> float:
    """Where a value is between bounds, in percent, on a logarithmic axis."""
    low, high = bounds
    return 100 * math.log(value / low) / math.log(high / low)


def _powers(bounds: tuple[float, float], most: int = 5) -> list[int]:
    """Powers of two between bounds, evenly apart."""
    first, last = math.ceil(math.log2(bounds[0])), math.floor(math.log2(bounds[1]))
    return [2**power for power in range(max(first, 0), last + 1, max(math.ceil((last - first) / most), 1))]


def _rates(bounds: tuple[float, float], most: int = 6) -> list[float]:
    """1, 2, 5, 10, ... between bounds, or powers of ten where those are too many."""
    decades = range(math.floor(math.log10(bounds[0])), math.ceil(math.log10(bounds[1])) + 1)
    fine = [digit * 10.0**power for power in decades for digit in (1, 2, 5)]
    shown = [rate for rate in fine if bounds[0] <= rate <= bounds[1]]
    return shown if len(shown) <= most else [rate for rate in shown if math.log10(rate).is_integer()]


def _round_rate(bytes_per_s: float) -> str:
    return re.sub(r"\.0+ ", " ", words.rate(bytes_per_s))


def _steps(end: float, most: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers from 0 to the end, evenly apart."""
    rough = end / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    step = max(step, 1.0) if whole else step
    return [round(number * step, 9) for number in range(int(end / step + 1e-9) + 1)]
