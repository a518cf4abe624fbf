"""Folders for temporary files whose names tell whose they are: what a killed process has left, the next one removes.

Where processes are to meet, the name cannot be known before: it is made of a secret that this user's home has.
"""

import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from envkit.errors import HostProblem
from envkit.system import files, owners

OF_PROCESS = re.compile(r"envkit-([a-z]+-)?(\d+-)?of-(?P<node>[\w.-]+\.\d+)\.(?P<pid>\d{1,9})\.[0-9a-f]{8}(-[\w.-]+)?")

OF_RANKS = re.compile(r"envkit-(verify-)?\d+-(?P<name>[0-9a-f]{16})(-[\w.-]+)?")
A_DAY_S = 24 * 3600  # longer than any verification is silent

SECRET = 32  # bytes
VARIABLES, USUAL = ("TMPDIR", "TEMP", "TMP"), ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108  (where Python looks)
ATTEMPTS = 20


def own_name() -> str:
    """Return a name that tells which process of which node it belongs to; another one each time."""
    return f"of-{this_node()}.{os.getpid()}.{os.urandom(4).hex()}"


def unguessable(*words: str) -> str:
    """Return a name made of words, the same in all processes of this user that see one home; nobody else can guess it.

    So nobody can take it before. Where there is no home to keep the secret in, it can be guessed.
    """
    import hashlib
    import hmac

    return hmac.new(secret(), "\0".join(words).encode(errors="surrogateescape"), hashlib.sha256).hexdigest()[:16]


def secret() -> bytes:
    """Return this user's secret, made by the first process that needs it; nothing where it cannot be kept."""
    from platformdirs import user_state_path

    path = user_state_path("envkit") / "secret"
    with suppress(OSError):
        files.make_private(path.parent)
        if not os.path.lexists(path):
            make_secret(path)
        return kept(path)
    return b""


def make_secret(path: Path) -> None:
    """Make the file of the secret, if no other process is first, perhaps on another node. Raises OSError."""
    staged = path.with_name(f".secret-{own_name()}")
    try:
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as stream:
            stream.write(os.urandom(SECRET))
        with suppress(FileExistsError):
            path.hardlink_to(staged)
    finally:
        staged.unlink(missing_ok=True)


def kept(path: Path) -> bytes:
    """Return the secret that a file holds, nothing if it is not this user's alone. Raises OSError."""
    for _ in range(ATTEMPTS):
        with suppress(FileNotFoundError):  # of another node, and not seen here yet
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as stream:
                state = os.fstat(descriptor)
                is_own = stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o077
                return stream.read(SECRET) if is_own else b""
        time.sleep(0.1)
    return b""


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

    It lies in ``place``, the folder for temporary files if that is not given. Raises OSError, HostProblem.
    """
    place = place or usual_place()
    sweep([place])
    path = place / f"envkit-{kind}-{own_name()}"
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def usual_place(known: owners.Trusted | None = None) -> Path:
    """Return the folder for temporary files: TMPDIR, or another one where others can rename what is in that.

    Whoever can rename a private folder can put another one in its place: none but this user, root, and who else is
    ``known`` may. No part of the path is a link. Raises HostProblem where there is none, OSError.
    """
    from platformdirs import user_cache_path

    named, own = offered(), user_cache_path("envkit") / "tmp"
    for place in (*named, own, Path("/tmp")):  # noqa: S108  (sticky)
        with suppress(OSError):
            if place == own:
                files.make_private(own)
            if (real := kept_apart(place, known)) is not None:
                return real
    if not named:
        raise nowhere()
    raise HostProblem(
        what="There is no folder for temporary files in which nobody else can rename yours.",
        why=f"Others may write to {named[0]} or to a folder above it, to your cache folder and to /tmp.",
        fix="export TMPDIR=FOLDER: a folder that, like those above it, only you or root may write to, or a sticky one.",
    )


def offered() -> list[Path]:
    """Return the folder for temporary files that Python offers: TMPDIR, or a usual one; none if it can write to none.

    Nor can it where no file may have a byte (ulimit -f 0).
    """
    try:
        return [Path(tempfile.gettempdir())]
    except FileNotFoundError:
        return []


def nowhere() -> HostProblem:
    """Return what is to be said where no folder for temporary files can be written to."""
    named = [os.environ[name] for name in VARIABLES if os.environ.get(name)]
    return HostProblem(
        what="There is no folder for temporary files that can be written to.",
        why=f"Tried: {', '.join(dict.fromkeys((*named, *USUAL)))}, and the current folder. They are missing, full, "
        "read-only or another's; or no file may have a byte here (ulimit -f).",
        fix="export TMPDIR=FOLDER: one that you may write to, with room in it; with a low 'ulimit -f': ulimit -Sf hard",
    )


def of_nowhere(error: OSError) -> HostProblem | None:
    """Return ``error`` as a lack of folders for temporary files, as Python tells it. None if it is another."""
    is_such = error.errno == errno.ENOENT and not error.filename and "temporary directory" in str(error.strerror)
    return nowhere() if is_such else None


def kept_apart(place: Path, known: owners.Trusted | None = None) -> Path | None:
    """Return the path of a folder, no part a link, if nobody else can rename what this user has in it; else None.

    Nor can anybody rename that folder, nor one above it: each of them is sticky, or nobody but this user, root, and who
    else is ``known`` writes to it.
    """
    known = known or owners.known(())
    try:
        real = place.resolve(strict=True)
        is_shared = real.lstat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if is_shared and is_changed_by_others(real, known):
            return None
        known = owners.with_unmapped(known)
        return None if any(is_changed_by_others(part, known) for part in (real, *real.parents)) else real
    except OSError:
        return None


def is_changed_by_others(folder: Path, known: owners.Trusted) -> bool:
    """Say whether somebody else can rename what others have in a folder, or it has become a link. Raises OSError."""
    state = folder.lstat()
    return (
        stat.S_ISLNK(state.st_mode)
        or owners.stranger(state, folder, known, is_open=not state.st_mode & stat.S_ISVTX) is not None
    )


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
    """Remove the folders of this user that processes of this node have left which were killed.

    Where others can rename what is this user's, a name says nothing: nothing is removed there.
    """
    for path in (path for place in places for path in left_in(place)):
        shutil.rmtree(path, ignore_errors=True)


def left_in(place: Path) -> Iterator[Path]:
    """Yield the folders of this user in a place that processes of this node have left which were killed.

    Those of ranks, which tell of no process, are such where nothing has changed for a day and no process holds them.
    """
    real = kept_apart(place)
    for path in real.glob("envkit-*") if real else ():
        with suppress(OSError):
            of_process, of_ranks = OF_PROCESS.fullmatch(path.name), OF_RANKS.fullmatch(path.name)
            state = path.lstat()
            if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
                continue
            is_over = of_process and of_process["node"] == this_node() and has_ended(int(of_process["pid"]))
            if is_over or (of_ranks and not any(map(is_in_use, of_one_name(path, of_ranks["name"])))):
                yield path


def of_one_name(folder: Path, name: str) -> list[Path]:
    """Return a folder in which ranks have met and the others here of the same name."""
    return [folder, *folder.parent.glob(f"envkit-*-{name}*")]


def is_in_use(folder: Path) -> bool:
    """Say whether a file of a folder has changed in a day, or is held by a process. Raises OSError."""
    for path in (folder, *folder.iterdir()):
        state = path.lstat()
        if time.time() - state.st_mtime < A_DAY_S:
            return True
        if stat.S_ISREG(state.st_mode):
            with path.open("rb") as stream:
                try:
                    fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
    return False
