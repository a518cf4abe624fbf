"""What killed launchers of MPI leave: removed where it is this run's, and nothing else."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.launch.leftover import Leftovers
from envkit.system.stopped import Watch

NODE = os.uname().nodename
OF_USER = f"ompi.{NODE}.{os.geteuid()}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder for temporary files that nobody else can rename in."""
    folder = tmp_path / "place"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def left(place: Path, monkeypatch: pytest.MonkeyPatch) -> Leftovers:
    """The leftovers of a run that begins now, looked for in that place alone."""
    found = Leftovers({"TMPDIR": str(place)})
    monkeypatch.setattr(found, "places", [place])
    return found


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program called mpirun, which runs."""
    shutil.copy(shutil.which("sleep") or "", tmp_path / "mpirun")
    process = subprocess.Popen([tmp_path / "mpirun", "60"])
    yield process
    process.kill()
    process.wait()


def filled(folder: Path) -> Path:
    """Make a folder as Open MPI leaves it."""
    (folder / "0/0").mkdir(parents=True)
    (folder / "contact.txt").write_text("1;tcp://127.0.0.1:1\n")
    return folder


def seen(left: Leftovers, launcher: subprocess.Popen[bytes]) -> int:
    """Let a launcher be seen, and kill it; its number."""
    while launcher.pid not in left.pids:
        left.look([launcher.pid])
    launcher.kill()
    launcher.wait()
    return launcher.pid


def test_where_they_are_looked_for() -> None:
    env = {"TMPDIR": "/a", "TMP": "", "TEMP": "/a", "PRTE_MCA_prte_tmpdir_base": "/b", "HOME": "/c"}
    assert Leftovers(env).places == [Path("/a"), Path("/b"), Path("/tmp")]


def test_folders_of_a_launcher_that_has_ended_are_removed(
    left: Leftovers, launcher: subprocess.Popen[bytes], place: Path
) -> None:
    filled(place / OF_USER / f"pid.{launcher.pid}")
    filled(place / f"ompi.{launcher.pid}")
    left.look([launcher.pid])
    left.remove()
    assert (place / f"ompi.{launcher.pid}").exists()  # it still runs
    seen(left, launcher)
    left.remove()
    assert not list(place.iterdir())


def test_other_runs_keep_theirs(left: Leftovers, launcher: subprocess.Popen[bytes], place: Path) -> None:
    pid = launcher.pid
    filled(place / OF_USER / f"pid.{pid}")
    kept = [
        filled(place / OF_USER / f"pid.{pid + 1}"),  # of a launcher that this run has not seen
        filled(place / f"ompi.another-node.{os.geteuid()}" / f"pid.{pid}"),
        filled(place / f"ompi.{NODE}.{os.geteuid() + 1}" / f"pid.{pid}"),
        filled(place / f"ompi.{pid}.old"),
    ]
    (place / f"ompi.third-node.{os.geteuid()}").mkdir()  # in which it will have its own
    seen(left, launcher)
    left.remove()
    assert all(folder.exists() for folder in kept)
    assert [path.name for path in (place / OF_USER).iterdir()] == [f"pid.{pid + 1}"]
    assert (place / f"ompi.third-node.{os.geteuid()}").exists()


def test_what_was_there_before_is_no_leftover_of_this_run(launcher: subprocess.Popen[bytes], place: Path) -> None:
    kept = filled(place / f"ompi.{launcher.pid}")
    left = Leftovers({"TMPDIR": str(place)})
    seen(left, launcher)
    left.remove()
    assert kept.exists()


def test_only_launchers_leave_any(left: Leftovers, place: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    kept = filled(place / f"ompi.{process.pid}")
    time.sleep(0.05)
    left.look([process.pid])
    process.kill()
    process.wait()
    left.remove()
    assert not left.pids
    assert kept.exists()


def test_no_link_is_followed(left: Leftovers, launcher: subprocess.Popen[bytes], place: Path) -> None:
    theirs = filled(place / "theirs" / f"pid.{launcher.pid}")
    (place / OF_USER).symlink_to(place / "theirs")
    (place / f"ompi.{launcher.pid}").symlink_to(theirs)
    seen(left, launcher)
    left.remove()
    assert (theirs / "contact.txt").exists()


def test_nothing_where_others_can_rename(left: Leftovers, launcher: subprocess.Popen[bytes], place: Path) -> None:
    kept = filled(place / f"ompi.{launcher.pid}")
    place.chmod(0o777)
    seen(left, launcher)
    left.remove()
    assert kept.exists()


@pytest.mark.parametrize("named", ["", "/nonexistent"])
def test_a_folder_that_is_not_there_is_no_matter(named: str) -> None:
    left = Leftovers({"TMPDIR": named})
    left.look([1 << 30])
    left.remove()
    assert not left.pids


def test_numbers_of_what_ran_below_are_known() -> None:
    watch = Watch(os.getpid())
    process = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    below = int(process.stdout.readline())
    watch.look()
    os.kill(below, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    watch.look()
    assert {process.pid, below} <= watch.pids
    assert os.getpid() not in watch.pids
