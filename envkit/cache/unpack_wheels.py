"""What a module has of its wheels, unpacked by a process of its own beside its object.

Run as a program with the path of a Task, it does that, and writes its Outcome to a second path.
"""

import errno
import hashlib
import json
import os
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from envkit.cache.manifest import WheelFiles
from envkit.cache.wheel_members import BROKEN, content, installed, is_deflated, is_program, recorded
from envkit.environments import manifest as lists
from envkit.errors import STORAGE, HostProblem
from envkit.sources.source_cache import SourceCache
from envkit.system import process, record

LARGE = 1 << 20  # bytes of a file of a wheel
NOT_STARTED = (errno.EAGAIN, errno.ENOMEM)

T = TypeVar("T")


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What to unpack: files of some wheels by their SHA-256, of a module, below a folder; the time of sources (s)."""

    wheels: dict[str, str]
    used: dict[str, WheelFiles]
    module: str
    root: str
    changed: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The SHA-256 of each file by its name, or why there is none: what is wrong with a wheel, or an OSError."""

    digests: dict[str, str] = {}
    why: str = ""
    errno: int = 0
    filename: str | None = None


@contextmanager
def unpacking(task: Task, folder: Path) -> Iterator[Callable[[], dict[str, str]]]:
    """Do a task, its largest wheel beside what is done meanwhile; where no process can be started, that at once.

    What is given does the rest, and returns the SHA-256 of each file, by its name. ``folder`` takes what the program
    reads and says. Raises ValueError for what cannot be put there, HostProblem where it fails, OSError.
    """
    if not task.used:
        yield dict
        return
    ending = threading.Event()
    largest = max(task.used, key=lambda sha256: os.stat(task.wheels[sha256]).st_size)  # noqa: PTH116
    others = {sha256: of for sha256, of in task.used.items() if sha256 != largest}
    alone = msgspec.structs.replace(task, used={largest: task.used[largest]})
    with Beside() as beside:
        outcome = beside.begin(partial(by_program, alone, folder, ending.is_set))
        try:
            yield lambda: unpacked(msgspec.structs.replace(task, used=others)) | outcome.result()
        finally:
            ending.set()


def by_program(task: Task, folder: Path, until: Callable[[], bool]) -> dict[str, str]:
    """Have a program do a task. Raises what ``unpacking`` does."""
    told, answer, log = folder / "task", folder / "outcome", folder / "said"
    told.write_text(json.dumps(msgspec.to_builtins(task)))
    isolation = "-I" if sys.flags.isolated else "-P"  # as this process was begun
    argv = [sys.executable, isolation, "-m", __name__, str(told), str(answer)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    try:
        status = process.supervise(argv, env=env, log=log, until=until)
    except OSError as error:
        if error.errno in NOT_STARTED:  # the limit of this user's processes
            return unpacked(task)
        raise
    if status in STORAGE:
        raise OSError(status, os.strerror(status), str(answer))
    if status:
        said = log.read_text(errors="replace").strip().splitlines()
        raise HostProblem(
            what=f"The wheels of {task.module} could not be unpacked.",
            why="\n".join(said[-1:]) or f"The program that does so ended with status {status}.",
            fix="Run the same command again.",
        )
    outcome = record.convert(json.loads(answer.read_text()), Outcome)
    if outcome.errno:
        raise OSError(outcome.errno, os.strerror(outcome.errno), outcome.filename)
    if outcome.why:
        raise ValueError(outcome.why)
    return outcome.digests


def main(told: str, answer: str) -> None:
    """Do a task that a file holds, and write the outcome to another; if that fails, end with the error's number."""
    try:
        outcome = Outcome(digests=unpacked(record.convert(json.loads(Path(told).read_text()), Task)))
    except ValueError as error:
        outcome = Outcome(why=str(error))
    except OSError as error:
        outcome = Outcome(errno=error.errno or errno.EIO, filename=error.filename)
    try:
        Path(answer).write_text(json.dumps(msgspec.to_builtins(outcome)))
    except OSError as error:
        os._exit(error.errno or errno.EIO)  # nothing can be written here


def unpacked(task: Task) -> dict[str, str]:
    """Do a task; return the SHA-256 of each file, by its name. Raises ValueError for what cannot be put there, OSError.

    A thread unpacks the large files, the largest first; what it has not begun when the rest is there is done here.
    """
    small, large = list[tuple[str, Callable[[], str]]](), list[tuple[int, str, Callable[[], str]]]()
    with ExitStack() as opened, Beside() as beside:
        for sha256, of in task.used.items():
            wheel = Path(task.wheels[sha256])
            with explained(wheel):
                for name, archive, member, told in members(wheel, sha256, of, task.module, opened):
                    write = partial(put, wheel, archive, member, f"{task.root}/{name}", task.changed, told)
                    if is_deflated(member) and member.file_size > LARGE:
                        large.append((member.file_size, name, write))
                    else:
                        small.append((name, write))
        large.sort(key=itemgetter(0), reverse=True)
        begun = [beside.begin(write) for _, _, write in large]
        digests = {name: write() for name, write in small}
        for (_, name, put_it), one in reversed([*zip(large, begun, strict=True)]):
            digests[name] = put_it() if one.cancel() else one.result()
        return digests


class Beside:
    """A thread that does one thing after the other; where none can be started, each is done at once."""

    def __enter__(self) -> Self:
        """Begin."""
        self.pool = ThreadPoolExecutor(1)
        self.has_thread = True
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for what is being done, and drop the rest."""
        self.pool.shutdown(cancel_futures=True)

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Have something done. Raises what it does where it is done at once."""
        if self.has_thread:
            try:
                return self.pool.submit(work)
            except RuntimeError:  # the limit of this user's processes
                self.has_thread = False
                self.pool.shutdown(cancel_futures=True)
        done = Future[T]()
        done.set_result(work())
        return done


def members(
    wheel: Path, sha256: str, of: WheelFiles, module: str, opened: ExitStack
) -> Iterator[tuple[str, zipfile.ZipFile, zipfile.ZipInfo, str | None]]:
    """Yield the files of a wheel that a module has, by their names there, and their SHA-256 as far as the wheel tells.

    The wheel stays open. Raises ValueError for another wheel, and what cannot be there, what reading it does (BROKEN),
    OSError.
    """
    without = set(of.without)
    stream, actual = opened.enter_context(SourceCache(wheel.parent).opened(wheel.name))
    if actual != sha256:
        raise ValueError(f"the SHA-256 of {wheel} is {actual}")
    archive = opened.enter_context(zipfile.ZipFile(stream))
    told = recorded(archive)
    for member in archive.infolist():
        name = f"{of.folder}/{installed(member.filename)}"
        if member.is_dir() or member.filename in without:
            continue
        if not lists.is_own(module, name):
            raise ValueError(f"{wheel.name} has {member.filename!r}")
        yield name, archive, member, told.get(member.filename)


@contextmanager
def explained(wheel: Path) -> Iterator[None]:
    """Say of a wheel what is wrong with it. Raises ValueError, OSError for what is not in it."""
    try:
        yield
    except BROKEN as error:
        raise ValueError(f"{wheel.name}: {error}") from error
    except OSError as error:
        if error.errno is None:  # of bzip2
            raise ValueError(f"{wheel.name}: {error}") from error
        raise


def put(
    wheel: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str, changed: int, told: str | None
) -> str:
    """Write a file of a wheel to a path, as ``write_new`` does; return its SHA-256, which the wheel may have ``told``.

    A push takes no file for that of a wheel for which the wheel tells another. Raises ValueError, OSError.
    """
    digest = hashlib.sha256()

    def hashed() -> Iterator[bytes]:
        for piece in content(archive, member):
            digest.update(piece)
            yield piece

    with explained(wheel):
        write_new(path, content(archive, member) if told else hashed(), changed, is_program=is_program(member))
    return told or digest.hexdigest()


def write_new(path: str, pieces: Iterable[bytes], changed: int, *, is_program: bool) -> None:
    """Write a file, which must not be there yet; the folders above it are made. Raises OSError.

    Python is given the time when it was ``changed`` (s), by which what is compiled of it is known.
    """
    flags, mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o777 if is_program else 0o666
    try:
        descriptor = os.open(path, flags, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        descriptor = os.open(path, flags, mode)
    try:
        for piece in pieces:
            written = os.write(descriptor, piece)
            while written < len(piece):
                written += os.write(descriptor, memoryview(piece)[written:])
        if path.endswith(".py"):
            os.utime(descriptor, (changed, changed))
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main(*sys.argv[1:])
