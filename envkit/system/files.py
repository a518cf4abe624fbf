"""Files and folders written, put in place, removed and known by their digest, those of images among them."""

import errno
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from envkit.errors import HostProblem, NotWritable, UsageProblem
from envkit.system import process

MOST = 64_000_000  # bytes of a file that is read at once
MOST_LINKS = 40  # as Linux follows
READER_S = 10.0  # that a reader of a pipe may come later
ANOTHER = "Free some room there, or name a file in a folder with room that you may write to."


def deliver(path: Path, content: bytes, what: str, *, new: bool = False, own: bool = False, fix: str = ANOTHER) -> None:
    """Write what a user asked for, as ``write`` does; ``what`` it is begins the message of NotWritable.

    Nobody else may write to it, whatever the umask.
    """
    try:
        write(path, content, new=new, own=own, mode=0o644)
    except FileExistsError:
        raise
    except OSError as error:
        why = f"{error.strerror or error}."
        raise NotWritable(what=f"{what} could not be written to {path}.", why=why, fix=fix) from error


def write(path: Path, content: bytes, *, new: bool = False, own: bool = False, mode: int = 0o664) -> None:
    """Write a file whole or not at all. Raises what ``whole`` does."""
    with whole(path, new=new, own=own, mode=mode) as stream:
        stream.write(content)


@contextmanager
def whole(path: Path, *, new: bool = False, own: bool = False, mode: int = 0o664) -> Iterator[BinaryIO]:
    """Write a file that appears by rename, complete and on the disk, or not at all; ``new``: where there is none.

    A link is followed, and an older file keeps its mode. What is no file, such as /dev/stdout, a device or a pipe, is
    written to as it is. But the file takes the place of a link or pipe where it is envkit's ``own``, which no user
    names. ``mode`` is that of a new file, of which the umask takes away. Raises OSError, with the name of the file.
    """
    target, stream = (path, None) if own else led_to(path)
    if stream is not None:
        with stream:
            yield stream
        return
    refused = errno.EEXIST if new and target.exists() else errno.EISDIR if target.is_dir() else 0
    if refused or (not own and target.exists() and not os.access(target, os.W_OK)):
        raise OSError(refused or errno.EACCES, os.strerror(refused or errno.EACCES), str(target))
    staged = f".envkit-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        folder = os.open(target.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        error.filename = str(target)
        raise
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(staged, flags, mode, dir_fd=folder), "wb") as stream:
            if not own:
                keep_mode(stream, folder, target.name)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(staged, target.name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.filename in (None, staged):
            error.filename, error.filename2 = str(target), None
        raise
    finally:
        with suppress(OSError):
            os.unlink(staged, dir_fd=folder)
        os.close(folder)


def keep_mode(stream: BinaryIO, folder: int, name: str) -> None:
    """Give a file the owner, as far as this user may, and the mode of the plain one in a folder whose place it takes.

    Nothing of one that another user has put into a folder where others may: it would be theirs.
    """
    try:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return
    try:
        old, around = os.fstat(descriptor), os.fstat(folder)
    finally:
        os.close(descriptor)
    is_closed = old.st_uid == around.st_uid and not around.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_own = old.st_uid == os.geteuid() or is_closed
    if stat.S_ISREG(old.st_mode) and is_own:
        with suppress(PermissionError):
            os.fchown(stream.fileno(), old.st_uid, old.st_gid)
        os.fchmod(stream.fileno(), stat.S_IMODE(old.st_mode) & 0o777)


def led_to(path: Path) -> tuple[Path, BinaryIO | None]:
    """Return the file that a path leads to, and what writes to it where that is no file. Raises OSError.

    No file is a device, a pipe, or one of this process's descriptors.
    """
    number = descriptor(path)
    if number is not None:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        return path, os.fdopen(os.dup(number), "wb")
    target = followed(path)
    is_other = target.exists() and not target.is_file() and not target.is_dir()
    return target, opened_to_write(target) if is_other else None


def followed(path: Path) -> Path:
    """Return where a path leads, over links that the system itself would follow (fs.protected_symlinks).

    Others are those of another user in a folder that is open to all, such as /tmp, and at the end of a path also in one
    that is open to a group; for root, any of another user. No part of what is returned is a link: what is put there
    later is not followed. Raises OSError.
    """
    at, rest, links = Path("/"), [*path.absolute().parts[1:]], 0
    while rest:
        name = rest.pop(0)
        step = at.parent if name == ".." else at / name
        try:
            target = step.readlink() if name != ".." else None
        except OSError:  # it is no link, or not there
            target = None
        if target is None:
            at = step
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        link, around = step.lstat(), at.stat()
        is_open = around.st_mode & (stat.S_IWOTH if rest else stat.S_IWOTH | stat.S_IWGRP)
        own = (0, os.geteuid(), around.st_uid) if os.geteuid() else (0,)
        if (is_open or not os.geteuid()) and link.st_uid not in own:
            raise OSError(errno.EACCES, "It is a link that another user has put there", str(path))
        at = Path("/") if target.is_absolute() else at
        rest = [*(target.parts[1:] if target.is_absolute() else target.parts), *rest]
    return at


def opened_to_write(path: Path) -> BinaryIO | None:
    """Open a device or pipe to write; None where it has become a plain file meanwhile.

    Raises OSError for one of another user, and for a pipe that nothing begins to read for READER_S.
    """
    deadline = time.monotonic() + READER_S
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if time.monotonic() > deadline:
                raise OSError(errno.ENXIO, "It is a pipe, and nothing reads from it", str(path)) from error
            time.sleep(0.1)
        else:
            break
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode):
        os.close(descriptor)
        return None
    if state.st_uid not in (0, os.geteuid()):
        os.close(descriptor)
        raise OSError(errno.EACCES, f"It is {kind(state.st_mode)} of another user", str(path))
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "wb")


def descriptor(path: Path) -> int | None:
    """Return the number of the descriptor of this process that a path such as /dev/stdout or /dev/fd/63 leads to."""
    for _ in range(MOST_LINKS):
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
    """Remove a file, a link or a folder, if it is there; what belongs to subordinate ids as well. Follows no link."""
    with suppress(FileNotFoundError, NotADirectoryError), opened(path.parent) as folder:
        discard_in(folder, path.name)


@contextmanager
def opened(root: Path, *below: str) -> Iterator[int]:
    """Yield the descriptor of a folder ``below`` another one, each part in the one before it.

    Raises OSError, NotADirectoryError for a part that is a link.
    """
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in below:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = deeper
        yield folder
    finally:
        os.close(folder)


def discard_in(folder: int, name: str) -> bool:
    """Remove what has a name in an open folder; return whether it is gone. Raises OSError for a file that stays."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except IsADirectoryError:
        pass
    else:
        return True
    with suppress(OSError):  # EESSI's EasyBuild makes what it installs read-only
        for _, _, _, inner in os.fwalk(name, dir_fd=folder, follow_symlinks=False):
            os.fchmod(inner, 0o700)
    shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
    if exists_in(folder, name):
        here = Path(f"/proc/{os.getpid()}/fd/{folder}")
        owners = ["unshare", "--user", "--map-auto", "--map-root-user"]
        process.capture([*owners, "rm", "-rf", "--", name], cwd=here, timeout_s=300)
    return not exists_in(folder, name)


def exists_in(folder: int, name: str) -> bool:
    """Say whether an open folder has something of that name, be it a link to nothing."""
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def read(path: Path, most: int = MOST) -> bytes:
    """Return what a plain file holds, at most so many bytes.

    Raises OSError for a larger one, and for a pipe, a socket or a device, without waiting.
    """
    with open_plain(path) as stream:
        found = stream.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"It is larger than {most // 1_000_000} MB", str(path))
    return found


def open_plain(path: Path) -> BufferedReader:
    """Open a plain file to read. Raises OSError, for a pipe, a socket or a device as well, without waiting."""
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    mode = os.fstat(stream.fileno()).st_mode
    if not stat.S_ISREG(mode):
        stream.close()
        raise OSError(errno.EINVAL, f"It is {kind(mode)}, not a plain file", str(path))
    return stream


def identity(state: os.stat_result) -> tuple[int, int, int, int]:
    """Return what is another after any change of a file: size, times of change (ns) of content and inode, and inode.

    The last time is the kernel's own: no user can set it, as touch(1) sets the other.
    """
    return state.st_size, state.st_mtime_ns, state.st_ino, state.st_ctime_ns


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    import hashlib

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def tree_sha256(folder: Path) -> str:
    """Return a SHA-256 of all that is in a folder: names, kinds, modes, links, contents. Raises OSError."""
    import hashlib

    def fail(error: OSError) -> None:
        raise error

    digest = hashlib.sha256()
    for place, folders, names in os.walk(folder, onerror=fail):
        folders.sort()
        for name in sorted((*folders, *names)):
            path = Path(place, name)
            state = path.lstat()
            digest.update(os.fsencode(path.relative_to(folder)) + f"\0{state.st_mode:o} {state.st_rdev}\0".encode())
            if stat.S_ISLNK(state.st_mode):
                digest.update(os.fsencode(path.readlink()))
            elif stat.S_ISREG(state.st_mode):
                digest.update(bytes.fromhex(sha256(path)))
    return digest.hexdigest()


def is_private(path: Path) -> bool:
    """Say whether a file or folder is this user's, nobody else may write to it, and it is no link."""
    try:
        found = path.lstat()
    except OSError:
        return False
    own = found.st_uid == os.geteuid() and not stat.S_ISLNK(found.st_mode)
    return own and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def at_home(word: str | Path) -> Path:
    """Return a path, a ~ before it as the home that it stands for. Raises UsageProblem for that of nobody here."""
    try:
        return Path(word).expanduser()
    except RuntimeError as error:
        raise UsageProblem(
            what=f"There is no folder {word}: {Path(word).parts[0]} is nobody's home here.",
            fix="Name a user of this machine behind the ~, or write the path in full.",
        ) from error


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone, whatever the umask. Raises OSError."""
    for one in (*reversed(folder.parents), folder):
        if not one.exists():
            with suppress(FileExistsError):
                one.mkdir(mode=0o700)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def require_private(folder: Path) -> None:
    """Require a folder of this user's alone, and not a link to one, so that nobody else can put anything into it.

    Raises HostProblem for any other, and OSError for one that is not there.
    """
    require_own(folder)
    mode = stat.S_IMODE(folder.lstat().st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise HostProblem(
            what=f"{folder} is not a folder that only you can change.",
            why=f"Others may write to it (mode {mode:o}), and may have put something into it.",
            fix=f"Look at what is in it; then: chmod go-w {folder}",
        )


def require_own(folder: Path) -> None:
    """Require a folder of this user's, and not a link to one. Raises HostProblem, OSError."""
    found, user = folder.lstat(), os.geteuid()
    if not stat.S_ISDIR(found.st_mode):
        why = f"It is {kind(found.st_mode)}; its owner has the uid {found.st_uid}."
        fix = "Find out who made it; move it away, or use another folder."
    elif found.st_uid != user:
        why = f"It belongs to another user: its owner has the uid {found.st_uid}, you have {user}."
        fix = "Use another folder."
    else:
        return
    raise HostProblem(what=f"{folder} is not a folder that only you can change.", why=why, fix=fix)


def require_plain(path: Path) -> None:
    """Require that a file is a plain one with one name, if it is there. Raises HostProblem for a link, a pipe, ..."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        why = f"It is {kind(found.st_mode)}." if not stat.S_ISREG(found.st_mode) else "The file has another name, too."
        fix = "envkit has not made it so: find out who did, and move it away."
        raise HostProblem(what=f"{path} is not a plain file.", why=why, fix=fix)


def kind(mode: int) -> str:
    """Name the kind of a file by its mode."""
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a folder",
    }
    return kinds.get(stat.S_IFMT(mode), "a device" if not stat.S_ISREG(mode) else "a file")
