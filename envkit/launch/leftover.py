"""What Open MPI's launchers and ranks that were killed leave: folders for temporary files, and shared memory."""

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from envkit.system import files, temporary

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "orted", "prterun", "prte", "prted")
PLACES = ("TMPDIR", "TEMP", "TMP", "OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base")

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (sticky)
SEGMENTS = ("vader_segment", "sm_segment")  # Open MPI 4, Open MPI 5
AGAIN_S = 1.0  # until it is looked again who has mapped a segment


class Leftovers:
    """The folders of Open MPI's launchers that run below this process, and the shared memory of their ranks.

    Open MPI 4 calls the folders ompi.NODE.UID/pid.PID, Open MPI 5 ompi.PID. Only those are removed that were not there
    before, that are of this user and node, and of a launcher that was seen here and has ended. A run elsewhere whose
    launcher has the same number uses the same folder, and either of them removes it at its own end.

    A segment of shared memory, of which a file is left, is called vader_segment.NODE.UID.JOB.RANK, or sm_segment. Only
    those of this node are removed that were not there before, that are of this user, that a process below this one was
    seen to have mapped, and that no process has mapped any more.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        named = (env.get(name) for name in PLACES)
        self.places = list(dict.fromkeys(Path(name) for name in (*named, "/tmp") if name))  # noqa: S108  (sticky)
        self.pids: set[int] = set()
        self.before = {folder for _pid, folder in self.folders()}
        self.segments_before = set(segments())
        self.unclear: set[Path] = set()
        self.looked = 0.0
        self.mapped: set[Path] = set()

    def look(self, pids: Iterable[int]) -> None:
        """Look which processes are launchers, and what they share: one may become that after it was first seen."""
        pids = list(pids)
        self.pids |= {pid for pid in pids if pid not in self.pids and program(pid) in LAUNCHERS}
        unclear = set(segments()) - self.segments_before - self.mapped
        if unclear - self.unclear or (unclear and time.monotonic() - self.looked > AGAIN_S):
            for pid in pids:
                self.mapped |= unclear & mapped_by(pid)
            self.looked = time.monotonic()
        self.unclear = unclear

    def remove(self) -> None:
        """Remove what is left of launchers and ranks that have ended."""
        if left := self.mapped.intersection(segments()):
            for path in left - {path for pid in processes() for path in mapped_by(pid)}:
                with suppress(OSError):
                    path.unlink()
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
                    if files.is_own_folder(place / f"ompi.{name}.{os.geteuid()}"):
                        yield from numbered(place / f"ompi.{name}.{os.geteuid()}", "pid.")


@contextmanager
def removed(env: Mapping[str, str]) -> Iterator[Leftovers]:
    """Remove at the end of the block what is left by then of launchers and ranks that were seen in it."""
    left = Leftovers(env)
    try:
        yield left
    finally:
        left.remove()


def numbered(place: Path, start: str) -> Iterator[tuple[int, Path]]:
    """Yield this user's folders whose names are ``start`` and a number, with that. Raises OSError."""
    for folder in place.glob(f"{start}*"):
        number = folder.name.removeprefix(start)
        if number.isdecimal() and files.is_own_folder(folder):
            yield int(number), folder


def program(pid: int) -> str:
    """Return the name of a process's program, nothing if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""


def segments() -> Iterator[Path]:
    """Yield the files of this user's shared memory that Open MPI has made on this node."""
    node, user = os.uname().nodename, os.geteuid()
    starts = tuple(f"{kind}.{name}.{user}." for kind in SEGMENTS for name in {node, node.partition(".")[0]})
    with suppress(OSError), os.scandir(SHARED_MEMORY) as entries:
        for entry in entries:
            if entry.name.startswith(starts) and entry.is_file(follow_symlinks=False):
                yield Path(entry.path)


def mapped_by(pid: int) -> set[Path]:
    """Return which files of shared memory a process has mapped, of those that are still there by that name."""
    found = set()
    with suppress(OSError), Path(f"/proc/{pid}/maps").open(errors="replace") as lines:
        for line in lines:
            if str(SHARED_MEMORY) in line:  # ADDRESSES RIGHTS OFFSET DEVICE INODE PATH
                *_others, inode, path = line.rstrip("\n").split(maxsplit=5)
                with suppress(OSError):
                    if Path(path).lstat().st_ino == int(inode):
                        found.add(Path(path))
    return found


def processes() -> Iterator[int]:
    """Yield the numbers of all processes that this one sees."""
    yield from (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
