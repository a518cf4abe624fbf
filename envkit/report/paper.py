"""The paper that text for people is written on: paragraphs and tables, wrapped, in colours where there are any."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO

import click
import msgspec
from click.globals import resolve_color_default

from envkit.report import words

CODES = {"bold": "1", "dim": "2", "red": "1;31", "green": "32", "yellow": "33", "cyan": "36"}


LEAST = 8  # characters of a column that is wrapped
RANK = "OMPI_COMM_WORLD_RANK"  # Open MPI gives its ranks a terminal of its own, and what they print may go to a file


def has_colours(stream: TextIO) -> bool:
    """Whether there are colours: what --color says, else NO_COLOR and FORCE_COLOR, else whether a person looks on."""
    chosen = resolve_color_default()
    if chosen is not None:
        return chosen
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (
        stream.isatty() and os.environ.get("TERM") != "dumb" and RANK not in os.environ
    )


def is_quiet() -> bool:
    """Whether --quiet was given, so that nothing is told but results and what fails."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get("envkit.quiet"))


class Paper(msgspec.Struct, frozen=True, kw_only=True):
    """The paper that is written on: so many columns, with colours or without."""

    width: int = 80
    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Paper:
        """Return the paper of a stream: as wide as the terminal, in colours where there are any."""
        width = shutil.get_terminal_size().columns if stream.isatty() else 80
        return cls(width=max(width, 40), colour=has_colours(stream))

    def styled(self, text: str, style: str) -> str:
        """The text in a style, where there are colours."""
        return f"\x1b[{CODES[style]}m{text}\x1b[0m" if self.colour and text else text

    def paragraph(self, label: str, style: str, text: str) -> list[str]:
        """A label and a text, wrapped and indented under the label."""
        indent = " " * (len(label) + 2)
        lines = wrapped(words.plain(text), max(self.width - len(indent), 20))
        starts = [f"{self.styled(label, style)}  ", *[indent] * len(lines)]
        return [start + line for start, line in zip(starts, lines, strict=False)]

    @staticmethod
    def command(indent: int, text: str) -> str:
        """A command on a line of its own, however long, to be pasted: indented by so many blanks."""
        return " " * indent + " ".join(words.plain(text).splitlines())

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
        """Columns two blanks apart; where they are too wide, the widest are wrapped."""
        cells = [list(header), *(list(map(words.plain, row)) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        while sum(widths) + 2 * (len(widths) - 1) > self.width and max(widths) > LEAST:
            widths[widths.index(max(widths))] -= 1
        head, *body = [wrapped_row(row, widths) for row in cells]
        rule = "  ".join("-" * width for width in widths)
        return [
            *(self.styled(line, "bold") for line in head),
            self.styled(rule, "dim"),
            *(line for row in body for line in row),
        ]


def wrapped(text: str, width: int) -> list[str]:
    """Lines of a text. A path that is too long goes on after a slash; a URL stays in one piece, to be copied."""
    lines = []
    for line in textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False):
        begin, url = 0, line.rfind("://")
        while len(line) - begin > width and url < begin:
            end = line.rfind("/", begin + width // 2, begin + width) + 1 or begin + width
            lines.append(line[begin:end])
            begin = end
        lines.append(line[begin:])
    return lines


def wrapped_row(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """One row of a table as lines."""
    columns = [wrapped(text, width) for text, width in zip(row, widths, strict=True)]
    return [
        "  ".join(
            (lines[number] if number < len(lines) else "").ljust(width)
            for lines, width in zip(columns, widths, strict=True)
        ).rstrip()
        for number in range(max(map(len, columns)))
    ]
