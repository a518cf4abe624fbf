"""Files and folders put in place, removed and known by their digest, those of images among them."""

import os
import shutil
import stat
from pathlib import Path

from envkit import process
from envkit.errors import HostProblem


def replace(source: Path, target: Path) -> None:
    """Put a file or folder in its place."""
    if target.is_dir():
        discard(target)
    source.replace(target)


def discard(path: Path) -> None:
    """Remove a file or folder, if it is there; what belongs to subordinate ids as well. A link is not followed."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        process.capture(["unshare", "--user", "--map-auto", "--map-root-user", "rm", "-rf", str(path)], timeout_s=300)


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


def require_private(folder: Path) -> None:
    """Require a folder of this user's alone, and not a link to one, so that nobody else can put anything into it.

    Raises HostProblem for any other, and OSError for one that is not there.
    """
    require_own(folder)
    mode = stat.S_IMODE(folder.lstat().st_mode)
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise HostProblem(
            what=f"{folder} is not a folder of yours alone.",
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
    raise HostProblem(what=f"{folder} is not a folder of yours alone.", why=why, fix=fix)


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
