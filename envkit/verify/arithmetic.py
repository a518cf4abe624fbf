"""The results that the collectives and the training of the probe must give in a world of a certain size."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from operator import mul

from envkit.verify.facts import Training

FLOATS = ("float16", "float32", "float64")
TYPES = (*FLOATS, "int32", "int64")
FLOAT32_TOLERANCE = 1e-4

Results = dict[str, list[float]]

EXACT = {"float16": 512, "float32": 2000}
REACH = 8
ROUNDED = {"float16": 2**-9, "float32": 1e-6, "float64": 1e-12}


@functools.cache
def primes(count: int) -> tuple[int, ...]:
    """The first `count` prime numbers (the sieve of Eratosthenes up to Rosser's bound of the last one)."""
    log = math.log(count + 2)
    most = int(count * (log + math.log(log))) + 15
    sieve = bytearray([1]) * (most + 1)
    for number in range(2, math.isqrt(most) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, most + 1, number)))
    return tuple(itertools.islice((number for number in range(2, most + 1) if sieve[number]), count))


@functools.cache
def sent(size: int, kind: str) -> tuple[list[float], ...]:
    """Return the 3 elements that each rank sends in a type, by rank; zeros from the rank on where sums grow inexact."""
    return tuple(sent_by(rank, prime, kind) for rank, prime in enumerate(primes(size)))


@functools.cache
def allreduce(size: int) -> Results:
    """Return what every rank receives, by reduction and type."""
    results = {f"sum {kind}": sums(sent(size, kind)) for kind in TYPES}
    results |= {f"average {kind}": [value / size for value in sums(sent(size, kind))] for kind in FLOATS}
    for kind in ("float32", "int64"):
        results[f"min {kind}"] = [min(column) for column in zip(*sent(size, kind), strict=True)]
        results[f"max {kind}"] = [max(column) for column in zip(*sent(size, kind), strict=True)]
    factors = [2.0 ** min(size, 64), (-1.0) ** size, float(math.prod(primes(min(size, 12))))]
    grouped = [float(total(size) * count) for count in range(1, 6) for _ in range(count)]
    single = results["sum float32"]
    results |= {"product float64": factors, "sum float64 grouped": grouped}
    return results | {"sum float32 in place": single, "sum float32 at once": single}


@functools.cache
def broadcast(size: int) -> Results:
    """Return what every rank receives from the last one, by type."""
    results = {kind: sent(size, kind)[-1] for kind in TYPES}
    return {**results, "float32 in place": results["float32"]}


@functools.cache
def allgather(size: int) -> Results:
    """Each rank's first element, 1 + rank % 3 times, in rank order, by type."""
    kinds = ("float16", "float64", "int64")
    parts = {kind: enumerate(values[0] for values in sent(size, kind)) for kind in kinds}
    return {kind: [value for rank, value in part for _ in range(1 + rank % 3)] for kind, part in parts.items()}


def alltoall(size: int, rank: int) -> Results:
    """Return what a rank receives: (sender + 2 * rank + 1) % 3 times the sender's prime * (rank + 1), then the counts.

    Only the ranks less than 8 before it, in a ring, send anything.
    """
    senders = sorted((rank - distance) % size for distance in range(min(REACH, size)))
    counts = {sender: (sender + 2 * rank + 1) % 3 for sender in senders}
    received = [float(primes(size)[sender] * (rank + 1)) for sender in senders for _ in range(counts[sender])]
    return {"float64": [*received, *(float(count) for count in counts.values() if count)]}


def reducescatter(size: int, rank: int) -> Results:
    """Return what a rank receives of the sums, 2 * size + 1 in all: three if it is the first, else two."""
    first, count = (0, 3) if rank == 0 else (2 * rank + 1, 2)
    return {"sum float64": [float(total(size) * (row + 1)) for row in range(first, first + count)]}


def process_sets(size: int, rank: int) -> Results:
    """Return what a rank receives within the even, or the odd, ranks, and its place there."""
    return {**process_set(size, rank % 2), "rank and size": [float(rank // 2), float((size + 1 - rank % 2) // 2)]}


def tolerance(what: str) -> float:
    """How far a result may be off, relative to 1 or to it if larger: averages are rounded, all else is exact."""
    return next((allowed for kind, allowed in ROUNDED.items() if what == f"average {kind}"), 0.0)


def agree(first: Sequence[float | str] | None, second: Sequence[float | str] | None, tolerance: float) -> bool:
    """Whether two vectors have one length and equal elements, relative to 1 or to the elements if larger.

    A word (nan, inf) equals nothing.
    """
    if first is None or second is None or len(first) != len(second):
        return False
    if tuple(first) == tuple(second):
        return not any(isinstance(element, str) for element in first)
    pairs = zip(first, second, strict=True)
    return all(close(a, b, tolerance) for a, b in pairs)


def close(first: float | str, second: float | str, tolerance: float) -> bool:
    """Say whether two elements are equal, relative to 1 or to them if larger; a word (nan, inf) equals nothing."""
    if isinstance(first, str) or isinstance(second, str):
        return False
    return math.isclose(first, second, rel_tol=tolerance, abs_tol=tolerance)


def trained_together(tasks: Sequence[Training], start: Sequence[float] | None = None) -> list[float]:
    """The weights after gradient descent on the mean of these ranks' gradients; from the first one's own weights.

    A rank's gradient is linear in the weights, so that its coefficients are summed once, not itself in each step.
    """
    weights = list(tasks[0].own if start is None else start)
    rows = [
        [sum(terms) / len(tasks) for terms in zip(*row, strict=True)] for row in zip(*map(linear, tasks), strict=True)
    ]
    for _ in range(tasks[0].steps):
        mean = [sum(map(mul, row, weights)) - row[-1] for row in rows]
        weights = [w - tasks[0].learning_rate * g for w, g in zip(weights, mean, strict=True)]
    return weights


def trained_alone(task: Training, start: Sequence[float]) -> list[float]:
    """The weights that one rank reaches from `start` on its own data only."""
    weights = list(start)
    for _ in range(task.steps):
        pairs = zip(weights, gradient(task, weights), strict=True)
        weights = [w - task.learning_rate * g for w, g in pairs]
    return weights


def loss(task: Training, weights: Sequence[float]) -> float:
    """The mean squared error of a rank's problem."""
    errors = errors_of(task, weights)
    return sum(error * error for error in errors) / len(errors)


def errors_of(task: Training, weights: Sequence[float]) -> list[float]:
    """Return by how much the weights miss the target of each sample of a rank's problem."""
    rows = zip(task.inputs, task.targets, strict=True)
    return [sum(w * x for w, x in zip(weights, row, strict=True)) - target for row, target in rows]


def gradient(task: Training, weights: Sequence[float]) -> list[float]:
    """Return the gradient of a rank's loss at these weights."""
    errors = errors_of(task, weights)
    columns = zip(*task.inputs, strict=True)
    return [2 / len(errors) * sum(e * x for e, x in zip(errors, column, strict=True)) for column in columns]


def linear(task: Training) -> list[list[float]]:
    """A row for each element of the gradient: what each weight is multiplied with there, and what is subtracted."""
    columns = list(zip(*task.inputs, strict=True))
    scale = 2 / len(task.targets)
    return [[scale * sum(map(mul, column, other)) for other in (*columns, task.targets)] for column in columns]


def sent_by(rank: int, prime: int, kind: str) -> list[float]:
    """Return the 3 elements that one rank sends in an element type; zeros where sums grow inexact."""
    if rank >= EXACT.get(kind, rank + 1):
        return [0.0, 0.0, 0.0]
    if kind == "float16":
        return [1.0 + rank % 3, -1.0 - rank % 2, rank % 5 / 2]
    return [float(prime), -float(prime), prime / 2 if kind in FLOATS else 1.0]


@functools.cache
def total(size: int) -> int:
    """Return the sum of the primes of all ranks."""
    return sum(primes(size))


@functools.cache
def process_set(size: int, first: int) -> Results:
    """Return what the ranks of a process set receive: every other rank, from the first (0 or 1) on."""
    mine = sent(size, "float64")[first::2]
    return {"sum float64": sums(mine), "broadcast float64": mine[-1]}


def sums(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the sum of each column."""
    return [sum(column) for column in zip(*rows, strict=True)]
