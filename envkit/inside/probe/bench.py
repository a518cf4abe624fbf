"""Collectives timed over message sizes, with numbers of calls that all ranks agree on."""

import time
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

WARM_UP = 2
LEAST, MOST = 5, 100
GROWTH = 4


def nothing() -> Dict[str, Any]:
    return {}


class Message(NamedTuple):
    """A call to be timed; `fill` is called before the last time, and `compare` after it: was its result right?"""

    call: Callable[[], Any]
    fill: Callable[[], Any] = nothing
    compare: Callable[[], Dict[str, Any]] = nothing


def sweep(
    sizes: Sequence[int],
    prepare: Callable[[int], Message],
    share: Callable[[float], float],
    budget: float,
    clock: Callable[[], float] = time.perf_counter,
) -> List[Dict[str, Any]]:
    """For each size in bytes: seconds of one call (the median, in the slowest rank), and how many were timed.

    With what the comparison of the last result says. `prepare(size)` gives the message, `share(value)` the largest
    value of all ranks, which is what makes them agree. Sizes that would not fit into the budget (s) are left out.
    """
    rows = []  # type: List[Dict[str, Any]]
    end = clock() + budget
    for position, size in enumerate(sizes):
        remaining = share(end - clock())
        if remaining < foreseen(rows, size):
            break
        call, fill, compare = prepare(size)
        for _ in range(WARM_UP):
            call()
        once = share(timed(call, clock))
        times = [timed(call, clock) for _ in range(calls(once, remaining / (len(sizes) - position)) - 1)]
        fill()
        times.append(timed(call, clock))
        rows.append(dict(compare(), size=size, seconds=share(median(times)), calls=len(times)))
    return rows


def foreseen(rows: List[Dict[str, Any]], size: int) -> float:
    """The seconds that the fewest calls of a size will take, going by the size before; a small one tells little."""
    if not rows:
        return 0.0
    last = rows[-1]
    return float(last["seconds"] * min(size / last["size"], GROWTH) * (WARM_UP + 1 + LEAST))


def calls(once: float, budget: float) -> int:
    """How many calls to time if one takes `once` seconds."""
    return max(LEAST, min(MOST, int(budget / max(once, 1e-9))))


def timed(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    call()
    return clock() - began


def median(values: List[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
