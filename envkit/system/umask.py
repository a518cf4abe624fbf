"""The umask of this process, which counts for all that it makes, and for what it starts."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def fitting(mode: int, *, is_root: bool) -> int:
    """Return the umask for what is made in a folder of this mode: open to whom the folder is, to no others.

    Nothing is made that everybody may write to. A folder of that kind, such as /tmp, says nothing of what is in it: it
    is private. For root what lies in a private folder may be read, since Lmod finds only such for root: there the mode
    of the folder itself keeps others out.
    """
    if mode & stat.S_IWOTH:
        return 0o077
    return 0o022 if is_root and not mode & 0o077 else ~mode & 0o077 | stat.S_IWOTH


@contextmanager
def like(folder: Path) -> Iterator[None]:
    """Have what is made in this block be as open as a folder is, which may not be there yet: then it is private."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        mode = 0o700
    with set_to(fitting(mode, is_root=os.geteuid() == 0)):
        yield


@contextmanager
def set_to(umask: int) -> Iterator[int]:
    """Have what is made in the block, by the programs that it starts as well, get modes of this umask; yield the own.

    It is the whole process's: only for a block of the main thread.
    """
    own = os.umask(umask)
    try:
        yield own
    finally:
        os.umask(own)
