"""Reads what a compiled extension says of itself, without loading it: is the file whole, and what does it need?"""

import os
import struct
from typing import Any, Dict, List, Tuple

LOAD, DYNAMIC = 1, 2
NEEDED, STRTAB, RPATH, RUNPATH = 1, 5, 15, 29
PATHS_SHOWN = 20
MAGIC = b"\x7fELF\x02\x01"


def shared_object(path: str) -> Dict[str, Any]:
    """Size in bytes, the size that its headers ask for, the libraries it needs and the folders it names for them.

    For 64-bit little-endian ELF files. `needed` is null where the file is cut before it tells.
    """
    size = os.stat(path).st_size
    with open(path, "rb") as stream:
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
        segments = [struct.unpack_from("<IIQQQQ", raw, at) for at in range(0, len(raw) - entry + 1, entry)]
        wanted = max([wanted] + [offset + length for _, _, offset, _, _, length in segments])
        needed, places = needs(stream, segments) if size >= wanted else (None, [])
    return {"size": size, "wanted": wanted, "needed": needed, "folders": places[:PATHS_SHOWN]}


def needs(stream: Any, segments: List[Tuple[int, ...]]) -> Tuple[List[str], List[str]]:
    """The names in DT_NEEDED, and the folders in DT_RPATH or DT_RUNPATH."""
    entries = []  # type: List[Tuple[int, int]]
    for kind, _, offset, _, _, length in segments:
        if kind == DYNAMIC:
            stream.seek(offset)
            entries += struct.iter_unpack("<qQ", stream.read(length // 16 * 16))
    address = dict(entries)[STRTAB]
    shift = next(o - a for kind, _, o, a, _, length in segments if kind == LOAD and a <= address < a + length)

    def string(offset: int) -> str:
        stream.seek(address + shift + offset)
        return str(stream.read(4096).split(b"\0")[0].decode(errors="replace"))

    needed = [string(value) for tag, value in entries if tag == NEEDED]
    joined = [string(value) for tag, value in entries if tag in (RPATH, RUNPATH)]
    return needed, [folder for paths in joined for folder in paths.split(":") if folder]
