"""The plugin of pytest with ranks of a real environment, which has no pytest of its own."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ..stacks import Site
from .site import until

STACK = "pytorch-2.13-cpu"
TESTS = Path(__file__).parent / "scripts" / "in_ranks.py"
MARK = "ENVKIT_TEST_RANKS_OF"
WAITS = """
import os, pathlib, time
import pytest

@pytest.mark.horovod
def test_it():
    pathlib.Path(f"rank-{os.environ['OMPI_COMM_WORLD_RANK']}").touch()
    time.sleep(1000)

def test_is_not_reached():
    raise AssertionError
"""

pytestmark = pytest.mark.integration


def outcomes(report: Path) -> dict[str, tuple[str, str]]:
    """Return how each test ended, and what was said of it."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        ends = [one for one in case if one.tag in ("failure", "error", "skipped")]
        text = "".join(f"{one.get('message') or ''}\n{one.text or ''}" for one in case)
        found[case.attrib["name"]] = (ends[0].tag if ends else "passed", text)
    return found


def left(folder: Path) -> list[str]:
    """Return the processes that were started for the tests of a folder and still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={folder}".encode() in path.read_bytes():
                found.append(path.with_name("cmdline").read_text())
        except OSError:
            continue
    return found


def test_each_end_of_a_test(stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    """On two workers of pytest-xdist at the same time."""
    installed(STACK)
    shutil.copy(TESTS, tmp_path / "test_it.py")
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\naddopts = -n 2\nfilterwarnings = error\nhorovod_environment = {STACK}\njunit_logging = all\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--junitxml=report.xml", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "ENVKIT_PREFIX": str(stacks.prefix), MARK: str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = outcomes(tmp_path / "report.xml")
    passed = {name for name, (how, _) in found.items() if how == "passed"}
    assert passed == {"test_passes[3]", "test_passes[5]", "test_runs_outside"}, done.stdout
    assert {name for name, (how, _) in found.items() if how == "skipped"} == {
        "test_is_skipped", "test_is_skipped_outside", "test_fails_as_expected",
    }  # fmt: skip
    said = found["test_passes[3]"][1]
    assert "hello from 0" in said
    assert "hello from 1" in said
    assert "no GPU" in found["test_is_skipped"][1]
    assert "outside" in found["test_is_skipped_outside"][1]

    said = found["test_fails"][1]
    assert "rank 1 on" in said
    assert 'assert hvd.rank() == 0, "this is wrong"' in said
    assert "passed in rank 0" in said
    said = found["test_hangs"][1]
    assert "rank 0 had not ended after 30 s" in said
    assert "in barrier" in said
    assert "in test_hangs" in said
    assert "_pytest" not in said
    assert "SystemExit: 3" in found["test_exits"][1]
    assert "rank 1 ended without an outcome" in found["test_dies"][1]
    assert "Skip a test in every rank or in none" in found["test_is_skipped_in_one"][1]
    assert "fixture 'nothing' not found" in found["test_fixture_fails"][1]
    assert left(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} <= {"test_it.py", "pytest.ini", "report.xml", "__pycache__"}


def test_ctrl_c_ends_pytest_and_the_ranks(stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    installed(STACK)
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_it.py").write_text(WAITS)
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--horovod-environment", STACK],
        cwd=tmp_path,
        env={**os.environ, "ENVKIT_PREFIX": str(stacks.prefix), MARK: str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: len(list(tmp_path.glob("rank-*"))) == 2, "both ranks run the test")
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=120)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == pytest.ExitCode.INTERRUPTED, said
    assert "KeyboardInterrupt" in said
    assert left(tmp_path) == []
