"""One folder of checked sources, which a build reads instead of the network.

A file appears in it by rename, complete and with the right SHA-256, or not at all. Which content was
verified is remembered in ``.verified.json`` by size, times and inode, so that a file is hashed again only after it
changed. That is believed where nobody else can have written it: in a folder and a file of this user's, which nobody
else may write to. In any other cache every file is hashed each time.
"""

import errno
import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from envkit.errors import ChecksumMismatch, DiskFull, NotWritable, of_storage
from envkit.system import record
from envkit.system.files import identity, is_private, open_plain, read
from envkit.system.temporary import has_ended

STAMPS = ".verified.json"
VERSION = 2
CHUNK_BYTES = 1 << 20
FOREIGN_PART_AGE_S = 24 * 3600
PART = re.compile(r"\.part-(?P<pid>\d+)@(?P<host>[^/]+)$")
FOLDER = re.compile(r"[a-z0]/[\w+-][\w.+-]*")
NO_PERMISSION = {errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}

Identity = tuple[int, int, int, int]
Stamp = tuple[Identity, str]


def is_filename(name: str) -> bool:
    """Say whether a source can be called so: a plain name, and none of a file that is being written."""
    return re.fullmatch(r"[^/\\.][^/\\]*", name) is not None and name.isprintable() and not PART.search(name)


def is_place(place: str) -> bool:
    """Say whether a source can lie there in the folder: by its name, or in one of EasyBuild's folders."""
    folder, slash, name = place.rpartition("/")
    return is_filename(name) and (not slash or FOLDER.fullmatch(folder) is not None)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One file that a recipe needs.

    ``urls`` are base URLs or whole URLs; ``project`` is its name on the Python package index, if it comes
    from there; ``needed_by`` names the easyconfig. ``folder`` is where it lies in the cache, for files whose
    names say too little ("v3.2.0.tar.gz"): as EasyBuild has it, "d/double-conversion". Raises ValueError for a
    name with a directory in it, for another folder, and for a checksum that is no SHA-256.
    """

    filename: str
    folder: str = ""
    sha256: str | None
    urls: tuple[str, ...] = ()
    project: str | None = None
    needed_by: str

    def __post_init__(self) -> None:
        if not is_filename(self.filename):
            raise ValueError(f"{self.needed_by}: not a plain file name: {self.filename!r}")
        if self.folder and not FOLDER.fullmatch(self.folder):
            raise ValueError(f"{self.needed_by}: not a folder of sources: {self.folder!r}")
        if self.sha256 is not None:
            if not re.fullmatch(r"[0-9a-fA-F]{64}", self.sha256):
                raise ValueError(f"{self.needed_by}: not a SHA-256 of {self.filename}: {self.sha256!r}")
            msgspec.structs.force_setattr(self, "sha256", self.sha256.lower())

    @property
    def place(self) -> str:
        """Its place in the cache."""
        return f"{self.folder}/{self.filename}" if self.folder else self.filename


class WrongContentError(Exception):
    """The file that was to be stored hashes to ``actual``, which is not what is pinned."""

    def __init__(self, actual: str) -> None:
        super().__init__(f"its SHA-256 is {actual}")
        self.actual = actual


def part_of_process() -> str:
    """Return how the name of a file ends that this process has not finished: the next one removes what it leaves."""
    return f"part-{os.getpid()}@{socket.gethostname()}"


def recheck(folder: Path) -> list[str]:
    """Hash every file of a cache that was ever verified in it; return what to say of those that are not as they were.

    Such a file is set aside, and of all others it is known that they are right. Raises DiskFull, NotWritable.
    """
    old = SourceCache(folder).stamps
    with writing(folder, STAMPS):
        forget(folder)
    here, wrong = SourceCache(folder), list[str]()
    for name, (_, wanted) in sorted(old.items()):
        actual = here.sha256(name)
        if actual is not None and actual != wanted:
            bad = here.set_aside(name, actual)
            wrong.append(f"{name}: its SHA-256 was {wanted} and is {actual}; now {bad.name}")
    here.save_stamps()
    return wrong


def forget(folder: Path) -> None:
    """Have every file of a cache hashed again when it is next asked for: where files were damaged, others may be."""
    (folder / STAMPS).unlink(missing_ok=True)


class SourceCache:
    """The folder, and what is known to be verified in it. Its methods may be called from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stamps = self._recorded()
        self._new: dict[str, Stamp] = {}

    def path(self, filename: str) -> Path:
        """Return where a file lies, or would lie."""
        return self.folder / filename

    def sha256(self, filename: str) -> str | None:
        """Return the SHA-256 of a file in the cache, hashing it only if it changed, or None."""
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
            with self.opened(filename) as (_, actual):
                return actual
        return None

    @contextmanager
    def opened(self, filename: str) -> Iterator[tuple[BinaryIO, str]]:
        """Give a file in the cache, open, and its SHA-256, hashing it only if it changed. Raises OSError."""
        with open_plain(self.path(filename)) as stream:
            state = identity(os.fstat(stream.fileno()))
            verified, actual = self.stamps.get(filename, (None, ""))
            if verified != state:
                actual = hashlib.file_digest(stream, "sha256").hexdigest()
                self._remember(filename, (state, actual))
            yield stream, actual

    def holds(self, source: Source) -> bool:
        """Say whether the source is here with the content that its recipe pins, if it pins any."""
        actual = self.sha256(source.place)
        return actual is not None and source.sha256 in (None, actual)

    def store(self, filename: str, chunks: Iterable[bytes], expected: str | None) -> str:
        """Write a file under a temporary name, check it, put it in place; return its SHA-256.

        Raises WrongContentError (nothing is kept then), DiskFull and NotWritable.
        """
        part = self.path(f"{filename}.{part_of_process()}")
        digest = hashlib.sha256()
        with writing(self.folder, filename):
            part.parent.mkdir(parents=True, exist_ok=True)
            part.unlink(missing_ok=True)
            try:
                with part.open("xb", buffering=0) as stream:  # through no link that somebody has put there
                    for chunk in chunks:
                        digest.update(chunk)
                        write_all(stream.write, chunk)
                    os.fsync(stream.fileno())
                    written = identity(os.fstat(stream.fileno()))
                actual = digest.hexdigest()
                if expected not in (None, actual):
                    raise WrongContentError(actual)
                part.replace(self.path(filename))
                state = identity(self.path(filename).stat())  # a rename changes the last of it
            finally:
                part.unlink(missing_ok=True)
        if state[:3] == written[:3]:
            self._remember(filename, (state, actual))
        return actual

    def set_aside(self, filename: str, actual: str) -> Path:
        """Rename a file with the wrong content to ``<filename>.bad-<first 8 of its SHA-256>``."""
        bad = self.path(f"{filename}.bad-{actual[:8]}")
        with writing(self.folder, filename), suppress(FileNotFoundError):
            self.path(filename).replace(bad)
        return bad

    def prepare(self) -> None:
        """Make the folder, if need be, and remove what killed processes left in it."""
        with writing(self.folder.parent, self.folder.name):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_dead_parts()

    def _remove_dead_parts(self) -> None:
        """Remove the parts of killed processes of this host, and day-old ones of other hosts; through no link."""
        walk = () if self.folder.is_symlink() else os.walk(self.folder)
        for part in [Path(folder, name) for folder, _, names in walk for name in names if ".part-" in name]:
            with suppress(OSError):
                if (match := PART.search(part.name)) and is_dead(part, match["host"], int(match["pid"])):
                    part.unlink()

    def save_stamps(self) -> None:
        """Record what was verified since; a cache that cannot be written to is merely slower."""
        if not self._new or not is_private(self.folder.resolve()):
            return
        stamps = self._recorded() | self._new
        files = {name: stamp for name, stamp in sorted(stamps.items()) if self.path(name).exists()}
        part = self.path(f"{STAMPS}.{part_of_process()}")
        with suppress(OSError):
            try:
                with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                    stream.write(msgspec.json.encode({"version": VERSION, "files": files}))
                part.replace(self.path(STAMPS))
                self._new = {}
            finally:
                part.unlink(missing_ok=True)

    def _remember(self, filename: str, stamp: Stamp) -> None:
        self.stamps[filename] = self._new[filename] = stamp

    def _recorded(self) -> dict[str, Stamp]:
        path = self.path(STAMPS)
        with suppress(OSError, ValueError, RecursionError):
            if is_private(self.folder.resolve()) and is_private(path):
                return record.decode(read(path), StampFile).files
        return {}


class StampFile(msgspec.Struct):
    """The file that remembers what was verified."""

    files: dict[str, Stamp]
    version: Literal[2]


def distinct(sources: Sequence[Source]) -> list[Source]:
    """Return each file once, by name, with the URLs of all that need it.

    Raises ChecksumMismatch if two recipes pin different contents for one name.
    """
    merged: dict[str, Source] = {}
    for source in sources:
        earlier = merged.setdefault(source.place, source)
        pinned = {pin.sha256: pin.needed_by for pin in (earlier, source) if pin.sha256}
        if len(pinned) > 1:
            raise ChecksumMismatch(
                what=f"Two recipes pin different contents for {source.place}.",
                why="\n".join(f"{recipe}: {sha256}" for sha256, recipe in pinned.items()),
                fix="Sources lie in one folder, by name: correct the checksum, or rename one of the files.",
            )
        merged[source.place] = msgspec.structs.replace(
            earlier,
            sha256=earlier.sha256 or source.sha256,
            urls=tuple(dict.fromkeys(earlier.urls + source.urls)),
            project=earlier.project or source.project,
        )
    return list(merged.values())


@contextmanager
def writing(folder: Path, filename: str) -> Iterator[None]:
    """Turn the system's refusals to write into DiskFull and NotWritable."""
    try:
        yield
    except OSError as error:
        problem = of_storage(error, f"{filename} could not be written into {folder}.")
        again = "Then repeat the command: the files that are complete are kept."
        if isinstance(problem, DiskFull):
            raise DiskFull(
                what=f"There is no space for {filename} in {folder}.",
                why=f"{problem.why}. {free(folder)}",
                fix=f"{problem.fix} {again}",
            ) from error
        if problem is not None:
            problem.fix += f" {again}"
            raise problem from error
        if error.errno in NO_PERMISSION:
            raise NotWritable(
                what=f"{filename} cannot be written into {folder}.",
                why=f"{error.strerror}.",
                fix="Use a cache folder that you may write to.",
            ) from error
        raise


def free(folder: Path) -> str:
    """Say how much room the file system of a folder has; nothing where it does not tell."""
    with suppress(OSError):
        return (
            f"The file system has {shutil.disk_usage(folder).free / 1e6:.0f} MB and "
            f"{os.statvfs(folder).f_favail} inodes free (a quota may allow less)."
        )
    return ""


def write_all(write: Callable[[memoryview], int], chunk: bytes) -> None:
    """Write all of a piece, of which one call may write only a part. Raises OSError."""
    rest = memoryview(chunk)
    while rest:
        rest = rest[write(rest) :]


def is_dead(part: Path, host: str, pid: int) -> bool:
    """Say whether nobody writes a part any more: its process has ended, or on another host it is a day old."""
    if host != socket.gethostname():
        return time.time() - part.stat().st_mtime > FOREIGN_PART_AGE_S
    return has_ended(pid)
