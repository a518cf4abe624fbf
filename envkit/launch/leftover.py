"""What Open MPI's launchers and ranks that were killed leave: folders for temporary files, and shared memory."""

import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from envkit.system import files, temporary

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "orted", "prterun", "prte", "prted")
PLACES = ("OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base", "TMPDIR", "TEMP", "TMP")

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (sticky)
SEGMENTS = ("vader_segment", "sm_segment")  # Open MPI 4, Open MPI 5
AGAIN_S = 1.0  # between two looks at who has mapped a new segment

Identity = tuple[int, int, int]  # a file's device, major and minor, and its inode


class Leftovers:
    """The folders of Open MPI's launchers that run below this process, and the shared memory of their ranks.

    Open MPI 4 calls a folder ompi.NODE.UID/pid.PID, the PRRTE of Open MPI 5 mpirun.NODE.PID.UID, prte.NODE.UID/dvm.PID,
    ompi.NODE.PID or ompi.PID, by its version. Only those are removed that were not there before, that are of this user
    and node, and of a launcher that was seen here and has ended. A run elsewhere whose launcher has the same number
    uses the same folder, and either of them removes it at its own end.

    A segment of shared memory is a file, vader_segment.NODE.UID.JOB.RANK or sm_segment.NODE.UID.JOB.RANK. Only those of
    this node and user are removed that were not there before, that a process below this one was seen to have mapped,
    and that no process has mapped any more, as far as this user may know. By an empty one, open_mpi.NUMBER, a process
    tries as it begins whether there is shared memory: it has it open until it removes it.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.place = Path(next(filter(None, map(env.get, PLACES)), "/tmp"))  # noqa: S108  (sticky)
        self.launchers: set[int] = set()
        self.before = {folder for _pid, folder in self.folders()}
        self.segments_before = set(segments())
        self.trials_before = set(trials())
        self.own: dict[Path, Identity] = {}
        self.looked: tuple[set[Path], set[int], float] = set(), set(), 0.0

    def look(self, pids: Iterable[int]) -> None:
        """Look which of the processes that run are launchers, and which have mapped a new segment."""
        here = set(pids)
        self.launchers |= {pid for pid in here - self.launchers if program(pid) in LAUNCHERS}
        new = set(segments()) - self.segments_before - self.own.keys()
        paths, others, when = self.looked
        if new - paths or (new and (here - others or time.monotonic() - when > AGAIN_S)):
            for pid in here:
                if not (rest := new - self.own.keys()):
                    break
                with suppress(OSError):
                    self.own.update(mapped(pid, rest))
            self.looked = new, here, time.monotonic()

    def remove(self) -> None:
        """Remove what is left of launchers and ranks that have ended."""
        for path, identity in self.own.items():
            with suppress(OSError):
                if not is_in_use(path) and identity_of(path) == identity:
                    path.unlink()
        for path in set(trials()) - self.trials_before:
            with suppress(OSError):
                if not is_open(path):
                    path.unlink()
        for pid, folder in list(self.folders()):
            if pid in self.launchers and folder not in self.before and temporary.has_ended(pid):
                shutil.rmtree(folder, ignore_errors=True)
                if folder.parent != self.place.resolve():
                    with suppress(OSError):
                        folder.parent.rmdir()  # where it has no other run

    def folders(self) -> Iterator[tuple[int, Path]]:
        """Yield each folder that is there and the number of its launcher."""
        user, own = os.geteuid(), names()
        launchers = "|".join(LAUNCHERS)
        single = re.compile(rf"ompi\.(?:(?:{own})\.)?(?!{user}$)(\d+)|(?:{launchers})\.(?:{own})\.(\d+)\.{user}")
        with suppress(OSError):
            if place := temporary.kept_apart(self.place):
                yield from numbered(place, single)
                for shared in place.iterdir():
                    if re.fullmatch(rf"(?:ompi|prte)\.(?:{own})\.{user}", shared.name) and files.is_own_folder(shared):
                        yield from numbered(shared, re.compile(r"(?:pid|dvm)\.(\d+)"))


@contextmanager
def removed(env: Mapping[str, str]) -> Iterator[Leftovers]:
    """Remove at the end of the block what is left by then of launchers and ranks that were seen in it."""
    left = Leftovers(env)
    try:
        yield left
    finally:
        left.remove()


def names() -> str:
    """Return a pattern of what Open MPI calls this node: its name with or without its domain."""
    node = os.uname().nodename
    return "|".join(map(re.escape, dict.fromkeys((node, node.partition(".")[0]))))


def numbered(place: Path, pattern: re.Pattern[str]) -> Iterator[tuple[int, Path]]:
    """Yield this user's folders whose names are such and the number in each. Raises OSError."""
    for folder in place.iterdir():
        found = pattern.fullmatch(folder.name)
        if found and files.is_own_folder(folder):
            yield next(int(number) for number in found.groups() if number), folder


def program(pid: int) -> str:
    """Return the name of a process's program, nothing if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""


def segments() -> Iterator[Path]:
    """Yield the files of this user's shared memory that Open MPI has made on this node."""
    user = os.geteuid()
    segment = re.compile(rf"(?:{'|'.join(SEGMENTS)})\.(?:{names()})\.{user}\..+")
    with suppress(OSError), os.scandir(SHARED_MEMORY) as entries:
        for entry in entries:
            is_such = segment.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            if is_such and entry.stat(follow_symlinks=False).st_uid == user:
                yield Path(entry.path)


def trials() -> Iterator[Path]:
    """Yield this user's files by which Open MPI tries whether there is shared memory."""
    with suppress(OSError):
        for path in SHARED_MEMORY.glob("open_mpi.[0-9][0-9][0-9][0-9]"):
            with suppress(OSError):
                state = path.lstat()
                if stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid():
                    yield path


def is_open(path: Path) -> bool:
    """Say whether any process has a file open, of those that this user may ask."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if link.readlink() == path:
                return True
    return False


def mapped(pid: int, paths: Iterable[Path]) -> dict[Path, Identity]:
    """Return which of some files a process has mapped, those that are there by that name. Raises OSError."""
    wanted = {os.fsencode(path): path for path in paths}
    found = {}
    with Path(f"/proc/{pid}/maps").open("rb") as lines:
        for line in lines:
            *_others, device, inode, name = [*line.rstrip(b"\n").split(maxsplit=5), b""][:6]
            if path := wanted.get(name):
                major, minor = (int(number, 16) for number in device.split(b":"))
                if identity_of(path) == (major, minor, int(inode)):
                    found[path] = (major, minor, int(inode))
    return found


def identity_of(path: Path) -> Identity:
    """Return which file it is that has a name. Raises OSError."""
    state = path.lstat()
    return os.major(state.st_dev), os.minor(state.st_dev), state.st_ino


def is_in_use(path: Path) -> bool:
    """Say whether any process has a file mapped, of those that this user may ask. Raises OSError."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                if mapped(int(process.name), [path]):
                    return True
    return False
