"""Where ranks meet: folders that killed processes have left are removed by the next verification."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import resource
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from envkit.errors import HostProblem
from envkit.inside.probe import node as probe_node
from envkit.inside.probe.node import local_folder, name_of_node, plain
from envkit.inside.probe.started import Started
from envkit.system import temporary as temporary_folders
from envkit.verify import session


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def dead() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_what_a_killed_process_has_left_is_removed(temporary: Path) -> None:
    node, uid = temporary_folders.this_node(), os.getuid()
    gone = [f"envkit-{kind}-of-{node}.{dead()}.0123abcd" for kind in (f"verify-{uid}", "home", str(uid))]
    gone.append(f"envkit-{uid}-of-{node}.{dead()}.0123abcd-{plain(name_of_node())}")
    kept = [
        f"envkit-verify-{uid}-of-{node}.{os.getpid()}.0123abcd",
        f"envkit-verify-{uid}-of-another.4026531836.{dead()}.0123abcd",
        f"envkit-verify-{uid}-of-{os.uname().nodename}.1.{dead()}.0123abcd",  # of a container of the same name
        f"envkit-verify-{uid}-0123456789abcdef",
        "envkit-data",
    ]
    for name in (*gone, *kept):
        (temporary / name / "inside").mkdir(parents=True)
    made = session.of_starter(False, None)
    assert sorted(path.name for path in temporary.iterdir()) == sorted([*kept, made.shared.name])
    assert temporary_folders.OF_PROCESS.fullmatch(made.shared.name) and temporary_folders.OF_PROCESS.fullmatch(
        Path(local_folder(made.name, str(made.shared))).name
    )


def test_what_ranks_have_left_is_removed_after_a_day_unless_it_is_held(temporary: Path) -> None:
    """Of theirs, no name tells a process; here two sessions were killed, one is at work, and one was just now."""
    uid, there = os.getuid(), plain(name_of_node())
    names = ["0123456789abcdef", "1123456789abcdef", "2123456789abcdef"]
    folders = [
        temporary / name for one in names for name in (f"envkit-verify-{uid}-{one}", f"envkit-{uid}-{one}-{there}")
    ]
    for folder in folders:
        folder.mkdir()
        for file in ("held", "0.json"):
            (folder / file).touch()
            os.utime(folder / file, (1, 1))
        os.utime(folder, (1, 1))
    (folders[4] / "0.json").touch()
    with (folders[3] / "held").open() as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        session.of_ranks(RANK, 2, temporary)
    assert [folder.exists() for folder in folders] == [False, False, True, True, True, True]


def test_a_link_of_such_a_name_is_not_followed(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").touch()
    (temporary / f"envkit-home-of-{temporary_folders.this_node()}.{dead()}.0123abcd").symlink_to(elsewhere)
    session.of_starter(False, None)
    assert (elsewhere / "file").exists()


@pytest.mark.parametrize(
    ("number", "name", "soft", "hard", "fix"),
    [
        (resource.RLIMIT_FSIZE, "ulimit -f, RLIMIT_FSIZE", 1 << 10, -1, "ulimit -Sf hard"),
        (resource.RLIMIT_FSIZE, "ulimit -f, RLIMIT_FSIZE", 0, 1 << 10, "new session"),
        (resource.RLIMIT_AS, "ulimit -v, RLIMIT_AS", 1 << 29, -1, "ulimit -Sv hard"),
        (resource.RLIMIT_AS, "ulimit -v, RLIMIT_AS", 1 << 29, 1 << 29, "ulimit -v unlimited"),
    ],
)
def test_a_session_that_allows_too_little_is_refused_at_once(
    number: int, name: str, soft: int, hard: int, fix: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (soft, hard) if asked == number else (-1, -1))
    with pytest.raises(HostProblem, match=name) as caught:
        session.of_starter(several_hosts=False, chosen=None)
    assert fix in caught.value.fix
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(("free", "of_mpi", "of_rank"), [(0, False, False), (2048, False, True), (4096, True, True)])
def test_a_folder_for_temporary_files_without_room_is_refused_at_once(
    free: int, of_mpi: bool, of_rank: bool, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI would hang in it. Of what mpirun has left free a rank needs less."""
    counts = {"f_files": 0, "f_ffree": 0, "f_favail": 0, "f_flag": 0}
    state = SimpleNamespace(f_frsize=4096, f_blocks=4096, f_bfree=free, f_bavail=free, **counts)
    monkeypatch.setattr(os, "statvfs", lambda path: state if path == str(temporary) else None)
    refused = pytest.raises(HostProblem, match=f"There is no room in {temporary}, ")
    with nullcontext() if of_mpi else refused:
        session.of_starter(several_hosts=False, chosen=None)
    with nullcontext() if of_rank else refused:
        session.of_ranks(RANK, 2, None)


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path_factory.mktemp("home")
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(made / name))
    return made


RANK = Started(launcher="srun", title="srun", rank=0, size=2, local_rank=0, local_size=2, job="4711.0")


def guesses(job: str) -> list[str]:
    """What another user can think of, who knows the job and how envkit makes names."""
    words = f"srun {job}"
    keyed = hmac.new(b"", "\0".join(("srun", job)).encode(), hashlib.sha256).hexdigest()[:16]
    return [hashlib.sha256(words.encode()).hexdigest()[:16], keyed]


@pytest.mark.parametrize("alone", [True, False])
def test_nobody_can_take_the_place_of_ranks_before(temporary: Path, home: Path, alone: bool) -> None:
    """Neither where all ranks are on one node, nor in a folder that others may write to, nor on each node."""
    temporary.chmod(0o1777)
    (temporary / "shared").mkdir()
    (temporary / "shared").chmod(0o1777)
    for place in (temporary, temporary / "shared"):
        for guess in guesses("4711.0"):
            (place / f"envkit-verify-{os.getuid()}-{guess}").write_text("mine")
            (place / f"envkit-{os.getuid()}-{guess}-{plain(name_of_node())}").write_text("mine")
    made = session.of_ranks(RANK, 2, None if alone else temporary / "shared")
    assert made == session.of_ranks(RANK, 2, None if alone else temporary / "shared"), "all ranks have the same"
    assert made.shared.parent == (temporary if alone else temporary / "shared")
    assert made.shared.stat().st_mode & 0o777 == 0o700
    assert Path(local_folder(made.name, str(made.shared))).parent == temporary


@pytest.mark.skipif(os.geteuid() != 0, reason="has folders of another user's")
def test_who_knows_the_name_keeps_no_node_from_its_folder(temporary: Path, home: Path) -> None:
    """The name is seen in a list of processes; the shared folder is out of reach."""
    name, shared = session.of_starter(False, None).name, home / "shared"
    shared.mkdir(mode=0o700)
    taken = [Path(base) / f"envkit-{os.getuid()}-{name}-{plain(name_of_node())}" for base in (temporary, "/dev/shm")]
    for path in taken:
        path.mkdir()
        os.chown(path, 23_002, 23_002)
    try:
        assert Path(local_folder(name, str(shared))).parent == shared
    finally:
        for path in taken:
            path.rmdir()


def test_where_only_this_user_may_write_nodes_need_not_share_a_home(
    temporary: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = home / "shared"
    shared.mkdir(mode=0o755)
    one = session.of_ranks(RANK, 2, shared)
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "another"))
    other = session.of_ranks(RANK, 2, shared)
    assert one.shared == other.shared and one.name != other.name


def test_without_a_home_ranks_meet_all_the_same(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nothing")
    assert session.of_ranks(RANK, 2, None) == session.of_ranks(RANK, 2, None)


@pytest.mark.integration
def test_the_secret_is_one_however_many_begin_at_once(home: Path) -> None:
    call = "from envkit.system.temporary import secret; import sys; sys.stdout.write(secret().hex())"
    running = [subprocess.Popen([sys.executable, "-c", call], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    found = {process.communicate()[0] for process in running}
    path = home / "STATE" / "envkit" / "secret"
    assert found == {path.read_bytes().hex()} and len(path.read_bytes()) == 32
    assert path.stat().st_mode & 0o777 == 0o600 and [one.name for one in path.parent.iterdir()] == ["secret"]


@pytest.mark.parametrize("kind", ["open", "link", "pipe", "folder"])
def test_a_secret_that_others_may_know_is_none(home: Path, kind: str) -> None:
    path = home / "STATE" / "envkit" / "secret"
    path.parent.mkdir(parents=True)
    if kind == "link":
        (home / "file").write_bytes(bytes(32))
        path.symlink_to(home / "file")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(bytes(32))
        path.chmod(0o644)
    assert temporary_folders.secret() == b""


HERE = socket.gethostname().partition(".")[0]


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"SLURMD_NODENAME": "node3"}, "node3"),
        ({}, socket.gethostname()),
        ({"SLURMD_NODENAME": "node3", "MPI_LOCALRANKID": "0"}, socket.gethostname()),
        ({"SLURMD_NODENAME": "node3", "HOROVOD_HOSTNAME": "node4"}, socket.gethostname()),
        ({"SLURMD_NODENAME": "node3", "OMPI_COMM_WORLD_RANK": "0"}, socket.gethostname()),  # -x of horovodrun
        ({"SLURMD_NODENAME": f"{HERE}.site", "OMPI_COMM_WORLD_RANK": "0"}, f"{HERE}.site"),
    ],
)
def test_what_another_node_has_named_is_not_this_one(
    env: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("SLURMD_NODENAME", "MPI_LOCALRANKID", "HOROVOD_HOSTNAME", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in env.items():
        monkeypatch.setenv(variable, value)
    assert name_of_node() == name


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "compute-dy-1"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, socket.gethostname()),
        ({"OMPI_COMM_WORLD_RANK": "0", **probe_node.started_here()}, "compute-dy-1"),
        ({"OMPI_COMM_WORLD_RANK": "0", "ENVKIT_STARTED_ON": "another"}, socket.gethostname()),
    ],
)
def test_a_node_has_one_name_where_slurm_does_not_call_it_by_its_host_name(
    changes: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in clouds: for what starts the ranks, and for those of them that are there."""
    for variable in probe_node.CARRYING:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in {"SLURMD_NODENAME": "compute-dy-1", **changes}.items():
        monkeypatch.setenv(variable, value)
    assert name_of_node() == name


@pytest.mark.parametrize(
    ("flag", "blocks", "inodes", "said", "unsaid"),
    [
        (os.ST_RDONLY, 1, 100, "is read-only", "bytes"),
        (0, 1, 100, "4,096 bytes are free", "inodes"),
        (0, 100_000, 3, "more than 3 files or folders (inodes)", "bytes"),
        (0, 1, 3, "inodes", "bytes"),
    ],
)
def test_a_folder_for_temporary_files_without_room(
    flag: int, blocks: int, inodes: int, said: str, unsaid: str, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    state = SimpleNamespace(
        f_frsize=4096, f_bavail=blocks, f_bfree=blocks, f_blocks=100_000, f_files=100, f_favail=inodes, f_ffree=inodes,
        f_flag=flag,
    )  # fmt: skip
    monkeypatch.setattr(os, "statvfs", lambda _path: state)
    with pytest.raises(HostProblem) as raised:
        session.of_starter(False, None)
    assert said in raised.value.what and str(temporary) in raised.value.what and unsaid not in raised.value.what


def test_without_inodes_of_its_own_a_file_system_is_not_full_of_files(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    state = SimpleNamespace(
        f_frsize=4096, f_bavail=10**6, f_bfree=10**6, f_blocks=10**6, f_files=0, f_favail=0, f_ffree=0, f_flag=0
    )
    monkeypatch.setattr(os, "statvfs", lambda _path: state)
    assert session.of_starter(False, None).shared.parent == temporary
