"""Compiles Python sources, run as a program: what comes out depends on all else that a process holds.

A string that something else in the process has, too, is marked as one that may be referred to. So the same sources give
the same bytes only in a process that has done nothing else.
"""

import importlib.util
import marshal
import os
import struct
import sys
import warnings
from pathlib import Path

UNCOMPILED = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)


def main(root: str, listed: str, target: str) -> None:
    """Compile the sources below a folder that a file lists, each with where Python keeps it, all ended by a zero byte.

    What can be compiled is written to a file as pairs of that place and its content (``marshal``). Raises OSError.
    """
    warnings.simplefilter("ignore")
    names = Path(listed).read_bytes().split(b"\0")[:-1]
    with Path(target).open("wb") as stream:
        for name, place in zip(names[::2], names[1::2], strict=True):
            source = Path(root, os.fsdecode(name)).read_bytes()
            try:
                code = marshal.dumps(compile(source, os.fsdecode(name), "exec", dont_inherit=True, optimize=0))
            except UNCOMPILED:
                continue
            header = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, 0, len(source) & 0xFFFFFFFF)
            marshal.dump((os.fsdecode(place), header + code), stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
