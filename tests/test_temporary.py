"""Folders for temporary files: what killed processes have left is removed, and nothing else is."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from envkit import cli
from envkit.apptainer import build
from envkit.eessi import sessions
from envkit.errors import HostProblem
from envkit.inside.probe import node
from envkit.inside.probe.started import Started
from envkit.system import files, temporary
from envkit.verify import session


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def give_to_group(folder: Path) -> None:
    """Give a folder to a group that this user does not trust; only root can."""
    if os.geteuid():
        pytest.skip("needs root, to give a folder to a group")
    os.chown(folder, -1, 12345)


@pytest.mark.parametrize(
    ("mode", "goes"), [(0o700, True), (0o1777, True), (0o755, True), (0o2775, False), (0o777, False)]
)
def test_nothing_is_removed_where_others_can_rename_it(mode: int, goes: bool, ended: int, tmp_path: Path) -> None:
    """Who may write to a folder that is not sticky can give any folder in it the name of one that was left."""
    place = tmp_path / "place"
    place.mkdir()
    if mode == 0o2775:
        give_to_group(place)
    place.chmod(mode)
    left = place / f"envkit-verify-1-of-{temporary.this_node()}.{ended}.0123abcd"
    (left / "results").mkdir(parents=True)
    temporary.sweep([place])
    assert left.exists() is not goes


GROUP = 23_007  # which this machine has not


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's folder for temporary files is, if it has to be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "envkit" / "tmp"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a group, in which each member can rename what another one has; TMPDIR is in it."""
    place = tmp_path / "shared"
    place.mkdir()
    if os.geteuid() == 0:
        os.chown(place, -1, GROUP)
    place.chmod(0o2775)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def test_nothing_private_lies_where_others_can_rename_it(shared: Path, cache: Path) -> None:
    with temporary.folder("plan") as made:
        assert made.parent == cache
        assert made.stat().st_mode & 0o777 == cache.stat().st_mode & 0o777 == 0o700
    with temporary.folder("cache", shared) as made:
        assert made.parent == shared, "a place that is asked for"
    shared.chmod(0o1777)
    with temporary.folder("plan") as made:
        assert made.parent == shared


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder to a group")
def test_nor_below_a_folder_that_others_can_rename(shared: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shared / "own"
    own.mkdir(mode=0o700)
    (shared.parent / "link").symlink_to(own)
    for name in (own, shared.parent / "link"):
        monkeypatch.setattr(tempfile, "tempdir", str(name))
        assert temporary.usual_place() == cache
    shared.chmod(0o3775)
    assert temporary.usual_place() == own, "without the link, which may be led elsewhere"


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python finds no folder for temporary files that it can write to, as where /tmp and /var/tmp are read-only."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/proc/nothing"])


@pytest.mark.usefixtures("nowhere")
def test_where_no_folder_for_temporary_files_can_be_written_to(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder in the cache is taken, and what fails without /tmp is said by the verdict; else it is an error."""
    assert temporary.usual_place() == cache
    assert session.of_starter(several_hosts=False, chosen=None).shared.parent == cache
    assert node.local_folders("session", str(cache), None)
    monkeypatch.setenv("TMPDIR", "/proc/nothing")
    monkeypatch.setattr(temporary, "kept_apart", lambda *_: None)
    with pytest.raises(HostProblem, match="can be written to") as raised:
        temporary.usual_place()
    assert "/proc/nothing, /tmp, /var/tmp" in raised.value.why


@pytest.mark.usefixtures("nowhere")
def test_any_command_says_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli.envkit, "main", lambda **_: tempfile.gettempdir())
    assert cli.run(["list"]) == HostProblem.exit_code
    assert "There is no folder for temporary files that can be written to." in capsys.readouterr().err


def test_a_limit_that_allows_no_file_is_told_before_that() -> None:
    code = "from envkit.verify import session; session.of_starter(False, None)"
    argv = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, cwd="/proc", check=False)
    assert "HostProblem: No file may become larger than 0 bytes" in done.stderr


def test_what_has_become_a_link_since_it_was_resolved_is_no_place(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, real = tmp_path / "place", Path.resolve
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    assert temporary.usual_place() == place

    def late(path: Path, strict: bool = False) -> Path:
        found = real(path, strict)
        if path == place:
            place.rename(tmp_path / "away")
            place.symlink_to("/tmp")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "resolve", late)
        assert temporary.usual_place() == cache


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give folders to others")
def test_but_whom_this_user_trusts(shared: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler, which gives each job a folder below its own, or a project's group, in whose folder ranks meet."""
    own = shared / "job"
    own.mkdir(mode=0o700)
    shared.chmod(0o755)
    os.chown(shared, 12345, 12345)
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    assert session.of_starter(several_hosts=False, chosen=None).shared.parent == cache == sessions.caches().parent
    monkeypatch.setenv("ENVKIT_TRUST", "12345")
    assert session.of_starter(several_hosts=False, chosen=None).shared.parent == own == build.temporary_folder()
    assert sessions.caches().parent == own
    os.chown(shared, os.geteuid(), 12345)
    shared.chmod(0o2775)
    monkeypatch.chdir(shared)
    assert shared not in session.shared_places(None)
    monkeypatch.setenv("ENVKIT_TRUST", "@12345")
    assert session.shared_places(None)[-1] == shared


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give folders to a group")
def test_where_there_is_no_cache_and_none_at_all(shared: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nothing")
    assert temporary.usual_place() == Path("/tmp")
    monkeypatch.setattr(temporary, "kept_apart", lambda *_: None)
    with pytest.raises(HostProblem, match="no folder for temporary files") as raised:
        temporary.usual_place()
    assert "export TMPDIR=" in raised.value.fix


def test_what_uses_the_folder_for_temporary_files(
    shared: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks meet elsewhere, and sessions of EESSI and images are kept and built elsewhere."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("APPTAINER_TMPDIR", str(shared))
    rank = Started(launcher="srun", title="srun", rank=0, size=2, local_rank=0, local_size=2, job="4711.0")
    assert session.of_starter(several_hosts=False, chosen=None).shared.parent == cache
    assert session.of_ranks(rank, 2, None).shared.parent == cache
    assert sessions.caches().parent == build.temporary_folder() == cache
    assert session.of_starter(several_hosts=False, chosen=shared).shared.parent == shared, "asked for"
    monkeypatch.chdir(shared)
    assert shared not in session.shared_places(None)
    first, *others = node.local_folders("session", str(cache), str(shared))
    assert Path(first).parent != shared and shared in {Path(one).parent for one in others}


def test_what_a_process_still_uses_stays(tmp_path: Path) -> None:
    used = tmp_path / f"envkit-x-of-{temporary.this_node()}.{os.getpid()}.0123abcd"
    used.mkdir()
    temporary.sweep([tmp_path, tmp_path / "nowhere"])
    assert used.exists()


def test_a_home_that_is_not_there_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "gone"))
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert temporary.secret() == b""
    with pytest.raises(FileNotFoundError):
        files.make_private(tmp_path / "gone/.local/state/envkit")
    assert not (tmp_path / "gone").exists()
    files.make_private(tmp_path / "elsewhere/envkit")
    assert (tmp_path / "elsewhere/envkit").is_dir()
