"""What the probe measures, with worlds and clocks made for it; that it works in real ranks is tested elsewhere."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from envkit.inside.probe import bench, throughput
from envkit.inside.probe.speed import Speed, asked


class World:
    """Ranks as threads, each with a clock of its own, that wait for each other as ranks do."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=20)
        self.given = [0.0] * size

    def share(self, rank: int, value: float) -> float:
        self.given[rank] = value
        self.barrier.wait()
        largest = max(self.given)
        self.barrier.wait()
        return largest

    def run(self, body: Callable[[int], Any]) -> list[Any]:
        """What `body(rank)` returns in each rank."""
        results: list[Any] = [None] * len(self.given)

        def one(rank: int) -> None:
            results[rank] = body(rank)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(self.given))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return results


class Clock:
    """A clock that runs only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def measured(world: World, sizes: Sequence[int], seconds: Callable[[int, int], float], budget: float) -> list[Any]:
    """The sweep of each rank, and how often it called, in a world where `seconds(rank, size)` is a call's time."""

    def body(rank: int) -> Any:
        clock, made = Clock(), []

        def prepare(size: int) -> bench.Message:
            def call() -> None:
                made.append(size)
                clock.sleep(seconds(rank, size))

            return bench.Message(call)

        return bench.sweep(sizes, prepare, lambda value: world.share(rank, value), budget, clock), made

    return world.run(body)


def test_ranks_of_unequal_speed_make_equally_many_calls() -> None:
    found = measured(World(3), [1024, 4096, 16384], lambda rank, size: size * (1 + rank) * 1e-6, 1.0)
    rows = [row for row, _ in found]
    calls = [made for _, made in found]
    assert calls[0] == calls[1] == calls[2]
    assert rows[0] == rows[1] == rows[2]
    assert [row["seconds"] for row in rows[0]] == [pytest.approx(size * 3e-6) for size in (1024, 4096, 16384)]


def test_the_number_of_calls_has_bounds() -> None:
    ((rows, made),) = measured(World(1), [4, 1 << 20], lambda rank, size: 1e-7 if size == 4 else 0.4, 4.0)
    assert [row["calls"] for row in rows] == [bench.MOST, 9]
    assert len(made) == bench.MOST + 9 + 2 * (bench.WARM_UP + 1)


def test_sizes_that_would_take_too_long_are_left_out_everywhere() -> None:
    found = measured(World(2), [1024, 4096, 16384, 65536], lambda rank, size: size / 4096, 20.0)
    assert [[row["size"] for row in rows] for rows, _ in found] == [[1024, 4096], [1024, 4096]]
    for _, made in found:
        assert sum(size / 4096 for size in made) < 20.0


def test_the_seconds_are_the_median() -> None:
    assert bench.median([3.0, 1.0, 2.0]) == 2.0
    assert bench.median([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_a_first_slow_call_does_not_count() -> None:
    slow = iter([5.0])
    ((rows, _),) = measured(World(1), [4], lambda _rank, _size: next(slow, 0.01), 10.0)
    assert rows[0]["seconds"] == pytest.approx(0.01)


@pytest.mark.parametrize(("most", "steps"), [(1000, 16), (7, 7)])
def test_training_is_timed_over_steps_that_all_ranks_make(most: int, steps: int) -> None:
    world = World(2)

    def body(rank: int) -> Any:
        clock, made = Clock(), []

        def step() -> None:
            made.append(rank)
            clock.sleep(throughput.BUDGET_S / (16 + 16 * rank))

        def share(value: float) -> float:
            return world.share(rank, value)

        return throughput.samples_per_s(step, share, {"batch": 8}, 2, most, clock), len(made)

    (first, made), (second, made_too) = world.run(body)
    assert first == second
    assert made == made_too == steps + throughput.WARM_UP
    assert first["steps"] == steps
    assert first["samples_per_s"] == 2 * 8 / (throughput.BUDGET_S / 16)


def test_a_slow_step_is_timed_a_few_times_all_the_same() -> None:
    clock = Clock()
    found = throughput.samples_per_s(lambda: clock.sleep(100.0), lambda value: value, {"batch": 1}, 1, 50, clock)
    assert found == {"samples_per_s": pytest.approx(0.01), "steps": throughput.LEAST, "batch": 1}


def test_a_rank_has_one_thread_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "gone")
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS")
    throughput.one_thread()
    assert os.environ["OMP_NUM_THREADS"] == "4"
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "1"


def test_arguments_say_what_is_measured() -> None:
    both = asked("torch", "1024,4096", 50, True)
    assert (both.sizes, both.steps, both.ddp) == ([1024, 4096], 50, True)
    assert asked("tensorflow", None, 50, True).ddp is False


class Hvd:
    """The little of Horovod that decides which way the data go."""

    def __init__(self, *, mpi: bool) -> None:
        self.mpi_built = lambda: mpi
        self.nccl_built = lambda: 0


@pytest.mark.parametrize(
    ("mpi", "variables", "wanted"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"HOROVOD_CONTROLLER": "gloo"}, False),
        (True, {"HOROVOD_CPU_OPERATIONS": "GLOO"}, False),
        (True, {"HOROVOD_CPU_OPERATIONS": "MPI"}, True),
    ],
)
def test_the_raw_mpi_is_measured_only_where_horovod_uses_it(
    monkeypatch: pytest.MonkeyPatch, mpi: bool, variables: dict[str, str], wanted: bool
) -> None:
    for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stated: list[str] = []

    class Record:
        """Keeps the names of facts."""

        def state(self, name: str, *_measure: object) -> None:
            stated.append(name)

    Speed("torch", [1024], 0, False).before_init(Record(), Hvd(mpi=mpi))  # type: ignore[arg-type]
    assert stated == (["raw_bandwidth"] if wanted else [])
