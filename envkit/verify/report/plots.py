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

KINDS = 6
LANES = 64
LETTERS = "ABCDEF"
ROOM_FOR_A_LETTER = 4.0
ROOM_FOR_A_NAME = 18.0
ROOM_FOR_THE_LOST = 1.2


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
    raw = [(row.size_bytes, rate) for row in measured if (rate := raw_rate(row))]
    horovod = [(row.size_bytes, row.bus_bytes_per_s) for row in measured]
    sizes = bounds_of([size for size, _ in horovod], 2.0)
    rates = bounds_of([rate for _, rate in (*horovod, *raw)], 1.3)
    return Plot(
        title="Bus bandwidth of allreduce over the size of the message",
        x_title="size of the message",
        y_title="bus bandwidth",
        x_ticks=tuple(Point(x=log(size, sizes), y=100, text=words.size(size)) for size in powers(sizes)),
        y_ticks=tuple(Point(x=0, y=100 - log(rate, rates), text=round_rate(rate)) for rate in rate_ticks(rates)),
        lines=tuple(
            PlotLine(
                name=name,
                kind=kind,
                points=tuple(
                    Point(x=log(size, sizes), y=100 - log(rate, rates), text=f"{words.size(size)}: {words.rate(rate)}")
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
    for run in sorted(measured, key=operator.attrgetter("ranks")):
        series.setdefault((run.framework, run.model), []).append(run)
    return [(scaling_plot(f"{model} with {framework}", runs), runs) for (framework, model), runs in series.items()]


def scaling_plot(name: str, measured: Sequence[Scaling]) -> Plot:
    """Return the plot of one model: samples per second over ranks, with the ideal line."""
    ideal = [(run.ranks, run.samples_per_s / run.efficiency) for run in measured if run.efficiency]
    horovod = [(run.ranks, run.samples_per_s) for run in measured]
    ddp = [(run.ranks, run.ddp_samples_per_s) for run in measured if run.ddp_samples_per_s is not None]
    most_ranks = max(ranks for ranks, _ in horovod)
    most = max(rate for _, rate in (*ideal, *horovod, *ddp)) * 1.05
    return Plot(
        title=f"Samples per second over ranks: {name}",
        x_title="ranks",
        y_title="samples per second",
        x_ticks=tuple(
            Point(x=100 * n / most_ranks, y=100, text=f"{n:g}") for n in round_numbers(most_ranks, whole=True)
        ),
        y_ticks=tuple(Point(x=0, y=100 - 100 * rate / most, text=f"{rate:,.10g}") for rate in round_numbers(most)),
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
    shown = begun if len(begun) <= LANES else last_of_hosts(begun)
    room = 1.0 if all(facts.finished for facts in shown) else ROOM_FOR_THE_LOST
    seconds = max(max(map(last_end, begun)) - zero, 1e-3) * room
    steps = longest_steps(shown)
    return Timeline(
        lanes=tuple(lane(facts, zero, seconds, steps) for facts in shown),
        steps=steps,
        ticks=tuple(Point(x=100 * at / seconds, y=100, text=f"{at:g} s") for at in round_numbers(seconds)),
        seconds=seconds,
        one_per_host=shown is not begun,
        left_out=len(hosts - {facts.host for facts in shown}),
    )


def last_of_hosts(facts: Sequence[RankFacts]) -> list[RankFacts]:
    """The rank of each host that came last to its end, those hosts that were last of all."""
    last: dict[str, RankFacts] = {}
    for record in facts:
        if record.host not in last or (record.finished, -last_end(record)) < (
            last[record.host].finished,
            -last_end(last[record.host]),
        ):
            last[record.host] = record
    worst = sorted(last, key=lambda host: (last[host].finished, -last_end(last[host])))[:LANES]
    return [record for host, record in last.items() if host in worst]


def last_end(facts: RankFacts) -> float:
    """Return when the last step of a rank was over."""
    return max(phase.at + (phase.seconds or 0.0) for phase in facts.phases)


def longest_steps(facts: Sequence[RankFacts]) -> tuple[str, ...]:
    """The steps that took longest on all ranks together, in the order in which they happened."""
    total: Counter[str] = Counter()
    for record in facts:
        for phase in record.phases:
            total[phase.name] += int(1e6 * (phase.seconds or 0.0))
    longest = {name for name, spent in total.most_common(KINDS) if spent}
    return tuple(name for name in total if name in longest)


def lane(facts: RankFacts, zero: float, seconds: float, steps: Sequence[str]) -> Lane:
    """Return the lane of a rank."""
    done = [phase for phase in facts.phases if phase.seconds is not None]
    bars = [step_bar(phase.name, phase.at - zero, phase.seconds or 0.0, seconds, steps) for phase in done]
    rank = facts.launcher_rank if facts.rank is None else facts.rank
    reached = max((phase.at + (phase.seconds or 0.0) for phase in done), default=facts.phases[0].at) - zero
    return Lane(
        rank=f"pid {facts.pid}" if rank is None else f"rank {rank}",
        host=facts.host,
        bars=tuple(bar for bar in bars if bar.kind or bar.width > 0.3),
        unreturned=None if facts.finished else unreturned_bar(facts, reached, seconds),
        late_s=facts.phases[0].at - zero,
    )


def step_bar(name: str, at: float, took: float, seconds: float, steps: Sequence[str]) -> Bar:
    """Return the bar of a step; its kind is its place among the steps that are named, else 0."""
    kind = steps.index(name) + 1 if name in steps else 0
    width = 100 * took / seconds
    return Bar(
        kind=kind,
        x=100 * at / seconds,
        width=width,
        letter=LETTERS[kind - 1] if kind and width > ROOM_FOR_A_LETTER else "",
        name=name if kind and width > ROOM_FOR_A_NAME else "",
        text=f"{name} {words.duration(took)}",
    )


def unreturned_bar(facts: RankFacts, reached: float, seconds: float) -> Bar:
    """Return the bar of the step that a rank did not come back from."""
    x = min(100 * reached / seconds, 97.0)
    return Bar(
        kind=0, x=x, width=100 - x, letter=facts.phase, name=facts.phase, text=f"did not return from {facts.phase}"
    )


def bounds_of(values: Sequence[float], room: float) -> tuple[float, float]:
    """Return the least and the greatest of some values, with room beyond both."""
    return min(values) / room, max(values) * room


def log(value: float, bounds: tuple[float, float]) -> float:
    """Return where a value is between bounds, in percent, on a logarithmic axis."""
    low, high = bounds
    return 100 * math.log(value / low) / math.log(high / low)


def powers(bounds: tuple[float, float], most: int = 5) -> list[int]:
    """Powers of two between bounds, evenly apart."""
    first, last = math.ceil(math.log2(bounds[0])), math.floor(math.log2(bounds[1]))
    return [2**power for power in range(max(first, 0), last + 1, max(math.ceil((last - first) / most), 1))]


def rate_ticks(bounds: tuple[float, float], most: int = 6) -> list[float]:
    """1, 2, 5, 10, ... between bounds, or powers of ten where those are too many."""
    decades = range(math.floor(math.log10(bounds[0])), math.ceil(math.log10(bounds[1])) + 1)
    fine = [digit * 10.0**power for power in decades for digit in (1, 2, 5)]
    shown = [rate for rate in fine if bounds[0] <= rate <= bounds[1]]
    return shown if len(shown) <= most else [rate for rate in shown if math.log10(rate).is_integer()]


def round_rate(bytes_per_s: float) -> str:
    """Return a rate in words, without decimals that are zero."""
    return re.sub(r"\.0+ ", " ", words.rate(bytes_per_s))


def round_numbers(end: float, most: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers from 0 to the end, evenly apart."""
    rough = end / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    step = max(step, 1.0) if whole else step
    return [round(number * step, 9) for number in range(int(end / step + 1e-9) + 1)]
