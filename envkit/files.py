"""Files and folders written, put in place, removed and known by their digest, those of images among them."""

import errno
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from envkit import process
from envkit.errors import NotWritable

ANOTHER = "Free some room there, or name a file in a folder with room that you may write to."


def deliver(path: Path, content: bytes, what: str, *, new: bool = False, fix: str = ANOTHER) -> None:
    """Write what a user asked for, as ``write`` does; ``what`` it is begins the message of NotWritable."""
    try:
        write(path, content, new=new)
    except FileExistsError:
        raise
    except OSError as error:
        why = f"{error.strerror or error}."
        raise NotWritable(what=f"{what} could not be written to {path}.", why=why, fix=fix) from error


def write(path: Path, content: bytes, *, new: bool = False) -> None:
    """Write a file whole or not at all. Raises what ``whole`` does."""
    with whole(path, new=new) as stream:
        stream.write(content)


@contextmanager
def whole(path: Path, *, new: bool = False) -> Iterator[BinaryIO]:
    """Write a file that appears by rename, complete and on the disk, or not at all; ``new``: where there is none.

    A link is followed, and an older file keeps its mode. What is no file, such as /dev/stdout, a device or a pipe, is
    written to as it is. Raises OSError, with the name of the file.
    """
    stream = beyond(path)
    if stream is not None:
        with stream:
            yield stream
        return
    target = Path(os.path.realpath(path))
    refused = errno.EEXIST if new and target.exists() else errno.EISDIR if target.is_dir() else 0
    if refused or (target.exists() and not os.access(target, os.W_OK)):
        raise OSError(refused or errno.EACCES, os.strerror(refused or errno.EACCES), str(target))
    staged = target.with_name(f".envkit-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as stream:
            keep_mode(stream, target)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        staged.replace(target)
    except OSError as error:
        if error.filename in (None, str(staged)):
            error.filename, error.filename2 = str(target), None
        raise
    finally:
        with suppress(OSError):
            staged.unlink(missing_ok=True)


def keep_mode(stream: BinaryIO, target: Path) -> None:
    """Give a file the owner, as far as this user may, and the mode of the one whose place it takes."""
    with suppress(FileNotFoundError):
        old = target.stat()
        with suppress(PermissionError):
            os.fchown(stream.fileno(), old.st_uid, old.st_gid)
        os.fchmod(stream.fileno(), stat.S_IMODE(old.st_mode))


def beyond(path: Path) -> BinaryIO | None:
    """Return what writes to a path that is no file: a device, a pipe, one of this process's descriptors; else None."""
    number = descriptor(path)
    if number is not None:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        return os.fdopen(os.dup(number), "wb")
    return None if path.is_file() or path.is_dir() or not path.exists() else path.open("wb")


def descriptor(path: Path) -> int | None:
    """Return the number of the descriptor of this process that a path such as /dev/stdout or /dev/fd/63 leads to."""
    for _ in range(40):  # as many links as Linux follows
        path = Path(os.path.realpath(path.parent)) / path.name
        if re.fullmatch(rf"/proc/({os.getpid()}|self)/(task/\d+/)?fd/\d+", str(path)):
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def replace(source: Path, target: Path) -> None:
    """Put a file or folder in its place."""
    if target.is_dir():
        discard(target)
    source.replace(target)


def discard(path: Path) -> None:
    """Remove a file or folder, if it is there; what belongs to subordinate ids as well."""
    if path.is_file():
        path.unlink()
    if not path.is_dir():
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        process.capture(["unshare", "--user", "--map-auto", "--map-root-user", "rm", "-rf", str(path)], timeout_s=300)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    import hashlib

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
