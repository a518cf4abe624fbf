"""Compiles the Python of a module, run as a program: what comes out depends on all else that a process holds.

A string that something else in the process has, too, is marked as one that may be referred to. So the same sources give
the same bytes only in a process that has done nothing else.
"""

import importlib.util
import marshal
import os
import stat
import struct
import sys
import warnings

UNCOMPILED = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)
CACHE = "__pycache__"
LONGEST = 255  # bytes of a name
MOST = 64_000_000  # bytes of a source


def main(root: str, module: str, target: str) -> None:
    """Compile the Python of a module in a tree; put it below a folder, which may be the tree itself.

    It names its source by the path in the tree, which Python puts right as it loads it. What cannot be compiled is left
    out. Raises OSError.
    """
    warnings.simplefilter("ignore")
    for name in sources(root, module):
        path = os.path.join(root, name)  # noqa: PTH118
        with open(path, "rb") as stream:  # noqa: PTH123
            state, source = os.fstat(stream.fileno()), stream.read()
        try:
            code = marshal.dumps(compile(source, name, "exec", dont_inherit=True, optimize=0))
        except UNCOMPILED:
            continue
        place = os.path.join(target, compiled_name(name))  # noqa: PTH118
        os.makedirs(os.path.dirname(place), exist_ok=True)  # noqa: PTH103, PTH120
        facts = (0, int(state.st_mtime) & 0xFFFFFFFF, len(source) & 0xFFFFFFFF)
        with open(place, "wb") as stream:  # noqa: PTH123
            stream.write(importlib.util.MAGIC_NUMBER + struct.pack("<III", *facts) + code)


def sources(root: str, module: str) -> "list[str]":
    """Return the paths in a tree of the Python of a module, as far as it can be imported, in order."""
    found = []
    for folder, _, files in os.walk(os.path.join(root, "software", module, "lib")):  # noqa: PTH118
        for path in (f"{folder}/{file}" for file in files if compiled_name(file)):
            state = os.lstat(path)
            if stat.S_ISREG(state.st_mode) and state.st_size <= MOST:
                found.append(path[len(f"{root}/") :])
    return sorted(found)


def compiled_name(source: str) -> str:
    """Return where Python keeps what it compiles of a source; nothing of what it cannot import or name so."""
    folder, slash, file = source.rpartition("/")
    stem, dot, kind = file.partition(".")
    name = f"{stem}.{sys.implementation.cache_tag}.pyc"
    is_source = stem and dot + kind == ".py" and len(os.fsencode(name)) <= LONGEST
    return f"{folder}{slash}{CACHE}/{name}" if is_source else ""


if __name__ == "__main__":
    main(*sys.argv[1:])
