from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from envkit.inside.probe import collectives as sending
from envkit.inside.probe.training import problem
from envkit.verify import arithmetic
from envkit.verify.checks import Expected, Result, Status, check, collectives, verdict
from envkit.verify.facts import Barrier, Collectives, Exchanges, Fact, ProcessSets, RankFacts, Training, World
from envkit.verify.outcome import Ranks

from . import recorded
from .conftest import Probe

LOST = Fact(error="HorovodInternalError: a peer was lost")
LACKING = Fact(error="AttributeError: module 'horovod.torch' has no attribute 'reducescatter_async'")
NEEDED = ("broadcast", "allreduce", "allgather")
OTHERS = ("alltoall", "reducescatter", "process-sets")
SIZES = [1, 2, 3, 5, 8, 13, 64, 130]
FIELDS = {"alltoall": "exchanges_cpu", "reducescatter": "exchanges_cpu", "process-sets": "process_sets"}


def frozen(results: arithmetic.Results) -> dict[str, tuple[float | str, ...] | Fact]:
    return {what: tuple(numbers) for what, numbers in results.items()}


def task(rank: int, **changes: Any) -> Training:
    return replace(msgspec.convert(problem(rank), Training), rate=problem(rank)["learning_rate"], **changes)


def trained(size: int, *nodes: Sequence[int]) -> list[Training]:
    """The tasks of a world in which the ranks of each node (by default of all) trained together."""
    tasks = [task(rank) for rank in range(size)]
    start = tasks[0].own
    weights: dict[int, tuple[float, ...]] = {}
    for node in nodes or [range(size)]:
        reached = arithmetic.trained_together([tasks[rank] for rank in node], start)
        weights |= dict.fromkeys(node, tuple(reached))
    return [replace(tasks[rank], started=start, weights=weights[rank]) for rank in range(size)]


def rank_of(rank: int, size: int, training: Training, node: str = "node1") -> RankFacts:
    """What a rank states where all is right."""
    return RankFacts(
        framework="torch",
        host=node,
        pid=rank,
        phase="exit",
        world=World(rank=rank, size=size),
        collectives_cpu=Collectives(
            allreduce=frozen(arithmetic.allreduce(size)),
            broadcast=frozen(arithmetic.broadcast(size)),
            allgather=frozen(arithmetic.allgather(size)),
        ),
        exchanges_cpu=Exchanges(
            alltoall=frozen(arithmetic.alltoall(size, rank)),
            reducescatter=frozen(arithmetic.reducescatter(size, rank)),
        ),
        process_sets=ProcessSets(results=frozen(arithmetic.process_sets(size, rank))),
        barrier=Barrier(entered=100.0 + rank, left=100.5 + size),
        training_torch=training,
        ended=recorded.case("pytorch-2ranks").facts[0].ended,
    )


def world(size: int = 4, nodes: int = 1) -> list[RankFacts]:
    tasks = trained(size)
    return [rank_of(rank, size, tasks[rank], f"node{1 + rank * nodes // size}") for rank in range(size)]


def judged(facts: Sequence[RankFacts]) -> dict[str, Result]:
    results = check(facts, Expected(size=len(facts), frameworks=("torch",)))
    return {result.id: result for result in reversed(results)}


def by_its_check(operation: str, facts: Sequence[RankFacts]) -> Result:
    """What the check of one operation says."""
    ranks = Ranks(framework="torch", facts=tuple(facts), expected=Expected(size=len(facts), frameworks=("torch",)))
    (result,) = (result for one in collectives.CHECKS for result in one(ranks) if result.id == operation)
    return result


def with_result(facts: list[RankFacts], which: int, operation: str, what: str, value: object) -> list[RankFacts]:
    """The same records, one result of one rank, or with -1 of every rank, replaced."""
    name, field = FIELDS.get(operation, "collectives_cpu"), operation.replace("process-sets", "results")
    changed = []
    for rank, record in enumerate(facts):
        fact = getattr(record, name)
        of = getattr(fact, field)
        names = of if what == "*" else (what,)
        new = replace(fact, **{field: {**of, **dict.fromkeys(names, value)}})
        changed.append(replace(record, **{name: new}) if which in {-1, rank} else record)
    return changed


def test_the_probe_sends_what_the_arithmetic_supposes() -> None:
    primes = sending.primes(700)
    assert tuple(primes) == arithmetic.primes(700)
    for kind in arithmetic.TYPES:
        assert [sending.sent(rank, prime, kind) for rank, prime in enumerate(primes)] == list(
            arithmetic.sent(700, kind)
        )


@pytest.mark.parametrize("size", [1, 2, 3, 64, 130, 511, 512, 513, 1000, 2001, 3000])
def test_every_sum_is_exact_in_its_type_in_any_order(size: int) -> None:
    """All terms of an element have one sign, so that no partial sum is larger than the sum."""
    for kind, bits in (("float16", 11), ("float32", 24)):
        for column in zip(*arithmetic.sent(size, kind), strict=True):
            assert all(value >= 0 for value in column) or all(value <= 0 for value in column)
            step = 1.0 if all(value.is_integer() for value in column) else 0.5
            assert all((value / step).is_integer() for value in column)
            assert abs(sum(column)) <= 2**bits * step
    assert all(abs(value) < 2**31 for value in arithmetic.allreduce(size)["sum int32"])


@pytest.mark.parametrize("what", ["sum float16", "sum float32", "sum float64", "sum int64", "product float64"])
def test_no_two_sizes_up_to_64_have_one_result(what: str) -> None:
    assert len({tuple(arithmetic.allreduce(size)[what]) for size in range(1, 65)}) == 64


@pytest.mark.parametrize("size", range(1, 131))
def test_what_is_sent_and_received_is_the_same(size: int) -> None:
    primes = arithmetic.primes(size)
    factors = [sending.factors(rank, prime) for rank, prime in enumerate(primes)]
    product = [1.0, 1.0, 1.0]
    for row in factors:
        product = [a * b for a, b in zip(product, row, strict=True)]
    assert arithmetic.allreduce(size)["product float64"] == product
    rows = [row for rank in range(size) for row in arithmetic.reducescatter(size, rank)["sum float64"]]
    assert rows == [float(sum(primes) * (row + 1)) for row in range(2 * size + 1)]
    of_senders = [sending.splits(sender, size) for sender in range(size)]
    for rank in range(size):
        counts = [splits[rank] for splits in of_senders]
        received = [float(p * (rank + 1)) for p, count in zip(primes, counts, strict=True) for _ in range(count)]
        assert arithmetic.alltoall(size, rank)["float64"] == received + [float(count) for count in counts if count]
        place = arithmetic.process_sets(size, rank)["rank and size"]
        assert place == [rank // 2, len(range(rank % 2, size, 2))]


@pytest.mark.parametrize("size", SIZES)
def test_right_results_pass(size: int) -> None:
    results = judged(world(size))
    shared = {*OTHERS, "barrier", "training-truth-torch"}
    for name in (*NEEDED, *shared):
        alone = size == 1 and name in {"process-sets", "barrier", "training-truth-torch"}
        assert results[name].status is (Status.SKIP if alone else Status.PASS), name
        assert results[name].required is not alone


@pytest.mark.parametrize("size", [2, 3, 8, 64])
@pytest.mark.parametrize("operation", [*NEEDED, *OTHERS])
def test_any_wrong_number_fails(size: int, operation: str) -> None:
    facts = world(size)
    last = size - 1
    fact = getattr(facts[last], FIELDS.get(operation, "collectives_cpu"))
    for what, numbers in getattr(fact, operation.replace("process-sets", "results")).items():
        for wrong in ((2 * numbers[0] + 1, *numbers[1:]), numbers[:-1], (*numbers, 0.0), ()):
            result = by_its_check(operation, with_result(facts, last, operation, what, wrong))
            assert result.status is Status.FAIL, what
            assert f"rank {last} " in result.message
            assert what in result.message
            assert result.cause and result.remedy


@pytest.mark.parametrize("size", [1, 3, 4, 64])
def test_the_results_of_another_world_fail(size: int) -> None:
    """Ranks that Horovod tells apart, and that reduce in a world of another size."""
    facts = [replace(f, collectives_cpu=world(size)[0].collectives_cpu) for f in world(2)]
    assert {judged(facts)[name].status for name in NEEDED} == {Status.FAIL}


def test_a_rank_that_gets_its_own_numbers_back_is_named() -> None:
    facts = world(4)
    own = tuple(arithmetic.sent(4, "float64")[2])
    result = judged(with_result(facts, 2, "allreduce", "sum float64", own))["allreduce"]
    assert "own numbers back" in result.cause


def test_a_sum_that_stays_within_a_node_is_named() -> None:
    facts = world(4, nodes=2)
    for rank in range(4):
        node = arithmetic.sent(4, "float64")[rank // 2 * 2 : rank // 2 * 2 + 2]
        total = tuple(sum(column) for column in zip(*node, strict=True))
        facts = with_result(facts, rank, "allreduce", "sum float64", total)
    assert "Only the ranks of one node" in judged(facts)["allreduce"].cause


def test_a_sum_of_neither_one_rank_nor_one_node_is_only_wrong() -> None:
    facts = with_result(world(4, nodes=2), 1, "allreduce", "sum float64", (0.25, 0.5))
    result = judged(facts)["allreduce"]
    assert result.case == "wrong"


@pytest.mark.parametrize("operation", NEEDED)
@pytest.mark.parametrize("error", [LOST, LACKING])
def test_training_does_not_do_without_these(operation: str, error: Fact) -> None:
    result = judged(with_result(world(), 1, operation, "*", error))[operation]
    assert result.status is (Status.FAIL if error is LOST else Status.WARN)
    everywhere = judged(with_result(world(), -1, operation, "*", error))[operation]
    assert everywhere.status is Status.FAIL
    assert str(error.error) in everywhere.message


@pytest.mark.parametrize("operation", OTHERS)
def test_other_operations_that_fail_are_a_warning(operation: str) -> None:
    result = judged(with_result(world(), 1, operation, "*", LOST))[operation]
    assert (result.status, "a peer was lost" in result.message) == (Status.WARN, True)


@pytest.mark.parametrize("operation", OTHERS)
def test_other_operations_may_be_missing(operation: str) -> None:
    result = judged(with_result(world(), -1, operation, "*", LACKING))[operation]
    assert (result.status, result.required) == (Status.SKIP, False)
    assert "not in this Horovod" in result.message


def test_an_older_horovod_lacks_some_reductions() -> None:
    facts = with_result(world(), -1, "allreduce", "min float32", LACKING)
    result = judged(facts)["allreduce"]
    assert (result.status, "not there: min float32" in result.message) == (Status.WARN, True)
    assert "older" in result.cause
    set_so = [replace(one, environment={**one.environment, "HOROVOD_CPU_OPERATIONS": "ccl"}) for one in facts]
    assert "HOROVOD_CPU_OPERATIONS=ccl is set" in judged(set_so)["allreduce"].cause


@pytest.mark.parametrize("fact", ["collectives_cpu", "exchanges_cpu", "process_sets", "barrier"])
def test_a_whole_fact_that_failed_is_told(fact: str) -> None:
    facts = [replace(f, **{fact: replace(getattr(f, fact), error=LOST.error)}) for f in world()]
    names = {
        "collectives_cpu": NEEDED,
        "exchanges_cpu": OTHERS[:2],
        "process_sets": OTHERS[2:],
        "barrier": ("barrier",),
    }
    for name in names[fact]:
        assert judged(facts)[name].status is (Status.FAIL if name in NEEDED else Status.WARN)


@pytest.mark.parametrize("fact", ["exchanges_cpu", "process_sets", "barrier"])
@pytest.mark.parametrize("finished", [True, False])
def test_what_was_not_reached_is_required_and_what_an_older_record_lacks_is_not(fact: str, finished: bool) -> None:
    phase = "exit" if finished else "collectives_cpu"
    facts = [replace(f, **{fact: None}, phase=phase) for f in world()]
    results = check(facts, Expected(size=4, frameworks=("torch",)))
    skipped = [r for r in results if r.status is Status.SKIP and r.id in {*OTHERS, "barrier"}]
    assert skipped
    assert {r.required for r in skipped} == {not finished}


def test_an_empty_fact_is_never_a_pass() -> None:
    facts = [replace(f, exchanges_cpu=Exchanges(), process_sets=ProcessSets()) for f in world()]
    assert all((judged(facts)[name].status, judged(facts)[name].required) == (Status.SKIP, True) for name in OTHERS)


def test_a_barrier_that_does_not_wait_fails() -> None:
    facts = world(4, nodes=2)
    facts[3] = replace(facts[3], barrier=Barrier(entered=200.0, left=201.0))
    result = judged(facts)["barrier"]
    assert (result.status, "on node2" in result.message) == (Status.FAIL, True)


def test_the_clocks_of_two_nodes_are_not_compared() -> None:
    facts = world(4, nodes=2)
    later = [replace(f, barrier=Barrier(entered=9000.0 + (f.rank or 0), left=9010.0)) for f in facts[2:]]
    assert judged([*facts[:2], *later])["barrier"].status is Status.PASS


def test_without_a_world_nothing_is_judged() -> None:
    facts = [replace(f, world=World(rank=0, size=1)) for f in world()]
    results = judged(facts)
    for name in (*NEEDED, *OTHERS, "barrier", "training-truth-torch"):
        assert (results[name].status, results[name].required) == (Status.SKIP, True)


def test_collectives_on_gpus_are_checked_too() -> None:
    facts = [replace(f, collectives_gpu=f.collectives_cpu, exchanges_gpu=f.exchanges_cpu) for f in world()]
    expected = Expected(size=4, frameworks=("torch",), gpus=True)
    for name in (*NEEDED, *OTHERS[:2]):
        assert [r.status for r in check(facts, expected) if r.id == name] == [Status.PASS, Status.PASS]
    alone = replace(facts[0].collectives_cpu or Collectives(), allreduce={"sum float64": (2.0, -2.0, 1.0)})
    wrong = [replace(f, collectives_gpu=alone) for f in facts]
    results = [r for r in check(wrong, expected) if r.id == "allreduce"]
    assert [r.status for r in results] == [Status.FAIL, Status.PASS]
    assert "on gpu" in results[0].message


def test_no_gpu_matters_only_where_gpus_are_asked_for() -> None:
    facts = world()
    asked = Expected(size=4, frameworks=("torch",), gpus=True)
    (result,) = (r for r in check(facts, asked) if r.id == "gpu-collectives")
    assert (result.status, result.required) == (Status.SKIP, True)
    assert judged(facts)["gpu-collectives"].required is False


def with_tasks(tasks: Sequence[Training], nodes: int = 1) -> dict[str, Result]:
    pairs = zip(world(len(tasks), nodes), tasks, strict=True)
    return judged([replace(facts, training_torch=task) for facts, task in pairs])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": (0.1, 0.2)}, "agree on wrong weights"),
        ({"started": (0.5, 0.5)}, "did not start from rank 0's weights: rank 0: [0.5, 0.5]"),
        ({"rate": 0.4}, "do not have rank 0's learning rate: rank 0: [0.4]"),
        ({"error": "RuntimeError: broken"}, "RuntimeError: broken"),
    ],
)
def test_training_that_went_wrong_everywhere(changes: dict[str, Any], words: str) -> None:
    result = with_tasks([replace(task, **changes) for task in trained(4)])["training-truth-torch"]
    assert (result.status, words in result.message) == (Status.FAIL, True)
    assert result.cause and result.remedy


@pytest.mark.parametrize("size", [2, 3, 64])
def test_ranks_that_trained_alone_are_seen_for_what_they_are(size: int) -> None:
    result = with_tasks(trained(size, *[[rank] for rank in range(size)]))["training-truth-torch"]
    assert (result.status, "each rank trained alone" in result.message) == (Status.FAIL, True)


def test_nodes_that_trained_each_for_itself_are_seen_for_what_they_are() -> None:
    result = with_tasks(trained(4, [0, 1], [2, 3]), nodes=2)["training-truth-torch"]
    assert (result.status, "each node trained for itself" in result.message) == (Status.FAIL, True)


def test_one_rank_that_went_astray_is_seen() -> None:
    tasks = trained(4)
    tasks[3] = replace(tasks[3], weights=(9.0, 9.0))
    result = with_tasks(tasks)["training-truth-torch"]
    assert (result.status, "weights differ after 3 steps" in result.message) == (Status.FAIL, True)


def test_the_ranks_that_differ_are_shown() -> None:
    tasks = trained(64)
    tasks[60] = replace(tasks[60], started=(9.0, 8.0))
    message = with_tasks(tasks)["training-truth-torch"].message
    assert "rank 60: [9, 8]" in message
    assert "rank 1:" not in message


def test_keras_3_is_named_where_it_is_to_blame() -> None:
    case = recorded.case("tensorflow-2.21-keras-3")
    (result,) = (r for r in check(case.facts, case.expected) if r.id == "training-truth-keras")
    assert (result.status, "With Keras 3" in result.cause) == (Status.FAIL, True)


def test_keras_3_passes_where_horovod_works_with_it() -> None:
    """With all ranks it is the training that shows it, in one rank the callbacks."""
    unpatched = recorded.case("tensorflow-2.21-keras-3")
    works = recorded.case("tensorflow-2.15")
    keras = unpatched.facts[0].keras
    assert keras is not None and keras.version.startswith("3.")
    patched = [replace(facts, keras=keras) for facts in works.facts]
    both = zip(patched, unpatched.facts, strict=True)
    apart = [replace(facts, training_keras=alone.training_keras) for facts, alone in both]
    failing = [replace(facts, warmup_callback=unpatched.facts[0].warmup_callback) for facts in patched]

    def judged(facts: Sequence[RankFacts], expected: Expected) -> Status:
        (status,) = (result.status for result in check(facts, expected) if result.id == "keras-3")
        return status

    assert judged(unpatched.facts, unpatched.expected) is Status.WARN
    assert judged(patched, works.expected) is Status.PASS
    assert judged(failing, works.expected) is Status.WARN
    assert judged(apart, works.expected) is Status.WARN
    one = replace(works.expected, size=1)
    assert judged(patched[:1], one) is Status.PASS
    assert judged(failing[:1], one) is Status.WARN


def test_data_that_would_not_show_a_skipped_allreduce_prove_nothing() -> None:
    same = replace(task(0), started=task(0).own, weights=tuple(arithmetic.trained_together([task(0)])))
    result = with_tasks([same] * 4)["training-truth-torch"]
    assert (result.status, result.required) == (Status.SKIP, True)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("faults", "found"),
    [
        ("wrong-broadcast.float16.cpu", {"broadcast": Status.FAIL}),
        ("wrong-broadcast.float32.in.place.cpu", {"broadcast": Status.FAIL}),
        ("wrong-average", {"allreduce": Status.FAIL}),
        ("wrong-allreduce.sum.int32.cpu", {"allreduce": Status.FAIL}),
        ("wrong-allreduce.product.float64.cpu", {"allreduce": Status.FAIL}),
        ("wrong-allreduce.sum.float64.grouped.cpu", {"allreduce": Status.FAIL}),
        ("wrong-values.cpu.sum.int64.16384", {"allreduce": Status.FAIL}),
        ("wrong-values.cpu.broadcast.int64.16384", {"broadcast": Status.FAIL}),
        ("wrong-values.cpu.allgather.float16.16384", {"allgather": Status.FAIL}),
        ("wrong-values.cpu.alltoall.float64.16384", {"alltoall": Status.FAIL}),
        ("wrong-values.cpu.reducescatter.int32.16384", {"reducescatter": Status.FAIL}),
        ("wrong-values.cpu.alltoall.float64.1024", {"alltoall": Status.FAIL}),
        ("wrong-allgather.int64.cpu", {"allgather": Status.FAIL}),
        ("wrong-alltoall.float64.cpu", {"alltoall": Status.FAIL}),
        ("wrong-reducescatter.sum.float64.cpu", {"reducescatter": Status.FAIL}),
        ("one-process-set", {"process-sets": Status.FAIL}),
        ("no-barrier", {"barrier": Status.FAIL}),
        ("lacking-grouped_allreduce", {"allreduce": Status.WARN}),
        ("lacking-reducescatter", {"reducescatter": Status.SKIP}),
        ("lacking-allgather", {"allgather": Status.FAIL}),
        ("no-broadcast", {"training-truth-torch": Status.FAIL}),
        ("no-state", {"training-truth-torch": Status.FAIL}),
        ("no-allreduce", {"training-truth-torch": Status.FAIL}),
    ],
)
def test_a_faulty_horovod_is_found_out(probe: Probe, faults: str, found: dict[str, Status]) -> None:
    results = check(probe(3, faults=faults).facts, Expected(size=3, frameworks=("torch",)))
    of_truth = {r.id: r.status for r in results if r.id in {*NEEDED, *OTHERS, "barrier", "training-truth-torch"}}
    assert {name: status for name, status in of_truth.items() if status is not Status.PASS} == found
    assert verdict(results) is (Status.FAIL if Status.FAIL in found.values() else Status.PASS)


@pytest.mark.integration
def test_an_old_horovod_is_good_enough_for_training(probe: Probe) -> None:
    results = check(probe(faults="old").facts, Expected(size=2, frameworks=("torch",)))
    found = {r.id: r for r in results}
    assert {name for name in (*OTHERS, "barrier") if found[name].status is Status.SKIP} == {
        "reducescatter",
        "process-sets",
        "barrier",
    }
    assert found["allreduce"].status is Status.WARN
    assert "not there: min float32, min int64, max float32, max int64, product float64" in found["allreduce"].message
    assert found["training-truth-torch"].status is Status.PASS
    assert verdict(results) is Status.PASS


@pytest.mark.integration
def test_the_probe_states_every_result_that_is_checked(probe: Probe) -> None:
    facts = probe(5).facts
    for rank, record in enumerate(facts):
        wanted = rank_of(rank, 5, task(rank))
        for name in ("collectives_cpu", "exchanges_cpu", "process_sets"):
            assert getattr(record, name) == getattr(wanted, name)
    assert len({id(record.collectives_cpu) for record in facts}) == 1
