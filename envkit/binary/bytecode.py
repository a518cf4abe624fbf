"""Compiled Python (.pyc): whether Python takes it for its source, and whether it can be read to its end.

Nothing of it is executed, nor made into objects: a file that was cut off or overwritten may say anything.
"""

import os
import struct
from pathlib import Path

HEADER, TIME = 16, 8  # bytes, and where the time of the source is in them
SINCE_3_8, SINCE_3_11, UNKNOWN = 3400, 3450, 3700  # magic numbers: how code is laid out
EMPTY, LONG, SHORT, MANY, FEW = b"0NFTS.", b"stuaA", b"zZf", b"([<>", b")"
FIXED = {ord("i"): 4, ord("I"): 8, ord("g"): 8, ord("y"): 16, ord("r"): 4}


def is_taken(pyc: Path, header: bytes) -> bool:
    """Say whether Python takes a compiled file by its header; for another it compiles the source again."""
    if len(header) < HEADER or header[2:4] != b"\r\n":
        return False
    flags, changed, size = struct.unpack("<III", header[4:HEADER])
    if flags:
        return True
    try:
        state = os.stat(source_of(str(pyc)))  # noqa: PTH116
    except OSError:
        return False
    return (int(state.st_mtime) & 0xFFFFFFFF, state.st_size & 0xFFFFFFFF) == (changed, size)


def source_of(pyc: str) -> str:
    """Return the path of the source that a file of ``__pycache__`` was compiled from."""
    folder, name = pyc.rsplit("/", 1)
    return f"{folder.rpartition('/')[0]}/{name.partition('.')[0]}.py"


def timed(pyc: bytes, changed: int) -> bytes:
    """Return a compiled file with another time of its source (s)."""
    return pyc[:TIME] + struct.pack("<I", changed & 0xFFFFFFFF) + pyc[TIME + 4 :]


def is_whole(data: bytes) -> bool:
    """Say whether a compiled file can be read to its end, as the Python that wrote it would."""
    magic = int.from_bytes(data[:2], "little")
    if not SINCE_3_8 <= magic < UNKNOWN:
        return len(data) > HEADER
    try:
        return data[HEADER] & 0x7F == ord("c") and skimmed(data, HEADER, is_new=magic >= SINCE_3_11)
    except (IndexError, struct.error):
        return False


def skimmed(data: bytes, at: int, *, is_new: bool) -> bool:
    """Walk over one object as marshal writes it; say whether it ends within the data.

    ``todo`` holds what is still to be read: so many objects where it is positive, so many bytes where it is negative.
    """
    code = (2 if is_new else 1, -4, 8, -20) if is_new else (1, -4, 8, -24)
    todo, end = [1], len(data)
    while todo and at <= end:
        if todo[-1] <= 0:
            at -= todo.pop()
            continue
        todo[-1] -= 1
        kind = data[at] & 0x7F
        at += 1
        if kind == ord("c"):
            todo += code
        elif kind in FIXED:
            at += FIXED[kind]
        elif kind in SHORT:
            at += 1 + data[at]
        elif kind in FEW:
            todo.append(data[at])
            at += 1
        elif kind in LONG or kind in MANY or kind == ord("l"):
            (count,) = struct.unpack_from("<i", data, at)
            at += 4
            if kind == ord("l"):
                at += 2 * abs(count)
            elif not 0 <= count <= end - at:
                return False
            elif kind in LONG:
                at += count
            else:
                todo.append(count)
        elif kind == ord(":"):
            todo.append(3)
        elif kind not in EMPTY:
            return False
    return not todo and at <= end
