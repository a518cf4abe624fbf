"""What killed launchers of MPI leave: removed where it is this run's, and nothing else."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from envkit.launch.leftover import Leftovers, removed
from envkit.system import process
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
def left(place: Path) -> Leftovers:
    """The leftovers of a run that begins now, in that place."""
    return Leftovers({"TMPDIR": str(place)})


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program called mpirun, which runs."""
    shutil.copy(shutil.which("sleep") or "", tmp_path / "mpirun")
    running = subprocess.Popen([tmp_path / "mpirun", "60"])
    yield running
    running.kill()
    running.wait()


def filled(folder: Path) -> Path:
    """Make a folder as Open MPI leaves it."""
    (folder / "0/0").mkdir(parents=True)
    (folder / "contact.txt").write_text("1;tcp://127.0.0.1:1\n")
    return folder


def seen(left: Leftovers, launcher: subprocess.Popen[bytes]) -> int:
    """Let a launcher be seen, and kill it; its number."""
    while launcher.pid not in left.launchers:
        left.look([launcher.pid])
    launcher.kill()
    launcher.wait()
    return launcher.pid


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({"TMPDIR": "/a", "TMP": "/b", "HOME": "/c"}, "/a"),
        ({"TMPDIR": "", "TMP": "/b", "TEMP": "/d"}, "/d"),
        ({"TMPDIR": "/a", "PRTE_MCA_prte_tmpdir_base": "/b"}, "/b"),
        ({}, "/tmp"),
    ],
)
def test_where_they_are_looked_for(env: dict[str, str], place: str) -> None:
    assert Leftovers(env).place == Path(place)


@pytest.mark.parametrize(
    "name",
    [
        "ompi.{node}.{user}/pid.{pid}",
        "prte.{node}.{user}/dvm.{pid}",
        "ompi.{pid}",
        "ompi.{node}.{pid}",
        "prterun.{node}.{pid}.{user}",
        "mpirun.{node}.{pid}.{user}",
    ],
)
def test_each_version_has_names_of_its_own(
    name: str, left: Leftovers, launcher: subprocess.Popen[bytes], place: Path
) -> None:
    filled(place / name.format(node=NODE, user=os.geteuid(), pid=launcher.pid))
    kept = filled(place / name.format(node=NODE, user=os.geteuid(), pid=launcher.pid + 1))
    seen(left, launcher)
    left.remove()
    assert list(place.rglob("contact.txt")) == [kept / "contact.txt"]


def test_the_folder_of_all_runs_of_a_user_is_not_one_of_a_launcher(
    left: Leftovers, launcher: subprocess.Popen[bytes], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the launcher's number is the user's: ompi.NODE.NUMBER may be either."""
    monkeypatch.setattr(os, "geteuid", lambda: launcher.pid)
    monkeypatch.setattr("envkit.system.files.is_own_folder", Path.is_dir)
    kept = filled(place / f"ompi.{NODE}.{launcher.pid}" / f"pid.{launcher.pid + 1}")
    seen(left, launcher)
    left.remove()
    assert kept.exists()


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
    running = subprocess.Popen(["sleep", "60"])
    kept = filled(place / f"ompi.{running.pid}")
    time.sleep(0.05)
    left.look([running.pid])
    running.kill()
    running.wait()
    left.remove()
    assert not left.launchers
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
    assert not left.launchers


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of shared memory in place of all of it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        monkeypatch.setattr("envkit.launch.leftover.SHARED_MEMORY", Path(folder))
        yield Path(folder)


MAPPED = """
import mmap, sys
kept = [open(path, "r+b") for path in sys.argv[1:]]
kept += [mmap.mmap(file.fileno(), 0) for file in kept]
print(flush=True)
input()
"""


@contextmanager
def mapping(*paths: Path) -> Iterator[int]:
    """A process that has mapped files; it is killed at the end of the block."""
    argv = [sys.executable, "-c", MAPPED, *map(str, paths)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as running:
        assert running.stdout
        running.stdout.readline()
        yield running.pid
        running.kill()


def segment(memory: Path, name: str) -> Path:
    """Make a file of shared memory as a rank of Open MPI does."""
    (memory / name).write_bytes(bytes(4096))
    return memory / name


@pytest.mark.parametrize("kind", ["vader_segment", "sm_segment"])
def test_memory_of_ranks_that_have_ended_is_removed(memory: Path, kind: str) -> None:
    with removed({}) as left:
        shared = [segment(memory, f"{kind}.{NODE}.{os.geteuid()}.6cca0001.{rank}") for rank in range(2)]
        with mapping(*shared) as pid:
            left.look([pid, 1 << 30])
            left.remove()
            assert all(path.exists() for path in shared)  # it is in use
    assert not list(memory.iterdir())


def test_memory_of_others_stays(memory: Path) -> None:
    user = os.geteuid()
    before = segment(memory, f"vader_segment.{NODE}.{user}.1.0")
    left = Leftovers({})
    unmapped = segment(memory, f"vader_segment.{NODE}.{user}.2.0")
    others = [
        segment(memory, f"vader_segment.{NODE}.{user + 1}.3.0"),
        segment(memory, f"vader_segment.other-{NODE}.{user}.4.0"),
        segment(memory, "sem.own"),
    ]
    with mapping(before, *others) as pid:
        left.look([pid])
    left.remove()
    assert {*memory.iterdir()} == {before, unmapped, *others}


def test_a_trial_of_shared_memory_is_removed_if_nobody_has_it_open(memory: Path) -> None:
    (memory / "open_mpi.0000").touch()
    left = Leftovers({})
    for number in (1, 2):
        (memory / f"open_mpi.{number:04}").touch()
    (memory / "open_mpi.0003").symlink_to(memory / "gone")
    (memory / "open_mpi.text").touch()
    with (memory / "open_mpi.0001").open():
        left.remove()
    assert {path.name for path in memory.iterdir()} == {f"open_mpi.{end}" for end in ("0000", "0001", "0003", "text")}
    left.remove()
    assert not (memory / "open_mpi.0001").exists()


def test_memory_that_another_process_still_uses_stays(memory: Path) -> None:
    left = Leftovers({})
    path = segment(memory, f"vader_segment.{NODE}.{os.geteuid()}.1.0")
    with mapping(path) as pid:
        left.look([pid])
        with mapping(path):
            os.kill(pid, signal.SIGKILL)
            left.remove()
            assert path.exists()
    left.remove()
    assert not path.exists()


@pytest.mark.parametrize("is_seen_before", [False, True])
def test_memory_that_another_run_has_made_anew_stays(is_seen_before: bool, memory: Path) -> None:
    left = Leftovers({})
    path = segment(memory, f"vader_segment.{NODE}.{os.geteuid()}.1.0")
    with mapping(path) as pid:
        if is_seen_before:
            left.look([pid])
        path.rename(memory / "gone")
        segment(memory, path.name)
        left.look([pid])
    left.remove()
    assert path.exists()


def test_odd_names_of_mapped_files_are_no_matter(memory: Path) -> None:
    left = Leftovers({})
    path = segment(memory, f"vader_segment.{NODE}.{os.geteuid()}.1.0")
    odd = memory / os.fsdecode(b"a\rb\xff \n c")
    odd.write_bytes(bytes(4096))
    with mapping(odd, path) as pid:
        left.look([pid])
        left.remove()
        assert path.exists()
    left.remove()
    assert not path.exists()


def test_who_has_mapped_what_is_new_is_asked_again(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Leftovers({})
    path = segment(memory, f"vader_segment.{NODE}.{os.geteuid()}.1.0")
    with mapping() as other:
        left.look([other])  # before any rank has mapped it
        with mapping(path) as pid:
            left.look([other, pid])  # at once for a process that is new
    left.remove()
    assert not path.exists()
    path = segment(memory, f"vader_segment.{NODE}.{os.geteuid()}.2.0")
    with mapping(path) as pid:
        left.looked = {path}, {pid}, time.monotonic()
        left.look([pid])
        assert path not in left.own
        monkeypatch.setattr("envkit.launch.leftover.AGAIN_S", 0)
        left.look([pid])
    left.remove()
    assert not path.exists()


def test_a_launcher_that_ends_at_once_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an mpirun is that may open only a few files: it leaves a folder, and ends soon: it is looked for at once."""
    mpirun = tmp_path / "mpirun"
    shutil.copy(shutil.which("sleep") or "", mpirun)
    monkeypatch.setattr(process, "POLL_S", 10)
    watch = Watch(os.getpid())
    left = Leftovers({})

    def look() -> None:
        watch.look()
        left.look(watch.pids)

    process.supervise([str(mpirun), "2"], env={**os.environ}, log=tmp_path / "log", watch=look)
    assert left.launchers


def test_numbers_of_what_runs_below_are_known() -> None:
    watch = Watch(os.getpid())
    running = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    assert running.stdout
    below = int(running.stdout.readline())
    watch.look()
    assert {running.pid, below} <= watch.pids
    assert os.getpid() not in watch.pids
    os.kill(below, signal.SIGKILL)
    running.wait()
    running.stdout.close()
    watch.look()
    assert not {running.pid, below} & watch.pids
