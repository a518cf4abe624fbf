"""Reads what a compiled extension says of itself, without loading it: is the file whole, and what does it need?"""

import os
import stat
import struct
from typing import Any, Dict, List, Tuple

LOAD, DYNAMIC = 1, 2
NEEDED, STRTAB, RPATH, RUNPATH = 1, 5, 15, 29
PATHS_SHOWN = 20
MAGIC = b"\x7fELF\x02\x01"
SEGMENT = struct.Struct("<IIQQQQ")
ENTRIES = 65536  # of the dynamic segment


def shared_object(path: str) -> Dict[str, Any]:
    """Size in bytes, the size that its headers ask for, the libraries it needs and the folders it names for them.

    For 64-bit little-endian ELF files. `needed` is null where the file is cut before it tells. Raises OSError, and
    ValueError for what is none, or is damaged.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
        state = os.fstat(stream.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise ValueError("not a plain file")
        size = state.st_size
        head = stream.read(64)
        if not MAGIC.startswith(head[:6]):  # such as the text by which a linker finds the library
            raise ValueError("not a 64-bit little-endian ELF file")
        if len(head) < 64:
            return {"size": size, "wanted": 64, "needed": None, "folders": []}
        table, sections = struct.unpack_from("<QQ", head, 32)
        entry, count, section, number = struct.unpack_from("<HHHH", head, 54)
        wanted = max(table + entry * count, sections + section * number)
        stream.seek(table)
        raw = stream.read(entry * count)
        if entry < SEGMENT.size:
            raise ValueError("its headers are too short")
        segments = [SEGMENT.unpack_from(raw, at) for at in range(0, len(raw) - entry + 1, entry)]
        wanted = max([wanted] + [offset + length for _, _, offset, _, _, length in segments])
        needed, places = needs(stream, segments) if size >= wanted else (None, [])
    return {"size": size, "wanted": wanted, "needed": needed, "folders": places[:PATHS_SHOWN]}


def needs(stream: Any, segments: List[Tuple[int, ...]]) -> Tuple[List[str], List[str]]:
    """The names in DT_NEEDED, and the folders in DT_RPATH or DT_RUNPATH."""
    entries = []  # type: List[Tuple[int, int]]
    for kind, _, offset, _, _, length in segments:
        if kind == DYNAMIC and not entries:
            stream.seek(offset)
            entries += struct.iter_unpack("<qQ", stream.read(min(length // 16, ENTRIES) * 16))
    address = dict(entries).get(STRTAB, -1)
    shifts = [o - a for kind, _, o, a, _, length in segments if kind == LOAD and a <= address < a + length]
    if not shifts:
        raise ValueError("it names no table of names")

    def string(offset: int) -> str:
        stream.seek(address + shifts[0] + offset)
        return str(stream.read(4096).split(b"\0")[0].decode(errors="replace"))

    needed = [string(value) for tag, value in entries if tag == NEEDED]
    joined = [string(value) for tag, value in entries if tag in (RPATH, RUNPATH)]
    return needed, [folder for paths in joined for folder in paths.split(":") if folder]
