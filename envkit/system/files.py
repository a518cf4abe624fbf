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
from shlex import quote
from typing import BinaryIO

from envkit.errors import HostProblem, NotWritable, UsageProblem
from envkit.system import owners, process

MOST = 64_000_000  # bytes of a file that is read as a whole
PIECE = 1 << 20  # bytes that are read at a time
MOST_LINKS = 40  # as Linux follows
OF_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
DESCRIPTORS = re.compile(r"/proc/(?P<process>\d+)/(task/\d+/)?fd", re.ASCII)
NUMBER = re.compile(r"\d{1,9}", re.ASCII)  # of a descriptor
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
    try:
        with destination(path, own=own) as (folder, name):
            number = None if own else descriptor(folder, name)
            if number is not None:
                for printing in filter(None, (sys.stdout, sys.stderr)):
                    printing.flush()
                with os.fdopen(os.dup(number), "wb") as stream:
                    yield stream
                return
            state = state_in(folder, name)
            if state is not None and not own and is_other(state):
                with opened_to_write(folder, name) as stream:
                    yield stream
                return
            if state is not None and not own:
                require_replaceable(folder, name, state, new=new)
            with staged(folder, name, mode) as stream:
                if not own:
                    keep_mode(stream, folder, name)
                yield stream
    except OSError as error:
        if not isinstance(error.filename, str | Path) or "/" not in str(error.filename):
            error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def staged(folder: int, name: str, mode: int) -> Iterator[BinaryIO]:
    """Write a file of an open folder under another name, which becomes the right one at the end. Raises OSError."""
    staging = f".envkit-{os.getpid()}-{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(staging, flags, mode, dir_fd=folder), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(staging, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(OSError):
            os.unlink(staging, dir_fd=folder)


def is_other(state: os.stat_result) -> bool:
    """Say whether something is a device, a pipe or a socket."""
    return not any(test(state.st_mode) for test in (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK))


def require_replaceable(folder: int, name: str, state: os.stat_result, *, new: bool) -> None:
    """Require that what an open folder has may be written anew; a ``new`` file must not be there. Raises OSError."""
    if new:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    if stat.S_ISDIR(state.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISREG(state.st_mode) and not os.access(name, os.W_OK, dir_fd=folder, follow_symlinks=False):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def keep_mode(stream: BinaryIO, folder: int, name: str) -> None:
    """Give a file the owner, as far as this user may, mode and ACL of the plain one in a folder whose place it takes.

    Of what a group may do, nothing where the new file has another one. Nothing of one that another user has put into a
    folder where others may: it would be theirs.
    """
    try:
        older = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return
    try:
        old, around, acl = os.fstat(older), os.fstat(folder), acl_of(older)
    finally:
        os.close(older)
    is_closed = old.st_uid == around.st_uid and not around.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    is_own = old.st_uid == os.geteuid() or is_closed
    if stat.S_ISREG(old.st_mode) and is_own:
        new, mode = stream.fileno(), stat.S_IMODE(old.st_mode) & 0o777
        with suppress(PermissionError):
            os.fchown(new, old.st_uid, old.st_gid)
        is_of_group = os.fstat(new).st_gid == old.st_gid
        with suppress(OSError):  # that of the folder, for new files
            os.removexattr(new, owners.ACL)
        os.fchmod(new, mode & ~stat.S_IRWXG if acl or not is_of_group else mode)
        if acl and is_of_group:
            with suppress(OSError):
                os.setxattr(new, owners.ACL, acl)


def acl_of(path: int) -> bytes:
    """Return the POSIX ACL of an open path, nothing where it has none."""
    try:
        return os.getxattr(f"/proc/self/fd/{path}", owners.ACL)
    except OSError:
        return b""


@contextmanager
def destination(path: Path, *, own: bool = False, makes: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the open folder and the name in it that a path leads to, over links that may be followed.

    Each part is opened in the one before it, so that nothing which is put there meanwhile is followed. A path of
    envkit's ``own`` is that of its folder, and its name no link. It ``makes`` folders that are not there. Raises
    OSError.
    """
    if own:
        folder, name = os.open(path.parent, OF_FOLDER), path.name
    else:
        folder, name = walked(path, makes=makes)
    try:
        yield folder, name
    finally:
        os.close(folder)


def walked(path: Path, *, makes: bool) -> tuple[int, str]:
    """Return the open folder and the name in it that a path leads to; "." where it leads to the folder itself.

    It begins in the current folder where the path does, whatever is above that. Raises OSError.
    """
    folder = os.open("/" if path.is_absolute() else ".", OF_FOLDER)
    rest, links = [*path.parts[path.is_absolute() :]], 0
    try:
        while rest:
            name = rest.pop(0)
            if rest and makes and not exists_in(folder, name):
                os.mkdir(name, dir_fd=folder)
            target = link_in(folder, name, is_last=not rest)
            if target is not None:
                links += 1
                if links > MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                if target.is_absolute():
                    root = os.open("/", OF_FOLDER)
                    os.close(folder)
                    folder = root
                rest = [*(target.parts[1:] if target.is_absolute() else target.parts), *rest]
            elif rest or name == "..":
                is_own = descriptor(folder, name) is not None
                deeper = os.open(name, OF_FOLDER if is_own else OF_FOLDER | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = deeper
            else:
                return folder, name
    except BaseException:
        os.close(folder)
        raise
    return folder, "."


def link_in(folder: int, name: str, *, is_last: bool) -> Path | None:
    """Return where a link of an open folder leads, None for what is none or one of this process's descriptors.

    Raises OSError for a link that the system would not follow either (fs.protected_symlinks), that of another user in
    a folder which is open to all, such as /tmp, and for a few more: in a folder which is open to a group, unless it is
    its owner's, and for root any of another user.
    """
    try:
        link = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        if is_last:
            return None
        raise
    try:
        state, around = os.fstat(link), os.fstat(folder)
        if not stat.S_ISLNK(state.st_mode) or descriptor(folder, name) is not None:
            return None
        is_open = bool(around.st_mode & (stat.S_IWOTH | stat.S_IWGRP))
        if state.st_uid not in (0, os.geteuid()) and not is_followed(state.st_uid, around.st_uid, is_open):
            raise PermissionError(errno.EACCES, "It is a link that another user has put there")
        target = Path(os.readlink("", dir_fd=link))
        is_gone = not target.is_absolute() or target.name.endswith(" (deleted)")
        if is_gone and DESCRIPTORS.fullmatch(place_of(folder)):
            raise OSError(errno.ENXIO, "Another process has it open, and it is no file in a folder")
        return target
    finally:
        os.close(link)


def is_followed(owner: int, of_folder: int, is_open: bool) -> bool:
    """Say whether a link of another user is followed, of which the owner and that of its folder are given.

    In a container nobody knows who an owner is that it does not map; the system's own files have the same one there.
    """
    if owner == owners.NOBODY and owners.is_in_user_namespace():
        return not is_open and of_folder in (0, owners.NOBODY)
    return bool(os.geteuid()) and (not is_open or owner == of_folder)


def state_in(folder: int, name: str) -> os.stat_result | None:
    """Return the state of what an open folder has, of a link itself; None if it has none. Raises OSError."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def opened_to_write(folder: int, name: str) -> BinaryIO:
    """Open a device or pipe of an open folder to write.

    Raises OSError for one of another user, for what has taken its place, and for a pipe that nothing begins to read
    for READER_S.
    """
    deadline = time.monotonic() + READER_S
    while True:
        before = os.stat(name, dir_fd=folder, follow_symlinks=False)
        require_own_or_system(before)
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
            opened = os.open(name, flags, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.ENXIO or not stat.S_ISFIFO(before.st_mode):
                raise
            if time.monotonic() > deadline:
                raise OSError(errno.ENXIO, "It is a pipe, and nothing reads from it") from error
            time.sleep(0.1)
        else:
            break
    stream = os.fdopen(opened, "wb")
    try:
        state = os.fstat(opened)
        require_own_or_system(state)
        if not is_other(state):
            raise OSError(errno.EAGAIN, "Something else has taken its place meanwhile")
        os.set_blocking(opened, True)
    except BaseException:
        stream.close()
        raise
    return stream


def require_own_or_system(state: os.stat_result) -> None:
    """Require that a pipe or device is this user's or the system's. Raises OSError."""
    if not is_other(state) or state.st_uid in (0, os.geteuid()):
        return
    is_of_host = state.st_uid == owners.NOBODY and owners.is_in_user_namespace()
    if not is_of_host or stat.S_ISFIFO(state.st_mode):
        raise PermissionError(errno.EACCES, f"It is {kind(state.st_mode)} of another user")


def descriptor(folder: int, name: str) -> int | None:
    """Return the number of this process's descriptor that a name in an open folder stands for, as in /dev/fd."""
    if not NUMBER.fullmatch(name):
        return None
    match = DESCRIPTORS.fullmatch(place_of(folder))
    return int(name) if match and int(match["process"]) == os.getpid() else None


def place_of(folder: int) -> str:
    """Return the path of an open folder, as the kernel has it; nothing where there is no /proc."""
    try:
        return str(Path(f"/proc/self/fd/{folder}").readlink())
    except OSError:
        return ""


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
    pieces, left = list[bytes](), most + 1
    with open_plain(path) as stream:
        while left and (piece := stream.read(min(left, PIECE))):  # it takes the memory that it is asked for at once
            pieces.append(piece)
            left -= len(piece)
    content = b"".join(pieces)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"It is larger than {most // 1_000_000} MB", str(path))
    return content


def open_plain(path: Path) -> BufferedReader:
    """Open a plain file to read. Raises OSError, for a pipe, a socket or a device as well, without waiting."""
    return plain(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), path)


def open_plain_in(folder: int, name: str) -> BufferedReader:
    """Open a plain file of an open folder to read, and no link. Raises OSError, as ``open_plain`` does."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    return plain(os.open(name, flags, dir_fd=folder), Path(name))


def plain(opened: int, path: Path) -> BufferedReader:
    """Return what reads from a plain file that was opened. Raises OSError for what is none."""
    try:
        stream = os.fdopen(opened, "rb")
    except OSError:  # a folder
        os.close(opened)
        raise
    mode = os.fstat(opened).st_mode
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
    """Return the SHA-256 of a plain file. Raises OSError, for a pipe or a device as well, without waiting."""
    import hashlib

    with open_plain(path) as stream:
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
        state = path.lstat()
    except OSError:
        return False
    own = state.st_uid == os.geteuid() and not stat.S_ISLNK(state.st_mode)
    return own and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def at_home(word: str | Path) -> Path:
    """Return a path, a ~ before it as the home that it stands for. Raises UsageProblem for that of nobody here.

    In ./~x it stands for none.
    """
    if not str(word).startswith("~"):
        return Path(word)
    try:
        return Path(word).expanduser()
    except RuntimeError as error:
        raise UsageProblem(
            what=f"There is no folder {word}: {Path(word).parts[0]} is nobody's home here.",
            fix="Name a user of this machine behind the ~, or write the path in full.",
        ) from error


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone, whatever the umask. Raises OSError.

    A home that is not there is not made.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  (no error where there is none)
    if folder.is_relative_to(home) and not home.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(home))
    for level in (*reversed(folder.parents), folder):
        if not level.exists():
            with suppress(FileExistsError):
                level.mkdir(mode=0o700)
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
            fix=f"Look at what is in it; then: chmod go-w {quote(str(folder))}",
        )


def is_own_folder(path: Path) -> bool:
    """Say whether something is a folder, no link to one, and this user's; what cannot be looked at is not."""
    try:
        state = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def require_own(folder: Path) -> None:
    """Require a folder of this user's, and not a link to one. Raises HostProblem, OSError."""
    state, user = folder.lstat(), os.geteuid()
    if not stat.S_ISDIR(state.st_mode):
        why = f"It is {kind(state.st_mode)}; its owner has the uid {state.st_uid}."
        fix = "Find out who made it; move it away, or use another folder."
    elif state.st_uid != user:
        why = f"It belongs to another user: its owner has the uid {state.st_uid}, you have {user}."
        fix = "Use another folder."
    else:
        return
    raise HostProblem(what=f"{folder} is not a folder that only you can change.", why=why, fix=fix)


def require_plain(path: Path) -> None:
    """Require that a file is a plain one with one name, if it is there. Raises HostProblem for a link, a pipe, ..."""
    try:
        state = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
        why = f"It is {kind(state.st_mode)}." if not stat.S_ISREG(state.st_mode) else "The file has another name, too."
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
