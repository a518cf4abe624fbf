"""What commands write is there whole or not at all, on disks as full as can be; what is no file is written to."""

import os
import signal
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO

import pytest

from envkit.errors import EnvkitError, NotWritable
from envkit.system import files, owners, umask

from .small_disk import PAGE, leave, small_disk

if TYPE_CHECKING:
    from _typeshed import TraceFunction

NOBODYS = 0xFFFFFFFF  # the id of an entry of an ACL that is nobody's
OLD, NEW = b"old\n", bytes(range(256)) * 50


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 pages."""
    with small_disk(tmp_path / "small", 16) as made:
        yield made


@pytest.mark.parametrize("free", range(7))
@pytest.mark.parametrize("old", [None, OLD])
def test_whole_or_not_at_all(free: int, old: bytes | None, small: Path) -> None:
    path = small / "report"
    if old is not None:
        path.write_bytes(old)
    leave(small, free)
    before = set(small.iterdir())
    needed = -(-len(NEW) // PAGE)
    if free >= needed:
        files.deliver(path, NEW, "The report")
        assert path.read_bytes() == NEW
    else:
        with pytest.raises(NotWritable) as caught:
            files.deliver(path, NEW, "The report")
        assert caught.value.what == f"The report could not be written to {path}."
        assert caught.value.why == "No space left on device."
        assert (path.read_bytes() if path.exists() else None) == old
    assert set(small.iterdir()) - {path} == before - {path}


def test_no_inode_is_left(small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=2", str(small)], check=True)
    (small / "one").touch()
    with pytest.raises(NotWritable):
        files.deliver(small / "two", NEW, "The report")
    assert [path.name for path in small.iterdir()] == ["one"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_the_mode_is_that_of_any_new_file(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        files.write(tmp_path / "new", NEW)
        (tmp_path / "beside").write_bytes(NEW)
    finally:
        os.umask(before)
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "beside")}
    assert modes == {0o666 & ~mask}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_an_older_file_keeps_its_mode(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_bytes(OLD)
    path.chmod(mode)
    files.write(path, NEW)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (NEW, mode)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("links", [1, 2])
def test_links_are_followed(links: int, there: bool, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    end = path = tmp_path / "elsewhere" / "file"
    if there:
        end.write_bytes(OLD)
    for number in range(links):
        link = tmp_path / f"link{number}"
        link.symlink_to(os.path.relpath(path, tmp_path))
        path = link
    files.write(path, NEW)
    assert path.is_symlink()
    assert (end.read_bytes(), end.is_symlink()) == (NEW, False)


@pytest.mark.parametrize("name", ["x" * 255, "ü" * 127, "with blank", "new\nline"])
def test_names_as_long_as_can_be(name: str, tmp_path: Path) -> None:
    files.write(tmp_path / name, NEW)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "old").write_bytes(OLD)
    refused = {"folder": "Is a directory.", "no/file": "No such file or directory.", "old/file": "Not a directory."}
    for name, why in refused.items():
        with pytest.raises(NotWritable) as caught:
            files.deliver(tmp_path / name, NEW, "It")
        assert caught.value.why == why
    with pytest.raises(FileExistsError):
        files.deliver(tmp_path / "old", NEW, "It", new=True)
    assert (tmp_path / "old").read_bytes() == OLD


def test_a_failure_of_what_writes_leaves_nothing(tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), files.whole(tmp_path / "file") as stream:
        stream.write(NEW)
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


WRITE = """
import sys
from pathlib import Path
from envkit.system import files, owners, umask
print("before")
files.write(Path(sys.argv[1]), b"it\\n")
print("after")
"""


def bash(script: str, *words: Path) -> str:
    """Return what a script prints in which "write PATH" is a process that writes to a path between two lines."""
    function = 'write() { "$python" -c "$code" "$@"; }\n'
    env = {**os.environ, "python": sys.executable, "code": WRITE}
    argv = ["bash", "-ec", function + script, "bash", *map(str, words)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.integration
@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_is_written_to_in_its_place(path: str, tmp_path: Path) -> None:
    own, got = tmp_path / "own", tmp_path / "got"
    own.symlink_to(path)
    for name in (path, str(own)):
        assert bash(f"write {name}") == "before\nit\nafter\n"
        assert bash(f'write {name} > "$1"', got) == ""
        assert got.read_text() == "before\nit\nafter\n"
        assert bash(f'write {name} >> "$1"', got) == ""
        assert got.read_text() == 2 * "before\nit\nafter\n"
    assert Path("/dev/stdout").is_symlink()
    assert own.is_symlink()


def test_a_pipe_that_nobody_reads_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "READER_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotWritable) as told:
        files.deliver(tmp_path / "pipe", NEW, "It")
    assert told.value.why == "It is a pipe, and nothing reads from it."


def exchanged_at(step: int, exchange: Callable[[], None], write: Callable[[], None]) -> bool:
    """Write, and exchange something before a certain line of the code is run; say whether it has so many lines."""
    count = 0

    def line(frame: FrameType, event: str, _word: object) -> "TraceFunction | None":
        nonlocal count
        if frame.f_code.co_filename != files.__file__:
            return None
        if event == "line":
            count += 1
            if count == step:
                exchange()
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        write()
    except OSError:
        pass
    finally:
        sys.settrace(before)
    return count >= step


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link to another user")
@pytest.mark.parametrize("what", ["folder", "folder above", "file", "no file", "pipe"])
def test_what_is_exchanged_at_any_moment_is_not_written_through(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each line of the code another user puts a link in the place of one part of the path."""
    monkeypatch.setattr(files, "READER_S", 0)
    step, has_more = 0, True
    while has_more:
        step += 1
        around = tmp_path / str(step)
        place, own = around / "above/folder", around / "own"
        for folder in (place, own / "folder"):
            folder.mkdir(parents=True)
        for thesis in (own / "report", own / "folder/report"):
            thesis.write_text("years of work")
        path = place / "report"
        if what == "pipe":
            os.mkfifo(path)
        elif what != "no file":
            path.write_text("old")
        at = {"folder": place, "folder above": place.parent}.get(what, path)
        to = own / "report" if at == path else own
        for folder in (around, place.parent, place):
            folder.chmod(0o777)
            os.chown(folder, 12345, 12345)

        def exchange(at: Path = at, to: Path = to) -> None:
            if os.path.lexists(at):
                at.rename(at.with_name("away"))
            at.symlink_to(to)
            os.lchown(at, 12345, 12345)

        has_more = exchanged_at(step, exchange, lambda path=path: files.write(path, NEW))  # type: ignore[misc]
        for thesis in (own / "report", own / "folder/report"):
            assert thesis.read_text() == "years of work", f"line {step}"
        assert sum(1 for _ in own.rglob("*")) == 3, f"line {step}"
    assert step > 50


def test_the_mode_of_what_takes_the_place_meanwhile_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to a program that is set-uid, put in the place of the older file while the new one is written."""
    program, target = tmp_path / "program", tmp_path / "report"
    program.touch()
    program.chmod(0o4777)
    target.write_text("old")
    target.chmod(0o640)
    real = files.keep_mode

    def late(stream: BinaryIO, folder: int, name: str) -> None:
        target.unlink()
        target.symlink_to(program)
        real(stream, folder, name)

    monkeypatch.setattr(files, "keep_mode", late)
    files.write(target, NEW)
    assert target.read_bytes() == NEW and not target.is_symlink()
    assert not stat.S_IMODE(target.stat().st_mode) & 0o7022 and program.read_bytes() == b""
    monkeypatch.undo()
    target.chmod(0o4755)
    files.write(target, NEW)
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link to another user")
def test_a_link_that_another_user_has_planted_is_not_followed(tmp_path: Path) -> None:
    thesis, open_to_all = tmp_path / "thesis", tmp_path / "open"
    thesis.write_text("years of work")
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    (open_to_all / "report").symlink_to(thesis)
    os.lchown(open_to_all / "report", 12345, 12345)
    (tmp_path / "own").symlink_to(open_to_all / "report")
    for path in (open_to_all / "report", tmp_path / "own"):
        with pytest.raises(NotWritable) as told:
            files.deliver(path, NEW, "It")
        assert told.value.why == "It is a link that another user has put there."
    assert thesis.read_text() == "years of work"
    os.lchown(open_to_all / "report", os.geteuid(), -1)
    files.write(open_to_all / "report", NEW)
    assert thesis.read_bytes() == NEW


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link to another user")
def test_nor_one_on_the_way(tmp_path: Path) -> None:
    """Root follows none but its own, whoever's folder it is in."""
    (tmp_path / "home").mkdir()
    (tmp_path / "open").mkdir()
    for mode in (0o1777, 0o777, 0o775, 0o755):
        (tmp_path / "open").chmod(mode)
        link = tmp_path / "open" / f"{mode}"
        link.symlink_to("../home")
        files.deliver(link / "report", NEW, "It")
        (tmp_path / "home" / "report").unlink()
        os.lchown(link, 12345, 12345)
        os.chown(tmp_path / "open", 12345, -1)
        with pytest.raises(NotWritable, match="could not be written"):
            files.deliver(link / "report", NEW, "It")
        assert not [*(tmp_path / "home").iterdir()]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link to another user")
def test_nor_one_to_what_this_process_has_open(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with (tmp_path / "thesis").open("wb") as thesis:
        (tmp_path / "report").symlink_to(f"/proc/self/fd/{thesis.fileno()}")
        os.lchown(tmp_path / "report", 12345, 12345)
        with pytest.raises(NotWritable, match="could not be written") as told:
            files.deliver(tmp_path / "report", NEW, "It")
    assert told.value.why == "It is a link that another user has put there."
    assert (tmp_path / "thesis").read_bytes() == b""


@pytest.mark.parametrize("mode", [0o1777, 0o755])
def test_in_a_container_that_does_not_map_every_user(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link of nobody may be anybody's where all may make some, and is the system's where the folder is nobody's."""
    monkeypatch.setattr(owners, "is_in_user_namespace", lambda: True)
    for user in (0, 1000):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        is_open = mode == 0o1777
        assert files.is_followed(owners.NOBODY, owners.NOBODY, is_open) is not is_open
        assert not files.is_followed(owners.NOBODY, 12345, is_open)


NAMESPACES = [["unshare", "--user", "--map-current-user"], ["unshare", "--user", "--map-root-user"], []]


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give links to other users and become one")
@pytest.mark.parametrize("namespace", NAMESPACES, ids=["mapped", "root", "none"])
def test_in_a_real_namespace_of_another_user(namespace: list[str], tmp_path: Path) -> None:
    """As in a container that maps this user alone: a link of a third one in a folder like /tmp is not followed."""
    for made in (tmp_path, *tmp_path.parents):
        if made.stat().st_uid == os.geteuid() and str(made).startswith(tempfile.gettempdir() + "/"):
            made.chmod(0o755)
    shared, system, own = tmp_path / "shared", tmp_path / "system", tmp_path / "own"
    for made in (shared, system, own):
        made.mkdir()
    shared.chmod(0o1777)
    os.chown(own, 12345, 12345)
    for name, link in (("report", shared / "report"), ("way", system / "way")):
        link.symlink_to(own / name if name == "report" else own)
    os.lchown(shared / "report", 54321, 54321)
    (tmp_path / "code.py").write_text(
        "import sys\nfrom pathlib import Path\nfrom envkit.system import files\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        files.write(Path(path), b'it')\n        print('written')\n"
        "    except OSError as error:\n        print(error.strerror)\n"
    )
    sources = str(Path(files.__file__).parents[2])
    packages = os.pathsep.join([sources, *(one for one in sys.path if one.endswith("site-packages"))])
    paths = [str(shared / "report"), str(system / "way" / "file"), "/dev/null"]
    argv = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", *namespace]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": packages, "PYTHONDONTWRITEBYTECODE": "1"}
    python = next((one for one in ("/usr/bin/python3",) if Path(one).exists()), sys.executable)
    done = subprocess.run([*argv, python, str(tmp_path / "code.py"), *paths], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["It is a link that another user has put there", "written", "written"], done
    assert (own / "file").read_text() == "it" and not (own / "report").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to a group")
def test_no_other_group_gets_the_rights_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report"
    target.touch()
    os.chown(target, os.geteuid(), 12345)
    target.chmod(0o640)

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refused)
    files.write(target, NEW)
    assert (target.stat().st_gid, target.stat().st_mode & 0o777) == (os.getegid(), 0o600)


def test_an_access_list_is_kept(tmp_path: Path) -> None:
    """The bits of the group are its mask: as those of a group they would be the rights of that."""
    target = tmp_path / "report"
    target.touch()
    target.chmod(0o600)
    entries = [(1, 6, NOBODYS), (2, 6, 12345), (4, 0, NOBODYS), (16, 6, NOBODYS), (32, 0, NOBODYS)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(target, owners.ACL, acl)
    except OSError as error:
        pytest.skip(f"this file system has no ACLs: {error}")
    files.write(target, NEW)
    assert os.getxattr(target, owners.ACL) == acl and target.stat().st_mode & 0o777 == 0o660


def test_a_folder_that_cannot_be_reached_from_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path begins where this process is; and one by a number of its own, at what that is."""
    (tmp_path / "closed/in").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "closed/in")
    (tmp_path / "closed").rename(tmp_path / "moved")
    (tmp_path / "closed").write_text("a file")
    files.write(Path("report"), NEW)
    files.write(Path("../above"), NEW)
    assert (tmp_path / "moved/in/report").read_bytes() == (tmp_path / "moved/above").read_bytes() == NEW
    number = os.open(tmp_path / "moved", os.O_RDONLY)
    try:
        files.write(Path(f"/dev/fd/{number}/in/other"), NEW)
    finally:
        os.close(number)
    assert (tmp_path / "moved/in/other").read_bytes() == NEW


def test_what_another_process_has_open_and_is_no_file_more(tmp_path: Path) -> None:
    with (tmp_path / "gone").open("w") as stream:
        (tmp_path / "gone").unlink()
        with subprocess.Popen(["sleep", "60"], stdout=stream) as process:
            with pytest.raises(NotWritable, match="could not be written"):
                files.deliver(Path(f"/proc/{process.pid}/fd/1"), NEW, "It")
            process.kill()
    assert not [*tmp_path.iterdir()]


def test_links_that_go_round(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(NotWritable) as told:
        files.deliver(tmp_path / "round" / "report", NEW, "It")
    assert told.value.why == "Too many levels of symbolic links."
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a/../a/.")
    (tmp_path / "c").symlink_to(tmp_path / "b")
    files.deliver(tmp_path / "c" / ".." / "a" / "report", NEW, "It")
    assert (tmp_path / "a" / "report").read_bytes() == NEW


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link to another user")
def test_nor_one_in_the_folder_of_a_group(tmp_path: Path) -> None:
    """Be it to nothing: a start-up file of a shell would be made."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project").chmod(0o2775)
    (tmp_path / "project/job.sh").symlink_to(tmp_path / ".bash_login")
    os.lchown(tmp_path / "project/job.sh", 12345, 12345)
    with pytest.raises(NotWritable) as told:
        files.deliver(tmp_path / "project/job.sh", NEW, "It")
    assert told.value.why == "It is a link that another user has put there."
    assert not (tmp_path / ".bash_login").exists()
    files.deliver(tmp_path / "project/job.sh", NEW, "It", own=True)
    assert (tmp_path / "project/job.sh").read_bytes() == NEW
    assert not (tmp_path / ".bash_login").exists()


def test_nobody_else_may_write_to_what_a_user_asked_for(tmp_path: Path) -> None:
    with umask.set_to(0):
        files.deliver(tmp_path / "report", NEW, "It")
        files.write(tmp_path / "kept", NEW)
    assert stat.S_IMODE((tmp_path / "report").stat().st_mode) == 0o644
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o664


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")
@pytest.mark.parametrize("mode", [0o1777, 0o2775, 0o777], ids=oct)
def test_what_another_user_has_planted_is_not_theirs_afterwards(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    target = tmp_path / "report"
    target.touch()
    target.chmod(0o666)
    os.chown(target, 12345, 12345)
    files.write(target, NEW)
    state = target.stat()
    assert state.st_uid == os.geteuid() and not state.st_mode & 0o022


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")
def test_a_file_in_the_home_of_another_user_stays_theirs(tmp_path: Path) -> None:
    target = tmp_path / "report"
    target.touch()
    target.chmod(0o640)
    for path in (tmp_path, target):
        os.chown(path, 12345, 12345)
    files.write(target, NEW)
    assert (target.stat().st_uid, stat.S_IMODE(target.stat().st_mode)) == (12345, 0o640)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a pipe to another user")
def test_no_pipe_and_no_device_of_another_user_is_written_to(tmp_path: Path) -> None:
    pipe, device = tmp_path / "pipe", tmp_path / "device"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    try:
        for path, what in ((pipe, "a pipe"), (device, "a device")):
            os.chown(path, 12345, 12345)
            with pytest.raises(NotWritable) as told:
                files.deliver(path, NEW, "It")
            assert told.value.why == f"It is {what} of another user."
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)


def test_devices_and_pipes_are_written_to(tmp_path: Path) -> None:
    assert bash("write /dev/null") == "before\nafter\n"
    assert Path("/dev/null").is_char_device()
    assert bash("{ write >(cat >&3) >/dev/null; } 3>&1 | cat") == "it\n"
    os.mkfifo(tmp_path / "pipe")
    assert bash('cat "$1" & write "$1" > /dev/null; wait', tmp_path / "pipe") == "it\n"
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(NotWritable, match=r"^It could not be written to /dev/full\.$"):
        files.deliver(Path("/dev/full"), NEW, "It")


def reader(name: str, path: Path) -> object:
    """Have something read a file that a user or a job names; return what it says."""
    from envkit.apptainer import definition_file, dockerfile
    from envkit.diagnose import source
    from envkit.launch import launcher
    from envkit.verify import settings

    if name == "definition":
        return definition_file.read(path)
    if name == "dockerfile":
        return dockerfile.converted(path)
    if name == "dockerignore":
        (path.parent / "Dockerfile").write_text("FROM x@sha256:" + "0" * 64 + "\n")
        return dockerfile.Context(path.parent / "Dockerfile").ignored
    if name == "hosts":
        wanted = launcher.LaunchRequest(ranks=2, nodes=None, hosts=(), launcher="auto")
        return launcher.placed(wanted, {"PBS_JOBID": "1", "PBS_NODEFILE": str(path)})
    return settings.text(path) if name == "settings" else source.is_packed(path)


@pytest.mark.parametrize("name", ["definition", "dockerfile", "dockerignore", "hosts", "settings", "log"])
@pytest.mark.parametrize("is_pipe", [True, False])
def test_what_is_named_is_not_waited_for_and_fills_no_memory(name: str, is_pipe: bool, tmp_path: Path) -> None:
    """A pipe that nobody writes to, and a file without an end, in the place of what is read."""
    path = tmp_path / ".dockerignore" if name == "dockerignore" else tmp_path / "it"
    if is_pipe:
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, 1 << 40)

    def late(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    try:
        assert not reader(name, path) or name == "settings"
    except (OSError, EnvkitError):
        pass
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("word", "path"), [("~/x", "/home/me/x"), ("~", "/home/me"), ("./~x", "~x"), ("./~/x", "~/x"), ("a/~", "a/~")]
)
def test_a_home_is_meant_by_what_begins_so(word: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert files.at_home(word) == Path(path)
