"""Every element of larger messages, compared in the rank that receives it with what is right.

What a rank sends follows from the index and, where ranks are summed, from its number: a pseudo-random sequence of
PERIOD elements, a prime, that is raised by a step from one period to the next; rank r adds one to each element whose
place in the period is r modulo the ranks, so that each index has it once. All sums are whole numbers that the element
type holds, so that any order of adding gives the same. No element is zero. One wrong element anywhere is found, and so
are blocks that are shifted, exchanged, doubled, cut, zeroed or of another rank.

What could slip through: faults in larger messages alone, or only between two sizes that are tried (`plan` says which:
for an allreduce up to 64 MB, for the others up to 4 MB, or 64 MB where the speed is measured, too); faults that come
and go, since each message is sent once; in float16 and bfloat16, where many ranks leave no room for a step, a block
moved by a multiple of PERIOD elements; and in averages over a number of ranks that is no power of two, what is within
the rounding that TOLERANCE allows.
"""

import functools
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

from .record import Record, attempt

KB, MB = 1024, 1024 * 1024
LARGEST = 64 * MB
SMALL = (16 * KB, 64 * KB, 256 * KB, MB, KB)  # the place of a size gives each operation its type
BUDGET_S = 20.0
GROWTH = 4
NODE_BYTES = 1024 * MB
TOGETHER = 16 * MB
PERIOD = 32749
PRIME = 2147483647
REACH = 8
GROUP = 5
WIDTH = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
EXACT = {
    "float16": 2**11,
    "bfloat16": 2**8,
    "float32": 2**24,
    "float64": 2**53,
    "int32": 2**31 - 1,
    "int64": 2**63 - 1,
}
OTHERS = ("int64", "float16", "float64", "int32")
TRAINED = ("float32", "float16", "bfloat16", "int64")
MOVES, SUMS = ("broadcast", "allgather", "alltoall"), ("reducescatter", "sum")
TOLERANCE = {"float16": 2**-9, "bfloat16": 2**-6, "float32": 1e-6, "float64": 1e-12}

Compared = Dict[str, Any]
Message = Tuple[str, str, int]


class Arrays(NamedTuple):
    """The operations on arrays of PyTorch on some device, or of NumPy, which stand in for TensorFlow's tensors.

    `counting(n)` gives 0 ... n - 1 in int64, `cast` an array in another type, `empty(n, type)` one to write to;
    `plus(array, number, out)` writes to another array; `equal` says whether two have equal elements, `places` where a
    mask is set. `given` makes an argument for Horovod of an array, `got` an array of what Horovod gave; `in_place`
    tells whether Horovod can write its result over what it is given.
    """

    counting: Callable[[int], Any]
    cast: Callable[[Any, str], Any]
    empty: Callable[[int, str], Any]
    plus: Callable[[Any, int, Any], Any]
    equal: Callable[[Any, Any], bool]
    places: Callable[[Any], Any]
    given: Callable[[Any], Any]
    got: Callable[[Any], Any]
    in_place: bool


class Sequence:
    """The elements of one type: element i is base[i % PERIOD] + i // PERIOD * step."""

    def __init__(self, arrays: Arrays, kind: str, base: Any, step: int) -> None:
        self.arrays, self.kind, self.base, self.step = arrays, kind, base, step
        self.scratch = arrays.empty(len(base), kind)  # memory that is used again costs a fraction of new memory

    def piece(self, place: int, length: int, period: int) -> Any:
        """Elements within one period, which hold until the next call."""
        block = self.base[place : place + length]
        return self.arrays.plus(block, period * self.step, self.scratch[:length]) if period and self.step else block

    def write(self, into: Any, at: int, first: int, count: int) -> None:
        """Write `count` elements from element `first` on to a place of an array."""
        for place, length, period in pieces(first, count):
            block = self.base[place : place + length]
            if period and self.step:
                self.arrays.plus(block, period * self.step, into[at : at + length])
            else:
                into[at : at + length] = block
            at += length

    def compare(self, values: Any, spans: List[Tuple[int, int]], divisor: int = 1) -> Compared:
        """How many elements are not those of some spans (first element, count) one after the other, over a divisor.

        With the place of the first, what was found there and what is right.
        """
        result = {"wrong": 0}  # type: Compared
        expected = sum(count for _, count in spans)
        if len(values) != expected:
            return {"wrong": expected, "found": "%d elements" % len(values), "right": "%d elements" % expected}
        at = 0
        for first, count in spans:
            for place, length, period in pieces(first, count):
                block, right = values[at : at + length], self.piece(place, length, period)
                if divisor > 1 and not allowed(self.kind, divisor):
                    right = right / divisor
                elif divisor > 1:
                    block, right = self.arrays.cast(block, "float64"), self.arrays.cast(right, "float64") / divisor
                if not self.arrays.equal(block, right):
                    where = self.arrays.places(differing(block, right, allowed(self.kind, divisor)))
                    if len(where) and not result["wrong"]:
                        offset = int(where[0])
                        result.update(index=at + offset, found=shown(block[offset]), right=shown(right[offset]))
                    result["wrong"] += len(where)
                at += length
        return result


def allowed(kind: str, divisor: int) -> float:
    """How far a quotient may be off, relative to it: nothing where the divisor is a power of two."""
    return TOLERANCE[kind] if divisor & (divisor - 1) else 0.0


def differing(values: Any, right: Any, tolerance: float) -> Any:
    """A mask of the elements that are not right; one that is no number is not."""
    return ~(abs(values - right) <= tolerance * right) if tolerance else values != right


def shown(element: Any) -> str:
    """An element with each of its bits: a float as the shortest decimal number for it, and in hexadecimal."""
    value = element.item()
    return "%r (%s)" % (value, value.hex()) if isinstance(value, float) else "%r" % value


def pieces(first: int, count: int) -> Iterator[Tuple[int, int, int]]:
    """Place in the period, length and number of the period, for the parts of a range that lie in one period each."""
    end = first + count
    while first < end:
        period, place = divmod(first, PERIOD)
        length = min(PERIOD - place, end - first)
        yield place, length, period
        first += length


def share(count: int, rank: int, size: int) -> Tuple[int, int]:
    """Return where a rank's part of so many elements begins, and its length: the first ranks have one more."""
    least, more = divmod(count, size)
    return rank * least + min(rank, more), least + int(rank < more)


def plan() -> List[List[Message]]:
    """Return what is compared, by stage.

    Every type is summed and averaged: by allreduce the types of gradients and of counters at 1 MB, the rest at 256 KB.
    Otherwise bytes are moved, whatever their type: each operation is tried at each size up to 4 MB, with another type
    each time, and the largest message is an allreduce.
    """
    *small, megabyte, kilobyte = [
        [(name, OTHERS[(turn + place) % len(OTHERS)], size) for place, name in enumerate(MOVES + SUMS)]
        for turn, size in enumerate(SMALL)
    ]
    typed = [("reducescatter", kind, 256 * KB) for kind in WIDTH]
    typed += [("sum", kind, 256 * KB) for kind in WIDTH if kind not in TRAINED] + [("average", "float64", 256 * KB)]
    typed += megabyte[: len(MOVES) + 1] + [("sum", kind, MB) for kind in TRAINED]
    typed += [("average", kind, MB) for kind in ("float32", "float16", "bfloat16")]
    larger = [(name, "float32", 4 * MB) for name in MOVES + ("reducescatter", "grouped")]
    return [kilobyte + small[0], small[1] + small[2], typed, larger, [("sum", "float32", LARGEST)]]


def summary(rows: List[Compared], left_out: List[int]) -> Dict[str, Any]:
    """How many messages were compared, the largest size, those with an error or with wrong elements, and the rest."""
    bad = [row for row in rows if "error" in row or row["wrong"]]
    largest = max([row["size"] for row in rows] or [0])
    return {"messages": len(rows), "largest": largest, "bad": bad, "left_out": sorted(set(left_out) - {largest})}


class Values:
    """Larger collectives of one rank on tensors of one framework, on the CPU ("cpu") or a GPU ("gpu").

    `begin` calls a function of Horovod by name, and gives what to call for its result.
    """

    def __init__(self, hvd: Any, arrays: Arrays, begin: Callable[..., Callable[[], Any]], where: str) -> None:
        self.hvd, self.arrays, self.begin, self.where = hvd, arrays, begin, where
        self.rank, self.size = hvd.rank(), hvd.size()
        numbers = arrays.counting(PERIOD)
        self.noise = (numbers * numbers * 40503 + numbers * 7919) % PRIME
        self.pool = None  # type: Any
        self.known = {}  # type: Dict[Tuple[str, int, int], Tuple[Sequence, Sequence]]

    def compare(
        self, record: Record, step: str, stages: List[List[Message]], clock: Callable[[], float] = time.monotonic
    ) -> Dict[str, Any]:
        """Compare stage by stage, as far as all ranks foresee enough time and memory for it.

        Each stage is a step of its own. Small messages are under way together, TOGETHER bytes at most.
        """
        rows, began, spent, foreseen, before = [], clock(), 0.0, 0.0, 0  # type: List[Compared], float, float, float, int
        crowd = self.largest_of(self.hvd.local_size())
        for done, stage in enumerate(stages):
            size, load = stage[-1][2], sum(size for _, _, size in stage)
            foreseen *= min(load / before, GROWTH) if before else 0
            if crowd * size > NODE_BYTES or spent + foreseen > BUDGET_S:
                return dict(summary(rows, [rest[-1][2] for rest in stages[done:]]), where=self.where)
            record.arrive("%s_%d" % (step, size))
            together = TOGETHER // size if size <= MB else 1  # the memory of large ones is used again
            for begin in range(0, len(stage), together):
                rows += self.round(stage[begin : begin + together])
            elapsed = self.largest_of(clock() - began)
            spent, foreseen, before = elapsed, elapsed - spent, load
        return dict(summary(rows, []), where=self.where)

    def round(self, tried: List[Message]) -> List[Compared]:
        begun = [attempt(functools.partial(getattr(self, operation), kind, size)) for operation, kind, size in tried]
        results = [attempt(finish) if callable(finish) else finish for finish in begun]
        for result in results:
            result.pop("traceback", None)
        named = [{"operation": operation, "kind": kind, "size": size} for operation, kind, size in tried]
        return [dict(row, **result) for row, result in zip(named, results)]

    def largest_of(self, value: float) -> float:
        """The largest value that any rank gives."""
        own = self.arrays.empty(1, "float64")
        own[0:1] = value
        name = "values.%s.largest" % self.where
        return float(self.arrays.got(self.begin("allgather", self.arrays.given(own), name=name)()).max())

    def count(self, kind: str, size: int) -> int:
        """The elements of a message just over a size in bytes, and of no fewer than every rank has a part of."""
        return max(size // WIDTH[kind], 2 * int(self.size)) + 1

    def sequences(self, kind: str, count: int, summed: int) -> Tuple[Sequence, Sequence]:
        """Return what this rank sends of so many elements, where so many ranks are summed, and the sum."""
        key = (kind, -(-count // PERIOD), summed)
        if key not in self.known:
            senders = min(summed, EXACT[kind] // 4)
            span = (EXACT[kind] - 1) // senders
            step = span // 2 // (key[1] - 1) if key[1] > 1 else 0
            most = span - step * (key[1] - 1)
            bits = most.bit_length() - 1
            base = (self.noise & (2 ** min(bits, 31) - 1)) * 2 ** max(bits - 31, 0) + 1
            if summed == 1:
                own = total = Sequence(self.arrays, kind, self.arrays.cast(base, kind), step)
            else:
                sends = self.rank < senders
                marked = base * int(sends)
                marked[self.rank :: summed] += 1
                own = Sequence(self.arrays, kind, self.arrays.cast(marked, kind), step * sends)
                total = Sequence(self.arrays, kind, self.arrays.cast(base * senders + 1, kind), step * senders)
            self.known[key] = own, total
        return self.known[key]

    def room(self, count: int, kind: str) -> Any:
        """Memory for what is sent; of large messages the same, since it takes longer to get it than to write to it."""
        if kind != "float32" or count <= MB:
            return self.arrays.empty(count, kind)
        if self.pool is None or len(self.pool) < count:
            self.pool = self.arrays.empty(max(count, LARGEST // WIDTH[kind] + 1), kind)
        return self.pool[:count]

    def start(self, operation: str, call: str, data: Any, kind: str, size: int, *given: Any, **options: Any) -> Any:
        name = "values.%s.%s.%s.%d" % (self.where, operation, kind, size)
        return self.begin(call, data, *given, name=name, **options)

    def in_place(self, call: str, size: int) -> str:
        """The function that needs no memory for its result, where it matters."""
        return call + "_" if size > MB and self.arrays.in_place else call

    def reduction(self, operation: str, kind: str, size: int, op: str, divisor: int) -> Callable[[], Compared]:
        count = self.count(kind, size)
        own, total = self.sequences(kind, count, self.size)
        data = self.room(count, kind)
        own.write(data, 0, 0, count)
        call = self.in_place("allreduce", size)
        wait = self.start(operation, call, self.arrays.given(data), kind, size, op=getattr(self.hvd, op))
        return lambda: total.compare(self.arrays.got(wait()), [(0, count)], divisor)

    def sum(self, kind: str, size: int) -> Callable[[], Compared]:
        return self.reduction("sum", kind, size, "Sum", 1)

    def average(self, kind: str, size: int) -> Callable[[], Compared]:
        return self.reduction("average", kind, size, "Average", self.size)

    def grouped(self, kind: str, size: int) -> Callable[[], Compared]:
        """Tensors of unequal sizes, which Horovod copies into one buffer and out of it."""
        count = self.count(kind, size)
        own, total = self.sequences(kind, count, self.size)
        data = self.room(count, kind)
        own.write(data, 0, 0, count)
        ends = [count * part * (part + 1) // (GROUP * (GROUP + 1)) for part in range(GROUP + 1)]
        parts = [self.arrays.given(data[begin:end]) for begin, end in zip(ends, ends[1:])]
        call = "grouped_" + self.in_place("allreduce", size)
        wait = self.start("grouped", call, parts, kind, size, op=self.hvd.Sum)

        def finish() -> Compared:
            outputs = [self.arrays.got(part) for part in wait()]
            spans = list(zip(ends, ends[1:]))
            compared = [total.compare(part, [(a, b - a)]) for part, (a, b) in zip(outputs, spans)]
            return next((result for result in compared if result["wrong"]), {"wrong": 0})

        return finish

    def reducescatter(self, kind: str, size: int) -> Callable[[], Compared]:
        count = self.count(kind, size)
        own, total = self.sequences(kind, count, self.size)
        data = self.room(count, kind)
        own.write(data, 0, 0, count)
        part = share(count, self.rank, self.size)
        wait = self.start("reducescatter", "reducescatter", self.arrays.given(data), kind, size, op=self.hvd.Sum)
        return lambda: total.compare(self.arrays.got(wait()), [part])

    def broadcast(self, kind: str, size: int) -> Callable[[], Compared]:
        """From the last rank; the others hold zeros."""
        count, root = self.count(kind, size), self.size - 1
        own, right = self.sequences(kind, count, 1)
        data = self.room(count, kind)
        if self.rank == root:
            own.write(data, 0, 0, count)
        else:
            data[0:count] = 0
        wait = self.start("broadcast", self.in_place("broadcast", size), self.arrays.given(data), kind, size, root)
        return lambda: right.compare(self.arrays.got(wait()), [(0, count)])

    def allgather(self, kind: str, size: int) -> Callable[[], Compared]:
        """Of so many bytes in all."""
        count = self.count(kind, size)
        own, right = self.sequences(kind, count, 1)
        first, length = share(count, self.rank, self.size)
        data = self.room(length, kind)
        own.write(data, 0, first, length)
        wait = self.start("allgather", "allgather", self.arrays.given(data), kind, size)
        return lambda: right.compare(self.arrays.got(wait()), [(0, count)])

    def alltoall(self, kind: str, size: int) -> Callable[[], Compared]:
        """So many bytes from each rank, in parts to the REACH ranks from itself on, in a ring."""
        count, reach = self.count(kind, size), min(REACH, self.size)
        own, right = self.sequences(kind, count * self.size, 1)
        parts = [share(count, step, reach) for step in range(reach)]
        sent = sorted(((self.rank + step) % self.size, parts[step]) for step in range(reach))
        received = sorted(((self.rank - step) % self.size, parts[step]) for step in range(reach))
        data, at = self.room(count, kind), 0
        counts = [0] * self.size
        for to, (first, length) in sent:
            own.write(data, at, self.rank * count + first, length)
            counts[to], at = length, at + length
        wait = self.start("alltoall", "alltoall", self.arrays.given(data), kind, size, counts)
        spans = [(sender * count + first, length) for sender, (first, length) in received]
        return lambda: right.compare(self.arrays.got(wait()[0]), spans)


def measure_values(record: Record, values: Callable[[], Values], where: str) -> None:
    """State how larger messages arrived."""
    step = "values_%s" % where
    record.state(step, lambda: values().compare(record, step, plan()))
