"""The prefix in files, and what stands there instead in an object that any prefix can take.

Texts and links have a mark in its place, which installing replaces. A script that names its Python in a line which the
kernel would cut is written as pip does then: by way of the shell. A search path of a library (RUNPATH) begins where
the library lies ($ORIGIN), and so fits anywhere. Nothing else that is compiled may hold the prefix.
"""

import os
import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path

from envkit.binary.elf import Elf, ElfError
from envkit.cache.manifest import PREFIX, PackedFile
from envkit.errors import NotRelocatable

ORIGIN = "$ORIGIN"
LIST = ".dist-info/RECORD"  # of the files of a Python package, with their digests
LONGEST = 127  # bytes of the first line of a script, as pip has it; some kernels take more
BY_SHELL = re.compile(rb"""#!/bin/sh\n'''exec' (\S+) "\$0" "\$@"\n' '''\n""")  # what pip writes where it is longer


def spellings(prefix: Path) -> tuple[bytes, ...]:
    """Return the ways in which a prefix is written, the longest first: as it was named, and without links."""
    return tuple(sorted({os.fsencode(prefix), os.fsencode(prefix.resolve())}, key=len, reverse=True))


def marked(content: bytes, path: Path, name: str, spelled: tuple[bytes, ...]) -> tuple[bytes, int]:
    """Return what a file is in an object, and how often the mark stands in it. Raises NotRelocatable."""
    if not any(spelling in content for spelling in spelled):
        if PREFIX in content:
            raise refused(name, f"It has {PREFIX.decode()} in it, which stands for the prefix in an object.")
        return content, 0
    if content.startswith(b"\x7fELF"):
        return from_origin(content, path, name, spelled), 0
    if b"\0" in content:
        raise refused(name, "It is no text and no library, and the prefix stands in it.")
    for prefix in spelled:
        content = content.replace(prefix, PREFIX)
    if (script := BY_SHELL.match(content)) and script[1].startswith(PREFIX):
        content = b"#!" + script[1] + b"\n" + content[script.end() :]
    return content, content.count(PREFIX)


def put_in(content: bytes, prefix: Path) -> bytes:
    """Return a file with a prefix in the place of the mark."""
    fitted = content.replace(PREFIX, os.fsencode(prefix))
    first, end, rest = fitted.partition(b"\n")
    if content.startswith(b"#!" + PREFIX) and len(first + end) > LONGEST:
        return b"#!/bin/sh\n'''exec' " + first[2:] + b" \"$0\" \"$@\"\n' '''\n" + rest
    return fitted


def relisted(content: bytes, site: str, changed: Mapping[str, PackedFile]) -> bytes:
    """Return the list of a Python package below a folder with the digests and sizes that some files have now.

    Raises ValueError for what is no UTF-8.
    """
    lines = list[str]()
    for line in content.decode().splitlines(keepends=True):
        written, _, rest = line.rpartition(",sha256=")
        name = written[1:-1].replace('""', '"') if written.startswith('"') else written  # as CSV has one with a comma
        new = changed.get(os.path.normpath(f"{site}/{name}")) if rest else None
        if new is not None and new.sha256:
            digest = urlsafe_b64encode(bytes.fromhex(new.sha256)).rstrip(b"=").decode()
            line = f"{written},sha256={digest},{new.size}{line[len(line.rstrip()) :]}"
        lines.append(line)
    return "".join(lines).encode()


def from_origin(content: bytes, path: Path, name: str, spelled: tuple[bytes, ...]) -> bytes:
    """Return a library whose search path begins where it lies. Raises NotRelocatable."""
    try:
        elf = Elf.open(path)
        written = [*elf.search_paths]
    except ElfError as error:
        raise refused(name, f"The prefix stands in it, and it cannot be read: {error}.") from error
    for text in written:
        new = ":".join(relative(folder, path, spelled) for folder in text.split(":"))
        old, rewritten = text.encode(), padded(new, len(text.encode())).encode()
        if content.count(old) != 1:
            raise refused(name, f"Its search path stands in it {content.count(old)} times.")
        if len(rewritten) > len(old):
            why = f"Its search path {text!r} is too short to be rewritten as {new!r}."
            raise refused(name, why, "Install into a prefix with a longer path, and push from there.")
        content = content.replace(old, rewritten)
    if any(spelling in content for spelling in spelled):
        raise refused(name, "The prefix stands in it elsewhere than in its search path.")
    return content


def relative(folder: str, library: Path, spelled: tuple[bytes, ...]) -> str:
    """Return a folder of a search path from where the library lies, if it is below the prefix."""
    below = next((spelling for spelling in spelled if os.fsencode(folder).startswith(spelling + b"/")), None)
    if below is None:
        return folder
    prefix = os.fsdecode(next(spelling for spelling in spelled if os.fsencode(library).startswith(spelling + b"/")))
    return f"{ORIGIN}/{os.path.relpath(folder[len(os.fsdecode(below)) :], str(library.parent)[len(prefix) :])}"


def padded(text: str, size: int) -> str:
    """Return a search path as long as another one was, so that no text behind it moves: with more slashes."""
    head, mark, rest = text.partition(f"{ORIGIN}/")
    return f"{head}{ORIGIN}{'/' * (size - len(text))}/{rest}" if mark else text


def refused(name: str, why: str, fix: str = "") -> NotRelocatable:
    """Say that a module cannot be pushed for one of its files."""
    fix = fix or "Build it without what puts the path of the prefix into it, and push again."
    return NotRelocatable(what=f"{name} cannot be moved to another prefix.", why=why, fix=f"Nothing was pushed. {fix}")
