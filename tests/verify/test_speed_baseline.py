from __future__ import annotations

import json
from pathlib import Path

import pytest

from envkit.errors import EnvkitError, NotWritable
from envkit.verify import baseline
from envkit.verify.facts import RankFacts
from envkit.verify.outcome import Expected, Result, Status

from .test_speed import rank, sweep

ASKED = Expected(size=2, frameworks=("torch",), measures=frozenset({"bandwidth"}))
SIZES = {1024: 1e-3, 4096: 2e-3}


def world(seconds: dict[int, float], ranks: int = 2, **facts: str) -> list[RankFacts]:
    return [rank(number, ranks, bandwidth=sweep(seconds, ranks), **facts) for number in range(ranks)]


def settled(path: Path, facts: list[RankFacts], tolerance: float = 0.2) -> Result:
    return baseline.settle(path, baseline.read(path), facts, ASKED, tolerance)


def test_the_first_run_saves_and_the_next_compares(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    first = settled(path, world(SIZES))
    assert (first.status, first.message) == (Status.PASS, f"saved as the baseline: {path}")
    assert json.loads(path.read_text())["version"] == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["base.json"]
    content = path.read_bytes()
    again = settled(path, world({1024: 1.1e-3, 4096: 1e-3}))
    assert again.status is Status.PASS
    assert "2 sizes are within 20 %" in again.message
    assert path.read_bytes() == content


def test_slower_sizes_fail_and_are_named(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    settled(path, world(SIZES))
    result = settled(path, world({1024: 1e-3, 4096: 4e-3}))
    assert result.id == "bandwidth-baseline"
    assert result.status is Status.FAIL
    assert "4 KiB by 50 %" in result.message
    assert "1 KiB" not in result.message
    assert settled(path, world({1024: 1e-3, 4096: 4e-3}), tolerance=0.6).status is Status.PASS


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (world(SIZES, ranks=4), "this is 4 ranks"),
        (world(SIZES, framework="tensorflow"), "of tensorflow"),
        ([*world(SIZES)[:1], *world(SIZES, host="node2")[1:]], "on 2 CPU"),
        ([rank(0, 2, bandwidth=sweep(SIZES, where="gpu"))], "1 GPU node"),
    ],
)
def test_another_kind_of_world_is_not_compared(tmp_path: Path, other: list[RankFacts], words: str) -> None:
    path = tmp_path / "base.json"
    settled(path, world(SIZES))
    result = settled(path, other)
    assert (result.status, result.required) == (Status.SKIP, True)
    assert words in result.message


def test_other_sizes_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    settled(path, world(SIZES))
    result = settled(path, world({8: 1e-3}))
    assert result.status is Status.SKIP
    assert "other sizes" in result.message


def test_nothing_measured_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    assert settled(path, [rank(0, 1)]).status is Status.SKIP
    assert not path.exists()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"version": 2}', '{"version": 1, "framework": "torch", "seconds": {"x": 1}}']
)
def test_a_file_that_is_no_baseline_is_refused_and_kept(tmp_path: Path, content: str) -> None:
    path = tmp_path / "base.json"
    path.write_text(content)
    with pytest.raises(EnvkitError, match="is not a baseline") as caught:
        baseline.read(path)
    assert caught.value.fix
    assert path.read_text() == content


@pytest.mark.parametrize("seconds", ["0", "-1e-3", "NaN", "Infinity", "1e999", "1e-300", "1e300"])
def test_times_that_nothing_takes_are_no_baseline(tmp_path: Path, seconds: str) -> None:
    path = tmp_path / "base.json"
    settled(path, world(SIZES))
    path.write_text(path.read_text().replace("0.002", seconds))
    with pytest.raises(EnvkitError, match="is not a baseline") as caught:
        baseline.read(path)
    assert "new one" in caught.value.fix
    assert seconds in path.read_text()


def test_a_folder_is_no_baseline(tmp_path: Path) -> None:
    with pytest.raises(EnvkitError, match="is not a baseline"):
        baseline.read(tmp_path)


def test_where_none_can_be_saved_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(NotWritable, match="could not be written"):
        baseline.read(tmp_path / "absent" / "base.json")


def test_a_folder_that_vanished_meanwhile_is_told(tmp_path: Path) -> None:
    result = baseline.settle(tmp_path / "absent" / "base.json", None, world(SIZES), ASKED, 0.2)
    assert (result.status, result.message.partition(": ")[2]) == (Status.WARN, "No such file or directory")
