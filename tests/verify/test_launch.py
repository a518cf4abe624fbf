"""How long a launcher is waited for."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from envkit.errors import HostProblem
from envkit.launch.launcher import LaunchRequest
from envkit.system import stopped
from envkit.system.resources import data
from envkit.system.stopped import command_line
from envkit.verify import explain, launch
from envkit.verify.facts import VERSION
from envkit.verify.launch import Patience, are_enough, further_than
from envkit.verify.session import Session
from envkit.verify.trials import Attempt

from . import recorded


def test_a_folder_that_goes_while_ranks_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Session(name="x", shared=tmp_path / "t" / "x")
    meeting.shared.mkdir(parents=True)

    def start(*_arguments: object) -> None:
        shutil.rmtree(tmp_path / "t")
        launch.ends(meeting.shared / "launcher.log")

    parts = SimpleNamespace(inside=None, mpi=lambda _env: None, spans=False)
    monkeypatch.setattr("envkit.launch.image_launch.plan_launch", lambda *_: (None, parts))
    monkeypatch.setattr(launch, "replace", lambda target, **_: target)
    monkeypatch.setattr("envkit.launch.launcher.may_leave", lambda *_: False)
    monkeypatch.setattr("envkit.verify.session.of_starter", lambda *_: meeting)
    monkeypatch.setattr(launch, "start", start)
    options: Any = SimpleNamespace(mpi_model=None, shared=None)
    with pytest.raises(HostProblem, match=f"^No verdict is known here: {tmp_path}/t, "):
        launch.one_run(cast("Any", parts), cast("Any", SimpleNamespace(ranks=2)), options, {}, lambda _: None)


HOPELESS = (
    "ssh: Could not resolve hostname node9: Name or service not known",
    "ssh: connect to host node9 port 22: Connection refused",
    "ada@node9: Permission denied (publickey,password).",
    "[proxy:0@n1] HYDU_create_process (lib/utils/launch.c:73): execvp error on file /x/python (No such file)",
)


@pytest.mark.parametrize("line", HOPELESS)
def test_a_launcher_that_has_given_up_on_a_rank_is_not_waited_for(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    patience = Patience(tmp_path, log, 120.0)
    patience.look()
    log.write_text("Warning: Permanently added 'node9' to the list of known hosts.\n")
    patience.look()
    assert patience.hopeless_since is None
    with log.open("a") as stream:
        stream.write(f"{line}\n")
    patience.look()
    assert not patience.is_over(), "the ranks that were started may have something to say"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + launch.HOPELESS_S + 1)
    assert patience.is_over()
    (tmp_path / "node1.json").touch()
    patience.look()
    assert not patience.is_over()


def test_one_that_has_said_nothing_of_the_kind_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_text("bash: module: Permission denied\nCould not resolve a symbol\n")
    patience = Patience(tmp_path, tmp_path / "log", 120.0)
    patience.look()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)
    assert not patience.is_over()


def test_ranks_that_only_have_to_start_are_ended_when_all_have(tmp_path: Path) -> None:
    patience = Patience(tmp_path, tmp_path / "log", 120.0, ranks=2, enough=lambda _facts, _size: True)
    ranks = [{"framework": "torch", "host": "n", "pid": number, "phase": "start"} for number in (1, 2)]
    for there in (0, 1, 2):
        file = {"version": VERSION, "node": "n", "written": time.time(), "complete": False, "common": {}}
        (tmp_path / "n.json").write_text(json.dumps({**file, "ranks": ranks[:there]}))
        os.utime(tmp_path / "n.json", (there + 1, there + 1))
        patience.look()
        assert patience.is_over() is (there == 2)


def test_a_launcher_that_does_not_end_after_its_ranks_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = Patience(tmp_path, tmp_path / "log", 120.0, ranks=2)
    ended = {"framework": "torch", "host": "n", "phase": "exit", "ended": {"how": "exit", "status": 0}}
    file = {"version": VERSION, "node": "n", "written": time.time(), "complete": True, "common": {}}
    now = time.monotonic()
    for there in (1, 2):
        ranks = [{**ended, "pid": number} for number in range(there)]
        (tmp_path / "n.json").write_text(json.dumps({**file, "ranks": ranks}))
        os.utime(tmp_path / "n.json", (there, there))
        with monkeypatch.context() as patch:
            patient = now + (there - 1) * (launch.ENDING_S + 1)
            patch.setattr(time, "monotonic", lambda at=patient: at)
            patience.look()
            assert not patience.is_over(), "it may be about to end"
            patch.setattr(time, "monotonic", lambda at=patient: at + launch.ENDING_S + 1)
            assert patience.is_over() is (there == 2)


def test_how_far_ranks_have_to_come_that_are_to_come_further() -> None:
    def far(*sizes: int | None) -> Any:
        return further_than(SimpleNamespace(ranks=[SimpleNamespace(size=size) for size in sizes]))  # type: ignore[arg-type]

    good = recorded.case("pytorch-4ranks").facts
    lost = replace(good[0], world=None, init=None)
    assert far(4, 4) is None and far(1, None) is None
    assert are_enough([lost] * 2, 2, far()) and not are_enough([lost], 2, far())
    assert are_enough(good, 4, far(None, None)) and not are_enough([lost, *good[1:]], 4, far(None, None))
    assert not are_enough([replace(one, world=good[0].world) for one in good], 2, far(None))


def test_a_process_below_that_a_signal_has_stopped_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped, "LOOK_S", 0.0)
    patience = Patience(tmp_path, tmp_path / "log", 120.0)
    argv = ["sh", "-c", "sleep 600 & echo $!; wait"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stdout
        below = int(running.stdout.readline())
        patience.look()
        assert not patience.is_over()
        deadline = time.monotonic() + 30
        while Path(f"/proc/{below}/comm").read_text() != "sleep\n" and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(below, signal.SIGSTOP)
        while not patience.is_over() and time.monotonic() < deadline:
            patience.look()
        found = patience.stopped.found
        os.killpg(running.pid, signal.SIGKILL)
    [one] = found
    assert (one.pid, one.program, one.above) == (below, "sleep", (running.pid, os.getpid()))


def test_ranks_that_their_session_allows_nothing_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    for files, over in ((24, True), (1024, False)):
        limits = {resource.RLIMIT_NOFILE: (files, files)}
        monkeypatch.setattr(resource, "getrlimit", lambda number, known=limits: known.get(number, (-1, -1)))
        patience = Patience(tmp_path, tmp_path / "log", 120.0)
        patience.sign = now - launch.LIMITED_S - 1
        assert patience.is_over() is over
        assert (f"*={launch.LIMITED_STEP_S:g}" in launch.limits(None)) is over


def test_a_plain_mpi_program_needs_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody has put among the packages, which ends every Python, says nothing of MPI."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(9)\n")
    (tmp_path / "typing.py").write_text("raise ImportError\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    inside = SimpleNamespace(command=lambda argv, launcher=(), **_: [*launcher, *argv], variables=lambda env: env)
    target = cast("Any", SimpleNamespace(inside=inside, python=sys.executable, mpi=lambda _env: None))
    by = SimpleNamespace(argv=(), remote=False)
    monkeypatch.setattr("envkit.launch.image_launch.plan_launch", lambda *_: (inside, by))
    said = []

    def supervise(argv: list[str], **_options: object) -> int:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        said.append(done.stderr)
        return done.returncode

    monkeypatch.setattr("envkit.system.process.supervise", supervise)
    options: Any = SimpleNamespace(mpi_model=None, limit_s=9.0)
    attempt = Attempt(wanted=LaunchRequest(ranks=1), mpi="/nowhere/libmpi.so")
    assert not launch.mpi_alone(target, attempt, options, os.environ)
    assert "/nowhere/libmpi.so: cannot open shared object file" in said[0]
    assert explain.has_python(target, os.environ)
    target.python = "/bin/false"
    assert not explain.has_python(target, os.environ)


def test_a_process_that_runs_the_probe_is_the_rank_that_its_launcher_told_it() -> None:
    env = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PATH": os.environ["PATH"]}
    for words, told in (([str(data("inside/probe"))], 1), (["-n1", str(data("inside/probe"))], None)):
        argv = ["python", *words, "-f", "/dev/null"]
        with subprocess.Popen(argv, executable=shutil.which("tail"), env=env, stderr=subprocess.DEVNULL) as running:
            try:
                while command_line(running.pid) != argv:
                    time.sleep(0.01)
                assert launch.rank_of(running.pid) == told
            finally:
                running.kill()
