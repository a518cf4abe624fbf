"""What commands write is there whole or not at all, on disks as full as can be; what is no file is written to."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from envkit.errors import NotWritable
from envkit.system import files

from .small_disk import PAGE, leave, small_disk

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
from envkit.system import files
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


def test_devices_and_pipes_are_written_to(tmp_path: Path) -> None:
    assert bash("write /dev/null") == "before\nafter\n"
    assert Path("/dev/null").is_char_device()
    assert bash("{ write >(cat >&3) >/dev/null; } 3>&1 | cat") == "it\n"
    os.mkfifo(tmp_path / "pipe")
    assert bash('cat "$1" & write "$1" > /dev/null; wait', tmp_path / "pipe") == "it\n"
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(NotWritable, match=r"^It could not be written to /dev/full\.$"):
        files.deliver(Path("/dev/full"), NEW, "It")
