"""A cache in a folder. Every file appears by rename.

Others may write to the folder, too: nothing is read, written or removed through a link that stands in it.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import BinaryIO

from envkit.cache.layout import INDEX, NAME, OWN, PIECE, Stored
from envkit.environments import replaced
from envkit.environments.prefix import listed
from envkit.errors import HANDLES, CacheBlocked, EnvkitError, HostProblem, NotReadable, UsageProblem
from envkit.system import files, umask
from envkit.system.files import at_home

LOCKED_S = 60.0
TOPS = ("manifests", "objects", "sources")
LINK = "is a link, which is not followed"
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}  # as of Lustre without -o flock
NO_FILE = {errno.ELOOP, errno.EISDIR, errno.EINVAL, errno.ENXIO}  # of a link, a folder, a pipe, a socket


def path_of(named: str) -> Path:
    """Return the folder."""
    return at_home(named).absolute()


@contextmanager
def around(named: str, name: str, *, makes: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the open folder of a file of a cache, and its name there; it ``makes`` folders. Raises OSError.

    Each folder is opened in the one above it: no link that stands there is followed, whatever others change meanwhile.
    """
    *folders, last = name.split("/")
    for deep in range(1, len(folders) + 1) if makes else ():
        with files.opened(path_of(named), *folders[: deep - 1]) as at, suppress(FileExistsError):
            os.mkdir(folders[deep - 1], dir_fd=at)
    with files.opened(path_of(named), *folders) as at:
        yield at, last


def names(named: str) -> Iterator[str]:
    """Yield the names of its manifests. Raises RefusedError, of a folder of a module once all others are through.

    So it does of a link, or a file, in the place of a folder: else all that is behind it would seem to have gone.
    """
    from envkit.sources.answers import RefusedError

    top, unread = path_of(named) / "manifests", list[str]()
    try:
        if not top.parent.is_dir():
            raise RefusedError("It is a file" if top.parent.exists() else "There is no such folder")
        if top.is_symlink():
            raise RefusedError(f"manifests/ {LINK}")
        if top.is_file():
            raise RefusedError("manifests is a file, and no folder")
        for folder in listed(top):
            inside = list[str]()
            if not (top / folder).is_symlink():
                try:
                    inside = listed(top / folder)
                except NotReadable as error:
                    unread.append(in_a_line(error))
            elif NAME.fullmatch(f"{folder}/{'0' * 64}.json"):
                unread.append(f"manifests/{folder}/ {LINK}")
            yield from (f"{folder}/{name}" for name in inside)
        if unread:
            raise RefusedError(unread[0])
    except NotReadable as error:
        raise RefusedError(in_a_line(error)) from error
    except OSError as error:  # of a folder that others may not enter
        why = error.strerror or str(error)
        raise RefusedError(f"{error.filename} cannot be read: {why}" if error.filename else why) from error


@contextmanager
def opened(named: str, name: str, most: int) -> Iterator[Iterable[bytes]]:
    """Give a file in pieces. Raises RefusedError, also while it is read."""
    from envkit.sources.answers import AbsentError, DamagedError, RefusedError, limited

    try:
        with around(named, name) as (at, last):
            try:
                stream = files.open_plain_in(at, last)
            except OSError as error:
                if error.errno not in NO_FILE:
                    raise
                raise DamagedError(
                    f"it {LINK}" if error.errno == errno.ELOOP else error.strerror or str(error)
                ) from error
    except FileNotFoundError as error:
        raise AbsentError("this file is not there") from error
    except OSError as error:
        if error.errno in HANDLES:
            raise
        folders = reversed(PurePosixPath(name).parents[:-1])
        link = next((each for each in folders if (path_of(named) / each).is_symlink()), None)
        raise RefusedError(f"{link}/ {LINK}" if link else error.strerror or str(error)) from error
    with stream:
        yield limited(pieces(stream), None, most)


def require_sources(named: str) -> None:
    """Require that its sources can be listed, if it has any, as ``names`` does of manifests. Raises RefusedError."""
    from envkit.sources.answers import RefusedError

    top = path_of(named) / "sources"
    if top.is_symlink():
        raise RefusedError(f"sources/ {LINK}")
    if top.is_file():
        raise RefusedError("sources is a file, and no folder")
    try:
        listed(top)
    except NotReadable as error:
        raise RefusedError(in_a_line(error)) from error


def in_a_line(error: NotReadable) -> str:
    """Return what cannot be read, and why."""
    return f"{error.what.rstrip('.')}: {error.why.rstrip('.')}"


def pieces(stream: BufferedReader) -> Iterator[bytes]:
    """Yield what a file holds. Raises RefusedError."""
    from envkit.sources.answers import RefusedError

    try:
        while chunk := stream.read(PIECE):
            yield chunk
    except OSError as error:
        raise RefusedError(error.strerror or str(error)) from error


def require(named: str) -> None:
    """Require that the folder is there, and not open to everybody. Raises UsageProblem, HostProblem."""
    folder = path_of(named)
    if folder.exists() and not folder.is_dir():
        raise UsageProblem(
            what=f"{folder} is a file, and no folder.", fix="Name the folder of a cache, or an empty one."
        )
    if not folder.is_dir():
        raise UsageProblem(
            what=f"There is no folder {folder}.",
            fix=f"Make it, for those who may push into it: mkdir -m 2775 {quote(str(folder))}",
        )
    if folder.stat().st_mode & stat.S_IWOTH:
        raise HostProblem(
            what=f"Nothing is put into {folder}: everybody may write to it.",
            why="Anybody could remove what is in it. So what envkit makes in such a folder is for its owner alone, and "
            "nobody else could take a build from there.",
            fix=f"Close it, or have its owner do so: chmod o-w {quote(str(folder))}\nWhere a group is to push, give it "
            "to that group, with mode 2775.",
        )


def refuses(module: str) -> str:  # noqa: ARG001
    """Say nothing: a build can be called as any module is."""
    return ""


@contextmanager
def locked(named: str) -> Iterator[None]:
    """Hold the lock of a folder, where its file system has locks; without, the last to write the index has read it.

    Raises OSError, CacheBlocked where something else stands in its place.
    """
    place = path_of(named) / ".lock"
    try:
        with umask.like(place.parent):
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o664)
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        is_link, path = place.is_symlink(), quote(str(place))
        raise CacheBlocked(
            what=f"Nothing can be put into {place.parent}: its .lock is a {'link' if is_link else 'folder'}.",
            why="It has to be a file, which envkit locks; envkit follows no link there, and removes no folder.",
            fix=f"Look at it, then remove it: ls -ld {path}; rm {'' if is_link else '-r '}{path}",
        ) from None
    try:
        is_held = replaced.acquired(descriptor, fcntl.LOCK_EX, time.monotonic() + LOCKED_S)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in NO_LOCKS:
            raise
        yield
        return
    try:
        if not is_held:
            raise EnvkitError(
                what=f"Another process has held {place} for {LOCKED_S:.0f} s.",
                fix="Wait until it has ended, then run the same command again.",
            )
        yield
    finally:
        os.close(descriptor)


def holds(named: str, name: str, size: int, sha256: str) -> bool:
    """Say whether a file is there as it should be. Raises OSError."""
    import hashlib

    try:
        with around(named, name) as (at, last), files.open_plain_in(at, last) as stream:
            is_long = os.fstat(stream.fileno()).st_size == size
            return is_long and hashlib.file_digest(stream, "sha256").hexdigest() == sha256
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in NO_FILE - {errno.EISDIR}:  # what is put there takes its place
            return False
        error.filename = name
        raise


def put(named: str, name: str, stream: BinaryIO) -> None:
    """Write a file. Raises OSError."""
    with (
        umask.like(path_of(named)),
        around(named, name, makes=True) as (at, last),
        files.staged(at, last, 0o664) as new,
    ):
        while chunk := stream.read(PIECE):
            new.write(chunk)


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the files of a cache, what is half written as well, and what stands in the place of one, such as a link.

    What has another name, or is behind a link, is none.
    """
    for pattern in ("*", ".envkit-*", "objects/*", "sources/*", "manifests/*/*"):
        for path in sorted(folder.glob(pattern)):
            name = str(path.relative_to(folder))
            behind = any(place.is_symlink() for place in path.parents[: name.count("/")])
            if OWN.fullmatch(name) and not behind:
                yield path


def is_foreign(named: str) -> bool:
    """Say whether a folder has files, but none of a cache; one that is empty may become a cache, hidden files aside."""
    folder = path_of(named)
    with suppress(NotReadable):
        there = set(listed(folder))
        known = {*TOPS, INDEX, ".lock"}
        seen = {name for name in there if not name.startswith(".")}
        return bool(seen - known) and not there & {INDEX, ".lock"} and not any(files_of(folder))
    return False


def stored(named: str) -> Iterator[Stored]:
    """Yield its files. Raises OSError."""
    folder = path_of(named)
    for path in files_of(folder):
        try:
            state = path.lstat()
        except FileNotFoundError:  # what is half written gets its name, and others remove what is of no use
            continue
        yield Stored(
            name=str(path.relative_to(folder)),
            size=state.st_size,
            changed=state.st_mtime,
            is_file=not stat.S_ISDIR(state.st_mode),
        )


def remove(named: str, name: str) -> None:
    """Remove a file, if it is there, and nothing behind a link, whatever others change meanwhile. Raises OSError."""
    with suppress(FileNotFoundError), around(named, name) as (at, last):
        os.unlink(last, dir_fd=at)
