"""The plugin of pytest, without an environment: what it makes of marks, and what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from envkit.integrations.ranks import Outcome, RankDeadline, RankResults, failure, skipped, stacks
from envkit.system import files
from envkit.system.resources import data

pytestmark = pytest.mark.integration

TEST = "import pytest\n@pytest.mark.horovod({})\ndef test_it(unknown_fixture): pass\n"


def run(folder: Path, test: str, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder of its own."""
    (folder / "test_it.py").write_text(test)
    (folder / "pytest.ini").touch()
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**os.environ, "ENVKIT_PREFIX": str(folder / "prefix"), "PATH": "/usr/bin:/bin", **(env or {})},
        capture_output=True,
        text=True,
    )


def found(*ranks: tuple[str, str], size: int = 2, **changes: object) -> RankResults:
    """Make what ranks left: how each ended, and why."""
    made = [
        Outcome(rank=rank, host="node", outcome=outcome, when="call", text=text, ended=float(10 - rank))
        for rank, (outcome, text) in enumerate(ranks)
    ]
    given = {
        "size": size, "environment": "toy", "launcher": "mpirun", "outcomes": tuple(made), "stacks": {}, "status": 0,
        "is_late": False, "limit_s": 5.0, "said": "what mpirun said",
    }  # fmt: skip
    return RankResults(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("2", "write the arguments with names"),
        ("rank=2", "has no rank."),
        ("ranks=0", "ranks=0"),
        ("ranks='two'", "ranks='two'"),
        ("timeout=-1", "timeout=-1"),
        ("timeout=float('nan')", "timeout=nan"),
        ("timeout=float('inf')", "timeout=inf"),
        ("timeout=10**400", "is not a number from 0.001 to 1e+06"),
    ],
)
def test_a_mark_that_cannot_be_understood_ends_the_session(tmp_path: Path, words: str, said: str) -> None:
    done = run(tmp_path, TEST.format(words))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert said in done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr


@pytest.mark.parametrize("number", ["soon", "nan", "inf", "-1", "0", "1e10"])
def test_a_time_limit_that_is_none_is_told(tmp_path: Path, number: str) -> None:
    done = run(tmp_path, TEST.format(""), "-o", f"horovod_timeout={number}")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert f"horovod_timeout: '{number}' is no number of seconds" in done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_methods_of_unittest_are_refused(tmp_path: Path) -> None:
    test = "import pytest, unittest\nclass TestIt(unittest.TestCase):\n    @pytest.mark.horovod\n"
    test += "    def test_it(self): ...\n"
    done = run(tmp_path, test)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert "functions and methods of classes" in done.stderr


def test_an_environment_that_is_not_there_fails_the_test(tmp_path: Path) -> None:
    done = run(tmp_path, TEST.format("environment='nothing'"))
    assert "There is no environment 'nothing'" in done.stdout
    assert "1 failed" in done.stdout
    assert "unknown_fixture" not in done.stdout.partition("short test summary")[0]
    assert "Traceback" not in done.stdout
    done = run(tmp_path, TEST.format(""), "--horovod-environment", "by-option")
    assert "'by-option'" in done.stdout


def test_a_rank_starts_no_ranks(tmp_path: Path) -> None:
    env = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    test = TEST.format("") + "def test_other(): pass\n"
    done = run(tmp_path, test, "--horovod-environment", str(tmp_path), env=env)
    assert "1 failed, 1 passed" in done.stdout
    assert "This pytest is rank 1 of" in done.stdout


def test_the_one_task_of_a_step_starts_ranks(tmp_path: Path) -> None:
    """A notebook in a job is one."""
    env = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    done = run(tmp_path, TEST.format(""), "--horovod-environment", "nothing", env=env)
    assert "There is no environment 'nothing'" in done.stdout


def test_it_is_off_where_nothing_is_marked(tmp_path: Path) -> None:
    test = "import sys\ndef test_it():\n    own = {name for name in sys.modules if name.startswith('envkit.')}\n"
    test += "    assert own == {'envkit.integrations', 'envkit.integrations.pytest_plugin'}\n"
    done = run(tmp_path, test, "--strict-markers", "-W", "error")
    assert "1 passed" in done.stdout


def test_passed_and_skipped_by_all() -> None:
    assert failure(found(("passed", ""), ("passed", ""))) == ""
    assert failure(found(("skipped", "why"), ("skipped", "why"))) == ""
    assert skipped(found(("skipped", "why"), ("skipped", "why"))) == "why"
    assert skipped(found(("skipped", "why"), ("passed", ""))) == ""


def test_the_first_failure_comes_first() -> None:
    said = failure(found(("failed", "because of the other"), ("failed", "the cause")))
    assert said.index("the cause") < said.index("because of the other")
    assert "what mpirun said" not in said


def test_a_rank_that_left_nothing() -> None:
    said = failure(found(("passed", ""), status=139))
    assert "rank 1 ended without an outcome, as by os._exit or a signal (mpirun ended with status 139)" in said
    assert "passed in rank 0" in said
    assert "what mpirun said" in said
    assert "rank 1 was ended with it" in failure(found(("failed", "x")))


def test_a_rank_that_hangs(tmp_path: Path) -> None:
    stack = 'Timeout!\n  File "/x/test_it.py", line 3 in test_it\n  File "/x/_pytest/python.py", line 1 in call\n'
    (tmp_path / "stack-1").write_text(stack)
    (tmp_path / "stack-0").touch()
    there = stacks(tmp_path)
    assert there == {1: 'Timeout!\n  File "/x/test_it.py", line 3 in test_it'}
    said = failure(found(("passed", ""), is_late=True, stacks=there))
    assert "rank 1 had not ended after 5 s" in said
    assert "line 3 in test_it" in said


def test_how_long_ranks_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("envkit.integrations.ranks.time.monotonic", lambda: now)
    patience = RankDeadline(tmp_path, limit_s=50, size=2)
    assert not patience.is_over()
    one = found(("failed", "x")).outcomes[0]
    files.write(tmp_path / "outcome-0.json", msgspec.json.encode(one))
    now = 105.0
    assert not patience.is_over()
    now = 116.0
    assert patience.is_over()
    assert not patience.is_late
    (tmp_path / "outcome-0.json").unlink()
    patience = RankDeadline(tmp_path, limit_s=50, size=2)
    now = 167.0
    assert not patience.is_over()
    (tmp_path / "stack-0").write_text("x\n")
    (tmp_path / "stack-1").write_text("x\n")
    assert patience.is_over()
    assert patience.is_late


def test_the_first_line_is_enough_for_pytests_summary() -> None:
    """It shows that line, and no other."""
    text = "    assert 1 == 2\nE       assert 1 == 2\nE        +  where\n\ntest_it.py:3: AssertionError"
    assert failure(found(("passed", ""), ("failed", text))).splitlines()[0] == (
        "rank 1 failed: assert 1 == 2 (toy, 2 ranks by mpirun)"
    )
    late = failure(found(("passed", ""), is_late=True, stacks={1: "line 3"})).splitlines()[0]
    assert late == "rank 1 had not ended after 5 s (toy, 2 ranks by mpirun)"
    mixed = failure(found(("passed", ""), ("skipped", "why"))).splitlines()[0]
    assert mixed == "passed in some ranks and skipped in others (toy, 2 ranks by mpirun)"


def test_the_rank_that_ended_by_itself_is_named() -> None:
    """And not the others, which the launcher has ended because of it."""
    said = failure(found(size=2, status=3, stopped=frozenset({0})))
    assert said.startswith("rank 1 ended without an outcome, as by os._exit or a signal (mpirun ended with status 3)")
    assert "rank 0 was ended by SIGTERM" in said


def test_a_rank_notes_that_a_signal_has_ended_it(tmp_path: Path) -> None:
    job = {
        "test": f"{tmp_path}/test_it.py::test_it", "arguments": ["--rootdir", str(tmp_path)], "settings": {},
        "path": [], "limit_s": 60, "borrowed": str(Path(pytest.__file__).parents[1]), "version": pytest.__version__,
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    for number, line in enumerate(("os._exit(3)", "os.kill(os.getpid(), 15)")):
        (tmp_path / "test_it.py").write_text(f"import os\ndef test_it():\n    {line}\n")
        env = {**os.environ, "OMPI_COMM_WORLD_RANK": str(number), "OMPI_COMM_WORLD_SIZE": "2"}
        done = subprocess.run([sys.executable, data("inside/pytest_rank.py"), tmp_path / "job.json"], env=env)
        assert done.returncode == (3, -15)[number]
    assert [*stacks(tmp_path, "stopped")] == [1]
