"""What a launcher of MPI that was killed leaves in the folders for temporary files."""

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from envkit.system import temporary


def remove(pids: Iterable[int], env: Mapping[str, str]) -> None:
    """Remove the folders that launchers of these numbers have left, of this user and of those that have ended.

    Open MPI 4 calls them ompi.NODE.UID/pid.PID, Open MPI 5 ompi.PID. The numbers are those of processes that the
    caller saw below itself, so that nothing of another run is touched.
    """
    ended = [pid for pid in pids if temporary.has_ended(pid)]
    for place in filter(None, map(temporary.kept_apart, places(env))):
        for above in place.glob(f"ompi.*.{os.geteuid()}"):
            if is_own(above):
                for pid in ended:
                    remove_own(above / f"pid.{pid}")
                with suppress(OSError):
                    above.rmdir()  # where it is of no other run
        for pid in ended:
            remove_own(place / f"ompi.{pid}")


def places(env: Mapping[str, str]) -> list[Path]:
    """Return the folders for temporary files that launchers may use, each once."""
    named = (env.get(name) for name in ("TMPDIR", "TEMP", "TMP"))
    return list(dict.fromkeys(Path(name) for name in (*named, "/tmp") if name))  # noqa: S108  (sticky)


def remove_own(folder: Path) -> None:
    """Remove a folder of this user's."""
    if is_own(folder):
        shutil.rmtree(folder, ignore_errors=True)


def is_own(folder: Path) -> bool:
    """Say whether something is a folder, no link to one, and this user's."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
