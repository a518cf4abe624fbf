"""Locks of a tree. The kernel drops a lock with the process that holds it, so none is ever stale."""

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout
from rich.console import Console

from envkit import process
from envkit.errors import NotWritable
from envkit.prefix import Tree
from envkit.progress import say


def lock_name(module: str) -> str:
    """Return the name of a module's lock."""
    return module.replace("/", "--")


@contextmanager
def held(tree: Tree, name: str, console: Console, message: str) -> Iterator[FileLock]:
    """Hold a lock of a tree; print ``message`` if another process has it, and wait. Raises NotWritable."""
    tree.locks.mkdir(parents=True, exist_ok=True)
    if tree.locks.is_symlink():
        raise NotWritable(
            what=f"{tree.locks} is a link, and envkit writes nothing through one.",
            why=f"It leads to {tree.locks.resolve()}.",
            fix=f"Remove the link: rm {tree.locks}",
        )
    lock = FileLock(tree.locks / f"{name}.lock")
    with process.interruptible():
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(console, message)
            lock.acquire(poll_interval=0.2)
    try:
        yield lock
    finally:
        lock.release(force=True)
