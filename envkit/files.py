"""Files and folders put in place, removed and known by their digest, those of images among them."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from envkit import process


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


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    import hashlib

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
