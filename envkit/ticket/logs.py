"""The logs of what failed, as a report for a ticket has them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.diagnose import judged, seen_in, source, words
from envkit.diagnose.reader import Reader
from envkit.diagnose.scan import Deadline

ABOVE, BELOW, LAST = 10, 20, 20  # lines
SHOWN = 300  # characters of a line
TAIL = 16_000  # bytes
WIDE = 10_000  # columns


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log: its name, what diagnose says of it in a word and as text, the lines about that, and the last ones."""

    name: str
    says: str
    diagnosis: str
    begins: int
    around: tuple[str, ...]
    end: tuple[str, ...]
    told: Any

    @property
    def text(self) -> str:
        """The text that a reader of the ticket sees of it."""
        lines = [f"{self.begins + number:>7}  {line}" for number, line in enumerate(self.around)]
        parts = [self.diagnosis, *(["", f"{self.name}, from line {self.begins}:", *lines] if lines else [])]
        parts += ["", f"{self.name}, its end:", *(f"         {line}" for line in self.end)] if self.end else []
        return "\n".join(parts)

    @property
    def data(self) -> Any:
        """The same as data."""
        return {"log": self.name, "diagnosis": self.told, "around": [*self.around], "end": [*self.end]}


def read(path: str, reader: Reader) -> Log:
    """Read a log, and say what is in it. Raises LogUnreadable."""
    limit, tail = Deadline(time.monotonic), bytearray()
    with source.opened(path, limit) as blocks:
        seen = seen_in(followed(blocks, tail))
    diagnosis = judged(seen, None, reader)
    begins = max(diagnosis.number - ABOVE, 1) if diagnosis else 1
    around = source.lines(path, begins - 1, ABOVE + BELOW, limit) if diagnosis else []
    last = tail.decode(errors="replace").splitlines()[-LAST:]
    name = Path(path).name
    return Log(
        name=name,
        says=f"{diagnosis.rule.id} ({diagnosis.certainty})" if diagnosis else words.NOTHING,
        diagnosis=words.text(name, diagnosis, WIDE)
        + ("" if seen.whole else "\nNot all of it could be read in the time."),
        begins=begins,
        around=tuple(around),
        end=tuple(line[:SHOWN] for line in last) if begins + len(around) <= seen.lines else (),
        told=json.loads(words.to_json(name, diagnosis, whole=seen.whole)),
    )


def followed(blocks: Iterable[bytes], tail: bytearray) -> Iterator[bytes]:
    """Pass blocks on, and keep the end of what has passed."""
    for block in blocks:
        tail += block
        del tail[:-TAIL]
        yield block
