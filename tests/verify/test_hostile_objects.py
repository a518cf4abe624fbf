"""Compiled files that somebody has made to break what reads them: pipes, tables without an end, headers that lie."""

import os
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest

from envkit.binary.build_flags import read_extensions
from envkit.binary.elf import Elf, ElfError
from envkit.inside import packages
from envkit.inside.probe.shared_object import shared_object
from envkit.verify import explain

LOAD, DYNAMIC = 1, 2
HEADER = b"\x7fELF\x02\x01" + bytes(10)


def elf(segments: list[tuple[int, int, int]], *, entry: int = 56, body: bytes = b"") -> bytes:
    """An ELF file of segments, of each kind, offset and length (bytes); its headers say they are ``entry`` long."""
    head = HEADER + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, entry, len(segments), 0, 0, 0)
    rows = (struct.pack("<IIQQQQQQ", kind, 4, at, at, at, size, size, 8) for kind, at, size in segments)
    return head + b"".join(rows) + body


def dynamic(*entries: tuple[int, int]) -> bytes:
    return b"".join(struct.pack("<qQ", *entry) for entry in entries)


def without_end(count: int, entries: int) -> bytes:
    """A file with so many headers, each of which names the same table of so many entries."""
    body = dynamic(*[(21, 0)] * entries)
    return elf([(DYNAMIC, 64 + 56 * count, len(body))] * count, body=body)


HEADERS_WITHOUT_END = without_end(65_000, 60_000)
BROKEN = {
    "no table of names": elf([(DYNAMIC, 120, 32)], body=dynamic((1, 1), (1, 1))),
    "names in no segment": elf([(DYNAMIC, 120, 32)], body=dynamic((5, 4096), (1, 1))),
    "short headers": elf([(DYNAMIC, 120, 32)], entry=20, body=dynamic((5, 64), (1, 1))),
    "none": elf([]),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_damaged_is_said_to_be(what: str, tmp_path: Path) -> None:
    path = tmp_path / "libmpi.so.40"
    path.write_bytes(BROKEN[what])
    with pytest.raises(ValueError, match=r"\w"):
        shared_object(str(path))
    with suppress(ElfError):
        Elf.open(path).needed  # noqa: B018
    assert [*explain.cut_libraries([str(path)], {})] == []


@pytest.mark.parametrize("name", ["pipe", "device", "folder"])
def test_what_is_no_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    path = tmp_path / "libmpi.so.40"
    if name == "pipe":
        os.mkfifo(path)
    elif name == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises((ValueError, OSError)):
        shared_object(str(path))
    with pytest.raises((ElfError, OSError)):
        Elf.open(path)
    env = {"LD_PRELOAD": str(path), "LD_LIBRARY_PATH": str(tmp_path)}
    assert [*explain.interposed(env), *explain.cut_libraries([], env)] == []
    if name != "folder":
        assert packages.wanted(path) > path.stat().st_size
    (tmp_path / "horovod" / "torch").mkdir(parents=True)
    path.rename(tmp_path / "horovod" / "torch" / "mpi_lib_v2.so")
    read_extensions(tmp_path / "horovod", [], [], suffix=".so")


def test_many_tables_are_not_read_one_after_the_other(tmp_path: Path) -> None:
    """Each of 65,000 headers names the same table of 60,000 entries: of one as long as the file allows one is read."""
    path = tmp_path / "libmpi.so.40"
    path.write_bytes(HEADERS_WITHOUT_END)
    began = time.thread_time()
    with suppress(ElfError):
        Elf.open(path)
    with suppress(ValueError):
        shared_object(str(path))
    assert time.thread_time() - began < 5
