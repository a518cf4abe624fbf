"""Questions that are asked at the same time: what hangs is cut off and named, and nothing of it is left."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from envkit.doctor.parallel import ask
from envkit.errors import HostProblem
from envkit.system import process

Asked = Mapping[str, Future[Any]]
Fake = Callable[..., Path]


def gone(path: Path) -> bool:
    """Whether the process whose number is in a file has ended."""
    for _ in range(500):
        with suppress(OSError, ValueError):
            state = Path(f"/proc/{int(path.read_text())}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "Z":
                return True
        if path.exists() and path.read_text().strip() and not Path(f"/proc/{path.read_text().strip()}").exists():
            return True
        time.sleep(0.01)
    return False


def test_answers_and_what_waits_for_another_answer() -> None:
    def later(asked: Asked) -> Any:
        return asked["one"].result() + 1

    told = ask({"two": later, "one": lambda _: 1}, 5)
    assert (dict(told.values), told.missing, dict(told.errors)) == ({"one": 1, "two": 2}, (), {})


def test_a_program_that_hangs_is_cut_off_with_what_it_started(fake: Fake, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    program = fake("hangs", f"sleep 300 & echo $! >{pid}; wait")
    told = ask({"slow": lambda _: process.capture([str(program), "-L"]), "quick": lambda _: 7}, 0.8)
    assert dict(told.values) == {"quick": 7}
    [missing] = told.missing
    assert (missing.probe, missing.hung) == ("slow", True)
    assert missing.why == f"'{program} -L' has not ended in 0.8 s"
    assert gone(pid)


def test_a_thread_that_never_comes_back_is_left_behind() -> None:
    end = Event()
    told = ask({"stuck": lambda _: end.wait(60), "quick": lambda _: 7}, 0.2)
    end.set()
    assert [(one.probe, one.why, one.hung) for one in told.missing] == [("stuck", "it has not answered in 0.2 s", True)]


def test_what_depends_on_what_hangs_says_the_same(fake: Fake) -> None:
    program = fake("hangs", "exec sleep 300")
    questions = {
        "host": lambda _: process.capture([str(program)]),
        "preflight": lambda asked: asked["host"].result(),
    }
    told = ask(questions, 0.3)
    assert {one.probe for one in told.missing} == {"host", "preflight"}
    assert len({one.why for one in told.missing}) == 1


def test_a_command_with_a_time_of_its_own_ends_by_that(fake: Fake) -> None:
    program = fake("hangs", "exec sleep 300")
    told = ask({"mount": lambda _: process.capture([str(program)], timeout_s=0.2).status}, 20)
    assert dict(told.values) == {"mount": 124}


def test_failures_that_explain_themselves_are_kept() -> None:
    def refuse(_: Asked) -> Any:
        raise HostProblem(what="The module is not there.")

    told = ask({"host": refuse}, 5)
    assert told.errors["host"].what == "The module is not there."
    assert not told.missing[0].hung


def test_what_is_a_bug_stays_one() -> None:
    def wrong(_: Asked) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask({"wrong": wrong}, 5)
