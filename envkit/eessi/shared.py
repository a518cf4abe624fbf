"""The client that a user's sessions, runs and ranks on a node share: one mount, one cache.

Its keeper is started by the first and ends with the last (system/namespace.py). Who has told it other settings, or may
outlive it, since a job ends what it has started, takes another one.

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
from pathlib import Path

from envkit.eessi import sessions
from envkit.eessi.sessions import DAMAGED, LOCAL_FILES, NO_LOCKS, SessionFolder
from envkit.errors import HostProblem
from envkit.knowledge.eessi import symptom
from envkit.knowledge.known import known
from envkit.system import namespace

TASK = re.compile(r"/(user/)?task_\d+$", re.MULTILINE)  # the last parts of the cgroup that Slurm has for each rank
ENDS_S = 3.0  # a keeper that nobody uses any more has so long to end
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
    yield repr([resource.getrlimit(limit)[1] for limit in namespace.LIMITS])
    for words in known("schedulers").values():
        yield env.get(words["job"], "")


def is_taken(folder: Path, mine: str) -> bool:
    """Hold a place, unless those who use it have something else in common; return whether it is held now.

    One whose cache is damaged is left to those who use it.
    """
    sessions.make_private(folder, LOCAL_FILES)
    deadline = time.monotonic() + ENDS_S
    with (folder / ALIKE).open("a+") as stream:
        users = os.open(folder / USERS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            lock(stream.fileno(), fcntl.LOCK_EX, folder)
            stream.seek(0)
            is_alike = stream.read() == mine and not (folder / DAMAGED).exists()
            while not is_alike:
                is_unused = is_locked(users, fcntl.LOCK_EX, folder)
                if is_unused and not namespace.is_held(folder):
                    stream.truncate(0)
                    stream.write(mine)
                    stream.flush()
                    break
                is_used = not is_unused and is_locked(users, fcntl.LOCK_SH, folder)
                lock(users, fcntl.LOCK_UN, folder)  # so that its keeper ends
                if is_used or time.monotonic() > deadline:
                    return False
                time.sleep(0.01)
            lock(users, fcntl.LOCK_SH, folder)
            namespace.out_of_the_way(users)  # which a command started by this process keeps
        finally:
            os.close(users)
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
