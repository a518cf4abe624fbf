import os
import pty
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from envkit.errors import Interrupted, JobLost, JobRefused
from envkit.jobs import follow, pbs, slurm
from envkit.jobs.scheduler import JobStatus
from envkit.jobs.submit import Submitted

from .conftest import FakeSlurm, told

SEVEN = Submitted(number="7", scheduler="slurm")
Output = pytest.CaptureFixture[str]
Binary = pytest.CaptureFixture[bytes]

OWN = {"SLURM_CONF": "/etc/slurm.conf", "SLURM_MPI_TYPE": "pmix"}


def explained(reason: str) -> str:
    """What is said of a job of Slurm that waits for a reason."""
    return slurm.explain("7", JobStatus(state="PENDING", reason=reason)).meaning


@pytest.mark.parametrize(("inside", "left"), [(True, [*OWN]), (False, sorted([*OWN, "SLURM_CPU_BIND"]))])
def test_what_slurm_has_told_a_job_does_not_go_on_to_the_next(
    inside: bool, left: list[str], fake_slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a user it is an option for srun, as of a login shell."""
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    of_job = {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_CPU": "9", "SLURMD_NODENAME": "n1"} if inside else {}
    for name, value in {**of_job, **OWN, "SLURM_CPU_BIND": "none"}.items():
        monkeypatch.setenv(name, value)
    fake_slurm.program("sbatch", f"env >{tmp_path}/told; echo 7")
    assert slurm.submit(b"#!/bin/sh\n").number == "7"
    names = [line.partition("=")[0] for line in (tmp_path / "told").read_text().splitlines()]
    assert sorted(name for name in names if name.startswith("SLURM")) == left


def test_from_the_queue_to_the_end(fake_slurm: FakeSlurm, capfd: Output) -> None:
    fake_slurm.log.write_text("first\nlast\n")
    log = str(fake_slurm.log)
    fake_slurm.states(
        told("PENDING", reason="Priority", nodes="(null)", log=log),
        told("RUNNING", log=log),
        told("COMPLETING", log=log),
        told("COMPLETED", log=log),
    )
    assert follow.follow(SEVEN) == 0
    said = capfd.readouterr()
    assert said.out == "first\nlast\n"
    assert said.err.splitlines() == [
        f"envkit: job 7 waits: Priority. {explained('Priority')}",
        "envkit: job 7 is 2 of 3 in the queue of gpu",
        f"envkit: job 7 runs on n[0-1]; its log is {log}",
        "envkit: job 7 is ending",
        "envkit: job 7 is done",
    ]


def test_the_log_is_live_and_byte_for_byte(fake_slurm: FakeSlurm, capfdbinary: Binary) -> None:
    fake_slurm.states(told("RUNNING", log=str(fake_slurm.log)))
    said = follow.SaidSoFar()
    found = follow.poll(SEVEN)
    follow.pour(found, said)  # it is not there yet
    fake_slurm.log.write_bytes(b"\xff\x00 first")
    follow.pour(found, said)
    assert capfdbinary.readouterr().out == b"\xff\x00 first"
    with fake_slurm.log.open("ab") as stream:
        stream.write(b" second\n")
    follow.pour(found, said)
    assert capfdbinary.readouterr().out == b" second\n"


@pytest.mark.parametrize(("code", "status"), [("3:0", 3), ("0:9", 137), ("92:0", 92)])
def test_the_status_of_the_job(code: str, status: int, fake_slurm: FakeSlurm, capfd: Output) -> None:
    fake_slurm.states(told("FAILED", reason="NonZeroExitCode", code=code))
    assert follow.follow(SEVEN) == status
    assert f"envkit: job 7 ended with status {status}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("TIMEOUT", "Job 7 ran into its time limit."),
        ("CANCELLED", "Job 7 was cancelled."),
        ("NODE_FAIL", "Job 7 lost a node that it ran on."),
        ("OUT_OF_MEMORY", "Job 7 used more memory than it was given."),
        ("PREEMPTED", "Job 7 had to make room for another job."),
        ("BOOT_FAIL", "Job 7 did not start: a node could not be booted."),
        ("DEADLINE", "Job 7 could not have ended before its deadline."),
    ],
)
def test_a_job_that_ends_before_its_command(state: str, words: str, fake_slurm: FakeSlurm) -> None:
    fake_slurm.states(told(state, reason="Why", log="/l"))
    with pytest.raises(JobLost) as lost:
        follow.follow(SEVEN)
    assert lost.value.what == words
    assert lost.value.why == f"Slurm says: {state}, Why. It ran on n[0-1]. Its log is /l"
    assert lost.value.fix
    assert lost.value.exit_code == 8


def test_a_job_that_fails_without_a_status(fake_slurm: FakeSlurm) -> None:
    fake_slurm.states(told("FAILED", reason="JobLaunchFailure"))
    with pytest.raises(JobLost, match=r"Job 7 failed before its command ran\."):
        follow.follow(SEVEN)


def test_an_array_is_told_of_as_one(fake_slurm: FakeSlurm, capfd: Output) -> None:
    def tasks(*states: str) -> str:
        blocks = [told(state, code="4:0" if state == "FAILED" else "0:0") for state in states]
        return "\n".join(
            block.replace("JobId=7 ", f"JobId={n} ArrayJobId=7 ArrayTaskId={n} ", 1) for n, block in enumerate(blocks)
        )

    fake_slurm.states(tasks("PENDING", "RUNNING"), tasks("RUNNING", "FAILED"), tasks("COMPLETED", "FAILED"))
    assert follow.follow(SEVEN) == 4
    assert capfd.readouterr().err.splitlines() == [
        "envkit: job 7 has 1 PENDING, 1 RUNNING",
        "envkit: job 7 has 1 FAILED, 1 RUNNING",
        "envkit: job 7 has 1 COMPLETED, 1 FAILED",
        "envkit: job 7_1 ended with status 4",
    ]


@pytest.mark.parametrize("reason", ["Priority", "ReqNodeNotAvail,_UnavailableNodes:n1", "PartitionTimeLimit"])
def test_what_is_said_of_a_reason(reason: str) -> None:
    assert explained(reason)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("AssocGrpCPUMinutesLimit", "The computing time that was granted"),
        ("AssocGrpBillingMinutes", "The computing time that was granted"),
        ("AssocMaxJobsLimit", "Its account has reached a limit"),
        ("QOSMaxGRESPerUser", "A limit of its quality of service"),
        ("MaxGRESPerAccount", "A limit of its quality of service"),
        ("launch_failed_requeued_held", "A node could not start it"),
        ("DependencyNeverSatisfied", "A job that it depends on did not end as it should"),
        ("JobHeldUser", "It is held back, by you"),
        ("ReservationDeleted", "The reservation that it names"),
        ("Somethingnew", ""),
    ],
)
def test_reasons_are_explained(reason: str, words: str) -> None:
    assert explained(reason).startswith(words)
    assert "{job}" not in explained(reason)


def test_each_row_has_its_words() -> None:
    table = slurm.table()
    assert all(row["cause"].endswith(".") and row["remedy"].endswith((".", "COMMAND")) for row in table["reason"])
    assert all(row["fix"] for row in (*table["refusal"], *table["ended"].values()))


def test_accounting_answers_where_the_controller_has_forgotten(fake_slurm: FakeSlurm) -> None:
    fake_slurm.program("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    fake_slurm.program("sacct", "echo 'CANCELLED by 1000|0:15'")
    with pytest.raises(JobLost, match="was cancelled"):
        follow.follow(SEVEN)


@pytest.mark.parametrize(
    "says", ["slurm_load_jobs error: Invalid job id specified", "Unable to contact slurm controller"]
)
def test_a_slurm_that_does_not_say(says: str, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_slurm.program("scontrol", f"echo '{says}' >&2; exit 1")
    fake_slurm.program("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    with pytest.raises(JobRefused, match="does not say any more how job 7 is") as refused:
        follow.follow(SEVEN)
    assert says in refused.value.why


def test_a_controller_that_answers_again(fake_slurm: FakeSlurm, capfd: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PATIENCE_S", 0.5)
    text = told("COMPLETED")
    (fake_slurm.folder / "text").write_text(text)
    fake_slurm.program(
        "scontrol", f"[ $(wc -l < {fake_slurm.folder}/scontrol.said) -gt 1 ] || exit 1; cat {fake_slurm.folder}/text"
    )
    assert follow.follow(SEVEN) == 0


def interrupted(number: signal.Signals, fake_slurm: FakeSlurm) -> Interrupted:
    """Follow job 7, and send a signal to this process when Slurm has been asked for it."""

    def send() -> None:
        while not fake_slurm.said("scontrol"):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(Interrupted) as stopped:
        follow.follow(SEVEN)
    sender.join()
    return stopped.value


def test_ctrl_c_cancels(fake_slurm: FakeSlurm) -> None:
    fake_slurm.states(told("RUNNING"))
    stopped = interrupted(signal.SIGINT, fake_slurm)
    assert stopped.exit_code == 130
    assert stopped.what == "Stopped by Ctrl-C. Slurm was asked to cancel job 7."
    assert fake_slurm.said("scancel") == ["7"]


def test_a_job_that_cannot_be_cancelled(fake_slurm: FakeSlurm) -> None:
    fake_slurm.states(told("RUNNING"))
    fake_slurm.program("scancel", "echo 'scancel: error: Kill job error on job id 7' >&2; exit 1")
    stopped = interrupted(signal.SIGINT, fake_slurm)
    assert "could not be cancelled" in stopped.what
    assert "Kill job error" in stopped.why and stopped.fix == "Cancel it with: scancel 7"


def test_a_lost_terminal_leaves_the_job_alone(fake_slurm: FakeSlurm) -> None:
    fake_slurm.states(told("RUNNING"))
    stopped = interrupted(signal.SIGHUP, fake_slurm)
    assert stopped.exit_code == 129
    assert stopped.what == "Stopped by SIGHUP. Job 7 goes on."
    assert fake_slurm.said("scancel") == []


def test_the_cluster_that_took_it_is_asked(fake_slurm: FakeSlurm) -> None:
    fake_slurm.program("sbatch", "echo '7;big'")
    taken = slurm.submit(b"#!/bin/bash\n")
    assert taken == Submitted(number="7", scheduler="slurm", cluster="big")
    fake_slurm.states(told("COMPLETED"))
    follow.follow(taken)
    assert fake_slurm.said("scontrol") == ["-M big show job 7"]


@pytest.mark.parametrize(
    ("says", "fix"),
    [
        (
            "Batch job submission failed: Invalid account or account/partition combination specified",
            "Name your --account",
        ),
        ("invalid partition specified: x", "Name one of the partitions"),
        (
            "Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
            "Ask for less --time",
        ),
        ("Batch job submission failed: Requested node configuration is not available", "Ask for what 'sinfo"),
        ("Batch job submission failed: Invalid generic resource (gres) specification", "Ask for what 'sinfo"),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "A limit"),
        ("Unable to contact slurm controller (connect failure)", "Slurm does not answer"),
        ("something else", "See what the scheduler says"),
    ],
)
def test_a_job_that_is_not_taken(says: str, fix: str, fake_slurm: FakeSlurm) -> None:
    fake_slurm.program("sbatch", f'echo "sbatch: error: {says}" >&2; exit 1')
    with pytest.raises(JobRefused, match=r"The job was not taken\.") as refused:
        slurm.submit(b"")
    assert refused.value.why == f"sbatch says: {says}"
    assert refused.value.fix.startswith(fix)


def test_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/proc/nonexistent")
    with pytest.raises(JobRefused, match="there is no qsub on PATH") as refused:
        pbs.submit(b"")
    assert refused.value.why == ""


def test_a_scheduler_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("#!/proc/nonexistent/bash\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JobRefused, match="sbatch does not start") as refused:
        slurm.submit(b"")
    assert refused.value.why == "No such file or directory: 'sbatch'"


def test_a_reader_that_goes_leaves_the_job_alone(fake_slurm: FakeSlurm) -> None:
    fake_slurm.log.write_bytes(b"x" * 1000000)
    fake_slurm.states(told("RUNNING", log=str(fake_slurm.log)))
    code = "from envkit.jobs import follow, submit; follow.follow(submit.Submitted(number='7', scheduler='slurm'))"
    done = subprocess.run(
        ["bash", "-c", f'{sys.executable} -c "{code}" | head -c 1'],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == "x"
    assert fake_slurm.said("scancel") == []


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_obeys_nothing_of_a_log(terminal: bool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes("1\r2\x1b]0;evil\x07\x1b[31m red \x9b2J \u202e\x08\n\u00fc".encode())
    reader, writer = pty.openpty() if terminal else os.pipe()
    with os.fdopen(writer, "w") as stream, os.fdopen(reader, "rb", buffering=0) as screen:
        follow.pour([JobStatus(state="RUNNING", log=str(log))], follow.SaidSoFar(to=stream))
        seen = screen.read(1000).replace(b"\r\n", b"\n")
    assert seen == ("1\n2 red  \n\u00fc".encode() if terminal else log.read_bytes())
