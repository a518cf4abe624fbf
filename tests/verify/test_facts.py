from __future__ import annotations

from pathlib import Path

import pytest

from envkit.errors import EnvkitError
from envkit.verify.facts import RankFacts, load

LEAST = '{"version": 1, "framework": "torch", "host": "node1", "pid": 7, "phase": "start"}'


def read(tmp_path: Path, text: str) -> RankFacts:
    (tmp_path / "a.json").write_text(text)
    (facts,) = load(tmp_path)
    return facts


def test_a_rank_that_died_at_once_is_read(tmp_path: Path) -> None:
    facts = read(tmp_path, LEAST)
    assert (facts.rank, facts.size, facts.world, facts.finished) == (None, None, None, False)
    assert facts.label == "a process (node1, pid 7)"


def test_a_fact_that_could_not_be_had_carries_its_error(tmp_path: Path) -> None:
    error = '{"error": "OSError: none", "traceback": "..."}'
    facts = read(tmp_path, LEAST[:-1] + f', "world": {error}, "mpi_threads": {error}, "libraries": {error}}}')
    assert facts.world is not None
    assert facts.world.error == "OSError: none"
    assert facts.rank is None
    assert facts.libraries["error"] == "OSError: none"


def test_unknown_facts_are_passed_over(tmp_path: Path) -> None:
    assert read(tmp_path, LEAST[:-1] + ', "later": [1]}').host == "node1"


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ('{"HOROVOD_RANK": "3", "SLURM_PROCID": "0"}', 3),
        ('{"OMPI_COMM_WORLD_RANK": "2", "SLURM_PROCID": "0"}', 2),
        ('{"SLURM_PROCID": "1", "PMI_RANK": "1"}', 1),
        ("{}", None),
    ],
)
def test_the_launcher_tells_the_rank(tmp_path: Path, environment: str, rank: int | None) -> None:
    assert read(tmp_path, LEAST[:-1] + f', "environment": {environment}}}').launcher_rank == rank


@pytest.mark.parametrize("text", ["", "[1]", "{}", LEAST.replace("1", "2", 1), LEAST[:-1] + ', "world": 3}'])
def test_what_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(EnvkitError, match=r"a\.json cannot be read"):
        load(tmp_path)


def test_no_records_are_no_error(tmp_path: Path) -> None:
    assert load(tmp_path) == ()
