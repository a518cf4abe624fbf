"""Processes below another one: which of them a signal has stopped that do not go on, and what one of them does."""

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

    `host` is what this host is called by whoever looks, `rank` which rank it is, if it is known to be one.
    """

    pid: int
    program: str
    above: tuple[int, ...]
    host: str
    rank: int | None = None


class Watch:
    """Who has been stopped at each of the last looks, and the numbers of the processes that ran at the last.

    Looks are counted, not seconds: a job that was suspended as a whole goes on as a whole.
    """

    def __init__(self, root: int, host: str = "") -> None:
        self.root = root
        self.host = host
        self.began = self.looked = time.monotonic()
        self.seen: dict[int, int] = {}
        self.found: tuple[Stopped, ...] = ()
        self.pids: frozenset[int] = frozenset()

    def look(self) -> None:
        """Look, once a second; in the first one as often as called, for those that end in it."""
        now = time.monotonic()
        is_due = now - self.looked >= LOOK_S
        if not is_due and now - self.began > LOOK_S:
            return
        above = dict(below(self.root))
        self.pids = frozenset(above.keys() - {self.root})
        if not is_due:
            return
        self.looked = now
        processes = {pid: found for pid in above if (found := stopped(pid, self.host, above[pid]))}
        self.seen = {pid: self.seen.get(pid, 0) + 1 for pid in processes}
        self.found = tuple(process for pid, process in processes.items() if self.seen[pid] >= LOOKS)


def stopped(pid: int, host: str, above: tuple[int, ...]) -> Stopped | None:
    """Return what a signal has stopped, if a process is that."""
    with suppress(OSError, IndexError):
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        if line.rpartition(")")[2].split()[0] == "T":
            return Stopped(pid=pid, program=line.partition("(")[2].rpartition(")")[0], above=above, host=host)
    return None


def below(root: int, above: tuple[int, ...] = ()) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield a process and all below it, each with those above it, the nearest first."""
    yield root, above
    for child in children(root):
        yield from below(child, (root, *above))


def children(pid: int) -> Iterator[int]:
    """Yield the children of a process, those of all its threads."""
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                yield from map(int, path.read_text().split())


def command_line(pid: int) -> list[str]:
    """Return the words that a process was started with; none if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    return []


def variables(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with; none if it has ended or is another user's."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape")
        return dict(word.split("=", 1) for word in text.split("\0") if "=" in word)
    return {}


def open_files(pid: int) -> list[Path]:
    """Return the files and folders that a process has open, by their paths; none is looked at, which might hang."""
    paths = list[Path]()
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                paths.append(link.readlink())
    return paths
