"""Bundles: the sources of a stack in one tar file, for a machine without a network.

The first member is ``manifest.json``; each further one is a source under its place in the cache. Two bundles of the
same sources are equal byte by byte.
"""

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, BinaryIO, cast

import msgspec

from envkit.errors import BundleInvalid, ChecksumMismatch, SourcesMissing
from envkit.sources.source_cache import (
    CHUNK_BYTES,
    Source,
    SourceCache,
    WrongContentError,
    distinct,
    part_of_process,
    writing,
)
from envkit.system import record
from envkit.system.files import open_plain, whole

VERSION = 1
MANIFEST = "manifest.json"
MANIFEST_LIMIT_BYTES = 16 << 20
SHOWN = 5  # names that a message has
AGAIN = "Write it again where there is a network (envkit fetch STACK --bundle FILE.tar) and copy it whole."


class BundledFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a bundle."""

    filename: str
    sha256: str
    needed_by: str


class BundleManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a bundle, and the stack that it is for."""

    version: int
    stack: str
    files: tuple[BundledFile, ...]


def is_bundle(path: Path) -> bool:
    """Say whether a file begins as a bundle does. Raises OSError."""
    with open_plain(path) as stream:
        return stream.read(len(MANIFEST) + 1) == MANIFEST.encode() + b"\0"


def write_bundle(sources: Sequence[Source], cache: Path, tar_path: Path, *, stack: str) -> BundleManifest:
    """Write the sources, all of which must be in the cache, to ``tar_path``; an older file there is replaced.

    A source without a pinned SHA-256 is pinned to what the cache has. Raises SourcesMissing,
    ChecksumMismatch if a file changes meanwhile, DiskFull and NotWritable.
    """
    manifest = manifest_of(sources, SourceCache(cache), stack)
    with (
        writing(tar_path.parent, tar_path.name),
        whole(tar_path, mode=0o644) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        listing = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        tar.addfile(tar_member(MANIFEST, len(listing)), io.BytesIO(listing))
        for entry in manifest.files:
            add(tar, cache / entry.filename, entry)
    return manifest


def read_bundle(tar_path: Path, cache: Path, stream: BinaryIO | None = None) -> BundleManifest:
    """Put the files of a bundle into the cache, each only after its SHA-256 has been found right.

    Where its signature was checked, ``stream`` is what that was checked of.

    A file that the cache has already with another content lies beside it then, until ``admit`` knows which is wanted.
    Raises BundleInvalid for what is no whole bundle or holds what its manifest does not name,
    ChecksumMismatch for a file with another content, DiskFull and NotWritable.
    """
    here = SourceCache(cache)
    try:
        with opened(tar_path, stream) as tar:
            manifest = decoded_manifest(tar, tar_path)
            here.prepare()
            require_all(tar, manifest, lambda stream, entry: take_file(stream, entry, here), tar_path)
    finally:
        here.save_stamps()
    return manifest


def read_manifest(tar_path: Path, stream: BinaryIO | None = None) -> BundleManifest:
    """Return what a bundle holds, after all of it has been read; nothing is kept.

    Raises BundleInvalid and ChecksumMismatch as ``read_bundle`` does.
    """
    with opened(tar_path, stream) as tar:
        manifest = decoded_manifest(tar, tar_path)
        require_all(tar, manifest, require_right, tar_path)
    return manifest


def require_all(
    tar: tarfile.TarFile, manifest: BundleManifest, take: Callable[[IO[bytes], BundledFile], None], tar_path: Path
) -> None:
    """Take every file of a bundle. Raises ChecksumMismatch for those with another content, and BundleInvalid."""
    wrong = take_all(tar, manifest, take, tar_path)
    if wrong:
        raise ChecksumMismatch(
            what=f"{len(wrong)} files in {tar_path} have not the content that its manifest names.",
            why="\n".join(wrong),
            fix=AGAIN,
        )


def manifest_of(sources: Sequence[Source], here: SourceCache, stack: str) -> BundleManifest:
    """Return the manifest of a bundle of these sources. Raises SourcesMissing for what the cache has not."""
    entries = []
    absent = []
    for source in sorted(distinct(sources), key=lambda source: source.place):
        actual = here.sha256(source.place)
        if actual is None or source.sha256 not in (None, actual):
            absent.append(source)
        else:
            entries.append(BundledFile(filename=source.place, sha256=actual, needed_by=source.needed_by))
    here.save_stamps()
    if absent:
        raise SourcesMissing(
            what=f"{len(absent)} sources for the bundle are not in {here.folder}.",
            why="\n".join(f"{source.place} (for {source.needed_by})" for source in absent),
            fix=f"envkit fetch {stack}",
        )
    return BundleManifest(version=VERSION, stack=stack, files=tuple(entries))


def tar_member(name: str, size: int) -> tarfile.TarInfo:
    """Return the header of one member, equal in every bundle of the same sources."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o644
    return member


class Hashing:
    """Hashes what is read through it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        """Read like the stream itself."""
        data = self._stream.read(size)
        self.digest.update(data)
        return data


def add(tar: tarfile.TarFile, path: Path, entry: BundledFile) -> None:
    """Add a file of the cache to a bundle. Raises ChecksumMismatch if it changes meanwhile."""
    try:
        stream = open_plain(path)
    except OSError as error:
        raise changed(path, f"{error.strerror}.") from error
    with stream:
        hashing = Hashing(stream)
        tar.addfile(tar_member(entry.filename, os.fstat(stream.fileno()).st_size), hashing)
    if hashing.digest.hexdigest() != entry.sha256:
        raise changed(path, f"Its SHA-256 was {entry.sha256} and is {hashing.digest.hexdigest()}.")


def changed(path: Path, why: str) -> ChecksumMismatch:
    """Say that a file is not what it was when the bundle was begun."""
    fix = "Repeat the command when nothing else writes to the cache."
    return ChecksumMismatch(what=f"{path} changed while the bundle was written.", why=why, fix=fix)


class TooLargeError(Exception):
    """A tar file has a header that nobody needs so large."""


class Sparing:
    """A file of which nothing is read in one piece that would fill the memory."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.seek, self.tell, self.close = stream.seek, stream.tell, stream.close

    def read(self, size: int = -1, /) -> bytes:
        """Read like the stream itself. Raises TooLargeError."""
        if not 0 <= size <= MANIFEST_LIMIT_BYTES:
            raise TooLargeError(f"a header of {size} bytes")
        return self._stream.read(size)


@contextmanager
def opened(tar_path: Path, stream: BinaryIO | None) -> Iterator[tarfile.TarFile]:
    """Open a bundle for the block. Raises BundleInvalid for what is no whole tar file, or cannot be read."""
    try:
        with (
            nullcontext(stream) if stream else open_plain(tar_path) as content,
            tarfile.open(fileobj=cast("IO[bytes]", Sparing(content)), mode="r:") as tar,
        ):
            yield tar
    except (tarfile.TarError, TooLargeError, ValueError, OverflowError, RecursionError) as error:  # tarfile lets by
        raise invalid(tar_path, f"It is no tar file, or not the whole of one ({error}).") from error
    except OSError as error:
        raise invalid(tar_path, f"It cannot be read: {error.strerror}.") from error


def decoded_manifest(tar: tarfile.TarFile, tar_path: Path) -> BundleManifest:
    """Return the manifest, which is the first member of a bundle. Raises BundleInvalid."""
    member = tar.next()
    if member is None or member.name != MANIFEST or member.size > MANIFEST_LIMIT_BYTES:
        raise invalid(tar_path, f"Its first member is not {MANIFEST}: another program has written it.")
    try:
        listing = msgspec.json.decode(content(tar, member, tar_path).read())
        if isinstance(listing, dict) and listing.get("version") != VERSION:
            raise invalid(tar_path, f"It has version {listing.get('version')}; this envkit reads {VERSION}.")
        manifest = record.convert(listing, BundleManifest)
        for entry in manifest.files:
            folder, _, name = entry.filename.rpartition("/")
            Source(filename=name, folder=folder, sha256=entry.sha256, needed_by=entry.needed_by)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise invalid(tar_path, f"Its {MANIFEST} is not one of a bundle: {error}.") from error
    return manifest


def take_all(
    tar: tarfile.TarFile, manifest: BundleManifest, take: Callable[[IO[bytes], BundledFile], None], tar_path: Path
) -> list[str]:
    """Take every file of a bundle; return what to say of those with another content. Raises BundleInvalid."""
    rest = {entry.filename: entry for entry in manifest.files}
    wrong = []
    while (member := tar.next()) is not None:
        entry = rest.pop(member.name, None)
        if entry is None:
            raise invalid(tar_path, f"It holds {member.name!r}, which its manifest does not name, or twice.")
        try:
            take(content(tar, member, tar_path), entry)
        except WrongContentError as error:
            wrong.append(f"{entry.filename}: {error}, but the manifest names {entry.sha256}")
    if rest:
        first = ", ".join(sorted(rest)[:SHOWN]) + (f" and {len(rest) - SHOWN} more" if len(rest) > SHOWN else "")
        raise invalid(tar_path, f"It ends, or is damaged, before {first}.")
    return wrong


def content(tar: tarfile.TarFile, member: tarfile.TarInfo, tar_path: Path) -> IO[bytes]:
    """Return the content of a member. Raises BundleInvalid for what is no plain file."""
    stream = tar.extractfile(member) if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) else None
    if stream is None or member.issparse():
        raise invalid(tar_path, f"{member.name!r} is not a plain file in it.")
    return stream


def take_file(stream: IO[bytes], entry: BundledFile, here: SourceCache) -> None:
    """Put a file of a bundle into the cache. Raises WrongContentError, DiskFull and NotWritable."""
    present = here.sha256(entry.filename)
    if present == entry.sha256:
        require_right(stream, entry)
        return
    here.store(entry.filename if present is None else partial_path(entry), chunks(stream), entry.sha256)


def require_right(stream: IO[bytes], entry: BundledFile) -> None:
    """Require that a file has the content that the manifest names. Raises WrongContentError."""
    actual = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    if actual != entry.sha256:
        raise WrongContentError(actual)


def partial_path(entry: BundledFile) -> str:
    """Return where a file of a bundle lies whose place in the cache another one has: as what is half written."""
    return f"{entry.filename}.bundle-{entry.sha256[:8]}.{part_of_process()}"


def admit(manifest: BundleManifest, sources: Sequence[Source], cache: Path, tar_path: Path) -> None:
    """Hold what a bundle has brought against the pins of recipes.

    It takes the place of another file only where it is what a recipe pins. Raises ChecksumMismatch where a recipe pins
    something else; then nothing of it is left under that name.
    """
    here, pins = SourceCache(cache), {source.place: source for source in distinct(sources)}
    wrong = contradictions(manifest, sources)
    for entry in manifest.files:
        place, other = entry.filename, here.path(partial_path(entry))
        source = pins.get(place)
        pin, present = (source.sha256 if source else None), here.sha256(place)
        if pin == entry.sha256 and present not in (None, pin) and other.is_file():
            here.set_aside(place, present)
            with writing(cache, place):
                other.replace(here.path(place))
        elif source and pin not in (None, entry.sha256) and present == entry.sha256:
            here.set_aside(place, present)
        other.unlink(missing_ok=True)
    here.save_stamps()
    if wrong:
        what = f"{len(wrong)} files in {tar_path} are not what the recipes here pin."
        raise ChecksumMismatch(what=what, why="\n".join(wrong), fix=AGAIN)


def contradictions(manifest: BundleManifest, sources: Sequence[Source]) -> list[str]:
    """Return what to say of each file of a bundle that is not what a recipe pins."""
    pins = {source.place: source for source in distinct(sources)}
    return [
        f"{entry.filename}: {source.needed_by} pins {source.sha256}, and the bundle has {entry.sha256}"
        for entry in manifest.files
        if (source := pins.get(entry.filename)) and source.sha256 not in (None, entry.sha256)
    ]


def chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a file in pieces."""
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def invalid(tar_path: Path, why: str) -> BundleInvalid:
    """Say that a file cannot be used as a bundle, and why."""
    return BundleInvalid(what=f"{tar_path} cannot be used as a bundle.", why=why, fix=AGAIN)
