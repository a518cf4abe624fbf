"""The namespace in which more is mounted: without rights, without a trace, and the command is the caller's own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from envkit.system import mount_namespace
from envkit.system.resources import data

from .conftest import Fake
from .integration.site import until

NAMESPACE = [sys.executable, "-I", "-S", str(data("system/mount_namespace.py"))]
TARGET = "/cvmfs/software.eessi.io"
ENDS_S = 10.0  # for a keeper, which looks again after 1, 1.5 and 2.25 s if it has seen somebody


def inside(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NAMESPACE, *words], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(autouse=True)
def _possible() -> None:
    if inside("try").returncode:
        pytest.skip("no user namespace can be made here")


@pytest.fixture(autouse=True)
def _leaves_no_process(tmp_path: Path) -> Iterator[None]:
    """Fail if a process that was told of the test's folder is still there soon after the test, and end it."""
    yield
    try:
        until(lambda: not processes_of(tmp_path), "the processes of the test to end", ENDS_S)
    finally:
        for process in processes_of(tmp_path):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def processes_of(folder: Path) -> list[int]:
    """Return the processes that have a file of this folder among their words."""
    found = list[int]()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{folder}/".encode() in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "file").write_text("seen\n")
    return tmp_path / "shown"


@pytest.mark.parametrize("target", [TARGET, "/new-at-the-top", "/opt/new-below"])
def test_a_folder_is_seen_at_its_target_and_nowhere_outside(shown: Path, target: str) -> None:
    done = inside("bind", str(shown), target, "--", "cat", f"{target}/file")
    assert (done.returncode, done.stdout) == (0, "seen\n"), done.stderr
    assert not Path(target).exists()


def test_a_target_behind_a_symbolic_link(shown: Path, tmp_path: Path) -> None:
    (tmp_path / "real" / "there").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    done = inside("bind", str(shown), str(tmp_path / "link" / "there"), "--", "cat", f"{tmp_path}/real/there/file")
    assert (done.returncode, done.stdout) == (0, "seen\n"), done.stderr


def test_several_targets_of_one_parent_and_a_file(shown: Path) -> None:
    words = ["bind", str(shown), "/opt/a", "bind", str(shown / "file"), "/opt/b", "bind-ro", str(shown), "/c"]
    done = inside(*words, "--", "sh", "-c", "cat /opt/a/file /opt/b; touch /opt/a/made; touch /c/refused")
    assert done.stdout == "seen\nseen\n"
    assert (done.returncode, sorted(path.name for path in shown.iterdir())) == (1, ["file", "made"])


def test_all_else_of_the_machine_is_as_it_was(shown: Path, tmp_path: Path) -> None:
    done = inside("bind", str(shown), TARGET, "--", "sh", "-c", "id -u; id -g; pwd; echo /*", folder=tmp_path)
    uid, gid, folder, roots = done.stdout.splitlines()
    assert (int(uid), int(gid), folder) == (os.getuid(), os.getgid(), str(tmp_path))
    assert set(roots.split()) == {f"/{path.name}" for path in Path("/").glob("[!.]*")} | {"/cvmfs"}


def test_the_command_is_this_process_and_has_no_power_over_the_mounts(shown: Path) -> None:
    argv = [*NAMESPACE, "bind", str(shown), TARGET, "--", "sh", "-c", f"echo $$; umount {TARGET}; kill -TERM $$"]
    running = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    said, _ = running.communicate(timeout=60)
    assert (int(said), running.returncode) == (running.pid, -signal.SIGTERM)


def test_signals_are_as_for_any_command(shown: Path) -> None:
    done = inside("bind", str(shown), TARGET, "--", "bash", "-c", "yes | head -n 1; echo ${PIPESTATUS[0]}")
    assert (done.stdout, done.stderr) == ("y\n141\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bind", "/proc/nonexistent", TARGET, "--", "true"], "No such file or directory (/proc/nonexistent)"),
        (["bind", "/tmp", "/usr/lib/deep/er", "--", "true"], "No such file or directory (/usr/lib/deep/er)"),
        (["bind", "/tmp", TARGET, "--", "no-such-program"], "No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], said: str) -> None:
    done = inside(*words)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"envkit: {said}")


def test_a_program_that_mounts_nothing(tmp_path: Path, fake: Fake) -> None:
    client = fake("client", "echo 'what it says'; exit 15")
    done = inside("mount", str(tmp_path / "log"), TARGET, str(client), TARGET, "--", "echo", "reached")
    assert (done.returncode, done.stdout) == (3, "")
    assert "could not mount the repository: a key is missing (status 15)." in done.stderr
    assert "what it says" in done.stderr


def test_a_program_that_mounts_goes_with_the_command(tmp_path: Path, shown: Path, fake: Fake) -> None:
    """A client that binds in place of mounting by FUSE, and stays."""
    client = fake("client", f'echo $$ >{tmp_path}/pid; mount --bind {shown} "$1" && exec sleep 1000')
    words = ["mount", str(tmp_path / "log"), TARGET, str(client), TARGET, "--"]
    done = inside(*words, "sh", "-c", f"cat {TARGET}/file; exit 7")
    assert (done.returncode, done.stdout) == (7, "seen\n"), done.stderr
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            return
        signal.sigtimedwait([], 0.05)
    raise AssertionError("the client has outlived the command")


def test_a_mount_with_a_name_that_is_no_text(tmp_path: Path, shown: Path, fake: Fake) -> None:
    client = fake("client", f'mount --bind {shown} "$1" && exec sleep 1000')
    words = ["bind", str(shown), os.fsdecode(b"/opt/\xff"), "mount", str(tmp_path / "log"), TARGET, str(client), TARGET]
    done = inside(*words, "--", "cat", f"{TARGET}/file", os.fsdecode(b"/opt/\xff/file"))
    assert (done.returncode, done.stdout) == (0, "seen\nseen\n"), done.stderr


@pytest.fixture
def sharing(tmp_path: Path, fake: Fake) -> list[str]:
    """The words by which one shares the mount of a client, which notes each start and waits while there is a file.

    It mounts a new file system: only those who share it see its device, as with FUSE.
    """
    for name in ("shared", "made"):
        (tmp_path / name).mkdir()
    made = tmp_path / "made"
    waits = f"echo start >>{tmp_path}/starts; while [ -e {tmp_path}/wait ]; do sleep 0.05; done"
    mounts = f'mount -t tmpfs none {made} && echo seen >{made}/file && mount --bind {made} "$1"'
    client = fake("client", f"{waits}\n{mounts} && exec tail -f {made}/file")
    return ["shared", str(tmp_path / "shared"), "mount", str(tmp_path / "log"), TARGET, str(client), TARGET, "--"]


def entering(sharing: list[str]) -> subprocess.Popen[str]:
    """Begin to share a mount; once there, show its file and stay until the input ends."""
    argv = [*NAMESPACE, *sharing, "sh", "-c", f"cat {TARGET}/file; exec cat"]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def shows(running: subprocess.Popen[str]) -> str:
    """Wait for what one shows that shares a mount."""
    assert running.stdout is not None
    return running.stdout.readline()


def test_who_comes_while_another_is_there_shares_its_mount(sharing: list[str], tmp_path: Path) -> None:
    with entering(sharing) as first:
        assert shows(first) == "seen\n"
        for _ in range(2):
            done = inside(*sharing, "cat", f"{TARGET}/file")
            assert (done.returncode, done.stdout) == (0, "seen\n"), done.stderr
        first.communicate("", timeout=60)
    assert first.returncode == 0
    assert (tmp_path / "starts").read_text() == "start\n"


def test_two_that_come_at_once_share_a_mount(sharing: list[str], tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    with entering(sharing) as first, entering(sharing) as second:
        until((tmp_path / "starts").exists, "the client", 60)
        (tmp_path / "wait").unlink()
        for running in (first, second):
            assert running.communicate("", timeout=60)[0] == "seen\n"
    assert (tmp_path / "starts").read_text() == "start\n"


def test_a_mount_stays_until_the_last_user_is_killed(sharing: list[str], tmp_path: Path) -> None:
    with entering(sharing) as first, entering(sharing) as second:
        assert (shows(first), shows(second)) == ("seen\n", "seen\n")
        first.kill()
        first.wait(timeout=60)
        done = inside(*sharing, "cat", f"{TARGET}/file")
        assert (done.returncode, done.stdout) == (0, "seen\n"), done.stderr
        second.kill()
    assert (tmp_path / "starts").read_text() == "start\n"


def test_a_keeper_ends_whose_starter_was_killed_before_the_mount_was_there(sharing: list[str], tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    with entering(sharing) as running:
        until((tmp_path / "starts").exists, "the client", 60)
        running.kill()
    assert mount_namespace.is_held(tmp_path / "shared")
    (tmp_path / "wait").unlink()


def test_a_keeper_that_is_killed_leaves_no_client(sharing: list[str], tmp_path: Path) -> None:
    with entering(sharing) as running:
        assert shows(running) == "seen\n"
        keeper, _ = (tmp_path / "shared" / "holder").read_text().split()
        os.kill(int(keeper), signal.SIGKILL)
        running.communicate("", timeout=60)
    assert running.returncode == 0


def test_a_client_that_fails_is_told_to_who_has_started_it(sharing: list[str], tmp_path: Path, fake: Fake) -> None:
    fake("client", "echo 'what it says'; exit 15")
    done = inside(*sharing, "echo", "reached")
    assert (done.returncode, done.stdout) == (3, "")
    assert "could not mount the repository: a key is missing (status 15)." in done.stderr
    assert not mount_namespace.is_held(tmp_path / "shared")


@pytest.mark.parametrize("found", [[], ["1", "2"]], ids=["no keeper", "one that has gone"])
def test_a_keeper_that_does_not_stay_is_started_three_times(
    found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = list[Path]()

    def have_held(folder: Path, *_: object) -> bool:
        started.append(folder)
        return True

    monkeypatch.setattr(mount_namespace, "have_held", have_held)
    monkeypatch.setattr(mount_namespace, "ready", lambda *_, **__: found)
    monkeypatch.setattr(mount_namespace, "is_within", lambda _: False)
    with pytest.raises(SystemExit) as ended:
        mount_namespace.join(tmp_path, [])
    assert (ended.value.code, len(started)) == (3, mount_namespace.TRIES)
    keeper = ", process 1" if found else ""
    assert capsys.readouterr().err == (
        f"envkit: What mounts it here does not stay, or does not answer ({tmp_path}{keeper}).\n"
    )


def test_where_the_process_by_which_one_enters_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The keeper says why, and all who wait are told that it has failed."""
    monkeypatch.setattr(mount_namespace, "make", lambda *_: mount_namespace.Mounted("0:1", os.getpid(), 0))
    monkeypatch.setattr(
        mount_namespace, "unshare", lambda *_: (_ for _ in ()).throw(OSError(1, "not allowed", "unshare"))
    )
    files = mount_namespace.Files(tmp_path)
    mount_namespace.begin(tmp_path, [])
    with pytest.raises(SystemExit) as ended:
        mount_namespace.ready(files, time.monotonic() + 20, has_begun=True)
    assert ended.value.code == 3
    assert capfd.readouterr().err == "envkit: not allowed (unshare).\n"
