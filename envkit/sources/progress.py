"""Fetching sources, shown as it goes."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from envkit.report.progress import QUIET_S, clock, say
from envkit.sources import fetch
from envkit.sources.fetch import FetchEvent, FetchState, FileStore, Source
from envkit.sources.index import Candidate
from envkit.system import process


class FetchProgress:
    """Shows how many sources have come, and how many megabytes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.status: Status | None = None
        self.began = self.told = time.monotonic()
        self.done: dict[str, int] = {}
        self.files = 0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.status = self.console.status("fetching sources")
            self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is not None:
            self.status.stop()
        if self.files:
            took = clock(time.monotonic() - self.began)
            say(self.console, f"Fetched {self.files} sources, {self.megabytes} MB, in {took}")

    @property
    def megabytes(self) -> int:
        """The megabytes that have come so far."""
        return sum(self.done.values()) // 1_000_000

    def on(self, event: FetchEvent) -> None:
        """Take one event of a fetch."""
        self.done[event.filename] = event.bytes_done
        self.files += event.state is FetchState.DONE
        if event.state in (FetchState.SET_ASIDE, FetchState.RETRYING):
            say(self.console, f"{event.filename}: {event.state}, {event.note}")
        line = f"fetching {event.filename} ({self.files} of {event.count} done, {self.megabytes} MB)"
        if self.status is not None:
            self.status.update(escape(line))
        elif time.monotonic() - self.told > QUIET_S:
            self.told = time.monotonic()
            say(self.console, f"  {line}")


def fetch_all(
    sources: Sequence[Source], cache: Path, offline: bool, stack: str, console: Console,
    kept: Sequence[FileStore] = (), known: Mapping[Source, Candidate] | None = None,
) -> None:  # fmt: skip
    """Get sources into the cache, shown as it goes, first from where each is ``known`` to be.

    Raises what fetch.fetch does, and Interrupted.
    """
    with process.interruptible(), FetchProgress(console) as shown:
        fetch.fetch(sources, cache, offline=offline, progress=shown.on, stack=stack, kept=kept, known=known)
