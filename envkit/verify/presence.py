"""Whose envkit is there, of the ranks that a launcher started: each tells it on its node, and its end to all nodes.

On its node a rank holds a file with a lock, which goes with the process however that ends, and which others see from
any namespace of processes. That it has come to its end is a line in a file that the ranks of a node share in the
folder that all nodes see: NODE.arrived.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from envkit.inside.probe.node import name_of_node, plain
from envkit.inside.probe.process import state

GONE, STOPPED, LATE = "gone", "stopped", "late"
SUFFIX = ".arrived"


@dataclass(frozen=True, kw_only=True)
class Absent:
    """A rank whose envkit has not come to its end, why that is, and its process (0: on another node)."""

    rank: int
    why: str
    pid: int = 0


@contextmanager
def held(local: Path, rank: int) -> Iterator[None]:
    """Be there as a rank of this node while the block runs. Without a folder nobody is told."""
    path, descriptor = local / f"present-{rank}", None
    with suppress(OSError):
        begun = path.with_suffix(".part")
        descriptor = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(descriptor, str(os.getpid()).encode())
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        begun.rename(path)
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        if descriptor is not None:
            os.close(descriptor)


def has_gone(local: Path, rank: int) -> bool:
    """Say whether a rank of this node was killed: it holds its file no more."""
    with suppress(OSError), (local / f"present-{rank}").open() as stream:
        fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    return False


def are_others(local: Path) -> bool:
    """Say whether any rank of this node is there."""
    return any(not has_gone(local, int(path.name.rpartition("-")[2])) for path in local.glob("present-*[0-9]"))


def file_name() -> str:
    """Return the name of the file in which the ranks of this node say that they have come to their end."""
    return plain(name_of_node()) + SUFFIX


def arrive(shared: Path, rank: int) -> None:
    """Tell that this rank has come to its end."""
    with suppress(OSError), (shared / file_name()).open("a") as stream:
        stream.write(f"{rank}\n")


def absent(shared: Path, local: Path, ranks: set[int]) -> tuple[Absent, ...]:
    """Return those of some ranks that have not come to their end."""
    there = set[str]()
    for path in shared.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            there.update(path.read_text().split())
    return tuple(described(local, rank) for rank in sorted(ranks) if str(rank) not in there)


def described(local: Path, rank: int) -> Absent:
    """Return why a rank has not come to its end, as far as it is seen from here."""
    pid = 0
    with suppress(OSError, ValueError):
        pid = int((local / f"present-{rank}").read_text())
    if has_gone(local, rank):
        return Absent(rank=rank, why=GONE, pid=pid)
    is_stopped = pid and state(pid)["state"] == "T"
    return Absent(rank=rank, why=STOPPED if is_stopped else LATE, pid=pid)
