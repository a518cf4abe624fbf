"""A stream that hands on what is printed, line by line."""

import io
from collections.abc import Callable
from typing import TextIO, cast


class Lines(io.TextIOBase):
    """Calls ``hand_on`` with each whole line."""

    def __init__(self, hand_on: Callable[[str], None]) -> None:
        self.hand_on = hand_on
        self.begun = ""

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def write(self, text: str, /) -> int:
        """Take a text; what is behind its last line end waits."""
        *lines, self.begun = (self.begun + text).split("\n")
        for line in lines:
            self.hand_on(line)
        return len(text)


def lines_to(hand_on: Callable[[str], None]) -> TextIO:
    """Return a stream that does that."""
    return cast("TextIO", Lines(hand_on))
