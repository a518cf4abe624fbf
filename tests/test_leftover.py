"""What killed launchers of MPI leave: removed where it is this run's, and nothing else."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from envkit.launch import leftover
from envkit.system.stopped import Watch

OF_USER = f"ompi.n1.{os.geteuid()}"


def ended() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder for temporary files that nobody else can rename in."""
    tmp_path.chmod(0o700)
    return tmp_path


def filled(folder: Path) -> Path:
    """Make a folder as Open MPI leaves it."""
    (folder / "0/0").mkdir(parents=True)
    (folder / "contact.txt").write_text("1;tcp://127.0.0.1:1\n")
    return folder


def test_folders_of_launchers_that_have_ended_are_removed(place: Path) -> None:
    pid = ended()
    four, five = filled(place / OF_USER / f"pid.{pid}"), filled(place / f"ompi.{pid}")
    leftover.remove([pid], {"TMPDIR": str(place)})
    assert not four.exists() and not five.exists()
    assert not list(place.iterdir())


def test_other_runs_keep_theirs(place: Path) -> None:
    pid, other = ended(), ended()
    filled(place / OF_USER / f"pid.{pid}")
    kept = [
        filled(place / OF_USER / f"pid.{other}"),  # of a process that this run has not seen
        filled(place / f"ompi.n1.{os.geteuid() + 1}" / f"pid.{pid}"),
        filled(place / OF_USER / f"pid.{os.getpid()}"),  # still runs
        filled(place / f"ompi.{os.getpid()}"),
    ]
    leftover.remove([pid, os.getpid()], {"TMPDIR": str(place)})
    assert all(folder.exists() for folder in kept)
    assert sorted(path.name for path in (place / OF_USER).iterdir()) == sorted([f"pid.{other}", f"pid.{os.getpid()}"])


def test_no_link_is_followed(place: Path) -> None:
    pid = ended()
    theirs = filled(place / "theirs" / f"pid.{pid}")
    (place / OF_USER).symlink_to(place / "theirs")
    (place / f"ompi.{pid}").symlink_to(theirs)
    leftover.remove([pid], {"TMPDIR": str(place)})
    assert (theirs / "contact.txt").exists()


def test_nothing_where_others_can_rename(place: Path) -> None:
    pid = ended()
    kept = filled(place / f"ompi.{pid}")
    place.chmod(0o777)
    leftover.remove([pid], {"TMPDIR": str(place)})
    assert kept.exists()


@pytest.mark.parametrize("named", ["", "/nonexistent"])
def test_a_folder_that_is_not_there_is_no_matter(named: str) -> None:
    leftover.remove([ended()], {"TMPDIR": named})


def test_numbers_of_all_that_ran_are_known() -> None:
    watch = Watch(os.getpid())
    process = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    below = int(process.stdout.readline())
    watch.look()
    os.kill(below, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    time.sleep(0.01)
    watch.look()
    assert {process.pid, below} <= watch.pids
    assert os.getpid() not in watch.pids
