"""What of a module is from wheels, which its recipe pins by SHA-256: its object does without that.

Whoever takes the object has the same wheels. What pip has compiled of their Python is in the object, without what it
holds of the place: the path of its source, which Python puts right as it loads it, and the time of that.
"""

import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from envkit.binary import bytecode
from envkit.cache.manifest import WheelFiles
from envkit.environments import manifest as lists
from envkit.environments.prefix import Tree, listed
from envkit.system import files

SITE = "/site-packages/"
TIME = slice(8, 12)  # of the source, in the header of what is compiled from it
FILLER = b"@"
BROKEN = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError)


class Named(Protocol):
    """A source, in a plan or in a lock."""

    @property
    def filename(self) -> str:
        """Its name."""


def is_all(sources: Sequence[Named]) -> bool:
    """Say whether a module is made of wheels alone."""
    return bool(sources) and all(source.filename.endswith(".whl") for source in sources)


def described(wheels: Mapping[str, Path], tree: Tree, names: Collection[str]) -> tuple[dict[str, WheelFiles], set[str]]:
    """Return what is from each wheel of what is in a tree, by the SHA-256 of the wheel, and the names of all that.

    Raises OSError, BadZipFile.
    """
    folders = sorted({name[: name.index(SITE) + len(SITE) - 1] for name in names if SITE in name})
    found, claimed = dict[str, WheelFiles](), set[str]()
    for sha256, path in wheels.items():
        with zipfile.ZipFile(path) as wheel:
            members = [member for member in wheel.infolist() if not member.is_dir()]
        inside = {member.filename for member in members}
        for folder in (one for one in folders if any(f"{one}/{name}" in names for name in inside)):
            own = {
                member.filename
                for member in members
                if (name := f"{folder}/{member.filename}") in names
                and name not in claimed
                and is_as_packed(tree.root / name, member)
            }
            if own:
                found[sha256] = WheelFiles(folder=folder, without=tuple(sorted(inside - own)))
                claimed |= {f"{folder}/{name}" for name in own}
            break
    return found, claimed


def is_as_packed(path: Path, member: zipfile.ZipInfo) -> bool:
    """Say whether a file is what a wheel has. Raises OSError."""
    state = path.lstat()
    if not stat.S_ISREG(state.st_mode) or state.st_size != member.file_size:
        return False
    if bool(state.st_mode & stat.S_IXUSR) != is_program(member):
        return False
    checksum = 0
    with path.open("rb") as stream:
        while chunk := stream.read(files.PIECE):
            checksum = zlib.crc32(chunk, checksum)
    return checksum == member.CRC


def new_file(path: Path, *, is_program: bool) -> BinaryIO:
    """Open a file to write, which must not be there yet; the folders above it are made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o777 if is_program else 0o666
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))


def is_program(member: zipfile.ZipInfo) -> bool:
    """Say whether pip makes a file of a wheel one that can be executed."""
    mode = member.external_attr >> 16
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def compiled(tree: Tree, sources: Collection[str], spelled: tuple[bytes, ...]) -> Iterator[tuple[str, bytes]]:
    """Yield what is compiled of some sources, by name, and it as it is packed. Raises OSError.

    Left out is what Python does not take for its source, and that of a source in which the path of the prefix stands:
    in what is compiled, that is the path of the source alone.
    """
    for folder in sorted({name.rpartition("/")[0] for name in sources if name.endswith(".py")}):
        for file in listed(tree.root / folder / lists.CACHE):
            path = tree.root / folder / lists.CACHE / file
            source = f"{folder}/{bytecode.source_of(path).name}"
            if source not in sources or not file.endswith(".pyc") or path.is_symlink():
                continue
            content = files.read(path)
            is_of_place = any(spelling in files.read(tree.root / source) for spelling in spelled)
            if is_of_place or has_no_time(content) or not bytecode.is_taken(path, content[: bytecode.HEADER]):
                continue
            for spelling in spelled:
                content = content.replace(spelling, FILLER * len(spelling))
            yield f"{folder}/{lists.CACHE}/{file}", content[: TIME.start] + bytes(4) + content[TIME.stop :]


def has_no_time(content: bytes) -> bool:
    """Say whether what is compiled does not hold the time of its source, but a digest of it, or is damaged."""
    return len(content) < bytecode.HEADER or any(content[4 : TIME.start])


def put_time(path: Path) -> None:
    """Give what is compiled the time of its source, as it is now. Raises OSError."""
    with path.open("r+b") as stream:
        if not has_no_time(stream.read(bytecode.HEADER)):
            changed = int(bytecode.source_of(path).stat().st_mtime) & 0xFFFFFFFF
            stream.seek(TIME.start)
            stream.write(struct.pack("<I", changed))


def unpack(wheel: Path, of: WheelFiles, module: str, root: Path) -> None:
    """Put what a module has of a wheel below a folder. Raises ValueError for what cannot be put there, OSError."""
    without = set(of.without)
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                name = f"{of.folder}/{member.filename}"
                if member.is_dir() or member.filename in without:
                    continue
                if not lists.is_own(module, name):
                    raise ValueError(f"{wheel.name} has {member.filename!r}")
                with archive.open(member) as source, new_file(root / name, is_program=is_program(member)) as target:
                    shutil.copyfileobj(source, target, files.PIECE)
    except BROKEN as error:
        raise ValueError(f"{wheel.name}: {error}") from error
