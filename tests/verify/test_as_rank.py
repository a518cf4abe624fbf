"""envkit verify as the ranks themselves: processes with a launcher's variables, and the fake Horovod on their path."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from envkit.inside.probe.node import local_folder, started_here
from envkit.inside.probe.started import Started
from envkit.verify import as_rank, presence

from .conftest import make_site

pytestmark = pytest.mark.integration

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start one rank of `envkit verify`, as mpirun would; all are ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def rank(number: int, size: int, *words: str, faults: str = "", **changes: str) -> subprocess.Popen[str]:
        env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "TMPDIR": str(tmp_path / "node0"),
            "PYTHONPATH": str(make_site(tmp_path, faults)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "FAKE_MEETING": str(tmp_path / "meeting"),
            "FAKE_FAULTS": faults,
            "ENVKIT_PREFIX": str(tmp_path / "prefix"),
            "HOROVOD_RANK": str(number),
            "HOROVOD_SIZE": str(size),
            "OMPI_COMM_WORLD_RANK": str(number),
            "OMPI_COMM_WORLD_SIZE": str(size),
            "HOROVOD_LOCAL_SIZE": str(size),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
            **changes,
        }
        for folder in ("meeting", "node0", "node1"):
            (tmp_path / folder).mkdir(exist_ok=True)
        argv = [sys.executable, "-m", "envkit", "verify", *words]
        process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield rank
    for process in started:
        process.kill()
        process.communicate()


def node(number: int) -> dict[str, str]:
    """The variables of a rank that is alone on a node, which Slurm does not call by its host name."""
    return {"SLURMD_NODENAME": f"node{number}", "HOROVOD_LOCAL_SIZE": "1", **started_here()}


def outcome(ranks: list[subprocess.Popen[str]], timeout: float = 90) -> tuple[list[int], list[str], list[str]]:
    told = [rank.communicate(timeout=timeout) for rank in ranks]
    return [rank.returncode for rank in ranks], [out for out, _ in told], [err for _, err in told]


def test_one_report_and_one_status(start: Start, tmp_path: Path) -> None:
    statuses, outputs, errors = outcome([start(rank, 3) for rank in range(3)])
    assert statuses == [0, 0, 0], outputs[0] + errors[0]
    assert outputs[0].startswith("PASS")
    assert "3 ranks" in outputs[0]
    assert outputs[1:] == ["", ""]
    assert "".join(errors) == ""
    assert not list((tmp_path / "node0").iterdir())


def test_singletons_fail_in_every_rank(start: Start) -> None:
    statuses, outputs, _ = outcome([start(rank, 2, "--json", faults="singletons") for rank in range(2)])
    assert statuses == [1, 1]
    report = json.loads(outputs[0])
    assert [r["status"] for r in report["results"] if r["id"] == "world-size"] == ["fail"]
    assert outputs[1] == ""


def test_two_nodes_meet_in_a_folder_that_both_see(start: Start, tmp_path: Path) -> None:
    nodes = [{**node(number), "TMPDIR": str(tmp_path / f"node{number}")} for number in (0, 1)]
    ranks = [start(rank, 2, "--json", "--shared", str(tmp_path / "meeting"), **nodes[rank]) for rank in range(2)]
    statuses, outputs, errors = outcome(ranks)
    report = json.loads(outputs[0])
    assert statuses == [1, 1], errors
    assert [r["id"] for r in report["results"] if r["status"] == "fail"] == ["local-ranks"]  # the fake knows no hosts
    assert sorted(host["name"] for host in report["hosts"]) == ["node0", "node1"]
    assert not list((tmp_path / "meeting").glob("envkit-*"))
    assert not list(tmp_path.glob("node?/*"))


def test_a_folder_that_is_not_shared_is_named(start: Start, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    ranks = [start(rank, 2, "--json", "--shared", str(folders[rank]), **node(rank)) for rank in range(2)]
    statuses, outputs, errors = outcome(ranks)
    assert statuses == [1, 1]
    (result,) = [r for r in json.loads(outputs[0])["results"] if r["id"] == "rank-missing"]
    assert "though Horovod has all of them: missing are ranks 1" in result["message"]
    assert f"{folders[0]} is not shared" in result["cause"]
    assert outputs[1] == ""
    assert "sees nothing of rank 0, nor of horovodrun" in errors[1]


def test_where_rank_0_is_killed_another_rank_reports(start: Start, tmp_path: Path) -> None:
    ranks = [start(rank, 2, "--timeout", "10", faults="hang-broadcast") for rank in range(2)]
    wait_for_phase(tmp_path, "collectives_cpu")
    ranks[0].send_signal(signal.SIGKILL)
    statuses, outputs, errors = outcome(ranks)
    assert statuses == [-signal.SIGKILL, 1]
    assert outputs[1].startswith("FAIL"), errors


def probe_of(rank: subprocess.Popen[str]) -> int:
    """The watchdog of a rank, once it is there."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for child in Path(f"/proc/{rank.pid}/task/{rank.pid}/children").read_text().split():
            if b"--session" in contents(Path(f"/proc/{child}/cmdline")):
                return int(child)
        time.sleep(0.02)
    raise AssertionError("no probe was started")


def test_a_rank_whose_envkit_is_stopped_fails_and_is_named(start: Start, tmp_path: Path) -> None:
    """All is measured then, and its launcher would wait for it."""
    ranks = [start(rank, 2) for rank in range(2)]
    probe_of(ranks[1])
    ranks[1].send_signal(signal.SIGSTOP)
    [status], [output], [said] = outcome(ranks[:1])
    assert status == 1, said
    assert f"pid {ranks[1].pid}) was stopped and did not go on (state T)" in " ".join(output.split()), output + said
    assert not list((tmp_path / "node0").iterdir())


def test_where_the_envkit_of_rank_0_is_stopped_another_rank_names_it(start: Start) -> None:
    ranks = [start(rank, 2) for rank in range(2)]
    probe_of(ranks[0])
    ranks[0].send_signal(signal.SIGSTOP)
    [status], [output], [said] = outcome(ranks[1:])
    assert status == 1 and f"pid {ranks[0].pid}) was stopped" in " ".join(output.split()), output + said
    ranks[0].send_signal(signal.SIGCONT)
    statuses, outputs, [said] = outcome(ranks[:1])
    assert (statuses, outputs) == ([3], [""]) and said.startswith("envkit: No verdict is known here: "), "one report"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_watchdog_that_is_killed_is_noticed_at_once(
    rank: int, number: signal.Signals, start: Start, tmp_path: Path
) -> None:
    ranks = [start(rank, 2, faults="hang-broadcast") for rank in range(2)]
    wait_for_phase(tmp_path, "collectives_cpu")
    began = time.monotonic()
    os.kill(probe_of(ranks[rank]), number)
    statuses, outputs, said = outcome(ranks)
    assert time.monotonic() - began < 20
    assert statuses == [1, 1] and outputs[1] == "", said
    assert f"rank {rank} (" in outputs[0] and number.name in outputs[0] and "'collectives_cpu'" in outputs[0]
    assert not list((tmp_path / "node0").iterdir())


def test_being_told_to_stop_leaves_a_report_and_no_process(start: Start, tmp_path: Path) -> None:
    ranks = [start(rank, 2, faults="hang-broadcast") for rank in range(2)]
    wait_for_phase(tmp_path, "collectives_cpu")
    for rank in ranks:
        rank.terminate()
    statuses, outputs, _ = outcome(ranks)
    assert statuses == [143, 143]
    [report] = [output for output in outputs if output]  # of rank 0, but where it is late
    assert report.startswith("FAIL")
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in contents(p)]


@pytest.mark.parametrize(
    ("told", "number"), [(0, signal.SIGTERM), (1, signal.SIGTERM), (0, signal.SIGINT), (1, signal.SIGQUIT)]
)
def test_where_one_rank_alone_is_told_to_stop_there_is_one_report_of_it(
    told: int, number: signal.Signals, start: Start, tmp_path: Path
) -> None:
    ranks = [start(rank, 2, faults="hang-broadcast") for rank in range(2)]
    wait_for_phase(tmp_path, "collectives_cpu")
    ranks[told].send_signal(number)
    statuses, outputs, errors = outcome(ranks)
    assert statuses == ([128 + number, 1] if told == 0 else [1, 128 + number]), errors
    assert outputs[1 - told] == errors[1 - told] == ""
    report = " ".join(outputs[told].split())
    assert report.startswith("FAIL") and f"envkit of rank {told} on " in report
    assert f"was told to stop by {number.name} during" in report
    assert "vanished" not in report and "all ranks were told" not in report
    assert errors[told] == f"envkit: Stopped by {'Ctrl-C' if number == signal.SIGINT else number.name}.\n"
    assert not list((tmp_path / "node0").iterdir())


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_that_is_told_to_stop_says_first_that_another_was_killed(
    killed: int, start: Start, tmp_path: Path
) -> None:
    """As by Open MPI with some grace, after it has seen that."""
    ranks = [start(rank, 2, faults="hang-broadcast") for rank in range(2)]
    wait_for_phase(tmp_path, "collectives_cpu")
    ranks[killed].kill()
    time.sleep(0.2)
    ranks[1 - killed].terminate()
    statuses, outputs, errors = outcome(ranks)
    assert statuses[1 - killed] == 143, errors
    assert f"FAIL rank-died (torch): the envkit of rank {killed} (" in " ".join(outputs[1 - killed].split()), errors
    assert not list((tmp_path / "node0").iterdir())


def test_where_the_folder_for_temporary_files_is_removed_meanwhile_that_is_said_once(
    start: Start, tmp_path: Path
) -> None:
    ranks = [start(rank, 2, faults="hang-broadcast") for rank in range(2)]
    wait_for_phase(tmp_path, "collectives_cpu")
    shutil.rmtree(tmp_path / "node0")
    statuses, outputs, errors = outcome(ranks)
    assert (statuses, outputs, errors[1]) == ([3, 3], ["", ""], "")
    assert f"No verdict is known here: {tmp_path}/node0, where the ranks leave what they find, has gone." in errors[0]
    assert "What to do: " in errors[0] and "Traceback" not in errors[0]


def test_the_same_step_can_be_verified_twice(start: Start) -> None:
    for _ in range(2):
        statuses, outputs, _ = outcome(
            [start(rank, 2, FAKE_MEETING=os.devnull, faults="singletons") for rank in range(2)]
        )
        assert statuses == [1, 1]
        assert outputs[0].startswith("FAIL")


@pytest.mark.parametrize(
    ("words", "status", "what"),
    [
        (["--shared", "/proc"], 7, "There is no folder in which the ranks could leave what they find."),
        (["--shared", "/proc/nonexistent"], 2, "--shared: there is no folder /proc/nonexistent"),
        (["--launcher", "srun"], 2, "This process is rank 0 of horovodrun"),
        (["nothing"], 6, "There is no environment 'nothing'."),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(words: list[str], status: int, what: str, start: Start) -> None:
    statuses, _, errors = outcome([start(0, 2, *words)])
    assert statuses == [status]
    assert what in errors[0]
    assert "Traceback" not in errors[0]


def wait_for_phase(folder: Path, phase: str) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        records = [path.read_text() for path in folder.glob("node0/envkit-*/*.jsonl")]
        if sum(f'"phase": "{phase}"' in record for record in records) == 2:
            return
        time.sleep(0.02)
    raise AssertionError(f"the ranks did not come to {phase}")


def contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_rank_0_gives_signs_while_it_makes_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(as_rank, "BEAT_S", 0.01)
    own = cast("as_rank.Attendance", SimpleNamespace(meeting=SimpleNamespace(shared=tmp_path)))
    with as_rank.beating(own):
        end = time.monotonic() + 30
        while not as_rank.heartbeat(own) and time.monotonic() < end:
            time.sleep(0.01)
    assert as_rank.heartbeat(own)
    (tmp_path / "heartbeat").unlink()
    assert not as_rank.heartbeat(own)


def test_what_killed_ranks_have_left_does_not_count(start: Start, tmp_path: Path) -> None:
    """The next verification in their step has the same name: it finds no more ranks, and goes on where they stopped."""
    ranks = [start(rank, 2, faults="hang-broadcast") for rank in range(2)]
    wait_for_phase(tmp_path, "collectives_cpu")
    for rank in ranks:
        rank.kill()
    outcome(ranks)
    for folder in (tmp_path / "node0").iterdir():  # the node's, and the shared one
        (folder / "stop").touch()
    (tmp_path / "meeting").rename(tmp_path / "meeting-before")
    statuses, outputs, _ = outcome([start(rank, 2) for rank in range(2)])
    assert statuses == [0, 0], outputs[0]
    assert not list((tmp_path / "node0").iterdir())


def test_only_the_first_rank_of_a_node_clears_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    started = Started("openmpi", "Open MPI's mpirun", 1, 4, 1, 2, "job")
    meeting, local = SimpleNamespace(shared=tmp_path, name="x"), Path(local_folder("x", str(tmp_path)))
    own = cast("as_rank.Attendance", SimpleNamespace(meeting=meeting, local=local, started=started, size=4))
    earlier, of_first = local / "torch-0-1.jsonl", local / "torch-0-2.jsonl"
    earlier.touch()
    with as_rank.attending(own):
        assert not earlier.exists()
        of_first.touch()
        with as_rank.attending(own):
            assert of_first.exists()
    with as_rank.attending(own):
        assert not of_first.exists()


def test_nobody_waits_for_what_cannot_be_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next rank would, for the first one to end, which waits for it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    meeting, local = SimpleNamespace(shared=tmp_path, name="x"), Path(local_folder("x", str(tmp_path)))
    started = Started("openmpi", "Open MPI's mpirun", 1, 4, 1, 2, "job")
    own = cast("as_rank.Attendance", SimpleNamespace(meeting=meeting, local=local, started=started, size=4))
    (local / "torch-0-1.jsonl").touch()

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("envkit.verify.as_rank.files.discard", refuse)
    with as_rank.attending(own):
        lock = os.open(local / as_rank.HELD, os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # as the next rank does, which then waits
        os.close(lock)


@pytest.mark.parametrize("others", [(), ("outside-2",), ("node2.json-part",)])
def test_a_rank_that_sees_no_other_leaves_nothing(
    others: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its probe failed, which it has told to whoever is there: nobody. Where something of another is, that stays."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o700)
    for name in ("stop", "outside-1", *others):
        (shared / name).touch()
    presence.arrive(shared, 1)
    started = Started("openmpi", "Open MPI's mpirun", 1, 4, 1, 4, "job")
    parts = {"meeting": SimpleNamespace(shared=shared, name="x"), "local": tmp_path / "tmp" / "local", "unseen": ()}
    own = cast("as_rank.Attendance", SimpleNamespace(started=started, began=0.0, **parts))
    assert as_rank.take_over(own, lambda _: 0) == 1
    assert "rank 1 on" in capsys.readouterr().err
    assert {path.name for path in shared.glob("*")} == ({"stop", *others} if others else set())
    assert shared.exists() is bool(others)
