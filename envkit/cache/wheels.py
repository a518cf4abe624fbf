"""What of a module is from wheels, which its recipe pins by SHA-256: its object does without that.

Whoever takes the object has the same wheels. What pip has compiled of their Python is in the object, too: compiled anew
from the sources, so that nothing is in it that is not from them. It holds neither the path of its source, which Python
puts right as it loads it, nor the time of that, which is put in where it is taken.
"""

import hashlib
import lzma
import marshal
import os
import stat
import struct
import sys
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from isal import isal_zlib

from envkit.binary import bytecode
from envkit.cache import compile_python
from envkit.cache.manifest import WheelFiles
from envkit.environments import manifest as lists
from envkit.environments.prefix import Tree
from envkit.errors import HostProblem
from envkit.sources.source_cache import SourceCache
from envkit.system import files, process, temporary

SITE = "/site-packages/"
LONGEST = 255  # bytes of a name
TIME = 8  # where the time of the source is in the header of what is compiled from it
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CORRUPT = cast("type[Exception]", isal_zlib.error)  # its stub has it as one that was raised
BROKEN = (zipfile.BadZipFile, zlib.error, CORRUPT, lzma.LZMAError, NotImplementedError, RuntimeError, EOFError)
COMPILING_S = 3600.0
ENCRYPTED = 1  # a flag of a member
HEADER = struct.Struct("<4s5H3I2H")  # of a member, before its name and what else is said of it


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
        counted = Counter(member.filename for member in members)
        inside = set(counted)
        for folder in (one for one in folders if any(f"{one}/{name}" in names for name in inside)):
            own = {
                member.filename
                for member in members
                if (name := f"{folder}/{member.filename}") in names
                and name not in claimed
                and counted[member.filename] == 1
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


def new_file(path: str, *, is_program: bool) -> BinaryIO:
    """Open a file to write, which must not be there yet; the folders above it are made. Raises OSError."""
    mode = 0o777 if is_program else 0o666

    def opener(name: str, flags: int) -> int:
        try:
            return os.open(name, flags, mode)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(name), exist_ok=True)  # noqa: PTH103, PTH120
            return os.open(name, flags, mode)

    return open(path, "xb", opener=opener)


def is_program(member: zipfile.ZipInfo) -> bool:
    """Say whether pip makes a file of a wheel one that can be executed."""
    mode = member.external_attr >> 16
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def compiled(tree: Tree, sources: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield what this Python compiles of some sources, by name, without what cannot be compiled.

    Raises HostProblem where the program that does it fails, OSError.
    """
    targets = {name: target for name in sorted(sources) if (target := compiled_name(name))}
    small = {name: target for name, target in targets.items() if (tree.root / name).stat().st_size <= files.MOST}
    if not small:
        return
    with temporary.folder("compile") as folder:
        listed, content = folder / "listed", folder / "content"
        listed.write_bytes(b"".join(os.fsencode(f"{name}\0{target}\0") for name, target in small.items()))
        deadline = time.monotonic() + COMPILING_S
        program = [sys.executable, "-I", "-S", str(Path(compile_python.__file__))]
        status = process.supervise(
            [*program, str(tree.root), str(listed), str(content)], env=os.environ, log=folder / "said",
            until=lambda: time.monotonic() > deadline,
        )  # fmt: skip
        if status:
            said = (folder / "said").read_text(errors="replace").strip().splitlines()
            raise HostProblem(
                what="The Python of wheels could not be compiled, which goes into a cache.",
                why="\n".join(said[-1:]) or f"It took more than {COMPILING_S:.0f} s.",
                fix=f"See that {folder.parent} has room ($TMPDIR names another place), then push again.",
            )
        with content.open("rb") as stream, suppress(EOFError):
            while True:
                yield marshal.load(stream)  # noqa: S302  (of our own program)


def compiled_name(source: str) -> str:
    """Return where Python keeps what it compiles of a source; nothing of what it cannot import or name so."""
    folder, _, file = source.rpartition("/")
    stem, dot, kind = file.partition(".")
    name = f"{stem}.{sys.implementation.cache_tag}.pyc"
    is_source = stem and dot + kind == ".py" and len(os.fsencode(name)) <= LONGEST
    return f"{folder}/{lists.CACHE}/{name}" if is_source else ""


def timed(compiled: bytes, path: Path) -> bytes:
    """Return what is compiled, and will lie at a path, with the time of its source as it is now. Raises OSError."""
    changed = int(bytecode.source_of(path).stat().st_mtime) & 0xFFFFFFFF
    return compiled[:TIME] + struct.pack("<I", changed) + compiled[TIME + 4 :]


def unpack(wheel: Path, sha256: str, of: WheelFiles, module: str, root: Path) -> dict[str, str]:
    """Put what a module has of a wheel below a folder; return the SHA-256 of each file, by its name.

    Raises ValueError for what cannot be put there, OSError.
    """
    without, digests = set(of.without), dict[str, str]()
    try:
        with SourceCache(wheel.parent).opened(wheel.name) as (stream, actual):
            if actual != sha256:
                raise ValueError(f"the SHA-256 of {wheel} is {actual}")
            with zipfile.ZipFile(stream) as archive:
                for member in archive.infolist():
                    name = f"{of.folder}/{member.filename}"
                    if member.is_dir() or member.filename in without:
                        continue
                    if not lists.is_own(module, name):
                        raise ValueError(f"{wheel.name} has {member.filename!r}")
                    digest = hashlib.sha256()
                    with new_file(f"{root}/{name}", is_program=is_program(member)) as target:
                        for piece in content(archive, stream, member):
                            digest.update(piece)
                            target.write(piece)
                    digests[name] = digest.hexdigest()
    except BROKEN as error:
        raise ValueError(f"{wheel.name}: {error}") from error
    except OSError as error:
        if error.errno is None:  # of bzip2
            raise ValueError(f"{wheel.name}: {error}") from error
        raise
    return digests


def content(archive: zipfile.ZipFile, stream: BinaryIO, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the content of a member of an archive, which is open; twice as quickly as zipfile for what it has deflated.

    Raises BadZipFile, and what unpacking does (BROKEN).
    """
    if member.compress_type != zipfile.ZIP_DEFLATED or member.flag_bits & ENCRYPTED:
        with archive.open(member) as source:
            while piece := source.read(files.PIECE):
                yield piece
        return
    stream.seek(member.header_offset)
    header = stream.read(HEADER.size)
    magic, *_, name, extra = HEADER.unpack(header) if len(header) == HEADER.size else (b"",)
    if magic != b"PK\3\4":
        raise zipfile.BadZipFile(f"{member.filename!r} does not begin where it should")
    stream.seek(name + extra, os.SEEK_CUR)
    inflating, left, size, checksum = isal_zlib.decompressobj(-zlib.MAX_WBITS), member.compress_size, 0, 0
    while not inflating.eof:
        packed = inflating.unconsumed_tail
        if not packed:
            packed = stream.read(min(left, files.PIECE))
            left -= len(packed)
        piece = inflating.decompress(packed, files.PIECE)
        if not packed and not piece:
            raise EOFError(f"{member.filename!r} is cut off")
        size, checksum = size + len(piece), isal_zlib.crc32(piece, checksum)
        if size > member.file_size:
            raise zipfile.BadZipFile(f"{member.filename!r} is larger than it should be")
        yield piece
    if size != member.file_size or checksum != member.CRC:
        raise zipfile.BadZipFile(f"{member.filename!r} is not what its checksum says")
