"""What the collectives and the training of `probe.py` must give in a world of a certain size."""

from __future__ import annotations

import math
from collections.abc import Sequence

from envkit.verify.facts import Training

FLOAT32_TOLERANCE = 1e-4
FLOAT64_TOLERANCE = 1e-9


def primes(count: int) -> list[int]:
    """The first `count` prime numbers."""
    found: list[int] = []
    candidate = 2
    while len(found) < count:
        if all(candidate % divisor for divisor in found if divisor * divisor <= candidate):
            found.append(candidate)
        candidate += 1
    return found


def sent(prime: int) -> list[float]:
    """What a rank with that prime sends, 3 elements."""
    return [float(prime), -float(prime), prime / 2]


def expected_broadcast(size: int) -> list[float]:
    """What every rank receives: the last rank's elements."""
    return sent(primes(size)[-1])


def expected_sum(size: int) -> list[float]:
    """The sum over all ranks, element by element."""
    return sent(sum(primes(size)))


def expected_average(size: int) -> list[float]:
    """The mean over all ranks, element by element."""
    return [value / size for value in expected_sum(size)]


def expected_gathered(size: int) -> list[float]:
    """Each rank's prime, 1 + rank % 3 times, in rank order."""
    return [float(prime) for rank, prime in enumerate(primes(size)) for _ in range(1 + rank % 3)]


def agree(first: Sequence[float] | None, second: Sequence[float] | None, tolerance: float = FLOAT64_TOLERANCE) -> bool:
    """Whether two vectors have one length and equal elements, relative to 1 or to the elements if larger."""
    if first is None or second is None or len(first) != len(second):
        return False
    pairs = zip(first, second, strict=True)
    return all(math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a, b in pairs)


def trained_together(tasks: Sequence[Training]) -> list[float]:
    """The weights after gradient descent from rank 0's own weights on the mean of all ranks' gradients."""
    weights = list(tasks[0].own)
    for _ in range(tasks[0].steps):
        gradients = [_gradient(task, weights) for task in tasks]
        mean = [sum(column) / len(tasks) for column in zip(*gradients, strict=True)]
        weights = [w - tasks[0].learning_rate * g for w, g in zip(weights, mean, strict=True)]
    return weights


def trained_alone(task: Training, start: Sequence[float]) -> list[float]:
    """The weights that one rank reaches from `start` on its own data only."""
    weights = list(start)
    for _ in range(task.steps):
        pairs = zip(weights, _gradient(task, weights), strict=True)
        weights = [w - task.learning_rate * g for w, g in pairs]
    return weights


def loss(task: Training, weights: Sequence[float]) -> float:
    """The mean squared error of a rank's problem."""
    errors = _errors(task, weights)
    return sum(error * error for error in errors) / len(errors)


def _errors(task: Training, weights: Sequence[float]) -> list[float]:
    rows = zip(task.inputs, task.targets, strict=True)
    return [sum(w * x for w, x in zip(weights, row, strict=True)) - target for row, target in rows]


def _gradient(task: Training, weights: Sequence[float]) -> list[float]:
    errors = _errors(task, weights)
    columns = zip(*task.inputs, strict=True)
    return [2 / len(errors) * sum(e * x for e, x in zip(errors, column, strict=True)) for column in columns]
