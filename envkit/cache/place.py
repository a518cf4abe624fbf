"""Where a cache lies: a folder, or the same folder behind an HTTP(S) server, which can only be read.

::

    manifests/MODULE/KEY.json    a manifest and its signature
    objects/SHA256.tar.xz        what it is of; it is there before its manifest
    index.json                   the names of all manifests, for servers that list no folder

Every file appears by rename. Nothing in a place is believed: manifests are signed, and objects have the SHA-256 that
their manifest says.
"""

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
from filelock import FileLock, Timeout

from envkit.cache import manifest
from envkit.cache.manifest import Manifest, Signed
from envkit.environments.prefix import listed
from envkit.errors import CacheInvalid, EnvkitError, NotReadable, SignatureInvalid, UsageProblem
from envkit.sources import signature
from envkit.system import files, record, temporary, umask
from envkit.system.files import at_home

if TYPE_CHECKING:
    from envkit.sources.connection import Connection

NAME = re.compile(r"(?P<module>[A-Za-z0-9_][\w.+@=~-]*)/(?P<key>[0-9a-f]{64})\.json", re.ASCII)
INDEX = "index.json"
CONNECT_S, SLOWEST, PATIENCE_S = 10.0, 50_000, 30.0  # a server gives so many bytes/s, after so many seconds
LOCKED_S = 60.0
PIECE = 1 << 20  # bytes


@dataclass(frozen=True, kw_only=True)
class Caches:
    """The places that builds are taken from, in order; the public keys that sign them; whether unsigned ones count."""

    places: tuple[str, ...]
    keys: tuple[str, ...]
    unsigned: bool = False


NOWHERE = Caches(places=(), keys=())


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """The names of all manifests."""

    version: int = 1
    manifests: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A manifest in a place, with what was signed of it."""

    place: "Place"
    manifest: Manifest
    signed: Signed

    @property
    def id(self) -> str:
        """What it is called."""
        return self.manifest.key


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place, as it was named: a folder, or a URL."""

    named: str

    @property
    def is_remote(self) -> bool:
        """Whether it is behind a server."""
        return self.named.startswith(("http://", "https://"))

    @property
    def folder(self) -> Path:
        """The folder that it is. Raises UsageProblem for one behind a server, which can only be read."""
        if self.is_remote:
            raise UsageProblem(
                what=f"{self.named} can only be read.",
                why="A server gives what is in the folder that it serves, and takes nothing.",
                fix="Name the folder itself, on a machine that has it.",
            )
        return at_home(self.named).absolute()

    @property
    def shown(self) -> str:
        """It, as it may be shown: a URL without its password."""
        from envkit.sources import connection

        return connection.shown(self.named) if self.is_remote else str(self.folder)

    def names(self, module: str = "") -> list[str]:
        """Return the names of its manifests, of one module or all. Raises CacheInvalid."""
        if self.is_remote:
            try:
                there = record.decode(self.read(INDEX, manifest.MOST), msgspec.json.Decoder(Index)).manifests
            except msgspec.MsgspecError as error:
                raise self.invalid(f"Its {INDEX} cannot be read: {error}") from error
        else:
            top = self.folder / "manifests"
            if not self.folder.is_dir():
                raise self.invalid("There is no such folder.")
            try:
                folders = [manifest.folder_of(module)] if module else listed(top)
                there = tuple(f"{folder}/{name}" for folder in folders for name in listed(top / folder))
            except NotReadable as error:
                raise self.invalid(error.why) from error
        own = [match for name in there if (match := NAME.fullmatch(name))]
        return [one[0] for one in own if not module or one["module"] == manifest.folder_of(module)]

    def entry(self, name: str) -> Entry:
        """Return a manifest by its name. Raises CacheInvalid for one that is not what its name says."""
        try:
            found, signed = manifest.read(self.read(f"manifests/{name}", manifest.MOST))
        except ValueError as error:
            raise self.invalid(f"The manifest {name} cannot be read: {error}") from error
        if name != f"{manifest.folder_of(found.module)}/{found.key}.json":
            raise self.invalid(f"The manifest {name} is that of something else.")
        return Entry(place=self, manifest=found, signed=signed)

    def read(self, name: str, most: int) -> bytes:
        """Return a file of it. Raises CacheInvalid."""
        with self.opened(name, most) as chunks:
            return b"".join(chunks)

    @contextmanager
    def opened(self, name: str, most: int) -> Iterator[Iterable[bytes]]:
        """Give a file of it in pieces, at most so many bytes. Raises CacheInvalid, also while it is read."""
        from envkit.sources.connection import RefusedError, limited

        try:
            if self.is_remote:
                with connected() as connection, connection.opened(f"{self.named.rstrip('/')}/{name}") as (size, chunks):
                    yield whole(in_time(limited(chunks, size, most)), size)
            else:
                with plain(self.folder / name) as stream:
                    yield limited(pieces(stream), None, most)
        except RefusedError as error:
            raise self.invalid(f"{name}: {error}.") from error

    def invalid(self, why: str) -> CacheInvalid:
        """Say that the place, or something in it, cannot be used."""
        return CacheInvalid(
            what=f"The cache {self.shown} cannot be used.",
            why=why,
            fix="See 'envkit cache verify' for all that is wrong with it, and 'envkit cache prune' to remove that.",
        )


@contextmanager
def connected() -> Iterator["Connection"]:
    """Give a connection with pip's settings of certificates and proxies, which gives up soon."""
    from envkit.sources.connection import Connection
    from envkit.sources.pipconfig import pip_settings

    made = Connection(pip_settings(), connect_s=CONNECT_S, backoff_s=())
    try:
        yield made
    finally:
        made.close()


def plain(path: Path) -> BufferedReader:
    """Open a plain file to read. Raises RefusedError."""
    from envkit.sources.connection import RefusedError

    try:
        return files.open_plain(path)
    except OSError as error:
        raise RefusedError(error.strerror or str(error)) from error


def pieces(stream: BufferedReader) -> Iterator[bytes]:
    """Yield what a file holds. Raises RefusedError."""
    from envkit.sources.connection import RefusedError

    try:
        while chunk := stream.read(PIECE):
            yield chunk
    except OSError as error:
        raise RefusedError(error.strerror or str(error)) from error


def in_time(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what comes. Raises RefusedError where that is too slow."""
    from envkit.sources.connection import RefusedError

    began, done = time.monotonic(), 0
    for chunk in chunks:
        done += len(chunk)
        if time.monotonic() - began > PATIENCE_S + done / SLOWEST:
            raise RefusedError(f"only {done} bytes came in {time.monotonic() - began:.0f} s")
        yield chunk


def whole(chunks: Iterable[bytes], size: int | None) -> Iterator[bytes]:
    """Yield what comes. Raises RefusedError where it ends before the length that the server has told."""
    from envkit.sources.connection import RefusedError

    done = 0
    for chunk in chunks:
        done += len(chunk)
        yield chunk
    if size is not None and done < size:
        raise RefusedError(f"it ends after {done} of {size} bytes")


def object_of(sha256: str) -> str:
    """Return where an object lies in a place."""
    return f"objects/{sha256}.tar.xz"


def signer(entry: Entry, keys: Iterable[str]) -> str:
    """Return the first of some public keys that verifies a manifest; nothing where none does. Raises HostProblem."""
    if not entry.signed.signature:
        return ""
    with temporary.folder("cache") as folder:
        path = folder / "manifest"
        path.write_bytes(bytes(entry.signed.manifest))
        try:
            signature.place(path).write_bytes(entry.signed.signature_bytes)
        except ValueError:
            return ""
        for key in keys:
            with suppress(SignatureInvalid):
                signature.require(path, at_home(key))
                return key
    return ""


def publish(place: Place, made: Manifest, packed: BinaryIO, signed: bytes) -> bool:
    """Put an object and its manifest into a folder; return whether anything was sent. Raises OSError.

    The object comes first, so that what is seen is always whole. What is there already is not sent again.
    """
    folder, name = place.folder, f"{manifest.folder_of(made.module)}/{made.key}.json"
    with umask.of(folder):
        target = folder / object_of(made.sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
        is_new = not (target.is_file() and target.stat().st_size == made.size and files.sha256(target) == made.sha256)
        if is_new:
            with files.whole(target, own=True) as stream:
                while chunk := packed.read(PIECE):
                    stream.write(chunk)
        path = folder / "manifests" / name
        before = None
        with suppress(CacheInvalid):
            before = place.entry(name)
        if before is not None and (before.signed.signature or not signed) and not is_new:
            if name not in indexed(place):
                index(place)
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, manifest.packed(made, signed), own=True)
        index(place)
    return True


def indexed(place: Place) -> tuple[str, ...]:
    """Return which manifests the index of a folder names."""
    with suppress(OSError, msgspec.MsgspecError):
        return record.read(place.folder / INDEX, Index).manifests
    return ()


def index(place: Place) -> None:
    """Write anew which manifests there are. Raises OSError."""
    with locked(place):
        found = Index(manifests=tuple(place.names()))
        files.write(place.folder / INDEX, msgspec.json.format(msgspec.json.encode(found), indent=1), own=True)


@contextmanager
def locked(place: Place) -> Iterator[None]:
    """Hold the lock of a folder, where its file system has locks; without, the last to write the index has read it."""
    lock = FileLock(place.folder / ".lock", mode=0o664)
    try:
        lock.acquire(timeout=LOCKED_S)
    except (Timeout, NotImplementedError) as error:
        if isinstance(error, Timeout):
            raise EnvkitError(
                what=f"Another process has held {place.folder / '.lock'} for {LOCKED_S:.0f} s.",
                fix="Wait until it has ended, then run the same command again.",
            ) from error
        yield
        return
    try:
        yield
    finally:
        lock.release(force=True)
