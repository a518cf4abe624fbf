"""Horovod's timeline: asking for one, and what is in it. The file stays as Horovod writes it, for Perfetto.

Rank 0 writes it, as one list of events: a process per tensor, in it spans that begin (B) and end (E), and in those of
the negotiation one instant (X) per rank, when its part had come. A run that was cut short leaves it cut short.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from envkit.errors import NotWritable
from envkit.report.words import one_line

CHUNK = 1 << 20
LARGEST = 1 << 30  # characters of a file
LONGEST = 1000  # characters of a name
LATEST = 1e18  # microseconds: 30,000 years
SHOWN = 5
CUT = "the file is cut short or damaged, and this is what it has"
LARGE = "the file is very large, and this is what its beginning has"
NAMED_MORE = "HOROVOD_CACHE_CAPACITY=0 has each negotiation name them, which takes time"
PHASES = (
    ("NEGOTIATE_", "negotiation"),
    ("QUEUE", "queue"),
    ("WAIT_FOR_", "queue"),
    ("INIT_FUSION_BUFFER", "memory copies"),
    ("MEMCPY_", "memory copies"),
)
WHOLE = {"ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER", "ADASUM", "BARRIER", "JOIN"}


@dataclass(kw_only=True)
class TensorPhase:
    """How long at least one tensor was in a phase, in microseconds; how many are now, and since when one is."""

    total: float = 0.0
    inside: int = 0
    since: float = 0.0


@dataclass(kw_only=True)
class Summary:
    """The summary of a timeline; times in microseconds, in what is asked of it in seconds.

    ``last`` counts how often a rank came last; ``waited`` is when the first rank waited for it, as times apart.
    """

    first: float | None = None
    latest: float = 0.0
    phases: dict[str, TensorPhase] = field(default_factory=lambda: defaultdict(TensorPhase))
    tensors: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    operations: Counter[str] = field(default_factory=Counter)
    last: Counter[str] = field(default_factory=Counter)
    waited: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    whole: bool = True
    read: int = field(default=0, compare=False)

    @property
    def seconds(self) -> float:
        """From the first event to the last."""
        return (self.latest - (self.first or 0.0)) / 1e6

    @property
    def negotiations(self) -> int:
        """How many of them name the ranks."""
        return sum(self.last.values())

    def shares(self) -> list[tuple[str, float, float]]:
        """The phases, the longest first: name, seconds, share of the whole."""
        longest = sorted(self.phases.items(), key=lambda item: -item[1].total)
        whole_s = self.seconds or 1.0
        return [(one_line(name), times.total / 1e6, times.total / 1e6 / whole_s) for name, times in longest]

    def slowest(self, number: int) -> list[tuple[str, float, int]]:
        """The tensors that took longest: name, seconds, operations."""
        names = sorted(self.tensors, key=lambda name: -self.tensors[name])[:number]
        return [(one_line(name), self.tensors[name] / 1e6, self.operations[name]) for name in names]

    def stragglers(self, number: int) -> list[tuple[str, int, float, float]]:
        """The ranks that came last most often: rank, how often, share of the negotiations, seconds waited for it."""
        return [
            (
                one_line(rank),
                times,
                times / self.negotiations,
                sum(end - begin for begin, end in self.waited[rank]) / 1e6,
            )
            for rank, times in self.last.most_common(number)
        ]


def variables(path: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` with what has Horovod write a timeline. Raises NotWritable for a path that cannot be written."""
    require_writable(path, "The timeline")
    return {**env, "HOROVOD_TIMELINE": str(path.absolute())}


def require_writable(path: Path, what: str) -> None:
    """Raise NotWritable for a path that cannot be written."""
    target = path.absolute()
    why = "It is a folder." if target.is_dir() else ""
    why = why or ("" if target.parent.is_dir() else f"There is no folder {target.parent}.")
    writable = os.access(target if target.exists() else target.parent, os.W_OK)
    why = why or ("" if writable else "You may not write there.")
    if why:
        raise NotWritable(what=f"{what} cannot be written to {target}.", why=why, fix="Name another file.")


def state(path: Path) -> tuple[int, int, int] | None:
    """Return what tells whether a file has been written anew."""
    if not path.is_file():
        return None
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def read(path: Path, before: tuple[int, int, int] | None) -> tuple[Summary | None, str]:
    """Return the summary of a timeline after a run, given the file's state before it, and what to say of it."""
    if state(path) in (None, before):
        return None, f"envkit: there is no timeline in {path}: the command did not start Horovod (hvd.init)."
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            timeline = summary(stream)
    except OSError as error:
        return None, f"envkit: the timeline in {path} cannot be read: {error.strerror or error}."
    if timeline.first is None:
        return None, f"envkit: the timeline in {path} is empty: the command ended before Horovod had done anything."
    text = "\n".join(f"  {line}" for line in lines(timeline))
    return timeline, f"envkit: timeline in {path}, for ui.perfetto.dev\n{text}"


def summary(stream: TextIO) -> Summary:
    """Sum up a timeline, as far as it goes."""
    result = Summary()
    add_up(parsed(stream, result), result)
    return result


def parsed(stream: TextIO, totals: Summary) -> Iterator[dict[str, Any]]:
    """Yield the events one after another; ``found.whole`` tells at the end whether the list was closed."""
    decoder, text, at, ended = json.JSONDecoder(strict=False), "", 0, False
    totals.whole = False
    while True:
        while at < len(text) and text[at] in " \t\r\n,[":
            at += 1
        if text[at : at + 1] == "]":
            totals.whole = True
            return
        try:
            event, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            if ended or len(text) - at > CHUNK:  # cut short, or damaged
                return
            more = stream.read(CHUNK) if totals.read < LARGEST else ""
            totals.read += len(more)
            text, at, ended = text[at:] + more, 0, not more
            continue
        except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists
            return
        if isinstance(event, dict):
            yield event


def add_up(events: Iterable[dict[str, Any]], totals: Summary) -> None:
    """Add events to a summary; spans that have not ended do so with the last event."""
    names = dict[int, str]()
    open_spans = defaultdict[int, list[tuple[str, float]]](list)
    came = defaultdict[int, list[tuple[float, str]]](list)
    for event in events:
        kind, process, arguments, when = event.get("ph"), event.get("pid", 0), event.get("args"), event.get("ts")
        if not isinstance(process, int):
            continue
        if kind == "M" and event.get("name") == "process_name" and isinstance(arguments, dict):
            names[process] = str(arguments.get("name", process))[:LONGEST]
        if not isinstance(when, int | float) or not 0 <= when < LATEST:
            continue
        name, when = str(event.get("name", ""))[:LONGEST], float(when)
        totals.first = when if totals.first is None else totals.first
        totals.latest = max(totals.latest, when)
        if kind == "B":
            open_spans[process].append((name, when))
            enter(totals, name, when)
        elif kind == "X":
            came[process].append((when, name))
        elif kind == "E" and open_spans[process]:
            name, since = open_spans[process].pop()
            leave(totals, name, since, when, names.get(process, str(process)))
            if name.startswith("NEGOTIATE_"):
                judge(totals, came.pop(process, []))
    for process, spans in open_spans.items():
        for name, since in spans:
            leave(totals, name, since, totals.latest, names.get(process, str(process)))


def phase(name: str) -> str:
    """Return the phase that a span belongs to; what a library does is called as Horovod calls it."""
    return next((title for start, title in PHASES if name.startswith(start)), name)


def enter(totals: Summary, name: str, when: float) -> None:
    """Begin a span."""
    if name in WHOLE:
        return
    span = totals.phases[phase(name)]
    span.since = span.since if span.inside else when
    span.inside += 1


def leave(totals: Summary, name: str, since: float, when: float, tensor: str) -> None:
    """End a span."""
    if name in WHOLE:
        totals.operations[tensor] += 1
        totals.tensors[tensor] += when - since
        return
    span = totals.phases[phase(name)]
    span.inside -= 1
    span.total += 0.0 if span.inside else when - span.since


def judge(totals: Summary, came: list[tuple[float, str]]) -> None:
    """Note which rank came last in a negotiation; those of a tensor that is known already do not tell."""
    if len(came) < 2:
        return
    (began, _), (ended, rank) = min(came), max(came)
    totals.last[rank] += 1
    waits = totals.waited[rank]
    while waits and waits[-1][1] >= began:  # for several tensors at the same time it waits once
        before = waits.pop()
        began, ended = min(began, before[0]), max(ended, before[1])
    waits.append((began, ended))


def lines(totals: Summary) -> list[str]:
    """Return a summary in words."""
    cut = "" if totals.whole else f"; {LARGE if totals.read >= LARGEST else CUT}"
    rows = [f"{totals.seconds:.2f} s, {total(totals)}{cut}"]
    rows += ["at least one tensor was in"]
    rows += [f"  {name:24} {time_s:9.3f} s  {share:4.0%}" for name, time_s, share in totals.shares()]
    rows += ["slowest tensors, from the end of their negotiation"]
    for name, time_s, times in totals.slowest(SHOWN):
        rows.append(f"  {name:40} {time_s:9.3f} s in {times}, {1e3 * time_s / times:.2f} ms each")
    return [*rows, *stragglers(totals)]


def total(totals: Summary) -> str:
    """Return how much Horovod did, in words."""
    return f"{totals.operations.total()} operations on {len(totals.operations)} tensors"


def stragglers(totals: Summary) -> list[str]:
    """Return who came last, in words."""
    if not totals.negotiations:
        return []
    rows = [f"last in the {totals.negotiations} negotiations that name the ranks (the first of each tensor)"]
    for rank, times, share, waited_s in totals.stragglers(SHOWN):
        rows.append(f"  rank {rank}: {times} times ({share:.0%}); the first rank waited {waited_s:.3f} s for it")
    if len(totals.last) > SHOWN:
        rows.append(f"  and {len(totals.last) - SHOWN} other ranks")
    return [*rows, f"  {NAMED_MORE}"]
