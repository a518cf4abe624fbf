from __future__ import annotations

import ast
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from envkit.inside.probe import node, rank, shared_object
from envkit.inside.probe.process import memory_kills, state
from envkit.inside.probe.record import Record
from envkit.verify import arithmetic
from envkit.verify.checks import Expected, Status, check, verdict
from envkit.verify.facts import Fact, RankFacts, load

from .conftest import PROBE, Probe, start_probe

pytestmark = pytest.mark.integration


def ended(facts: RankFacts) -> str:
    assert facts.ended is not None
    return facts.ended.how


@pytest.mark.parametrize("path", sorted(PROBE.glob("*.py")), ids=lambda path: path.stem)
def test_it_is_valid_python_3_6(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 6))


def test_two_ranks_state_their_facts(probe: Probe) -> None:
    ran = probe()
    assert ran.statuses == (0, 0)
    assert ran.outputs == ("", "")
    assert [facts.rank for facts in ran.facts] == [0, 1]
    for facts in ran.facts:
        assert facts.finished
        assert facts.collectives_cpu is not None
        assert facts.collectives_cpu.allreduce["sum float64"] == tuple(arithmetic.allreduce(2)["sum float64"])
        assert facts.flags is not None
        assert (facts.flags.get("gloo"), facts.flags.get("mpi"), facts.flags.get("nccl")) == (1, 0, 0)
        assert isinstance(facts.mpi_threads, Fact)
        assert "not enabled" in str(facts.mpi_threads.error)
        assert facts.horovod is not None
        assert facts.horovod.metadata["pytorch"] == "2.1.0"
        assert all(phase.seconds is not None for phase in facts.phases if phase.name in {"import", "init"})


def test_secrets_and_the_rest_of_the_environment_are_not_recorded(probe: Probe) -> None:
    for facts in probe().facts:
        assert set(facts.environment) == {"HOROVOD_RANK", "HOROVOD_SIZE"}


def test_ranks_that_are_started_again_in_the_same_session_tell_it(probe: Probe) -> None:
    """A launcher has run everything twice, one after the other: all goes well each time."""
    ran = probe()
    assert not (ran.output / node.AGAIN).exists()
    ran = probe()
    assert ran.statuses == (0, 0) and [facts.rank for facts in ran.facts] == [0, 1]
    assert (ran.output / node.AGAIN).exists()


def test_singletons_leave_a_record_each(probe: Probe) -> None:
    ran = probe(3, faults="singletons")
    assert ran.statuses == (0, 0, 0)
    assert [(facts.rank, facts.size) for facts in ran.facts] == [(0, 1)] * 3


def test_a_hang_is_ended_and_the_place_is_known(probe: Probe) -> None:
    start = time.monotonic()
    ran = probe(faults="hang-allreduce", timeout=1.5)
    assert time.monotonic() - start < 6
    assert ran.statuses == (0, 0)
    for facts in ran.facts:
        assert ended(facts) == "timeout"
        assert facts.phase == "collectives_cpu"
        assert facts.ended is not None
        assert "in allreduce" in (facts.ended.stack or "")
        assert facts.init is not None
    assert {path.name for path in ran.output.iterdir()} == {node.file_name(), "stop"}
    assert not list(ran.output.parent.glob("envkit-*"))


@pytest.mark.parametrize("place", ["init", "step", "shutdown"])
def test_a_crash_leaves_the_facts_up_to_it(probe: Probe, place: str) -> None:
    ran = probe(faults=f"segfault-{place}", timeout=2)
    assert ran.statuses == (0, 0)
    crashed = next(facts for facts in ran.facts if facts.launcher_rank == 1)
    assert crashed.ended is not None
    assert (crashed.ended.how, crashed.ended.signal) == ("signal", "SIGSEGV")
    assert crashed.phase == {"step": "training_torch"}.get(place, place)
    assert "in _fail" in (crashed.ended.stack or "")
    assert crashed.flags is not None


def test_a_library_that_ends_the_process_is_recorded(probe: Probe) -> None:
    ran = probe(1, faults="exit-init")
    assert ran.statuses == (0,)
    (facts,) = ran.facts
    assert facts.ended is not None
    assert (facts.ended.how, facts.ended.status, facts.phase) == ("exit", 7, "init")


def test_an_exception_is_a_fact(probe: Probe) -> None:
    ran = probe(1, faults="raise-init")
    assert ran.statuses == (0,)
    (facts,) = ran.facts
    assert facts.init is not None
    assert facts.init.error == "RuntimeError: init failed"
    assert "in init" in (facts.init.traceback or "")
    assert facts.world is None


def test_an_extension_that_does_not_load_is_a_fact(probe: Probe) -> None:
    (facts,) = probe(1, faults="no-extension").facts
    assert facts.load is not None
    assert "libmpi.so.40" in (facts.load.error or "")


def test_being_told_to_stop_is_recorded(tmp_path: Path) -> None:
    process = start_probe(tmp_path, 0, 1, faults="hang-allreduce")
    wait_for_phase(tmp_path, "collectives_cpu")
    (child,) = children(process.pid)
    for pid in (child, process.pid):
        os.kill(pid, signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 143
    (facts,) = load(tmp_path / "facts")
    assert facts.ended is not None
    assert (facts.ended.how, facts.ended.signal) == ("terminated", "SIGTERM")
    assert facts.phase == "collectives_cpu"
    assert "in allreduce" in (facts.ended.stack or "")


def test_a_killed_probe_leaves_no_process_and_its_facts_can_be_salvaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = start_probe(tmp_path, 0, 1, faults="hang-allreduce")
    wait_for_phase(tmp_path, "collectives_cpu")
    (child,) = children(process.pid)
    process.kill()
    process.communicate(timeout=10)
    assert is_gone(child)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    node.salvage(tmp_path.name, str(tmp_path / "facts"))
    (facts,) = load(tmp_path / "facts")
    assert facts.ended is None
    assert facts.phase == "collectives_cpu"
    assert not list(tmp_path.glob("envkit-*"))


def test_ranks_that_are_about_to_end_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the death of their launcher, which they are told."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    left = Path(node.local_folder("ending", str(tmp_path)))
    argv = ["flock", str(left / "lock"), "sh", "-c", "echo; exec sleep 0.5"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as rank:
        assert rank.stdout and rank.stdout.readline()
        (left / "torch-0-1.jsonl").write_text('{"begin": {"pid": 1}}\n')
        node.salvage("ending", str(tmp_path))
    assert not left.exists() and (tmp_path / node.file_name()).is_file()


def test_one_that_was_seen_and_has_gone_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one that a signal has stopped; one of another namespace, which was never seen, is."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    states = {1: "S", 2: "S", 3: None}
    monkeypatch.setattr(node, "state", lambda pid: {"state": states.get(pid)})
    monkeypatch.setattr(node, "command_line", lambda pid: None if pid == 3 else b"probe")
    monkeypatch.setattr(node, "LOOK_S", 0.0)
    seen = node.NodeView("gone", str(tmp_path), 3)
    records = [{"pid": pid} for pid in states]
    seen.look(records)
    assert not seen.is_paused() and not (tmp_path / node.ALARM).exists()
    states[2] = None
    for _ in range(node.PAUSED):
        time.sleep(0.001)
        seen.look(records)
    assert [seen.has_come(record) for record in records] == [False, True, False]
    assert (tmp_path / node.ALARM).exists()


def test_what_ranks_left_in_another_folder_for_temporary_files_is_salvaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ours", "theirs", "shared"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "theirs"))
    left = Path(node.local_folder(tmp_path.name, str(tmp_path / "shared")))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "ours"))
    node.salvage(tmp_path.name, str(tmp_path / "shared"), str(tmp_path / "theirs"))
    assert left.parent.name == "theirs" and not left.exists()
    assert not list(tmp_path.glob("*/envkit-*"))


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_what_another_user_puts_in_the_place_of_the_folder_keeps_no_rank_from_being_salvaged(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name holds that of the session, which the command lines of the ranks show to everybody."""
    if kind == "folder" and os.getuid():
        pytest.skip("Only root can give a folder to another user.")
    session = f"salvaged-{os.getpid()}"
    bases = [tmp_path / name for name in ("shared", "ours", "theirs", "eve")]
    for base in bases:
        base.mkdir()
    shared, ours, theirs, eve = bases
    monkeypatch.setenv("TMPDIR", str(ours))
    monkeypatch.setattr(tempfile, "tempdir", str(ours))
    left = Path(node.local_folder(session, str(shared)))
    assert left.parent == ours
    (left / "0.jsonl").write_text('{"begin": {"pid": 1}}\n')
    taken = theirs / left.name
    if kind == "folder":
        taken.mkdir(mode=0o777)
        os.chown(taken, 65534, 65534)
    elif kind == "link":
        (eve / "kept").touch()
        taken.symlink_to(eve)
    else:
        taken.touch()
    node.salvage(session, str(shared), str(theirs))
    assert (shared / node.file_name()).is_file()
    assert not left.exists() and os.path.lexists(taken)
    assert kind != "link" or (eve / "kept").exists()


def test_the_name_of_a_node_is_not_that_of_the_one_where_mpiexec_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "node0")
    monkeypatch.delenv("MPI_LOCALRANKID", raising=False)
    assert node.name_of_node() == "node0"
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    assert node.name_of_node() == socket.gethostname()


def test_a_rank_killed_with_its_watchdog_does_not_hold_up_the_others(tmp_path: Path) -> None:
    limits = ("collectives_cpu=3", "*=600")  # before the other is said to have gone, after five looks
    first, second = (start_probe(tmp_path, rank, 2, faults="hang-allreduce", limits=limits) for rank in (0, 1))
    wait_for_phase(tmp_path, "collectives_cpu", ranks=2)
    second.kill()
    for process in (second, first):
        process.communicate(timeout=60)
    facts = load(tmp_path / "facts")
    assert [facts.ended and facts.ended.how for facts in facts] == ["timeout", None]


def test_a_death_stops_those_that_wait_for_it(probe: Probe) -> None:
    start = time.monotonic()
    ran = probe(3, faults="segfault-step", timeout=60)
    assert time.monotonic() - start < 20
    assert sorted(map(ended, ran.facts)) == ["signal", "stopped", "stopped"]
    assert all("in _exchange" in str(f.ended and f.ended.stack) for f in ran.facts if ended(f) == "stopped")


def test_a_rank_that_fails_by_itself_stops_those_that_wait_for_it(probe: Probe) -> None:
    start = time.monotonic()
    ran = probe(3, faults="raise-init", timeout=60)
    assert time.monotonic() - start < 15
    assert sorted(map(ended, ran.facts)) == ["exit", "stopped", "stopped"]
    results = check(ran.facts, Expected(size=3, frameworks=("torch",)))
    assert results[0].status is Status.FAIL and "rank 2" in results[0].message and "init failed" in results[0].message


@pytest.mark.parametrize(
    ("records", "alone"),
    [
        ([{"phase": "init", "init": {"error": "x"}}, {"phase": "init"}], True),
        ([{"phase": "exit", "init": {"error": "x"}}, {"phase": "init"}], True),
        ([{"phase": "exit", "init": {"error": "x"}}, {"phase": "load"}], False),
        ([{"phase": "exit", "init": {"error": "x"}}, {"phase": "init", "ended": {"how": "stopped"}}], False),
        ([{"phase": "barrier", "alltoall": {"error": "x"}}, {"phase": "barrier", "alltoall": {"error": "x"}}], False),
        ([{"phase": "a", "b": {"sum": {"f": {"error": "x"}}}}, {"phase": "b"}], True),
        ([{"phase": "init", "environment": {"A": "error"}}, {"phase": "init"}], False),
    ],
)
def test_who_is_left_alone(records: list[dict[str, object]], alone: bool) -> None:
    assert node.is_left_alone(records) is alone


def test_a_process_that_is_stopped_is_known_by_its_state() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        os.kill(sleeping.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while state(sleeping.pid)["state"] != "T" and time.monotonic() < deadline:
            time.sleep(0.01)
        found = state(sleeping.pid)
        sleeping.kill()
    assert found["state"] == "T"
    assert state(sleeping.pid)["state"] is None
    assert memory_kills() >= 0


def test_a_measuring_process_that_is_stopped_is_given_up_long_before_its_limit(tmp_path: Path) -> None:
    process = start_probe(tmp_path, 0, 1, faults="hang-allreduce", limits=("*=600",))
    wait_for_phase(tmp_path, "collectives_cpu")
    [measuring] = children(process.pid)
    os.kill(measuring, signal.SIGSTOP)
    process.communicate(timeout=60)
    (facts,) = load(tmp_path / "facts")
    assert facts.ended and (facts.ended.how, facts.ended.state) == ("timeout", "T")
    first = check([facts], Expected(size=1, frameworks=("torch",)))[0]
    assert first.case == "stopped" and f"pid {measuring}) was stopped" in first.message


def test_a_stopped_watchdog_is_told_by_another(tmp_path: Path) -> None:
    first = start_probe(tmp_path, 0, 2, faults="hang-allreduce", limits=("*=600",))
    deadline = time.monotonic() + 30
    while not any((tmp_path / "facts").glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    second = start_probe(tmp_path, 1, 2, faults="hang-allreduce", limits=("*=600",))
    wait_for_phase(tmp_path, "collectives_cpu", ranks=2)
    os.kill(second.pid, signal.SIGSTOP)
    first.communicate(timeout=60)
    facts = load(tmp_path / "facts")
    second.kill()
    second.communicate(timeout=60)
    assert [one.state for one in facts] == [None, "T"]
    [root, *_] = check(facts, Expected(size=2, frameworks=("torch",)))
    assert root.case == "stopped" and f"pid {second.pid}) was stopped" in root.message


def test_a_rank_that_can_leave_nothing_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["probe", "--framework", "torch", "--shared", str(tmp_path), "--session", "full"])
    monkeypatch.setattr(rank, "die_with_parent", lambda _: None)
    monkeypatch.setattr(Record, "line", full)
    with pytest.raises(SystemExit, match=f"^envkit: {tmp_path}/envkit-.* cannot be written to: No space left"):
        rank.main()


def test_a_step_may_have_a_limit_of_its_own(tmp_path: Path) -> None:
    process = start_probe(tmp_path, 0, 1, faults="hang-allreduce", limits=("collectives_cpu=1", "*=600"))
    process.communicate(timeout=30)
    (facts,) = load(tmp_path / "facts")
    assert facts.ended
    assert (facts.ended.how, facts.ended.limit) == ("timeout", 1.0)


def test_what_a_rank_says_is_kept_with_its_end(tmp_path: Path) -> None:
    process = start_probe(tmp_path, 0, 1)
    assert process.communicate(timeout=30) == ("", "")
    (facts,) = load(tmp_path / "facts")
    assert facts.ended
    assert facts.ended.said == "a framework that prints to standard output\n"


def test_equal_facts_are_written_once_for_the_node(probe: Probe) -> None:
    ran = probe(3)
    (file,) = ran.output.iterdir()
    written = json.loads(file.read_text())
    assert {"python", "installed", "horovod", "flags", "host"} <= set(written["common"])
    assert all("world" in rank and "python" not in rank for rank in written["ranks"])
    assert written["complete"] is True
    first, *others = ran.facts
    assert all(facts.installed is first.installed for facts in others)


def test_without_a_framework_what_is_there_is_stated(tmp_path: Path) -> None:
    (facts,) = run_probe(tmp_path, "none")
    assert facts.python and facts.python.executable == sys.executable
    assert facts.horovod and "No module named 'horovod'" in (facts.horovod.error or "")


def test_a_framework_that_is_not_there_is_a_fact(tmp_path: Path) -> None:
    (facts,) = run_probe(tmp_path, "tensorflow")
    assert facts.imported and facts.imported.error
    assert facts.load is None


def run_probe(folder: Path, framework: str) -> tuple[RankFacts, ...]:
    """One rank of the probe in the tests' own interpreter, where there is neither framework nor Horovod."""
    argv = [sys.executable, "-I", str(PROBE), "--framework", framework]
    argv += ["--shared", str(folder), "--session", folder.name, "--limit", "*=30"]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True, env={"TMPDIR": str(folder)})
    assert ran.stdout == ""
    return load(folder)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for_phase(folder: Path, phase: str, ranks: int = 1) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        records = [path.read_text() for path in folder.glob("envkit-*/*.jsonl")]
        if sum(f'"phase": "{phase}"' in record for record in records) == ranks:
            return
        time.sleep(0.02)
    raise AssertionError(f"no rank came to {phase}")


def is_gone(pid: int) -> bool:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("faults", "failed"),
    [
        ("", set()),
        ("absent", {"extension-present"}),
        ("singletons", {"world-size"}),
        ("no-allreduce", {"training-truth-torch"}),
        ("wrong-average", {"allreduce"}),
        ("wrong-allreduce.sum.float32.at.once.cpu", {"allreduce"}),
        ("raise-init", {"init", "rank-hung"}),
        ("segfault-step", {"rank-died", "rank-hung"}),
    ],
)
def test_what_it_states_is_enough_to_judge(probe: Probe, faults: str, failed: set[str]) -> None:
    results = check(probe(faults=faults, timeout=10).facts, Expected(size=2, frameworks=("torch",)))
    assert {result.id for result in results if result.status is Status.FAIL} == failed
    assert verdict(results) is (Status.FAIL if failed else Status.PASS)


def test_how_often_a_nodes_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, twice a second at first, and later every five seconds, however often a rank looks."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    clock = [1000.0]
    monkeypatch.setattr("envkit.inside.probe.node.time.time", lambda: clock[0])
    watching = node.NodeView("often", str(tmp_path), 2)
    written = set()
    for _ in range(3000):
        watching.stopped()
        written.add(watching.written)
        clock[0] += 0.01
    assert min(written) == 1000.0
    assert 15 <= sum(moment < 1010 for moment in written) <= 21
    assert 3 <= sum(moment >= 1010 for moment in written) <= 5


@pytest.mark.parametrize(("length", "cut"), [(0, True), (20, True), (100, True), (None, False)])
def test_a_library_that_is_cut(length: int | None, cut: bool, tmp_path: Path) -> None:
    library = tmp_path / "libmpi.so"
    library.write_bytes(Path(sys.executable).resolve().read_bytes()[:length])
    told = shared_object.shared_object(str(library))
    assert (told["size"] < told["wanted"]) == cut


def test_the_text_by_which_a_linker_finds_a_library_is_no_cut_one(tmp_path: Path) -> None:
    (tmp_path / "libmpi.so").write_text("INPUT(libmpi.so.12)\n")
    with pytest.raises(ValueError, match=r"^not a 64-bit"):
        shared_object.shared_object(str(tmp_path / "libmpi.so"))
