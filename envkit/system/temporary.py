"""Folders for temporary files whose names tell whose they are: what a killed process has left, the next one removes."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OF_PROCESS = re.compile(r"envkit-([a-z]+-)?(\d+-)?of-(?P<node>[\w.-]+\.\d+)\.(?P<pid>\d{1,9})\.[0-9a-f]{8}(-[\w.-]+)?")


def own_name() -> str:
    """Return a name that tells which process of which node it belongs to; another one each time."""
    return f"of-{this_node()}.{os.getpid()}.{os.urandom(4).hex()}"


def this_node() -> str:
    """Return the name of this node and of its processes' namespace, as a part of a file name.

    Containers may share a host name and a folder for temporary files, and yet not see each other's processes.
    """
    try:
        processes = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        processes = 0
    return re.sub(r"[^\w.-]", "_", f"{os.uname().nodename}.{processes}")


@contextmanager
def folder(kind: str, place: Path | None = None) -> Iterator[Path]:
    """Make a folder of this process, private to the user, and remove it after the block.

    It lies in ``place``, the usual folder for temporary files if that is not given. Raises OSError.
    """
    place = place or Path(tempfile.gettempdir())
    sweep([place])
    made = place / f"envkit-{kind}-{own_name()}"
    made.mkdir(mode=0o700)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def has_ended(pid: int) -> bool:
    """Say whether no process of this namespace has a number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def sweep(places: Iterable[Path]) -> None:
    """Remove the folders of this user that processes of this node have left which were killed."""
    for path in (path for place in places for path in place.glob("envkit-*of-*")):
        match = OF_PROCESS.fullmatch(path.name)
        if match and match["node"] == this_node() and has_ended(int(match["pid"])):
            with suppress(OSError):
                if path.lstat().st_uid == os.geteuid():
                    shutil.rmtree(path, ignore_errors=True)
