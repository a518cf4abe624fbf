"""Larger messages in worlds made here, with arrays in plain Python: what is sent, what is right, and what is found."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from envkit.inside.probe import bench, values
from envkit.inside.probe.values import Arrays, Sequence
from envkit.verify.checks import Expected, Result, Status, check, verdict
from envkit.verify.facts import Compared, Fact, RankFacts, Sweep, Timed, Values
from envkit.verify.outcome import Status as Outcome
from envkit.verify.report import make_report, render, to_json
from envkit.verify.report.junit import junit
from envkit.verify.report.page import html

from . import recorded
from .test_speed_probe import Clock, World

KINDS = sorted(values.WIDTH)
WORLDS = (1, 2, 3, 7, 64, 600)
GOOD = recorded.case("pytorch-2ranks")


@pytest.fixture(scope="module")
def plain() -> Arrays:
    """The arrays of the PyTorch that stands in for the real one: lists."""
    spec = importlib.util.spec_from_file_location(
        "plain_torch", Path(__file__).with_name("fakes") / "torch/__init__.py"
    )
    assert spec and spec.loader
    torch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(torch)
    return Arrays(
        counting=torch.arange,
        cast=lambda tensor, kind: tensor.to(kind),
        empty=torch.empty,
        plus=lambda tensor, number, out: torch.add(tensor, number, out=out),
        equal=torch.equal,
        places=lambda mask: mask.nonzero().reshape(-1),
        given=lambda tensor: tensor,
        got=lambda tensor: tensor,
        in_place=True,
    )


@pytest.fixture(autouse=True)
def short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "PERIOD", 1009)


def rank_of(plain: Arrays, rank: int, size: int, **more: Any) -> values.Values:
    hvd = SimpleNamespace(rank=lambda: rank, size=lambda: size, local_size=lambda: size, **more)
    return values.Values(hvd, plain, lambda *_given, **_options: lambda: None, "cpu")


def elements(plain: Arrays, sequence: Sequence, count: int) -> Any:
    array = plain.empty(count, sequence.kind)
    sequence.write(array, 0, 0, count)
    return array


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", WORLDS)
def test_the_sum_of_what_the_ranks_send_is_what_is_right(
    plain: Arrays, kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if size >= 600:
        monkeypatch.setattr(values, "PERIOD", 607)
    count = 1500 if size < 600 else 650  # more than a period
    ranks = [rank_of(plain, rank, size).sequences(kind, count, size) for rank in range(size)]
    sent = [elements(plain, own, count).rows for own, _ in ranks]
    right = elements(plain, ranks[-1][1], count).rows
    assert [sum(column) for column in zip(*sent, strict=True)] == right
    assert all(0 < value <= values.EXACT[kind] for value in right)
    assert size == 1 or all(one != other for one, other in pairwise(sent))


@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_exact_and_no_element_is_zero_in_the_largest_worlds(plain: Arrays, kind: str) -> None:
    count = values.LARGEST // values.WIDTH[kind] + 1
    _, total = rank_of(plain, 4095, 4096).sequences(kind, count, 4096)
    last = [value + (count // values.PERIOD) * total.step for value in total.base.rows]
    assert min(total.base.rows) > 0
    assert max(last) <= values.EXACT[kind]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_to_a_message_is_found(plain: Arrays, seed: int) -> None:
    """One bit, or a block that is zeroed, moved, exchanged, reversed, of another rank, or cut."""
    draw = random.Random(seed)
    kind, size = draw.choice(KINDS), draw.choice(WORLDS[:-1])
    count = draw.randrange(1100, 6000)
    of_ranks = [rank_of(plain, rank, size).sequences(kind, count, size) for rank in range(min(size, 2))]
    total = of_ranks[0][1]
    right = elements(plain, total, count).rows
    begin, length = draw.randrange(count - 600), draw.randrange(100, 300)
    other = begin + length + draw.randrange(250)
    broken = list(right)
    way = draw.choice(["bit", "zeros", "moved", "exchanged", "reversed", "alone", "cut"])
    if way == "bit":
        broken[begin] += draw.choice([-1, 1])
    elif way == "zeros":
        broken[begin : begin + length] = [0] * length
    elif way == "moved":
        broken[begin : begin + length] = right[other : other + length]
    elif way == "exchanged":
        broken[begin : begin + length], broken[other : other + length] = (
            right[other : other + length],
            right[begin : begin + length],
        )
    elif way == "reversed":
        broken[begin : begin + length] = right[begin : begin + length][::-1]
    elif way == "alone" and size > 1:
        contributions = (elements(plain, own, count).rows for own, _ in of_ranks)
        broken = [value - mine + theirs for value, mine, theirs in zip(right, *contributions, strict=True)]
    else:
        broken = broken[:-1]
    array = plain.empty(len(broken), kind)
    array[0 : len(broken)] = type(array)(broken)
    found = total.compare(array, [(0, count)])
    assert found["wrong"] == (
        count if len(broken) != count else sum(a != b for a, b in zip(broken, right, strict=True))
    )
    assert found["wrong"]
    if len(broken) == count:
        first = next(index for index, (a, b) in enumerate(zip(broken, right, strict=True)) if a != b)
        assert found["index"] == first
        assert (found["found"], found["right"]) == (
            values.shown(array[first]),
            values.shown(type(array)([right[first]])),
        )
    assert total.compare(elements(plain, total, count), [(0, count)]) == {"wrong": 0}


@pytest.mark.parametrize(("divisor", "allowed"), [(4, 0.0), (6, 2**-9)])
def test_an_average_is_exact_where_it_can_be(plain: Arrays, divisor: int, allowed: float) -> None:
    _, total = rank_of(plain, 0, divisor).sequences("float16", 1200, divisor)
    average = plain.cast(elements(plain, total, 1200), "float64") / divisor
    assert total.compare(average, [(0, 1200)], divisor) == {"wrong": 0}
    assert values.allowed("float16", divisor) == allowed
    average.rows[700] *= 1 + max(2 * allowed, 2**-10)
    found = total.compare(average, [(0, 1200)], divisor)
    assert (found["wrong"], found["index"]) == (1, 700)
    average.rows[700] = float("nan")
    assert total.compare(average, [(0, 1200)], divisor)["found"] == "nan (nan)"


def test_neighbouring_numbers_are_told_apart() -> None:
    one = 16777215.0 / 3
    near = [values.shown(SimpleNamespace(item=lambda number=number: number)) for number in (one, one * (1 + 2**-52))]
    assert near[0] != near[1]


def test_every_operation_meets_every_type_and_every_size() -> None:
    tried = {message for stage in values.plan() for message in stage}
    sizes = {size for _, _, size in tried}
    assert sizes == {1024 * kilobytes for kilobytes in (1, 16, 64, 256, 1024, 4096, 65536)}
    for operation in ("broadcast", "allgather", "alltoall", "reducescatter"):
        assert {kind for name, kind, _ in tried if name == operation} >= {*values.OTHERS, "float32"}
        assert {size for name, _, size in tried if name == operation} == sizes - {values.LARGEST}
    for operation in ("sum", "reducescatter"):
        summed = {kind for name, kind, size in tried if name == operation and size >= 256 * values.KB}
        assert summed == {*values.OTHERS, "float32", "bfloat16"}
    at_a_megabyte = {kind for name, kind, size in tried if name == "sum" and size == values.MB}
    assert at_a_megabyte == {"float32", "float16", "bfloat16", "int64"}
    assert {size for name, _, size in tried if name in {"sum", "grouped"}} == sizes
    assert {kind for name, kind, _ in tried if name == "average"} == {"float16", "bfloat16", "float32", "float64"}


def swept(
    plain: Arrays, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int, int], float], local: int = 2
) -> list[Any]:
    """What two ranks state, and the steps they announced, where `seconds(rank, size)` is the time of a message."""
    world = World(2)

    def body(rank: int) -> Any:
        clock = Clock()
        own = rank_of(plain, rank, 2)
        own.hvd.local_size = lambda: local
        steps: list[str] = []

        def together(tried: list[values.Message]) -> list[dict[str, Any]]:
            for _, _, size in tried:
                clock.sleep(seconds(rank, size))
            return [{"operation": "sum", "kind": "float32", "size": size, "wrong": 0} for _, _, size in tried]

        monkeypatch.setattr(own, "round", together, raising=False)
        monkeypatch.setattr(own, "largest_of", lambda value: world.share(rank, value), raising=False)
        record: Any = SimpleNamespace(arrive=steps.append)
        return own.compare(record, "values_cpu", values.plan(), clock), steps

    return world.run(body)


def test_what_takes_too_long_is_left_out_in_every_rank(plain: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = swept(plain, monkeypatch, lambda rank, size: (1 + rank) * size / values.MB / 8)
    assert first == second
    assert first[0] == {
        "where": "cpu",
        "messages": 45,
        "largest": 4 * values.MB,
        "bad": [],
        "left_out": [values.LARGEST],
    }
    assert first[1] == [f"values_cpu_{1024 * kilobytes}" for kilobytes in (16, 256, 1024, 4096)]


def test_quick_ranks_compare_everything(plain: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    (told, _), _ = swept(plain, monkeypatch, lambda _rank, _size: 0.01)
    assert (told["messages"], told["largest"], told["left_out"]) == (46, values.LARGEST, [])


def test_many_ranks_on_a_node_leave_out_what_is_too_large_for_its_memory(
    plain: Arrays, monkeypatch: pytest.MonkeyPatch
) -> None:
    (told, _), _ = swept(plain, monkeypatch, lambda _rank, _size: 0.01, local=64)
    assert (told["largest"], told["left_out"]) == (4 * values.MB, [values.LARGEST])


def test_the_last_call_that_is_timed_is_compared() -> None:
    made: list[str] = []

    def compare() -> dict[str, Any]:
        made.append("compare")
        return {"wrong": made.count("compare")}

    message = bench.Message(lambda: made.append("call"), lambda: made.append("fill"), compare)
    rows = bench.sweep([4, 8], lambda _size: message, lambda value: value, 1.0, Clock())
    calls = [bench.WARM_UP + row["calls"] for row in rows]
    assert made == [word for count in calls for word in [*["call"] * count, "fill", "call", "compare"]]
    assert [row["wrong"] for row in rows] == [1, 2]


BAD = Compared(
    operation="sum",
    kind="float32",
    size=64 * 1024 * 1024,
    wrong=1,
    index=16000000,
    found="16777215.0 (0x1.fffffe0000000p+23)",
    right="16777214.0 (0x1.fffffc0000000p+23)",
)


def with_values(which: int, **told: Any) -> list[RankFacts]:
    """The good records, in which one rank, or with -1 every rank, states other things of larger messages."""
    changed = [replace(facts, values_cpu=replace(facts.values_cpu or Values(), **told)) for facts in GOOD.facts]
    return [new if which in {-1, new.rank} else old for new, old in zip(changed, GOOD.facts, strict=True)]


def judged(facts: list[RankFacts], expected: Expected = GOOD.expected) -> dict[str, Result]:
    return {result.id: result for result in reversed(check(facts, expected))}


@pytest.mark.parametrize(
    "operation", ["sum", "average", "grouped", "broadcast", "allgather", "alltoall", "reducescatter"]
)
@pytest.mark.parametrize("rank", [0, 1])
def test_one_wrong_element_fails_its_check(operation: str, rank: int) -> None:
    facts = with_values(rank, bad=(replace(BAD, operation=operation),))
    results = judged(facts)
    name = "allreduce" if operation in {"sum", "average", "grouped"} else operation
    assert [result.id for result in results.values() if result.status is Status.FAIL] == [name]
    said = results[name].message
    for words in (f"rank {rank} ", "float32 of 64 MiB", "1 wrong element", "16000000", BAD.found, BAD.right):
        assert words in said
    assert verdict(check(facts, GOOD.expected)) is Outcome.FAIL


def test_every_form_of_the_report_has_each_digit() -> None:
    facts = with_values(1, bad=(BAD,))
    report = make_report("demo", facts, check(facts, GOOD.expected), expected=GOOD.expected, seconds=1.0)
    for text in (render(report, width=500), to_json(report).decode(), junit(report).decode(), html(report)):
        assert "16777215.0 (0x1.fffffe0000000p+23)" in text
        assert "16777214.0 (0x1.fffffc0000000p+23)" in text


def test_how_many_more_were_wrong_is_told() -> None:
    message = judged(with_values(-1, bad=(BAD, replace(BAD, kind="int64"))))["allreduce"].message
    assert "3 more wrong, in 2 ranks" in message


def test_an_error_with_a_larger_message_is_a_failure_and_an_absent_type_is_not() -> None:
    error = replace(BAD, wrong=0, error="RuntimeError: no memory")
    assert "no memory" in judged(with_values(0, bad=(error,)))["allreduce"].message
    absent = replace(error, error="ValueError: Tensor type torch.BFloat16Tensor is not supported.")
    assert judged(with_values(0, bad=(absent,)))["allreduce"].status is Status.PASS


def test_a_type_that_horovod_does_not_have_is_stated() -> None:
    row = replace(BAD, kind="bfloat16", wrong=0, error="ValueError: Tensor type torch.BFloat16Tensor is not supported.")
    results = judged(with_values(-1, bad=(row, replace(row, operation="reducescatter")), messages=40))
    assert {results[name].status for name in ("allreduce", "reducescatter", "message-sizes")} == {Status.PASS}
    said = results["message-sizes"].message
    assert said.startswith("each element of 38 messages") and said.endswith("; not there: bfloat16")
    assert "not there" not in judged(with_values(-1, bad=()))["message-sizes"].message


def test_up_to_which_size_was_compared_is_seen() -> None:
    whole = judged(with_values(-1))["message-sizes"]
    assert (whole.status, "up to 64 MiB" in whole.message) == (Status.PASS, True)
    cut = judged(with_values(-1, largest=1024 * 1024, left_out=(16 * 1024 * 1024, 64 * 1024 * 1024)))["message-sizes"]
    assert cut.status is Status.WARN
    assert "up to 1 MiB only" in cut.message
    assert "16 MiB, 64 MiB" in cut.message


@pytest.mark.parametrize("told", [{"error": "MemoryError: "}, {"messages": 0}])
def test_nothing_compared_is_a_failure(told: dict[str, Any]) -> None:
    assert judged(with_values(1, **told))["message-sizes"].status is Status.FAIL


def test_without_the_comparison_there_is_no_pass() -> None:
    cut_short = [replace(facts, values_cpu=None, phase="values_cpu_1048576") for facts in GOOD.facts]
    assert judged(cut_short)["message-sizes"].status is Status.SKIP
    assert verdict(check(cut_short, GOOD.expected)) is Outcome.FAIL


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_what_is_no_number_is_wrong_and_is_told(number: str) -> None:
    found = [facts.collectives_cpu for facts in GOOD.facts]
    assert found[0]
    first, *rest = found[0].allreduce["sum float32"]  # type: ignore[misc]
    broken = replace(found[0], allreduce={**found[0].allreduce, "sum float32": (number, *rest)})
    result = judged([replace(GOOD.facts[0], collectives_cpu=broken), GOOD.facts[1]])["allreduce"]
    assert result.status is Status.FAIL
    assert f"gave [{number}, " in result.message
    assert isinstance(first, float)


def test_a_low_bit_of_a_small_message_is_told() -> None:
    found = GOOD.facts[0].collectives_cpu
    assert found
    numbers = found.allreduce["sum float64"]
    assert not isinstance(numbers, Fact)
    off = float(numbers[1]) * (1 + 2**-52)
    broken = replace(found, allreduce={**found.allreduce, "sum float64": (numbers[0], off, *numbers[2:])})
    message = judged([replace(GOOD.facts[0], collectives_cpu=broken), GOOD.facts[1]])["allreduce"].message
    assert repr(off) in message


def test_a_timed_allreduce_with_a_wrong_element_fails() -> None:
    asked = replace(GOOD.expected, measures=frozenset({"bandwidth"}))
    row = Timed(size=4096, seconds=1e-4, calls=9)
    wrong = replace(row, size=1048576, wrong=2, index=7, found=BAD.found, right=BAD.right)
    good, bad = (Sweep(where="cpu", ranks=2, rows=rows) for rows in ((row, row), (row, wrong)))
    result = judged([replace(GOOD.facts[0], bandwidth=good), replace(GOOD.facts[1], bandwidth=bad)], asked)["bandwidth"]
    assert result.status is Status.FAIL
    for words in ("rank 1 ", "of 1 MiB that was timed", "2 wrong elements, the first at index 7", BAD.found, BAD.right):
        assert words in result.message


def test_what_is_compared_where_the_speed_is_measured_belongs_to_its_operation() -> None:
    more = Values(where="cpu", messages=9, largest=167772160)
    good = [replace(facts, values_bench=more) for facts in GOOD.facts]
    assert "46 messages compared, up to 160 MiB" in judged(good)["message-sizes"].message
    bad = replace(more, bad=(replace(BAD, operation="grouped", size=167772160),))
    result = judged([good[0], replace(good[1], values_bench=bad)])["allreduce"]
    assert (result.status, "grouped float32 of 160 MiB" in result.message) == (Status.FAIL, True)
    cut = [replace(facts, values_bench=replace(more, left_out=(67108864,))) for facts in GOOD.facts]
    assert judged(cut)["message-sizes"].status is Status.WARN
