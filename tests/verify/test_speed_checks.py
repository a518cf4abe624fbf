from __future__ import annotations

from typing import Any

import pytest

from envkit.verify.checks import speed
from envkit.verify.facts import Fact, RankFacts, Sweep, Throughput, World
from envkit.verify.outcome import Expected, Ranks, Result, Status

from .test_speed import rank, sweep, training

EVERYTHING = frozenset({"bandwidth", "throughput", "ddp_throughput"})


def asked(*facts: RankFacts, framework: str = "torch", measures: frozenset[str] = EVERYTHING) -> Ranks:
    expected = Expected(size=len(facts), frameworks=(framework,), measures=measures)
    return Ranks(framework=framework, facts=facts, expected=expected)


def both(**facts: Any) -> Ranks:
    return asked(rank(0, 2, **facts), rank(1, 2, **facts))


def only(results: list[Result]) -> Result:
    (result,) = results
    assert result.status is Status.PASS or result.required is False or (result.cause and result.remedy)
    return result


@pytest.mark.parametrize("check", [speed.bandwidth, speed.throughput, speed.ddp])
def test_nothing_is_said_of_what_nobody_asked_for(check: object) -> None:
    assert callable(check)
    assert check(asked(rank(0, 1), measures=frozenset())) == []


@pytest.mark.parametrize("check", [speed.bandwidth, speed.throughput])
def test_what_was_asked_for_and_not_measured_is_no_pass(check: object) -> None:
    assert callable(check)
    result = only(check(asked(rank(0, 2), rank(1, 2))))
    assert (result.status, result.required) == (Status.SKIP, True)


@pytest.mark.parametrize(
    ("raw", "status", "words"),
    [
        (sweep({1 << 20: 8e-3}, library="libmpi.so.40"), Status.PASS, "80 % of libmpi.so.40 alone"),
        (sweep({1 << 20: 1e-3}, library="libmpi.so.40"), Status.WARN, "only 10 % of libmpi.so.40"),
        (None, Status.PASS, "nothing to compare it with"),
    ],
)
def test_bandwidth_is_told_of_the_largest_size(raw: Sweep | None, status: Status, words: str) -> None:
    own = sweep({1024: 5e-4, 1 << 20: 10e-3})
    result = only(speed.bandwidth(both(bandwidth=own, raw_bandwidth=raw)))
    assert result.status is status
    assert words in result.message
    assert "1 MiB on CPU: 105 MB/s" in result.message
    assert "500 us for 1 KiB" in result.message


def test_sizes_without_time_are_named() -> None:
    own = Sweep(where="cpu", ranks=2, rows=sweep({1024: 2.0}).rows, left_out=(4096, 16384))
    message = only(speed.bandwidth(both(bandwidth=own))).message
    assert "2.0 s for 1 KiB; no time for 4 KiB, 16 KiB" in message


def test_one_rank_has_no_bandwidth() -> None:
    facts = rank(0, 1, bandwidth=Sweep(where="cpu", ranks=1), world=World(rank=0, size=1))
    result = only(speed.bandwidth(asked(facts)))
    assert (result.status, result.required) == (Status.SKIP, False)


def test_a_size_that_was_never_reached_is_a_skip() -> None:
    assert only(speed.bandwidth(both(bandwidth=Sweep(where="cpu", ranks=2)))).status is Status.SKIP


def test_an_allreduce_that_fails_fails() -> None:
    result = only(speed.bandwidth(both(bandwidth=Sweep(error="HorovodInternalError: lost"))))
    assert result.status is Status.FAIL
    assert "lost" in result.message


def test_a_raw_library_that_fails_is_a_warning_beside_the_bandwidth() -> None:
    facts = both(bandwidth=sweep({1024: 1e-3}), raw_bandwidth=Sweep(error="OSError: no such library"))
    assert [(r.id, r.status) for r in speed.bandwidth(facts)] == [
        ("bandwidth", Status.PASS),
        ("bandwidth-raw", Status.WARN),
    ]


def test_throughput_is_told_by_model() -> None:
    result = only(speed.throughput(both(throughput=training(2, MLP=1234.5, CNN=7.0))))
    assert result.status is Status.PASS
    assert result.message == "training on CPU, 2 ranks: MLP 1,234 samples/s, CNN 7 samples/s"


def test_training_that_fails_fails() -> None:
    assert only(speed.throughput(both(throughput=Throughput(error="RuntimeError: x")))).status is Status.FAIL


@pytest.mark.parametrize(
    ("cnn", "cores", "status", "words"),
    [
        (90.0, (0, 1), Status.PASS, "at least 90 %"),
        (50.0, (0, 1), Status.WARN, "only 50 % of it with CNN"),
        (50.0, (0,), Status.PASS, "50 %"),
    ],
)
def test_horovod_is_held_against_ddp(cnn: float, cores: tuple[int, ...], status: Status, words: str) -> None:
    own, beside = training(2, MLP=100.0, CNN=cnn), training(2, MLP=100.0, CNN=100.0)
    result = only(speed.ddp(both(affinity=cores, throughput=own, ddp_throughput=beside)))
    assert result.status is status
    assert words in result.message


@pytest.mark.parametrize("fact", ["ddp_meeting", "ddp_throughput"])
def test_ddp_that_fails_is_a_warning_only(fact: str) -> None:
    error = Fact(error="TimeoutError: x") if fact == "ddp_meeting" else Throughput(error="TimeoutError: x")
    assert only(speed.ddp(both(throughput=training(2, MLP=1.0), **{fact: error}))).status is Status.WARN


def test_ddp_is_pytorchs_and_optional() -> None:
    assert only(speed.ddp(asked(rank(0, 1), framework="tensorflow"))).required is False
    assert only(speed.ddp(both(throughput=training(2, MLP=1.0)))).required is False


def runs(*samples_per_s: float, cores: tuple[int, ...] = (0, 1, 2, 3)) -> list[list[RankFacts]]:
    """Runs on 1, 2, 4 ranks."""
    return [
        [rank(number, n, affinity=cores, throughput=training(n, MLP=rate)) for number in range(n)]
        for n, rate in zip((1, 2, 4), samples_per_s, strict=False)
    ]


EXPECTED = Expected(size=4, frameworks=("torch",), measures=frozenset({"throughput"}))


@pytest.mark.parametrize(
    ("rates", "status", "words"),
    [
        (
            (100.0, 190.0, 360.0),
            Status.PASS,
            "1 rank 100 samples/s (100 %); 2 ranks 190 samples/s (95 %); 4 ranks 360 samples/s (90 %)",
        ),
        ((100.0, 190.0, 200.0), Status.WARN, "less than 70 % of ideal"),
    ],
)
def test_scaling_names_each_number_of_ranks(rates: tuple[float, ...], status: Status, words: str) -> None:
    result = only(speed.scaling(runs(*rates), (1, 2, 4), EXPECTED))
    assert result.status is status
    assert words in result.message


def test_shared_cores_have_no_efficiency() -> None:
    result = only(speed.scaling(runs(100.0, 110.0, 110.0, cores=(0, 1)), (1, 2, 4), EXPECTED))
    assert result.status is Status.PASS
    assert "no efficiency can be given where ranks share cores (4 ranks on 2 cores of node1)" in result.message
    assert "%" not in result.message


def test_a_run_that_did_not_come_through_is_named() -> None:
    results = speed.scaling(runs(100.0, 190.0), (1, 2, 4), EXPECTED)
    missing = next(r for r in results if r.status is Status.SKIP)
    assert missing.message == "not measured on 4 ranks"
    assert missing.required


def test_one_run_shows_no_scaling() -> None:
    result = only(speed.scaling(runs(100.0), (1,), EXPECTED))
    assert (result.status, result.required) == (Status.SKIP, False)
