from __future__ import annotations

from pathlib import Path

import pytest

from envkit.errors import EnvkitError
from envkit.verify.facts import RankFacts, gather, load

LEAST = '{"framework": "torch", "host": "node1", "pid": 7, "phase": "start"}'
NODE = '{"version": 2, "node": "node1", "written": 5, "complete": true, "common": {}, "ranks": [%s]}'


def read(tmp_path: Path, text: str) -> RankFacts:
    (tmp_path / "a.json").write_text(NODE % text)
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


def test_the_launcher_tells_the_rank(tmp_path: Path) -> None:
    started = '{"launcher": "srun", "title": "srun", "rank": 3, "size": 4}'
    facts = read(tmp_path, LEAST[:-1] + f', "started": {started}}}')
    assert facts.launcher_rank == 3
    assert facts.label == "rank 3 (node1, pid 7)"


def test_a_rank_has_what_its_node_has_in_common_and_its_own(tmp_path: Path) -> None:
    common = '"common": {"framework": "torch", "host": "node1", "phase": "exit", "installed": {"torch": "2"}}'
    text = NODE.replace('"common": {}', common) % '{"pid": 1}, {"pid": 2, "phase": "init"}'
    (tmp_path / "a.json").write_text(text)
    first, second = load(tmp_path)
    assert (first.pid, first.phase, second.pid, second.phase) == (1, "exit", 2, "init")
    assert first.installed is second.installed


def test_how_the_nodes_stand(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(NODE % LEAST)
    (tmp_path / "b.json").write_text((NODE % LEAST).replace("true", "false").replace('"node": "node1"', '"node": "b"'))
    found = gather(tmp_path)
    assert found.complete == {"node1": True, "b": False}
    assert found.written == {"node1": 5, "b": 5}
    assert len(found.facts) == 2


def test_what_was_written_before_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(NODE % LEAST)
    assert gather(tmp_path, since=6).facts == ()
    assert len(gather(tmp_path, since=5).facts) == 1


@pytest.mark.parametrize(
    "text", ["", "[1]", "{}", (NODE % LEAST).replace("2", "1", 1), NODE % (LEAST[:-1] + ', "world": 3}')]
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(EnvkitError, match="cannot be read"):
        load(tmp_path)


def test_no_records_are_no_error(tmp_path: Path) -> None:
    assert load(tmp_path) == ()
