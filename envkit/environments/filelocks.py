"""Locks of a tree. The kernel drops a lock with the process that holds it, so none is ever stale."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path
from rich.console import Console

from envkit.environments import replaced, trust
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Unfinished
from envkit.errors import HostProblem
from envkit.report.progress import say
from envkit.system import files, process

PATIENCE_S = 30.0  # to remove what a prefix has takes seconds


def lock_name(module: str) -> str:
    """Return the name of a module's lock."""
    return module.replace("/", "--")


@contextmanager
def held(tree: Tree, name: str, console: Console, message: str) -> Iterator[FileLock]:
    """Hold a lock of a tree; print ``message`` if another process has it, and wait. Raises NotWritable."""
    trust.require_no_link(tree.locks)
    tree.locks.mkdir(mode=0o770, parents=True, exist_ok=True)  # who can read a lock can hold it
    lock = FileLock(tree.locks / f"{name}.lock")
    with process.interruptible():
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(console, message)
            lock.acquire(poll_interval=0.2)
    try:
        with not_cleaned(tree):
            yield lock
    finally:
        lock.release(force=True)


def cleaning(tree: Tree) -> Path:
    """Return the file that who cleans a tree holds alone, and all who hold a lock of it hold together."""
    return tree.locks / "cleaning.lock"


def cleaning_caches() -> Path:
    """Return the file that who cleans the caches of all prefixes holds alone, and all at work in any hold together."""
    return user_cache_path("envkit") / "cleaning.lock"


@contextmanager
def not_cleaned(tree: Tree) -> Iterator[None]:
    """Keep 'envkit clean' from removing anything in this block, from any prefix.

    Raises HostProblem where it goes on for too long.
    """
    with ExitStack() as stack:
        shared = cleaning_caches()
        with suppress(OSError):  # where there can be no cache
            files.make_private(shared.parent)
            require_free(stack.enter_context(replaced.locked(shared, fcntl.LOCK_SH, PATIENCE_S)), shared)
        own = cleaning(tree)
        require_free(stack.enter_context(replaced.locked(own, fcntl.LOCK_SH, PATIENCE_S)), own)
        yield


def require_free(is_held: bool, path: Path) -> None:
    """Require that a lock was had. Raises HostProblem."""
    if not is_held:
        raise HostProblem(
            what="'envkit clean' is at work.",
            why=f"It holds {path}.",
            fix="Wait until it has ended, then run the same command again.",
        )


def in_use(tree: Tree, but: str) -> bool:
    """Say whether anything holds a lock of a tree but for those of one environment, which is named."""
    own = (f"stack-{but}.lock", f"replaced-{but}.lock", cleaning(tree).name)
    return any(is_held(path) for path in tree.locks.glob("*.lock") if path.name not in own)


def is_running(tree: Tree, note: Unfinished) -> bool:
    """Say whether an installation goes on: its lock is held or, where that is closed to this user, its process runs."""
    lock = tree.locks / f"stack-{note.stack}.lock"
    try:
        return lock.exists() and is_held(lock)
    except PermissionError:
        return note.node == os.uname().nodename and Path(f"/proc/{note.pid}").exists()


def is_held(path: Path) -> bool:
    """Say whether a lock is held, or may be: it cannot be asked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
