"""Processes below another one that a signal has stopped, and that do not go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOOK_S = 1.0
LOOKS = 8  # a watchdog gives up its own child after 5


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A process in state T: its number, the name of its program, and the processes above it, the nearest first.

    `host` is what this host is called by whoever looks.
    """

    pid: int
    program: str
    above: tuple[int, ...]
    host: str


class Watch:
    """Who has been stopped at each of the last looks.

    Looks are counted, not seconds: a job that was suspended as a whole goes on as a whole.
    """

    def __init__(self, root: int, host: str = "") -> None:
        self.root = root
        self.host = host
        self.looked = time.monotonic()
        self.seen: dict[int, int] = {}
        self.found: tuple[Stopped, ...] = ()

    def look(self) -> None:
        """Look, once a second."""
        if time.monotonic() - self.looked < LOOK_S:
            return
        self.looked = time.monotonic()
        processes = {process.pid: process for process in below(self.root, self.host)}
        self.seen = {pid: self.seen.get(pid, 0) + 1 for pid in processes}
        self.found = tuple(process for pid, process in processes.items() if self.seen[pid] >= LOOKS)


def below(root: int, host: str = "", above: tuple[int, ...] = ()) -> Iterator[Stopped]:
    """Yield the stopped processes among one and all below it."""
    with suppress(OSError, IndexError):
        line = Path(f"/proc/{root}/stat").read_text(errors="replace")
        if line.rpartition(")")[2].split()[0] == "T":
            yield Stopped(pid=root, program=line.partition("(")[2].rpartition(")")[0], above=above, host=host)
    for child in children(root):
        yield from below(child, host, (root, *above))


def children(pid: int) -> Iterator[int]:
    """Yield the children of a process, those of all its threads."""
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                yield from map(int, path.read_text().split())
