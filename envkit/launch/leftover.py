"""What launchers of MPI that were killed leave in the folders for temporary files."""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from envkit.system import temporary

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "orted", "prterun", "prte", "prted")
PLACES = ("TMPDIR", "TEMP", "TMP", "OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base")


class Leftovers:
    """The folders of Open MPI's launchers that run below this process.

    Open MPI 4 calls them ompi.NODE.UID/pid.PID, Open MPI 5 ompi.PID. Only those are removed that were not there before,
    that are of this user and node, and of a launcher that was seen here and has ended. A run elsewhere whose launcher
    has the same number uses the same folder, and either of them removes it at its own end.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        named = (env.get(name) for name in PLACES)
        self.places = list(dict.fromkeys(Path(name) for name in (*named, "/tmp") if name))  # noqa: S108  (sticky)
        self.pids: set[int] = set()
        self.before = {folder for _pid, folder in self.folders()}

    def look(self, pids: Iterable[int]) -> None:
        """Look which processes are launchers: one may become that after it was first seen."""
        self.pids |= {pid for pid in pids if pid not in self.pids and program(pid) in LAUNCHERS}

    def remove(self) -> None:
        """Remove what is left of launchers that have ended."""
        for pid, folder in list(self.folders()):
            if pid in self.pids and folder not in self.before and temporary.has_ended(pid):
                shutil.rmtree(folder, ignore_errors=True)
                if folder.name.startswith("pid."):
                    with suppress(OSError):
                        folder.parent.rmdir()  # where it has no other run

    def folders(self) -> Iterator[tuple[int, Path]]:
        """Yield each folder that is there and the number of its launcher."""
        node = os.uname().nodename
        with suppress(OSError):
            for place in filter(None, map(temporary.kept_apart, self.places)):
                yield from numbered(place, "ompi.")
                for name in {node, node.partition(".")[0]}:
                    if is_own(place / f"ompi.{name}.{os.geteuid()}"):
                        yield from numbered(place / f"ompi.{name}.{os.geteuid()}", "pid.")


def numbered(place: Path, start: str) -> Iterator[tuple[int, Path]]:
    """Yield this user's folders whose names are ``start`` and a number, with that. Raises OSError."""
    for folder in place.glob(f"{start}*"):
        number = folder.name.removeprefix(start)
        if number.isdecimal() and is_own(folder):
            yield int(number), folder


def program(pid: int) -> str:
    """Return the name of a process's program, nothing if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""


def is_own(folder: Path) -> bool:
    """Say whether something is a folder, no link to one, and this user's."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()
