from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from envkit.verify.progress_line import Reminder, Waiting, how_far


def leave(folder: Path, name: str, *phases: str, common: str | None = None) -> None:
    ranks = [{"phase": phase} for phase in phases] or [{}, {}]
    (folder / name).write_text(json.dumps({"common": {"phase": common} if common else {}, "ranks": ranks}))


def test_nothing_has_been_heard_yet(tmp_path: Path) -> None:
    assert how_far(tmp_path, 4) == "0 of 4 ranks reporting"


def test_ranks_are_counted_by_step(tmp_path: Path) -> None:
    leave(tmp_path, "a.json", "init", "import")
    leave(tmp_path, "b.json", common="import")
    (tmp_path / "c.json").write_text("{")
    assert how_far(tmp_path, 8) == "4 of 8 ranks reporting; 3 in import, 1 in init"


def test_a_line_is_written_over_and_wiped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    clock = iter([0.0, 1.0, 4.5, 5.0, 6.0])
    monkeypatch.setattr("envkit.verify.progress_line.time.monotonic", lambda: next(clock))
    shown = Waiting(stream, 2)
    shown.look(tmp_path)
    assert stream.getvalue() == ""
    shown.look(tmp_path)
    assert stream.getvalue() == "\r4 s: 0 of 2 ranks reporting"
    shown.look(tmp_path)
    shown.wipe()
    assert stream.getvalue().endswith("\r" + " " * 27 + "\r")


def test_nothing_is_wiped_where_nothing_was_said() -> None:
    stream = io.StringIO()
    Waiting(stream, 2).wipe()
    assert stream.getvalue() == ""


def test_what_runs_is_told_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    clock = iter([0.0, 0.5, 2.0, 4.0])
    monkeypatch.setattr("envkit.verify.progress_line.time.monotonic", lambda: next(clock))
    shown = Waiting(stream, 2)
    shown.at("a file", "")
    assert stream.getvalue() == ""
    shown.at("a file", "")
    shown.at("a file", "3 tests")
    assert stream.getvalue() == "\r2 s: a file\r4 s: a file: 3 tests"


def test_where_nobody_looks_a_line_is_told_at_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()
    clock = iter([0.0, 29.0, 31.0, 32.0, 90.0, 92.0])
    monkeypatch.setattr("envkit.verify.progress_line.time.monotonic", lambda: next(clock))
    reminder = Reminder(told.append, 2)
    for _ in range(5):
        reminder.look(tmp_path)
    assert told == ["31 s: 0 of 2 ranks reporting", "92 s: 0 of 2 ranks reporting"]
