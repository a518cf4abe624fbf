"""Jobs of PBS from qsub to their end; a stand-in, driven by time, has PBS's programs (fake_pbs.py)."""

import io
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from envkit.cli import run
from envkit.commands import batch
from envkit.easybuild.receipt import ModuleReceipt
from envkit.errors import Interrupted, JobLost
from envkit.jobs import follow, pbs
from envkit.jobs.job import Job, Shape
from envkit.jobs.scheduler import LOST, JobStatus
from envkit.jobs.submit import Submitted

Output = pytest.CaptureFixture[str]
JOB = ["job", "pbs", "toy-cpu", "--nodes", "1", "--ranks-per-node", "2", "--no-verify", "--submit"]
ENVKIT = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
LINE = "Job 12.pbs on n1\n"


class FakePbs:
    """Its folder, and what is to happen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "pbs"
        self.bin = folder / "bin"
        self.folder.mkdir()
        self.bin.mkdir(exist_ok=True)
        source = Path(__file__).with_name("fake_pbs.py").read_text()
        program = self.folder / "program"
        program.write_text(f"#!{sys.executable} -I\n{source}")
        program.chmod(0o755)
        for name in ("qsub", "qstat", "qdel"):
            (self.bin / name).symlink_to(program)
        self.plan()

    def plan(self, **what: Any) -> None:
        """Say what happens."""
        (self.folder / "plan.json").write_text(json.dumps(what))

    def said(self, name: str) -> list[str]:
        """The words of each call of a program."""
        path = self.folder / f"{name}.said"
        return path.read_text().splitlines() if path.exists() else []

    def job(self, name: str) -> Path:
        """A file of the first job."""
        return self.folder / "12.pbs" / name

    def end(self) -> None:
        """End the processes that stand for nodes."""
        for path in self.folder.glob("*/mom.pid"):
            with suppress(ProcessLookupError):
                os.killpg(int(path.read_text()), signal.SIGKILL)


@pytest.fixture
def fake_pbs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[..., ModuleReceipt]
) -> Iterator[FakePbs]:
    """A PBS, an environment, and a folder to submit from that is the current one."""
    made = FakePbs(tmp_path)
    install(horovod="/h")
    envkit = made.bin / "envkit"
    envkit.write_text(f"#!/bin/sh\n{ENVKIT}\n")
    envkit.chmod(0o755)
    work = tmp_path / "a folder"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(batch, "this_envkit", lambda: (str(envkit),))
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.setattr(follow, "LOG_S", 0.01)
    monkeypatch.setattr(follow, "PATIENCE_S", 1.5)
    monkeypatch.setattr(pbs, "LATE_S", 1.0)
    pause: Callable[[float], float] = lambda _since: 0.05  # noqa: E731
    monkeypatch.setattr(follow, "pause_s", pause)
    yield made
    made.end()


def followed(*command: str, words: tuple[str, ...] = ()) -> int:
    """Submit a command and follow it; return the status."""
    return run([*JOB, "--follow", *words, "--", *command])


def left() -> list[str]:
    """What is left in the folder that the job was submitted from."""
    return sorted(path.name for path in Path.cwd().iterdir())


@pytest.mark.integration
def test_from_the_queue_to_the_end(fake_pbs: FakePbs, capfd: Output) -> None:
    comments = [f"Not Running: Insufficient amount of resource: ngpus (R: 8 A: {free} T: 8)" for free in (4, 5, 6)]
    fake_pbs.plan(queued_s=3, comments=["", "", "", "", *comments])
    assert followed("sh", "-c", "echo said; sleep 1") == 0
    said = capfd.readouterr()
    assert said.out == f"{LINE}said\n"
    waits = pbs.explain(
        "12.pbs", JobStatus(state="PENDING", reason="Not Running: Insufficient amount of resource: ngpus")
    )
    assert [line for line in said.err.splitlines() if "is ending" not in line] == [
        "envkit: job 12.pbs is submitted",
        "envkit: job 12.pbs waits: job_state = Q. PBS has not looked at it yet. Wait.",
        f"envkit: job 12.pbs waits: {waits.said}. {waits.meaning}",
        f"envkit: job 12.pbs runs on n1, n2; its log is {Path.cwd()}/toy-cpu.o12",
        "envkit: job 12.pbs is done",
    ]
    assert left() == ["toy-cpu.o12"]
    assert "ngpus" in waits.said and waits.cause.startswith("Not enough nodes, CPUs, memory or GPUs")


@pytest.mark.integration
def test_without_follow_it_is_the_number_alone(fake_pbs: FakePbs, capfd: Output) -> None:
    assert run([*JOB, "--", "true"]) == 0
    assert capfd.readouterr().out == "12.pbs\n"
    script = fake_pbs.job("script").read_text()
    assert "-k oed" not in script and ".status" not in script


@pytest.mark.integration
@pytest.mark.parametrize("command", ["exit 3", "kill -9 $$"])
def test_the_status_of_the_job(command: str, fake_pbs: FakePbs, capfd: Output) -> None:
    status = 3 if "exit" in command else 137
    assert followed("sh", "-c", f"echo last words; {command}") == status
    said = capfd.readouterr()
    assert said.out.startswith(f"{LINE}last words\n")
    assert f"envkit: job 12.pbs ended with status {status}" in said.err
    assert left() == ["toy-cpu.o12"]


class Stream(io.TextIOWrapper):
    """A stream that calls something with each piece that is written to it."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        super().__init__(io.BytesIO())
        self.take = take
        self.buffer.write = self.write_bytes  # type: ignore[method-assign]

    def write_bytes(self, piece: bytes) -> int:
        """Hand a piece over."""
        self.take(piece)
        return len(piece)


def poured(fake_pbs: FakePbs, words: str) -> tuple[bytes, bool]:
    """Submit a job that prints, waits and prints; return its log, and whether the first came while it ran."""
    said, early = [], []

    def take(piece: bytes) -> None:
        said.append(piece)
        early.append(b"first" in piece and not fake_pbs.job("ending").exists())

    made = Job(
        environment="toy",
        prefix="/p",
        envkit=(str(fake_pbs.bin / "envkit"),),
        shape=Shape(nodes=1, ranks_per_node=1),
        command=("sh", "-c", words),
        verify=False,
    )
    taken = pbs.submit(pbs.script(made, is_followed=True).encode())
    assert follow.follow(taken, to=Stream(take)) == 0
    return b"".join(said), any(early)


@pytest.mark.integration
def test_the_log_is_live_where_pbs_writes_it_at_once(fake_pbs: FakePbs) -> None:
    assert poured(fake_pbs, "echo first; sleep 1; echo last") == (f"{LINE}first\nlast\n".encode(), True)


@pytest.mark.integration
def test_a_log_that_is_spooled_comes_at_the_end(fake_pbs: FakePbs) -> None:
    fake_pbs.plan(usecp=False)
    assert poured(fake_pbs, "echo first; sleep 1; echo last") == (f"{LINE}first\nlast\n".encode(), False)


@pytest.mark.integration
def test_a_log_that_is_seen_late(fake_pbs: FakePbs, capfd: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where file systems are shared, a file may be seen later than it is there."""
    fake_pbs.plan(usecp=False)
    begun = time.monotonic()
    exists = Path.exists

    def late(path: Path) -> bool:
        is_log = path.is_relative_to(Path.cwd())
        return exists(path) and (not is_log or time.monotonic() - begun > 0.5)

    monkeypatch.setattr(Path, "exists", late)
    assert followed("echo", "said") == 0
    assert capfd.readouterr().out == f"{LINE}said\n"


@pytest.mark.integration
@pytest.mark.parametrize("old", [False, True])
def test_its_time_is_over(old: bool, fake_pbs: FakePbs, capfd: Output) -> None:
    fake_pbs.plan(old=old)
    assert followed("sleep", "60", words=("--time", "0:00:01")) == 8
    said = capfd.readouterr()
    assert "envkit: Job 12.pbs ran into its time limit." in said.err
    told = "271 (SIGTERM)" if old else "-29 (JOB_EXEC_KILL_WALLTIME)"
    assert f"PBS says: Exit_status = {told}. It ran on n1, n2." in " ".join(said.err.split())
    assert "=>> PBS: job killed: walltime 2 exceeded limit 1" in said.out


@pytest.mark.integration
@pytest.mark.parametrize("queued_s", [0.0, 60.0])
def test_somebody_deletes_it(queued_s: float, fake_pbs: FakePbs, capfd: Output) -> None:
    fake_pbs.plan(deleted_s=0.8, queued_s=queued_s)
    assert followed("sleep", "60") == 8
    said = " ".join(capfd.readouterr().err.split())
    assert "envkit: Job 12.pbs was cancelled." in said and "terminated by root" in said
    assert "Submit it again if it was not you; 'qstat -xf 12.pbs' may say who did" in said


@pytest.mark.integration
def test_it_is_held_and_released(fake_pbs: FakePbs, capfd: Output) -> None:
    fake_pbs.plan(held_s=0.6)
    assert followed("true") == 0
    said = capfd.readouterr().err
    assert "waits: Job held by ada on Thu Aug  6 10:00:00 2026. It is held back, by you or by an administrator." in said
    assert "Release it: qrls 12.pbs; if that is refused" in said


@pytest.mark.integration
def test_it_can_never_run(fake_pbs: FakePbs, capfd: Output) -> None:
    comment = "Can Never Run: Insufficient amount of resource: ngpus (R: 16 A: 8 T: 8)"
    fake_pbs.plan(queued_s=60, comments=[comment])
    assert followed("true") == 3
    said = " ".join(capfd.readouterr().err.split())
    assert f"Job 12.pbs would never start. It was cancelled. PBS says: {comment}." in said
    assert fake_pbs.said("qdel") == ["12.pbs"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("says", "status", "fix"),
    [
        ("Unknown queue", 170, "Name one of the queues"),
        ("Queue is not enabled", 1, "Name one of the queues"),
        ("Job rejected by all possible destinations", 1, "No queue takes a job of this size"),
        ("Job violates queue and/or server resource limits", 188, "Ask for less --time, fewer nodes"),
        ("Job exceeds queue resource limits walltime", 188, "Ask for less --time, fewer nodes"),
        ("Unauthorized Request ", 159, "You may not submit this from here"),
        ("Bad UID for job execution", 175, "You may not submit this from here"),
        ("would exceed queue gpu's per-user limit", 1, "A limit of jobs is reached"),
        ("Maximum number of jobs for user ada already in queue gpu", 1, "A limit of jobs is reached"),
        ("Invalid Account", 1, "Name the --account"),
        ("Unknown resource: ngpus", 1, "This site has other names"),
        ("illegal -k value", 2, "This PBS does not write the output"),
        ("cannot connect to server pbs (errno=15010)", 1, "PBS does not answer"),
        ("something else", 1, "See what the scheduler says"),
    ],
)
def test_it_is_not_taken(says: str, status: int, fix: str, fake_pbs: FakePbs, capfd: Output) -> None:
    fake_pbs.plan(refuses=[f"qsub: {says}", status])
    assert followed("true") == 3
    said = " ".join(capfd.readouterr().err.split())
    assert f"The job was not taken. qsub says: qsub: {says}".rstrip() in said and fix in said
    assert fake_pbs.said("qstat") == []


@pytest.mark.integration
def test_a_server_that_is_away_for_a_moment(fake_pbs: FakePbs, capfd: Output) -> None:
    fake_pbs.plan(queued_s=0.3, down_s=[0.2, 1.0])
    assert followed("sh", "-c", "echo said; exit 4") == 4
    assert capfd.readouterr().out == f"{LINE}said\n"


@pytest.mark.integration
def test_a_server_that_stays_away(fake_pbs: FakePbs, capfd: Output) -> None:
    fake_pbs.plan(down_s=[0.3, 60.0], queued_s=60.0)
    assert followed("true") == 3
    said = " ".join(capfd.readouterr().err.split())
    assert "PBS does not say any more how job 12.pbs is." in said and "Connection refused" in said
    assert fake_pbs.said("qdel") == []


@pytest.mark.integration
@pytest.mark.parametrize("status", [0, 3])
@pytest.mark.parametrize("usecp", [True, False])
def test_without_history_the_script_has_left_its_status(
    status: int, usecp: bool, fake_pbs: FakePbs, capfd: Output
) -> None:
    fake_pbs.plan(history=False, usecp=usecp)
    assert followed("sh", "-c", f"echo said; sleep 0.5; exit {status}") == status
    said = capfd.readouterr()
    assert said.out == f"{LINE}said\n"
    assert ("is done" if status == 0 else "ended with status 3") in said.err
    assert left() == ["toy-cpu.o12"]


@pytest.mark.integration
@pytest.mark.parametrize("ends", ["time", "deleted", "shell"])
def test_without_history_what_was_killed_is_no_success(ends: str, fake_pbs: FakePbs, capfd: Output) -> None:
    fake_pbs.plan(history=False, deleted_s=0.8 if ends == "deleted" else 0.0)
    words = ("--time", "0:00:01") if ends == "time" else ()
    then = "sleep 1; kill -9 $PPID; " if ends == "shell" else ""
    status = followed("sh", "-c", f"echo said; {then}sleep 60", words=words)
    said = capfd.readouterr()
    assert "said\n" in said.out and "is done" not in said.err
    if status == 8:
        told = " ".join(said.err.split())
        assert "Job 12.pbs has ended, and its status is unknown." in told
        assert "PBS says: qstat: Unknown Job Id 12.pbs. It ran on n1, n2. Its log is" in told
    else:  # the shell outlived its command for long enough to say how that ended
        assert status == 143


@pytest.mark.integration
def test_torque_keeps_jobs_that_are_complete(fake_pbs: FakePbs, capfd: Output) -> None:
    fake_pbs.plan(torque=True)
    assert followed("sh", "-c", "echo said; exit 3") == 3
    assert capfd.readouterr().out == f"{LINE}said\n"


def interrupted(number: signal.Signals, fake_pbs: FakePbs) -> Interrupted:
    """Follow a job, and send a signal to this process when it runs."""

    def send() -> None:
        while not fake_pbs.job("began").exists():
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), number)

    taken = pbs.submit(b"#!/bin/bash\n#PBS -N toy\n#PBS -k oed\nsleep 2\n")
    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(Interrupted) as stopped:
        follow.follow(taken)
    sender.join()
    return stopped.value


@pytest.mark.integration
def test_ctrl_c_cancels(fake_pbs: FakePbs) -> None:
    stopped = interrupted(signal.SIGINT, fake_pbs)
    assert stopped.exit_code == 130
    assert stopped.what == "Stopped by Ctrl-C. PBS was asked to cancel job 12.pbs."
    assert fake_pbs.said("qdel") == ["12.pbs"]


@pytest.mark.integration
def test_a_job_that_cannot_be_cancelled(fake_pbs: FakePbs) -> None:
    (fake_pbs.bin / "qdel").unlink()
    (fake_pbs.bin / "qdel").write_text("#!/bin/sh\necho 'qdel: Unauthorized Request 12.pbs' >&2; exit 159\n")
    (fake_pbs.bin / "qdel").chmod(0o755)
    stopped = interrupted(signal.SIGINT, fake_pbs)
    assert "Job 12.pbs could not be cancelled." in stopped.what
    assert stopped.why == "qdel: Unauthorized Request 12.pbs"
    assert stopped.fix == "Cancel it with: qdel 12.pbs"


@pytest.mark.integration
def test_a_lost_terminal_leaves_the_job_alone(fake_pbs: FakePbs) -> None:
    stopped = interrupted(signal.SIGHUP, fake_pbs)
    assert stopped.what == "Stopped by SIGHUP. Job 12.pbs goes on."
    assert stopped.fix == "Cancel it with: qdel 12.pbs"
    assert fake_pbs.said("qdel") == []


@pytest.mark.integration
def test_what_is_for_other_schedulers_is_said(
    fake_pbs: FakePbs, monkeypatch: pytest.MonkeyPatch, capfd: Output
) -> None:
    monkeypatch.setenv("PATH", str(fake_pbs.bin))
    assert run([*JOB, "--array", "0-3", "--", "true"]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "--array: envkit writes no arrays for PBS. It does so only for Slurm." in said
    assert run(["install", "pytorch-2.13-cpu", "--submit", "--job-per-module"]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "--job-per-module makes only jobs of Slurm. There is qsub on PATH, and no sbatch." in said
    assert "With PBS: envkit fetch pytorch-2.13-cpu; and in an interactive job: envkit install" in said
    assert run([*JOB[:-1], "--follow", "--", "true"]) == 2
    assert "--follow goes with --submit." in capfd.readouterr().err
    assert fake_pbs.said("qsub") == []


OVER = {"resources_used__walltime": "00:01:01", "Resource_List__walltime": "00:01:00"}
FOLDED = """Job Id: 12.pbs
    Job_Name = toy
    job_state = {letter}
    queue = gpu
    exec_host = a-node-with-a-long-name-1/0*4+a-node-with-a-long-name-2/0*4+a-node-
\twith-a-long-name-2/1*4
    Output_Path = login1.site:/home/ada/a folder with a long name, and another o
\tne/toy.o12
{more}    Variable_List = PBS_O_HOME=/home/ada,PBS_O_PATH=/bin
    job_state = F

"""


def of(letter: str, **more: str) -> JobStatus:
    """The record of a job in a state, with attributes."""
    lines = "".join(f"    {name.replace('__', '.')} = {value}\n" for name, value in more.items())
    return pbs.record(pbs.fields(FOLDED.format(letter=letter, more=lines)))


def test_long_values_are_folded() -> None:
    found = of("R")
    assert found.nodes == "a-node-with-a-long-name-1, a-node-with-a-long-name-2"
    assert found.log == "/home/ada/a folder with a long name, and another one/toy.o12"
    assert (found.state, found.partition) == ("RUNNING", "gpu")


@pytest.mark.parametrize(
    ("letter", "more", "words"),
    [
        ("Q", {}, "job_state = Q. PBS has not looked"),
        ("Q", {"comment": "Not Running: User has reached queue gpu running job limit."}, "A limit of its queue"),
        ("Q", {"comment": "Not Running: would exceed user ada's limit on resource ngpus in complex"}, "A limit of its"),
        ("Q", {"comment": "Not Running: Not enough free nodes available"}, "Not enough nodes, CPUs"),
        ("Q", {"comment": "Not Running: Job would conflict with reservation or top job"}, "Jobs of a higher priority"),
        ("Q", {"comment": "Not Running: Dedicated time conflict"}, "It would run at a time that is kept"),
        ("Q", {"comment": "Not Running: Node is in an ineligible state: offline"}, "Nodes that it needs are down"),
        ("Q", {"comment": "Not Running: Queue not started."}, "Its queue does not start jobs"),
        ("Q", {"comment": "Not Running: PBS Error: Execution server rejected request"}, "PBS failed to begin it"),
        ("H", {"comment": "job held, too many failed attempts to run"}, "It could not be begun"),
        ("H", {"Hold_Types": "u"}, "It is held back, by you"),
        ("H", {"Hold_Types": "s", "comment": "Not Running: x"}, "PBS holds it back"),
        ("W", {"Execution_Time": "Thu Aug  6 10:00:00 2026"}, "It may not start yet"),
        ("W", {}, "It may not start yet"),
        ("T", {}, "It is being moved"),
        ("S", {"comment": "Job suspended by scheduler"}, "It is suspended"),
        ("U", {}, "It is suspended"),
        ("Q", {"comment": "Something new"}, "Something new. "),
    ],
)
def test_why_it_waits(letter: str, more: dict[str, str], words: str) -> None:
    found = of(letter, **more)
    told = pbs.explain("12.pbs", found)
    assert found.state == "PENDING" and words in f"{told.said}. {told.meaning}"
    assert "{job}" not in told.meaning


@pytest.mark.parametrize(
    ("more", "state", "status"),
    [
        ({"Exit_status": "0", "substate": "92"}, "COMPLETED", 0),
        ({"Exit_status": "3", "substate": "93"}, "FAILED", 3),
        ({"Exit_status": "137", "substate": "93"}, "FAILED", 137),
        ({"Exit_status": "271", "substate": "91"}, "CANCELLED", 0),
        ({"substate": "91"}, "CANCELLED", 0),
        ({"Exit_status": "271", "substate": "93"}, "KILLED", 271),
        ({"Exit_status": "265"}, "KILLED", 265),
        ({"Exit_status": "271", **OVER}, "TIMEOUT", 271),
        ({"Exit_status": "-29"}, "TIMEOUT", -29),
        ({"Exit_status": "-27"}, "OUT_OF_MEMORY", -27),
        ({"Exit_status": "-1"}, "BOOT_FAIL", -1),
        ({"Exit_status": "-6"}, "NODE_FAIL", -6),
        ({"Exit_status": "-31"}, "KILLED", -31),
        ({"comment": "Job run at Thu"}, "FORGOTTEN", 0),
        ({"exit_status": "3"}, "FAILED", 3),
    ],
)  # fmt: skip
def test_how_it_has_ended(more: dict[str, str], state: str, status: int) -> None:
    for letter in "FXC":
        found = of(letter, **more)
        assert (found.state, found.status) == (state, status)
        assert found.has_ended and found.is_lost == (state not in {"COMPLETED", "FAILED"})
        if found.is_lost:
            told = pbs.explain("12.pbs", found)
            assert told.said and told.cause and told.remedy and "{job}" not in told.remedy


def test_other_states() -> None:
    assert [of(letter).state for letter in "EBM?"] == ["COMPLETING", "RUNNING", "REVOKED", "?"]
    moved = pbs.explain("12.pbs", of("M"))
    assert (moved.said, moved.cause) == ("job_state = M", "was moved to another server")


def test_each_row_has_its_words() -> None:
    table = pbs.table()
    assert all(row["cause"].endswith(".") and row["remedy"].endswith(".") for row in table["reason"])
    assert all(re.compile(row["match"]) and row["fix"] for row in table["refusal"])
    assert all(row["what"] and row["fix"] for row in table["ended"].values())
    assert set(table["ended"]) <= LOST
    assert {row["state"] for row in table["exit"].values()} <= set(table["ended"])
    assert set(table["state"]) == set("QHWTSURBEFXCM")


@pytest.mark.integration
def test_a_job_that_was_never_seen(fake_pbs: FakePbs) -> None:
    with pytest.raises(JobLost, match="its status is unknown"):
        follow.follow(Submitted(number="99.pbs", scheduler="pbs"))
