import errno
import io
import json
import os
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from envkit.errors import NotWritable
from envkit.report import progress
from envkit.report.progress import SILENT, BuildProgress, Events, clock, say, steps, transfer
from envkit.sources.fetch import FetchEvent, FetchState
from envkit.sources.progress import FetchProgress

MODULES = ["A/1", "B/1", "C/1"]


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def console(said: io.StringIO) -> Console:
    return Console(file=said, width=40)


def event(state: FetchState, filename: str, bytes_done: int = 0, note: str = "") -> FetchEvent:
    return FetchEvent(state=state, filename=filename, number=1, count=2, bytes_done=bytes_done, note=note)


def test_events_come_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = Events(path)
    assert events.new() == []
    lines = [json.dumps({"event": "step", "step": f"é{number}"}).encode() + b"\n" for number in range(3)]
    path.write_bytes(lines[0] + lines[1][:9])
    assert [one["step"] for one in events.new()] == ["é0"]
    assert events.new() == []
    path.write_bytes(b"".join(lines))
    assert [one["step"] for one in events.new()] == ["é1", "é2"]


@pytest.mark.parametrize("cut", range(0, 20, 3))
def test_a_line_that_a_full_disk_has_cut_is_left_out(cut: int, tmp_path: Path) -> None:
    lines = [json.dumps({"event": "step", "step": f"é{number}"}).encode() + b"\n" for number in range(4)]
    path = tmp_path / "events.jsonl"
    path.write_bytes(lines[0] + lines[1][:cut] + lines[2] + lines[3])
    assert [one["step"] for one in Events(path).new()] == ["é0", *([] if cut else ["é2"]), "é3"]


class Full(io.StringIO):
    """An output that takes nothing more."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_an_output_that_is_full_is_not_taken_for_a_full_prefix() -> None:
    with pytest.raises(NotWritable, match="could not write its output"):
        say(Console(file=Full()), "a line")


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.9, "0:59"), (125, "2:05"), (3661, "61:01")])
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_lines_are_printed_as_they_are(console: Console, said: io.StringIO) -> None:
    text = "[2/7] PyTorch/2.13.0 [bold]not markup[/] :smile: " + "long " * 20
    say(console, text)
    assert said.getvalue() == text + "\n"


def test_a_line_per_module_without_a_terminal(console: Console, said: io.StringIO) -> None:
    with BuildProgress(console, MODULES, {}) as shown:
        for module in MODULES[:2]:
            shown.on({"event": "begin", "module": module})
            shown.on({"event": "step", "module": module, "step": "configure_step"})
            assert shown.step == "configure"
            shown.on({"event": "extension", "module": module, "name": "torch"})
            assert shown.step == "extension torch"
            shown.on({"event": "module", "module": module, "path": "/m"})
            shown.on({"event": "ended", "module": module})
            shown.tick()
        shown.on({"event": "command", "command": "make"})
    assert said.getvalue() == "[1/3] A/1\n[2/3] B/1\n"
    assert set(shown.took) == {"A/1", "B/1"}


def test_time_left_by_what_each_module_took_before(console: Console) -> None:
    shown = BuildProgress(console, MODULES, {"A/1": 100, "B/1": 30})
    shown.on({"event": "begin", "module": "A/1"})
    assert shown.left(shown.module_began + 10) == pytest.approx(90 + 30 + 5)
    assert shown.left(shown.module_began + 500) is None
    shown.on({"event": "module", "module": "A/1"})
    assert shown.left(shown.module_began + 10) == pytest.approx(30 + 5)


def test_time_left_on_a_machine_that_is_slower(said: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that took ten minutes instead of one says what the next will take; what takes longer yet is told so."""
    monkeypatch.setattr("envkit.report.progress.QUIET_S", -1)
    shown = BuildProgress(Console(file=said, width=200), MODULES, {"A/1": 60, "B/1": 150})
    shown.on({"event": "begin", "module": "A/1"})
    shown.module_began -= 100
    shown.tick()
    assert said.getvalue().endswith("A/1: begin, 0:00 elapsed, longer than expected\n")
    shown.module_began -= 500
    shown.on({"event": "module", "module": "A/1"})
    shown.on({"event": "begin", "module": "B/1"})
    assert shown.left(shown.module_began + 900) == pytest.approx(10 * (150 + 5) - 900, abs=5)
    assert shown.left(shown.module_began + 1600) is None


def test_no_time_left_without_experience(console: Console) -> None:
    shown = BuildProgress(console, MODULES, {"Other/1": 100})
    shown.on({"event": "begin", "module": "A/1"})
    assert shown.left(shown.module_began) is None


def test_a_terminal_gets_a_line_when_a_module_is_there(said: io.StringIO) -> None:
    console = Console(file=said, width=100, force_terminal=True, color_system=None)
    with BuildProgress(console, MODULES, {"A/1": 60}) as shown:
        shown.on({"event": "begin", "module": "A/1"})
        shown.tick()
        shown.on({"event": "module", "module": "A/1"})
    assert "[1/3] A/1  0:00\n" in said.getvalue()


def test_fetched_files_are_counted(console: Console, said: io.StringIO) -> None:
    with FetchProgress(console) as shown:
        shown.on(event(FetchState.STARTED, "a.whl"))
        shown.on(event(FetchState.PROGRESS, "a.whl", 1_000_000))
        shown.on(event(FetchState.RETRYING, "a.whl", note="HTTP 503"))
        shown.on(event(FetchState.DONE, "a.whl", 3_000_000))
        shown.on(event(FetchState.SET_ASIDE, "b.whl", note="the cache had it wrong"))
        shown.on(event(FetchState.DONE, "b.whl", 2_500_000))
    assert said.getvalue().splitlines() == [
        "a.whl: retrying, HTTP 503",
        "b.whl: set aside, the cache had it wrong",
        "Fetched 2 sources, 5 MB, in 0:00",
    ]


def test_nothing_fetched_is_nothing_said(console: Console, said: io.StringIO) -> None:
    with FetchProgress(console):
        pass
    assert said.getvalue() == ""


class TestTransfer:
    """How much of a file has been sent or fetched."""

    def test_the_line(self, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
        done = [0]
        monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
        shown = transfer(console, "Pushing it", 40 << 20, lambda: done[0])
        for now, so_far, line in (
            (1000.0, 0, "Pushing it: 0 B of 40 MiB, 0:00 elapsed"),
            (1005.5, 10 << 20, "Pushing it: 10 MiB of 40 MiB, 0:05 elapsed, about 0:16 left"),
            (1009.0, 50 << 20, "Pushing it: 40 MiB of 40 MiB, 0:09 elapsed"),
        ):
            monkeypatch.setattr(time, "monotonic", lambda now=now: now)
            done[0] = so_far
            assert shown.line() == line

    def test_the_step_that_work_is_in(self, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
        reached = ["beginning"]
        shown = steps(console, "Packing it", lambda: reached[-1])
        assert shown.line() == "Packing it: beginning, 0:00 elapsed"
        reached.append("compressing its files")
        monkeypatch.setattr(time, "monotonic", lambda: 1065.0)
        assert shown.line() == "Packing it: compressing its files, 1:05 elapsed"

    @pytest.mark.parametrize("is_terminal", [False, True])
    def test_it_is_shown_while_it_lasts(
        self, is_terminal: bool, said: io.StringIO, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(progress, "LOOK_S", 0.01)
        monkeypatch.setattr(progress, "QUIET_S", 0.0)
        looked = threading.Event()

        def done() -> int:
            if said.getvalue():
                looked.set()
            return 10

        with transfer(Console(file=said, width=100, force_terminal=is_terminal), "Pushing it", 20, done) as shown:
            assert looked.wait(30)
        text = said.getvalue()
        assert "Pushing it: 10 B of 20 B, 0:00 elapsed" in text
        assert not shown.thread.is_alive()

    def test_nothing_is_shown_where_it_is_quick_or_silent(self, said: io.StringIO, console: Console) -> None:
        for where in (console, SILENT, Console(file=said, quiet=True, force_terminal=True)):
            with transfer(where, "Pushing it", 20, lambda: 10):
                pass
        assert said.getvalue() == ""

    def test_an_output_that_is_full_does_not_end_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(progress, "LOOK_S", 0.01)
        monkeypatch.setattr(progress, "QUIET_S", 0.0)
        with transfer(Console(file=Full()), "Pushing it", 20, lambda: 10) as shown:
            shown.thread.join(30)
            assert not shown.thread.is_alive()
