import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envkit.errors import NotWritable
from envkit.training import timeline

EVENTS: list[dict[str, Any]] = [
    {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.w"}},
    {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 0, "pid": 1},
    {"ph": "X", "name": "1", "ts": 1_000_000, "pid": 1, "dur": 0},
    {"ph": "X", "name": "0", "ts": 4_000_000, "pid": 1, "dur": 0},
    {"ph": "E", "ts": 4_000_000, "pid": 1},
    {"ph": "B", "name": "ALLREDUCE", "ts": 5_000_000, "pid": 1},
    {"ph": "B", "name": "MEMCPY_IN_FUSION_BUFFER", "ts": 5_000_000, "pid": 1},
    {"ph": "E", "ts": 6_000_000, "pid": 1},
    {"ph": "B", "name": "MPI_ALLREDUCE", "ts": 6_000_000, "pid": 1},
    {"ph": "E", "ts": 8_000_000, "pid": 1},
    {"ph": "E", "ts": 8_000_000, "pid": 1, "args": {"dtype": "float32", "shape": "[3]"}},
    {"name": "process_name", "ph": "M", "pid": 2, "args": {"name": "allreduce.b"}},
    {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 9_000_000, "pid": 2},
    {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 9_000_000, "pid": 1},
    {"ph": "E", "ts": 10_000_000, "pid": 1},
    {"ph": "E", "ts": 10_000_000, "pid": 2},
]
TEXT = "[\n" + ",\n".join(json.dumps(event) for event in EVENTS)


def summary(text: str) -> timeline.Summary:
    return timeline.summary(io.StringIO(text))


def test_phases_tensors_and_who_came_last() -> None:
    found = summary(TEXT + "]")
    assert found.whole
    assert {name: phase.total / 1e6 for name, phase in found.phases.items()} == {
        "negotiation": 5.0,  # two tensors at the same time count once
        "memory copies": 1.0,
        "MPI_ALLREDUCE": 2.0,
    }
    assert dict(found.tensors) == {"allreduce.w": 3_000_000.0} and found.operations == {"allreduce.w": 1}
    assert found.last == {"0": 1} and found.stragglers(9) == [("0", 1, 1.0, 3.0)]
    said = "\n".join(timeline.lines(found))
    assert "10.00 s, 1 operations on 1 tensors\n" in said
    assert "rank 0: 1 times (100%); the first rank waited 3.000 s for it" in said


def test_for_several_tensors_at_the_same_time_a_rank_waits_once() -> None:
    spans = [(0, 4), (1, 5), (7, 8), (9, 12), (8.5, 13)]
    found = timeline.Summary()
    for begin, end in spans:
        timeline.judge(found, [(begin * 1e6, "0"), (end * 1e6, "1")])
    assert found.stragglers(9) == [("1", 5, 1.0, 5 + 1 + 4.5)]


@pytest.mark.parametrize("cut", range(0, len(TEXT), 7))
def test_any_prefix_can_be_read(cut: int) -> None:
    found = summary(TEXT[:cut])
    assert not found.whole
    assert sum(phase.total for phase in found.phases.values()) <= 8_000_000
    assert timeline.lines(found)


def test_without_the_closing_bracket_nothing_is_lost() -> None:
    found, whole = summary(TEXT + ","), summary(TEXT + "]")
    assert not found.whole and "cut short" in timeline.lines(found)[0]
    assert found.phases == whole.phases and found.tensors == whole.tensors


def test_pieces_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "CHUNK", 200)
    assert summary(TEXT + "]") == summary(TEXT + "]\n") and summary(TEXT + "]").whole


@pytest.mark.parametrize("text", ["", "[", "[\n", "not json", "[]"])
def test_nothing_in_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    assert "is empty: the command ended before" in timeline.read(path, None)[1]


def test_none_or_that_of_an_earlier_run(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    assert "the command did not start Horovod" in timeline.read(path, None)[1]
    path.write_text(TEXT)
    assert "the command did not start Horovod" in timeline.read(path, timeline.state(path))[1]


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    assert timeline.variables(tmp_path / "t.json", {})["HOROVOD_TIMELINE"] == str(tmp_path / "t.json")
    with pytest.raises(NotWritable) as raised:
        timeline.variables(tmp_path / "no" / "t.json", {})
    assert raised.value.why == f"There is no folder {tmp_path}/no." and raised.value.exit_code == 7
    with pytest.raises(NotWritable) as raised:
        timeline.variables(tmp_path, {})
    assert raised.value.why == "It is a folder."


ATTEND = """\
import os, sys
from envkit.system import process
sys.exit(process.end_alike(process.run_foreground(sys.argv[1:], os.environ)))
"""


def attended(*command: str) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-c", ATTEND, *command]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -SEGV $$", -11), ("kill -9 $$", -9)]
)
def test_the_status_is_the_commands(script: str, status: int) -> None:
    with attended("sh", "-c", script) as running:
        assert running.wait(20) == status


def test_streams_are_the_commands() -> None:
    with attended("sh", "-c", "cat; echo told >&2") as running:
        assert running.communicate("given", 20) == ("given", "told\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_reach_it_and_it_decides(number: signal.Signals) -> None:
    script = f"trap 'exit 42' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.05; done"
    with attended("sh", "-c", script) as running:
        assert running.stdout and running.stdout.readline() == "ready\n"
        running.send_signal(number)
        assert running.wait(20) == 42


def test_it_ends_when_this_process_is_killed() -> None:
    with attended("sh", "-c", "echo $$; exec sleep 100") as running:
        assert running.stdout
        pid = int(running.stdout.readline())
        running.kill()
        for _ in range(200):
            state = Path(f"/proc/{pid}/stat")
            if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
                return
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        pytest.fail("it goes on")


def test_a_program_that_is_not_there() -> None:
    with attended("no-such-program") as running:
        _, said = running.communicate(timeout=20)
    assert running.returncode == 1 and "no-such-program could not be started" in said


HOSTILE = {
    "nested": "[" * 100_000,
    "digits": '[{"ts": ' + "9" * 5000 + "}]",
    "huge": '[{"ph": "B", "name": "QUEUE", "pid": 1, "ts": 1' + "0" * 400 + "}]",
    "endless": '[{"ph": "B", "name": "QUEUE", "pid": 1, "ts": Infinity}, {"ph": "E", "pid": 1, "ts": NaN}]',
    "odd kinds": '[{"ph": "M", "name": "process_name", "pid": [1], "args": null}, {"ph": {}, "pid": null, "ts": true}]',
    "escapes": '[{"ph": "B", "name": "\\u001b]0;evil\\u0007", "pid": 1, "ts": 1}]',
}


@pytest.mark.integration
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_timeline_changes_no_status(kind: str, tmp_path: Path) -> None:
    """The command's status is what ``envkit run`` ends with, whatever the command has written."""
    path, page = tmp_path / "timeline.json", tmp_path / "page.html"
    path.write_text(HOSTILE[kind])
    code = (
        "import sys; from pathlib import Path; from envkit.commands.enter import sum_up;"
        "sum_up(Path(sys.argv[1]), Path(sys.argv[2]), None); sys.exit(7)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path, page], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 7, done.stderr
    assert "timeline" in done.stderr and "Traceback" not in done.stderr and "\x1b" not in done.stderr


def test_a_name_in_a_timeline_makes_no_line_of_its_own() -> None:
    name = "\x1b[31m::error::x\nenvkit: PASS\tx"
    events = [{**event, "name": name} if event.get("ph") in ("B", "X") else dict(event) for event in EVENTS]
    events[5]["name"] = "ALLREDUCE"
    events[0]["args"] = {"name": name}
    events[1]["name"] = "NEGOTIATE_ALLREDUCE"
    found = summary(json.dumps(events))
    inside = "::error::x envkit: PASS x"
    assert inside in [name for name, *_ in found.shares()]
    assert [name for name, _, _ in found.slowest(9)] == [inside]
    assert [rank for rank, *_ in found.stragglers(9)] == [inside]
    assert not [line for line in "\n".join(timeline.lines(found)).splitlines() if line.startswith(("envkit", "::"))]


def test_a_timeline_that_is_very_large_is_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "LARGEST", 10)
    monkeypatch.setattr(timeline, "CHUNK", 400)
    found = summary(TEXT + "]")
    assert not found.whole and timeline.LARGE in timeline.lines(found)[0]
