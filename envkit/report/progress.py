"""Progress of long work, for people: one live line on a terminal, a line per step elsewhere."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from envkit.errors import NotWritable
from envkit.report import words
from envkit.report.paper import has_colours, is_quiet
from envkit.report.words import shown

QUIET_S, LOOK_S = 30.0, 0.25


def console(*, err: bool = False, tells: bool = False) -> Console:
    """Return what is printed on, in colours as all else; ``tells``: no results, so that --quiet silences it."""
    stream = sys.stderr if err else sys.stdout
    coloured, terminal = has_colours(stream), stream.isatty()
    return Console(
        stderr=err, quiet=tells and is_quiet(), force_terminal=terminal, no_color=not coloured,
        color_system=("auto" if terminal else "standard") if coloured else None,
    )  # fmt: skip


class LogTail:
    """The lines that a growing log has got since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def new(self) -> list[str]:
        """Return the lines since the last call; one that is not complete yet waits for the next."""
        if not self.path.is_file():
            return []
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            text = stream.read()
        complete = text[: text.rfind(b"\n") + 1]
        self.offset += len(complete)
        return complete.decode(errors="replace").splitlines()


class Events:
    """The events that a growing file of JSON lines has told since the last look."""

    def __init__(self, path: Path) -> None:
        self.tail = LogTail(path)

    def new(self) -> list[dict[str, Any]]:
        """Return the events since the last call, but for lines that a full disk has cut."""
        events = []
        for line in self.tail.new():
            with suppress(msgspec.DecodeError, ValueError, RecursionError):
                events.append(msgspec.json.decode(line))
        return events


SILENT = Console(quiet=True)


def say(console: Console, text: str, end: str = "\n") -> None:
    """Print a text as it is, but for what a terminal would obey.

    Raises NotWritable, so that a full output is not taken for a full prefix.
    """
    try:
        console.print(shown(text), soft_wrap=True, highlight=False, markup=False, emoji=False, end=end)
    except OSError as error:
        raise NotWritable(
            what="envkit could not write its output to the end.",
            why=error.strerror or str(error),
            fix="Free some room there, or write to another place; then run the same command again: it resumes.",
        ) from error


class BuildProgress:
    """Shows which module is being built, in which step, how long it has taken and how long it will.

    ``seconds`` maps modules to the time they are known to take; without it no time left is shown.
    """

    def __init__(self, console: Console, modules: Sequence[str], seconds: Mapping[str, float]) -> None:
        self.console = console
        self.modules = list(modules)
        self.seconds = seconds
        self.began = self.module_began = self.told = time.monotonic()
        self.module = ""
        self.step = ""
        self.status: Status | None = None
        self.took: dict[str, float] = {}

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.status = self.console.status("starting")
            self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is not None:
            self.status.stop()

    def on(self, event: Mapping[str, Any]) -> None:
        """Take one event of eb's hooks."""
        if event["event"] == "begin":
            self.module, self.step = event["module"], "begin"
            self.module_began = time.monotonic()
            if self.status is None:
                say(self.console, f"{self.place()} {self.module}")
        elif event["event"] == "step":
            self.step = event["step"].replace("_step", "")
        elif event["event"] == "extension":
            self.step = f"extension {event['name']}"
        elif event["event"] == "module":
            self.took[event["module"]] = time.monotonic() - self.module_began
            if self.status is not None:
                line = f"{self.place()} {event['module']}  {clock(self.took[event['module']])}"
                say(self.console, line)

    def tick(self) -> None:
        """Bring what is shown up to date."""
        now = time.monotonic()
        if not self.module:
            return
        remaining = self.left(now)
        line = f"{self.place()} {self.module}: {self.step}, {clock(now - self.began)} elapsed"
        if remaining is not None:
            line += f", about {clock(remaining)} left"
        elif self.module in self.seconds:
            line += ", longer than expected"
        if self.status is not None:
            self.status.update(escape(shown(line)))
        elif now - self.told > QUIET_S:
            self.told = now
            say(self.console, f"  {line}")

    def place(self) -> str:
        """Return "[2/7]"."""
        number = self.modules.index(self.module) + 1 if self.module in self.modules else len(self.took) + 1
        return f"[{number}/{len(self.modules)}]"

    def left(self, now: float) -> float | None:
        """Return the seconds left; None if unknown, or if this module takes longer.

        Known is what each module took before, stretched by as much as this machine has been slower so far.
        """
        if not any(self.seconds.get(module) for module in self.modules):
            return None
        waiting = [m for m in self.modules if m not in self.took and m != self.module]
        current = 0.0
        if self.module not in self.took:
            current = self.slower() * self.seconds.get(self.module, 5.0) - (now - self.module_began)
        waits = self.slower() * sum(self.seconds.get(module, 5.0) for module in waiting)
        return None if current < 0 else current + waits

    def slower(self) -> float:
        """Return how many times longer what is built took than it was known to take; 1 where it was quicker."""
        built = [module for module in self.took if self.seconds.get(module)]
        expected = sum(self.seconds[module] for module in built)
        return max(sum(self.took[module] for module in built) / expected, 1.0) if expected else 1.0


class LiveLine:
    """Shows a line that changes while something is at work which does not tell how far it is: a thread looks."""

    def __init__(self, console: Console, line: Callable[[], str]) -> None:
        self.console, self.line = console, line
        self.told = time.monotonic()
        self.ended = Event()
        self.status: Status | None = None
        self.thread = Thread(target=self.look, daemon=True)

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.console.quiet:
            self.status = self.console.status(escape(shown(self.line())))
            self.status.start()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()
        if self.status is not None:
            self.status.stop()

    def look(self) -> None:
        """Bring what is shown up to date until it has ended; a line at times where there is no terminal."""
        with suppress(NotWritable, ValueError):  # nobody reads it any more; the file was closed
            while not self.ended.wait(LOOK_S):
                if self.status is not None:
                    self.status.update(escape(shown(self.line())))
                elif time.monotonic() - self.told > QUIET_S:
                    self.told = time.monotonic()
                    say(self.console, f"  {self.line()}")


def transfer(console: Console, what: str, size: int, done: Callable[[], int]) -> LiveLine:
    """Show how much of a file has been sent or fetched, how long that has taken, and how long it will.

    ``size`` is that of the file (bytes), ``done`` says how much there is so far.
    """
    began = time.monotonic()

    def line() -> str:
        so_far, took_s = min(done(), size), time.monotonic() - began
        left = f", about {clock(took_s * (size - so_far) / so_far)} left" if 0 < so_far < size else ""
        return f"{what}: {words.size(so_far)} of {words.size(size)}, {clock(took_s)} elapsed{left}"

    return LiveLine(console, line)


def steps(console: Console, what: str, step: Callable[[], str]) -> LiveLine:
    """Show in which ``step`` some work is, and how long it has taken."""
    began = time.monotonic()
    return LiveLine(console, lambda: f"{what}: {step()}, {clock(time.monotonic() - began)} elapsed")


def clock(seconds: float) -> str:
    """Return minutes and seconds: "2:05"."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
