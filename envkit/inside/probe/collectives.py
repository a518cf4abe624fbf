"""Collectives whose right results depend on the size of the world and on the order of its ranks.

What a rank sends follows from its number, its prime and the element type; the ranks from EXACT on send zeros, so that
every sum is exact in float16 and float32, too. A round begins all its operations before it waits for one, and Horovod
negotiates them together and fuses what fits.
"""

import time
from typing import Any, Callable, Dict, List, Optional

from .record import Record, attempt

FLOATS = ("float16", "float32", "float64")
TYPES = FLOATS + ("int32", "int64")
EXACT = {"float16": 512, "float32": 2000}
GROUP = 5
REACH = 8

Results = Dict[str, Dict[str, Any]]


def primes(count: int) -> List[int]:
    """The first prime numbers."""
    result = []  # type: List[int]
    candidate = 2
    while len(result) < count:
        if all(candidate % divisor for divisor in result if divisor * divisor <= candidate):
            result.append(candidate)
        candidate += 1
    return result


def sent(rank: int, prime: int, kind: str) -> List[float]:
    """The three elements that a rank sends in an element type."""
    if rank >= EXACT.get(kind, rank + 1):
        return [0, 0, 0]
    if kind == "float16":
        return [1 + rank % 3, -1 - rank % 2, rank % 5 / 2]
    return [prime, -prime, prime / 2 if kind in FLOATS else 1]


def factors(rank: int, prime: int) -> List[float]:
    """Three elements whose product over all ranks is exact in float64."""
    return [2 if rank < 64 else 1, -1, prime if rank < 12 else 1]


def splits(rank: int, size: int) -> List[int]:
    """How many elements a rank sends to each in the alltoall; none to those further off than REACH."""
    return [(rank + 2 * to + 1) % 3 if (to - rank) % size < REACH else 0 for to in range(size)]


class Round:
    """Operations under way: each has a check, a description, and a name of its own for Horovod."""

    def __init__(self, hvd: Any, begin: Callable[..., Callable[[], Any]], where: str) -> None:
        self.hvd, self.begin, self.where = hvd, begin, where
        self.waits = {}  # type: Results

    def add(self, check: str, what: str, call: str, *given: Any, op: Optional[str] = None, **options: Any) -> None:
        """Begin an operation; `op` names the reduction."""
        name = "%s.%s.%s" % (check, what.replace(" ", "."), self.where)

        def begun() -> Any:
            reduction = {"op": getattr(self.hvd, op)} if op else {}
            return self.begin(call, *given, name=name, **dict(options, **reduction))

        self.waits.setdefault(check, {})[what] = attempt(begun)

    def results(self) -> Results:
        """The outcome of each operation, its elements or its failure, by check and description."""
        return {check: {what: finished(wait) for what, wait in waits.items()} for check, waits in self.waits.items()}


def finished(wait: Any) -> Any:
    return attempt(lambda: numbers(wait())) if callable(wait) else wait


def numbers(result: Any) -> List[Any]:
    """The elements of a tensor, or of several one after the other; what JSON has no number for, as a word."""
    if isinstance(result, (list, tuple)):
        return [number for part in result for number in numbers(part)]
    array = (result if hasattr(result, "reshape") else result.numpy()).reshape(-1)
    return [value if abs(value) < float("inf") else str(value) for value in map(float, array.tolist())]


class Collectives:
    """The collectives of one rank on tensors of one framework on the CPU ("cpu") or a GPU ("gpu").

    `make` turns elements and the name of their type into a tensor. `begin` calls a function of Horovod by name, and
    gives what to call for its result.
    """

    def __init__(
        self, hvd: Any, make: Callable[[List[float], str], Any], begin: Callable[..., Callable[[], Any]], where: str
    ) -> None:
        self.hvd, self.make, self.begin, self.where = hvd, make, begin, where
        self.rank, self.size = hvd.rank(), hvd.size()
        self.prime = primes(self.size)[self.rank]

    def round(self) -> Round:
        return Round(self.hvd, self.begin, self.where)

    def own(self, kind: str) -> Any:
        return self.make(sent(self.rank, self.prime, kind), kind)

    def shared(self) -> Results:
        """allreduce, broadcast from the last rank, allgather of unequal parts: all ranks get the same."""
        running = self.round()
        self.reduce(running)
        for kind in TYPES:
            running.add("broadcast", kind, "broadcast", self.own(kind), self.size - 1)
        for kind in ("float16", "float64", "int64"):
            part = sent(self.rank, self.prime, kind)[:1] * (1 + self.rank % 3)
            running.add("allgather", kind, "allgather", self.make(part, kind))
        if hasattr(self.hvd, "allreduce_"):
            running.add("allreduce", "sum float32 in place", "allreduce_", self.own("float32"), op="Sum")
            running.add("broadcast", "float32 in place", "broadcast_", self.own("float32"), self.size - 1)
        results = running.results()
        if hasattr(self.hvd, "allreduce_async"):
            results["allreduce"]["sum float32 at once"] = attempt(self.at_once)
        return results

    def at_once(self) -> List[Any]:
        """A sum by the function that waits for it, which most programs call, where the others begin and wait apart."""
        name = "allreduce.sum.float32.at.once.%s" % self.where
        return numbers(self.hvd.allreduce(self.own("float32"), name=name, op=self.hvd.Sum))

    def reduce(self, running: Round) -> None:
        reductions = {"Sum": TYPES, "Average": FLOATS, "Min": ("float32", "int64"), "Max": ("float32", "int64")}
        for op, kinds in reductions.items():
            for kind in kinds:
                running.add("allreduce", "%s %s" % (op.lower(), kind), "allreduce", self.own(kind), op=op)
        product = self.make(factors(self.rank, self.prime), "float64")
        running.add("allreduce", "product float64", "allreduce", product, op="Product")
        group = [self.make([float(self.prime * count)] * count, "float64") for count in range(1, GROUP + 1)]
        running.add("allreduce", "sum float64 grouped", "grouped_allreduce", group, op="Sum")

    def apart(self) -> Results:
        """alltoall of unequal parts, then how many came from whom, and reducescatter: each rank gets its own."""
        running = self.round()
        counts = splits(self.rank, self.size)
        part = [float(self.prime * (to + 1)) for to, count in enumerate(counts) for _ in range(count)]
        running.add("alltoall", "float64", "alltoall", self.make(part, "float64"), counts)
        rows = [float(self.prime * (row + 1)) for row in range(2 * self.size + 1)]
        running.add("reducescatter", "sum float64", "reducescatter", self.make(rows, "float64"), op="Sum")
        results = running.results()
        results["alltoall"]["float64"] = few_counts(results["alltoall"]["float64"], self.size)
        return results

    def process_sets(self) -> Dict[str, Any]:
        """Sum, and broadcast from the last, within the even and within the odd ranks; and this rank's place there."""
        sets = [self.hvd.add_process_set(list(range(first, self.size, 2))) for first in (0, 1)]
        mine, running = sets[self.rank % 2], self.round()
        root = (self.size - 1 - self.rank % 2) // 2 * 2 + self.rank % 2
        running.add("process-sets", "sum float64", "allreduce", self.own("float64"), op="Sum", process_set=mine)
        running.add("process-sets", "broadcast float64", "broadcast", self.own("float64"), root, process_set=mine)
        results = running.results()["process-sets"]
        results["rank and size"] = [float(mine.rank()), float(mine.size())]
        for each in sets:
            self.hvd.remove_process_set(each)
        return {"results": results}

    def barrier(self) -> Dict[str, float]:
        """When this rank came to a barrier and when it left (s, a clock that all ranks of a node share)."""
        entered = time.monotonic()
        self.hvd.barrier()
        return {"entered": entered, "left": time.monotonic()}


def few_counts(result: Any, size: int) -> Any:
    """The result of an alltoall without the ranks that sent nothing, or the failure."""
    return result[:-size] + [count for count in result[-size:] if count] if isinstance(result, list) else result


def measure_collectives(record: Record, collectives: Collectives) -> None:
    """State what the collectives gave, in few rounds; what is about the ranks and not about the tensors, on the CPU."""
    where = collectives.where
    record.state("collectives_%s" % where, collectives.shared)
    record.state("exchanges_%s" % where, collectives.apart)
    if where == "cpu" and collectives.size > 1:
        record.state("process_sets", collectives.process_sets)
        record.state("barrier", collectives.barrier)
