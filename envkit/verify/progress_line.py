"""What is shown while the ranks run: how many report and how far they are, at a terminal in one line, else at times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import msgspec

from envkit.system import record

QUIET_S = 3.0
FIRST_S, EACH_S = 30.0, 60.0  # where no line can be written over


class RankStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step that a rank, or all of a node, have come to."""

    phase: str = ""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the file of a node that counts here."""

    common: RankStep
    ranks: tuple[RankStep, ...]


class Waiting:
    """A line that is written over once a second, and wiped at the end."""

    def __init__(self, stream: TextIO, ranks: int) -> None:
        self.stream = stream
        self.ranks = ranks
        self.began = self.shown = time.monotonic()
        self.width = 0

    def look(self, shared: Path) -> None:
        """Say how far the ranks are that have left something in a folder."""
        now = time.monotonic()
        if now - self.began > QUIET_S and now - self.shown > 1:
            self.shown = now
            self.say(f"{now - self.began:.0f} s: {how_far(shared, self.ranks)}")

    def at(self, title: str, far: str) -> None:
        """Say what runs, and how far it is, once a second."""
        now = time.monotonic()
        if now - self.shown > 1:
            self.shown = now
            self.say(f"{now - self.began:.0f} s: {title}" + (f": {far}" if far else ""))

    def say(self, text: str) -> None:
        """Write over the line."""
        self.stream.write(f"\r{text:<{self.width}}")
        self.stream.flush()
        self.width = len(text)

    def wipe(self) -> None:
        """Leave an empty line."""
        if self.width:
            self.say("")
            self.stream.write("\r")


class Reminder:
    """Tells how far the ranks are, where nobody looks at a terminal: first after half a minute, then each minute."""

    def __init__(self, tell: Callable[[str], None], ranks: int) -> None:
        self.tell = tell
        self.ranks = ranks
        self.began = time.monotonic()
        self.next = FIRST_S

    def look(self, shared: Path) -> None:
        """Say how far the ranks are that have left something in a folder, if it is time for that."""
        seconds = time.monotonic() - self.began
        if seconds > self.next:
            self.next = seconds + EACH_S
            self.tell(f"{seconds:.0f} s: {how_far(shared, self.ranks)}")


def how_far(shared: Path, ranks: int) -> str:
    """The ranks that report, by the step they are in."""
    phases: Counter[str] = Counter()
    for path in shared.glob("*.json"):
        with suppress(OSError, record.RecordInvalid):
            file: Progress = record.read(path, Progress)
            phases.update(rank.phase or file.common.phase or "start" for rank in file.ranks)
    steps = ", ".join(f"{count} in {phase}" for phase, count in phases.most_common(3))
    return f"{phases.total()} of {ranks} ranks reporting" + (f"; {steps}" if steps else "")
