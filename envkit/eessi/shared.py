"""The client that a user's sessions, runs and ranks on a node share: one mount, one cache.

Its keeper is started by the first and ends with the last (system/mount_namespace.py). Who has told it other settings,
or may outlive it, since a job ends what it has started, takes another one.

::

    TMPDIR/envkit-eessi-UID/shared-HASH/alike    what those have in common who share it now; others: shared-HASH-2, ...
                                        users    held by each of them
                                        lib/     its CernVM-FS cache, which stays for those who come later
"""

import fcntl
import os
import platform
import re
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from envkit.eessi import sessions
from envkit.eessi.sessions import DAMAGED, LOCAL_FILES, NO_LOCKS, SessionFolder
from envkit.errors import HostProblem
from envkit.knowledge.eessi import symptom
from envkit.knowledge.known import known
from envkit.system import mount_namespace

TASK = re.compile(r"/(user/)?task_\d+$", re.MULTILINE)  # the last parts of the cgroup that Slurm has for each rank
ENDS_S = 3.0  # a keeper that nobody uses any more has so long to end
LONGEST_S = 10.0  # and others to look
ALIKE, USERS = "alike", "users"


def usual(repository: str) -> SessionFolder:
    """Return the place of the client that is taken first; it is not held."""
    name = digest(f"{platform.node()} {repository}")[:12]
    return SessionFolder(folder=sessions.root() / f"shared-{name}", before=None)


def joined(repository: str, settings: Mapping[str, str]) -> SessionFolder:
    """Hold the place of a client until the last process that was started from this one ends.

    Raises HostProblem, NotWritable.
    """
    sessions.make_private(sessions.caches())
    mine = digest(repr((sorted(settings.items()), *surroundings())))
    first, number = usual(repository), 1
    place = first
    while not is_taken(place.local, mine):
        number += 1
        place = SessionFolder(folder=first.folder.with_name(f"{first.folder.name}-{number}"), before=None)
    return place


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hex."""
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()


def surroundings(env: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield what ends this process from outside, and what it sees and may do: namespaces, cgroup, ids, limits and job.

    A job may be told by a group that the scheduler has added (Grid Engine).
    """
    yield from (os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid", "user"))  # noqa: PTH115
    yield TASK.sub("", Path("/proc/self/cgroup").read_text())
    yield repr((os.geteuid(), os.getegid(), sorted(os.getgroups())))
    yield repr([resource.getrlimit(limit)[1] for limit in mount_namespace.LIMITS])
    for words in known("schedulers").values():
        yield env.get(words["job"], "")


def is_taken(folder: Path, mine: str) -> bool:
    """Hold a place, unless those who use it have something else in common; return whether it is held now.

    One whose cache is damaged is left to those who use it, and so is one that does not come to its end.
    """
    sessions.make_private(folder, LOCAL_FILES)
    how = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    files = list[int]()
    try:
        files += [os.open(folder / name, how, 0o600) for name in (ALIKE, USERS)]
        alike, users = files
        if not is_locked_soon(alike, fcntl.LOCK_EX, folder, LONGEST_S):
            return False
        is_alike = os.pread(alike, len(mine), 0) == mine.encode() and not (folder / DAMAGED).exists()
        if not (is_alike or is_made_anew(alike, users, mine, folder)):
            return False
        if not is_locked_soon(users, fcntl.LOCK_SH, folder, ENDS_S):
            return False
        is_there = all(is_file(file, folder / name) for file, name in zip(files, (ALIKE, USERS), strict=True))
        if is_there:
            mount_namespace.out_of_the_way(users)  # which a command started by this process keeps
            return True
    except FileNotFoundError:
        pass
    finally:
        for file in files:
            os.close(file)
    return is_taken(folder, mine)  # it was removed meanwhile, as one that nobody uses


def is_made_anew(alike: int, users: int, mine: str, folder: Path) -> bool:
    """Write what all have in common who use a place from now on; say whether nobody uses it otherwise."""
    deadline = time.monotonic() + ENDS_S
    while True:
        is_unused = is_locked(users, fcntl.LOCK_EX, folder)
        if is_unused and not mount_namespace.is_held(folder):
            os.pwrite(alike, mine.encode(), 0)
            return True
        is_used = not is_unused and is_locked(users, fcntl.LOCK_SH, folder)
        lock(users, fcntl.LOCK_UN, folder)  # so that its keeper ends
        if is_used or time.monotonic() > deadline:
            return False
        time.sleep(0.01)


def is_file(descriptor: int, path: Path) -> bool:
    """Say whether a file that is open is still the one of that path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


def is_locked_soon(descriptor: int, how: int, folder: Path, patience_s: float) -> bool:
    """Lock a file, unless that takes too long; return whether it is locked."""
    deadline = time.monotonic() + patience_s
    while not is_locked(descriptor, how, folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_locked(descriptor: int, how: int, folder: Path) -> bool:
    """Lock a file, unless that would mean to wait; return whether it is locked."""
    try:
        lock(descriptor, how | fcntl.LOCK_NB, folder)
    except BlockingIOError:
        return False
    return True


def lock(descriptor: int, how: int, folder: Path) -> None:
    """Lock a file. Raises HostProblem where its file system has no locks."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise HostProblem.of(symptom("no-locks", folder=folder, reason=error.strerror)) from error
