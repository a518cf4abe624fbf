"""What of a module is from wheels, which its recipe pins by SHA-256: its object does without that.

Whoever takes the object has the same wheels. What the build has compiled of their Python is in the object, too: with
the path of its source in the tree, which Python puts right as it loads it, and without the time of that, which is put
in where it is taken.
"""

import base64
import csv
import hashlib
import lzma
import os
import re
import stat
import struct
import sys
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol, Self, cast

from isal import isal_zlib

from envkit.binary import bytecode, compile_python
from envkit.cache.manifest import WheelFiles
from envkit.environments import manifest as lists
from envkit.environments.manifest import StoredFile
from envkit.environments.prefix import Tree
from envkit.errors import HostProblem
from envkit.sources.source_cache import SourceCache
from envkit.system import files, process, temporary

SITE = "/site-packages/"
MOVED = re.compile(r"^[^/]+\.data/(?:plat|pure)lib/")  # as of libclang, which TensorFlow needs
RECORD, KIND = re.compile(r"[^/]+\.dist-info/RECORD"), "sha256="
TIME = 8  # where the time of the source is in the header of what is compiled from it
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CORRUPT = cast("type[Exception]", isal_zlib.error)  # its stub has it as one that was raised
BROKEN = (zipfile.BadZipFile, zlib.error, CORRUPT, lzma.LZMAError, NotImplementedError, RuntimeError, EOFError)
LARGE, SMALL = 1 << 20, 1 << 16  # bytes of a file of a wheel, and of what is deflated
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


def described(
    wheels: Mapping[str, Path], tree: Tree, names: Collection[str], known: Mapping[str, StoredFile]
) -> tuple[dict[str, WheelFiles], set[str]]:
    """Return what is from each wheel of what is in a tree, by the SHA-256 of the wheel, and the names of all that.

    What is ``known`` of a file is not read again. Raises OSError, BadZipFile.
    """
    folders = sorted({name[: name.index(SITE) + len(SITE) - 1] for name in names if SITE in name})
    found, claimed = dict[str, WheelFiles](), set[str]()
    for sha256, path in wheels.items():
        with zipfile.ZipFile(path) as wheel:
            members, told = [member for member in wheel.infolist() if not member.is_dir()], recorded(wheel)
        counted = Counter(installed(member.filename) for member in members)
        for folder in (one for one in folders if any(f"{one}/{name}" in names for name in counted)):
            own = {
                member.filename
                for member in members
                if (name := f"{folder}/{installed(member.filename)}") in names
                and name not in claimed
                and counted[installed(member.filename)] == 1
                and is_as_packed(f"{tree.root}/{name}", member, told.get(member.filename), known.get(name))
            }
            if own:
                inside = {member.filename for member in members}
                found[sha256] = WheelFiles(folder=folder, without=tuple(sorted(inside - own)))
                claimed |= {f"{folder}/{installed(name)}" for name in own}
            break
    return found, claimed


def installed(name: str) -> str:
    """Return where pip puts a file of a wheel below site-packages."""
    return MOVED.sub("", name)


def recorded(wheel: zipfile.ZipFile) -> dict[str, str]:
    """Return the SHA-256 of the files of a wheel as its own list has them; nothing of a list that is none."""
    found = [name for name in wheel.namelist() if RECORD.fullmatch(name)]
    with suppress(*BROKEN, ValueError, csv.Error):
        lines = csv.reader(wheel.read(found[0]).decode().splitlines()) if len(found) == 1 else ()
        sums = {line[0]: line[1].removeprefix(KIND) for line in lines if len(line) > 1 and line[1].startswith(KIND)}
        return {name: base64.urlsafe_b64decode(f"{told}=").hex() for name, told in sums.items()}
    return {}


def is_as_packed(path: str, member: zipfile.ZipInfo, told: str | None, known: StoredFile | None) -> bool:
    """Say whether a file is what a wheel has, by its SHA-256 if that is ``told`` and ``known``. Raises OSError."""
    state = os.lstat(path)
    if not stat.S_ISREG(state.st_mode) or state.st_size != member.file_size:
        return False
    if bool(state.st_mode & stat.S_IXUSR) != is_program(member):
        return False
    if told and known and is_as_known(state, known) and known.sha256 == told:
        return True
    checksum = 0
    with open(path, "rb") as stream:  # noqa: PTH123
        while chunk := stream.read(files.PIECE):
            checksum = zlib.crc32(chunk, checksum)
    return checksum == member.CRC


def is_as_known(state: os.stat_result, known: StoredFile) -> bool:
    """Say whether a file has not changed since it was listed, by its time and size."""
    return (state.st_mtime_ns, state.st_size) == (known.changed, known.size)


def write_new(path: str, pieces: Iterable[bytes], *, is_program: bool) -> None:
    """Write a file, which must not be there yet; the folders above it are made. Raises OSError."""
    flags, mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o777 if is_program else 0o666
    try:
        descriptor = os.open(path, flags, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        descriptor = os.open(path, flags, mode)
    try:
        for piece in pieces:
            written = os.write(descriptor, piece)
            while written < len(piece):
                written += os.write(descriptor, memoryview(piece)[written:])
    finally:
        os.close(descriptor)


def is_program(member: zipfile.ZipInfo) -> bool:
    """Say whether pip makes a file of a wheel one that can be executed."""
    mode = member.external_attr >> 16
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def compiled(
    tree: Tree, module: str, sources: Collection[str], known: Mapping[str, StoredFile]
) -> Iterator[tuple[str, bytes]]:
    """Yield what this Python compiles of some sources of a module, by name, without what cannot be compiled.

    It is what the build has compiled, if all of that is there as is ``known``; else all is compiled anew. Raises
    HostProblem where the program that does so fails, OSError.
    """
    places = {name: compile_python.compiled_name(name) for name in compile_python.sources(str(tree.root), module)}
    if not places.keys() & sources:
        return
    with temporary.folder("compile") as folder:
        made = tree.root
        if not is_as_built(tree, places, known):
            made = folder / "tree"
            compile_anew(tree, module, made, folder / "said")
        for name in sorted(places.keys() & sources):
            with suppress(FileNotFoundError):
                content = files.read(made / places[name])
                yield places[name], content[:TIME] + bytes(4) + content[TIME + 4 :]


def is_as_built(tree: Tree, places: Mapping[str, str], known: Mapping[str, StoredFile]) -> bool:
    """Say whether all compiled Python of a module is there as its build has listed it, and names sources by the tree.

    So envkit compiles it; pip, and Python as it loads a source, put the path of this prefix into it. ``places`` are
    where it is, by source. Raises OSError.
    """
    for source, name in places.items():
        path, file = tree.root / name, known.get(name)
        try:
            state = path.lstat()
        except FileNotFoundError:
            if file:
                return False
            continue
        if file is None or not is_as_known(state, file):
            return False
        content, named = files.read(path), os.fsencode(source)
        is_of_tree = named in content and b"/" + named not in content
        if not (is_of_tree and is_content(content, file) and bytecode.is_taken(path, content)):
            return False
    return any(name in known for name in places.values())


def is_content(content: bytes, known: StoredFile) -> bool:
    """Say whether it is what was listed of a file."""
    return hashlib.sha256(content).hexdigest() == known.sha256


def compile_anew(tree: Tree, module: str, folder: Path, log: Path) -> None:
    """Compile the Python of a module, into a folder. Raises HostProblem, OSError."""
    deadline = time.monotonic() + COMPILING_S
    program = [sys.executable, "-I", "-S", str(Path(compile_python.__file__))]
    status = process.supervise(
        [*program, str(tree.root), module, str(folder)], env=os.environ, log=log,
        until=lambda: time.monotonic() > deadline,
    )  # fmt: skip
    if status:
        said = log.read_text(errors="replace").strip().splitlines()
        raise HostProblem(
            what="The Python of wheels could not be compiled, which goes into a cache.",
            why="\n".join(said[-1:]) or f"It took more than {COMPILING_S:.0f} s.",
            fix=f"See that {log.parents[1]} has room ($TMPDIR names another place), then push again.",
        )


def timed(compiled: bytes, path: str) -> bytes:
    """Return what is compiled, and will lie at a path, with the time of its source as it is now. Raises OSError."""
    changed = int(os.stat(bytecode.source_of(path)).st_mtime) & 0xFFFFFFFF  # noqa: PTH116
    return compiled[:TIME] + struct.pack("<I", changed) + compiled[TIME + 4 :]


@contextmanager
def unpacking(
    wheels: Mapping[str, Path], used: Mapping[str, WheelFiles], module: str, root: Path
) -> Iterator[Callable[[], dict[str, str]]]:
    """Put what a module has of some wheels below a folder, its large files beside what is done meanwhile.

    All Python is there at once. What is given waits for the rest, and returns the SHA-256 of each file, by its name.
    Raises ValueError for what cannot be put there, OSError.
    """
    digests, large = dict[str, str](), dict[str, Future[str]]()
    with ExitStack() as opened, Beside() as beside:
        for sha256, of in used.items():
            with explained(wheels[sha256]):
                for name, archive, member in members(wheels[sha256], sha256, of, module, opened):
                    if is_deflated(member) and member.file_size > LARGE and not name.endswith(".py"):
                        large[name] = beside.begin(partial(put, wheels[sha256], archive, member, f"{root}/{name}"))
                    else:
                        digests[name] = put(wheels[sha256], archive, member, f"{root}/{name}")
        yield lambda: digests | {name: one.result() for name, one in large.items()}


class Beside:
    """A thread that does one thing after the other; where none can be started, each is done at once."""

    def __enter__(self) -> Self:
        """Begin."""
        self.pool = ThreadPoolExecutor(1)
        self.has_thread = True
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for what is being done, and drop the rest."""
        self.pool.shutdown(cancel_futures=True)

    def begin(self, work: Callable[[], str]) -> Future[str]:
        """Have something done."""
        if self.has_thread:
            try:
                return self.pool.submit(work)
            except RuntimeError:  # the limit of this user's processes
                self.has_thread = False
                self.pool.shutdown(cancel_futures=True)
        done = Future[str]()
        done.set_result(work())
        return done


def members(
    wheel: Path, sha256: str, of: WheelFiles, module: str, opened: ExitStack
) -> Iterator[tuple[str, zipfile.ZipFile, zipfile.ZipInfo]]:
    """Yield the files of a wheel that a module has, by their names there; the wheel stays open.

    Raises ValueError for another wheel, and what cannot be there, what reading it does (BROKEN), OSError.
    """
    without = set(of.without)
    stream, actual = opened.enter_context(SourceCache(wheel.parent).opened(wheel.name))
    if actual != sha256:
        raise ValueError(f"the SHA-256 of {wheel} is {actual}")
    archive = opened.enter_context(zipfile.ZipFile(stream))
    for member in archive.infolist():
        name = f"{of.folder}/{installed(member.filename)}"
        if member.is_dir() or member.filename in without:
            continue
        if not lists.is_own(module, name):
            raise ValueError(f"{wheel.name} has {member.filename!r}")
        yield name, archive, member


@contextmanager
def explained(wheel: Path) -> Iterator[None]:
    """Say of a wheel what is wrong with it. Raises ValueError, OSError for what is not in it."""
    try:
        yield
    except BROKEN as error:
        raise ValueError(f"{wheel.name}: {error}") from error
    except OSError as error:
        if error.errno is None:  # of bzip2
            raise ValueError(f"{wheel.name}: {error}") from error
        raise


def put(wheel: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str) -> str:
    """Write a file of a wheel to a path, where nothing may be yet; return its SHA-256. Raises ValueError, OSError."""
    digest = hashlib.sha256()

    def hashed() -> Iterator[bytes]:
        for piece in content(archive, member):
            digest.update(piece)
            yield piece

    with explained(wheel):
        write_new(path, hashed(), is_program=is_program(member))
    return digest.hexdigest()


def is_deflated(member: zipfile.ZipInfo) -> bool:
    """Say whether a member is as wheels have it."""
    return member.compress_type == zipfile.ZIP_DEFLATED and not member.flag_bits & ENCRYPTED


def content(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the content of a member of an archive, which is open; twice as quickly as zipfile for what it has deflated.

    That reads without moving in the file, so that several can be read at a time. Raises BadZipFile, and what unpacking
    does (BROKEN), OSError.
    """
    if not is_deflated(member):
        with archive.open(member) as source:
            while piece := source.read(files.PIECE):
                yield piece
        return
    assert archive.fp is not None  # noqa: S101  (it is open)
    descriptor, at = archive.fp.fileno(), member.header_offset
    header = os.pread(descriptor, HEADER.size, at)
    magic, *_, name, extra = HEADER.unpack(header) if len(header) == HEADER.size else (b"",)
    if magic != b"PK\3\4":
        raise zipfile.BadZipFile(f"{member.filename!r} does not begin where it should")
    at += HEADER.size + name + extra
    size, checksum = 0, 0
    for piece in inflated(descriptor, at, member.compress_size):
        size, checksum = size + len(piece), isal_zlib.crc32(piece, checksum)
        if size > member.file_size:
            raise zipfile.BadZipFile(f"{member.filename!r} is larger than it should be")
        yield piece
    if size != member.file_size or checksum != member.CRC:
        raise zipfile.BadZipFile(f"{member.filename!r} is not what its checksum says")


def inflated(descriptor: int, at: int, left: int) -> Iterator[bytes]:
    """Yield what is deflated in so many bytes of a file, a small one at once. Raises EOFError, CORRUPT, OSError."""
    if left <= SMALL:
        yield isal_zlib.decompress(os.pread(descriptor, left, at), -zlib.MAX_WBITS)
        return
    inflating = isal_zlib.decompressobj(-zlib.MAX_WBITS)
    while not inflating.eof:
        packed = inflating.unconsumed_tail
        if not packed:
            packed = os.pread(descriptor, min(left, files.PIECE), at)
            left, at = left - len(packed), at + len(packed)
        piece = inflating.decompress(packed, files.PIECE)
        if not packed and not piece:
            raise EOFError("it is cut off")
        yield piece
