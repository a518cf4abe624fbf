"""Write where each stack was built and verified, from envkit/planning/stacks.toml, into README.md and docs/stacks.md.

python scripts/support.py
"""

import re
from collections.abc import Iterator
from pathlib import Path

from envkit.planning.stack import Stack, stacks

ROOT = Path(__file__).resolve().parents[1]
PLACES = (ROOT / "README.md", ROOT / "docs" / "stacks.md")
BEGIN, END = "<!-- support -->\n", "<!-- /support -->\n"
HEAD = "| stack | MPI | Python | machine | on | repeated by |\n|---|---|---|---|---|---|\n"
BY_HAND = "by hand"


def rows(stack: Stack) -> Iterator[str]:
    """Yield the lines of a stack: one for each place where it was tried, or one that says that it was not."""
    for one in stack.tried:
        by = one.by if one.by == BY_HAND else f"`{one.by.rpartition('::')[2]}`"
        yield f"| `{stack.name}` | {one.mpi} | {one.python} | {one.machine} | {one.on} | {by} |\n"
    if not stack.tried:
        yield f"| `{stack.name}` | {stack.status} | | | | |\n"


def table() -> str:
    """The table of all stacks, as Markdown."""
    return HEAD + "".join(line for stack in stacks() for line in rows(stack))


def written(text: str) -> str:
    """A text with the table between the marks. Raises ValueError where they are not there once."""
    marks = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    made, count = marks.subn(lambda _: BEGIN + table() + END, text)
    if count != 1:
        raise ValueError(f"The marks {BEGIN.strip()} and {END.strip()} are there {count} times.")
    return made


if __name__ == "__main__":
    for place in PLACES:
        place.write_text(written(place.read_text()))
