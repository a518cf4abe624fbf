from __future__ import annotations

import pytest
from msgspec.structs import replace

from envkit.verify import speed
from envkit.verify.facts import Machine, RankFacts, Sweep, Throughput, Timed, Trained


def rank(number: int, size: int, *, host: str = "node1", framework: str = "torch", **facts: object) -> RankFacts:
    return RankFacts(framework=framework, host=host, pid=number, phase="exit", **facts)  # type: ignore[arg-type]


def sweep(seconds: dict[int, float], ranks: int = 2, where: str = "cpu", library: str | None = None) -> Sweep:
    rows = tuple(Timed(size=size, seconds=time, calls=9) for size, time in seconds.items())
    return Sweep(where=where, ranks=ranks, library=library, rows=rows)


def training(ranks: int, **samples_per_s: float) -> Throughput:
    models = {name: Trained(samples_per_s=rate, steps=9, batch=8) for name, rate in samples_per_s.items()}
    return Throughput(where="cpu", ranks=ranks, models=models)


@pytest.mark.parametrize(
    ("size", "seconds", "ranks", "bytes_per_s"),
    [(1000, 0.5, 2, 2000.0), (1000, 0.5, 4, 3000.0), (4096, 1.0, 8, 7168.0), (4096, 1.0, 1, 0.0)],
)
def test_bus_bandwidth_counts_what_a_link_of_a_ring_carries(
    size: int, seconds: float, ranks: int, bytes_per_s: float
) -> None:
    assert speed.bus_bandwidth(size, seconds, ranks) == bytes_per_s


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1K:64K", (1024, 4096, 16384, 65536)),
        ("1K:8K", (1024, 4096, 8192)),
        ("4", (4,)),
        ("1m:1MiB", (1 << 20,)),
        ("64KB:256kb", (65536, 262144)),
    ],
)
def test_sizes_go_up_to_the_last_one(text: str, sizes: tuple[int, ...]) -> None:
    assert speed.message_sizes(text, 4) == sizes


@pytest.mark.parametrize("text", ["", "x", "0", "6", "1K:", "64K:1K", "1K:2K:3K", "-4", "1.5K", "1T"])
def test_what_is_no_size_is_refused_with_the_reason(text: str) -> None:
    if text == "1K:":
        assert speed.message_sizes(text, 4) == (1024,)
        return
    with pytest.raises(ValueError, match=r"is no size of a message|is less than"):
        speed.message_sizes(text, 4)


def test_bandwidth_stands_beside_the_raw_library() -> None:
    facts = [rank(0, 2, bandwidth=sweep({1024: 2e-3, 4096: 4e-3}), raw_bandwidth=sweep({4096: 1e-3}))]
    small, large = speed.bandwidth(facts)
    assert (small.bus_bytes_per_s, small.raw_seconds, small.ratio) == (512e3, None, None)
    assert (large.bus_bytes_per_s, large.raw_seconds, large.ratio) == (1024e3, 1e-3, 0.25)


@pytest.mark.parametrize(
    "raw", [sweep({1024: 1e-6}, where="gpu"), sweep({1024: 1e-6}, ranks=1), Sweep(error="OSError")]
)
def test_unlike_measurements_have_no_ratio(raw: Sweep) -> None:
    facts = [rank(0, 2, bandwidth=sweep({1024: 2e-3}), raw_bandwidth=raw)]
    assert [(row.seconds, row.raw_seconds, row.ratio) for row in speed.bandwidth(facts)] == [(2e-3, None, None)]


def test_nothing_measured_is_no_bandwidth() -> None:
    assert speed.bandwidth([]) == ()
    assert speed.bandwidth([rank(0, 1, bandwidth=Sweep(where="cpu", ranks=1))]) == ()
    assert speed.bandwidth([rank(0, 2, bandwidth=Sweep(error="RuntimeError: lost"))]) == ()


def test_scaling_is_measured_against_the_run_with_the_fewest_ranks() -> None:
    runs = [
        [rank(0, 4, throughput=training(4, mlp=200.0), ddp_throughput=training(4, mlp=300.0))],
        [rank(0, 1, throughput=training(1, mlp=100.0), ddp_throughput=training(1, mlp=150.0))],
        [rank(0, 2, throughput=training(2, mlp=180.0), ddp_throughput=training(2, mlp=300.0))],
    ]
    rows = speed.scaling(runs)
    assert [(row.ranks, row.efficiency, row.ddp_efficiency) for row in rows] == [
        (1, 1.0, 1.0),
        (2, 0.9, 1.0),
        (4, 0.5, 0.5),
    ]
    assert [row.samples_per_s for row in rows] == [100.0, 180.0, 200.0]
    without_one = speed.scaling([runs[0], runs[2]])
    assert [row.efficiency for row in without_one] == [1.0, pytest.approx(200 / 4 / 90)]


def test_a_run_that_failed_is_left_out_of_the_scaling() -> None:
    good = [rank(0, 1, throughput=training(1, a=10.0, b=20.0))]
    rows = speed.scaling([good, [rank(0, 2, throughput=Throughput(error="RuntimeError: lost"))], []])
    assert [(row.model, row.ranks, row.ddp_efficiency) for row in rows] == [("a", 1, None), ("b", 1, None)]


def test_ranks_that_share_cores_are_seen() -> None:
    both = [rank(0, 2, affinity=(0, 1)), rank(1, 2, affinity=(0, 1))]
    assert speed.oversubscribed(both) == ""
    assert speed.oversubscribed([*both, rank(2, 3, affinity=(1,))]) == "3 ranks on 2 cores of node1"
    assert speed.oversubscribed([*both, rank(2, 3, host="node2", affinity=(0,))]) == ""
    assert speed.oversubscribed([replace(one, machine=Machine(granted=1)) for one in both]).startswith(
        "2 ranks on 1 core"
    )
    assert speed.oversubscribed([rank(0, 1), rank(1, 2)]) == ""


def test_a_baseline_compares_bandwidths() -> None:
    saved = speed.baseline([rank(0, 2, bandwidth=sweep({1024: 1.0, 4096: 1.0, 16384: 1.0}))], when="2026-01-01")
    own = speed.baseline([rank(0, 2, bandwidth=sweep({1024: 1.25, 4096: 1.26, 65536: 9.0}))], when="2026-01-02")
    assert saved is not None
    assert own is not None
    assert saved.world == own.world == "2 ranks of torch on 1 CPU node(s)"
    assert speed.slower(own, saved, 0.2) == {4096: pytest.approx(1 - 1 / 1.26)}
    assert speed.slower(saved, own, 0.0) == {}


def test_without_bandwidth_there_is_no_baseline() -> None:
    assert speed.baseline([rank(0, 2)], when="") is None
