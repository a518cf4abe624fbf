"""A report for a ticket as a page, as Markdown, and as JSON."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import msgspec

from envkit.report.words import escaped, plain
from envkit.ticket.gather import WIDTH, Part, Ticket

LEFT_OUT = (
    "Left out: secrets, user names, home folders, names of hosts, addresses; <host-1> is the same host everywhere. "
    "Look through it before you attach it."
)


def to_json(ticket: Ticket) -> str:
    """Return it as JSON."""
    return escaped(msgspec.json.format(msgspec.json.encode(ticket)).decode()) + "\n"


def to_html(ticket: Ticket) -> str:
    """Return it as one page that needs nothing else."""
    from envkit.report.render import rendered

    parts = [msgspec.structs.replace(part, text=wrapped(part.text)) for part in ticket.parts]
    return rendered("ticket.html", ticket=ticket, parts=parts, data=data, left_out=LEFT_OUT)


def to_markdown(ticket: Ticket) -> str:
    """Return it as Markdown, which is read as text, too."""
    named = f": {ticket.environment}" if ticket.environment else ""
    lines = [f"# envkit report{named}", "", f"envkit {ticket.envkit}, {ticket.made}. {LEFT_OUT}", ""]
    lines += [
        f"- {part.title}: {part.problem or part.summary}" for part in ticket.parts if part.problem or part.summary
    ]
    for part in ticket.parts:
        lines += ["", f"## {part.title}", *([f"\n{part.problem}"] if part.problem else [])]
        lines += ["", *fenced(wrapped(part.text), "text")] if part.text else []
    for part in ticket.parts:
        lines += ["", f"## {part.title}, as JSON", "", *fenced(data(part), "json")] if part.data is not None else []
    return plain("\n".join(lines)) + "\n"


def fenced(text: str, kind: str) -> Iterator[str]:
    """Yield a block of text as it is; its fence is longer than any in it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from (f"{fence}{kind}", text.strip("\n"), fence)


def data(part: Part) -> str:
    """Return the data of a part as JSON."""
    return escaped(msgspec.json.format(msgspec.json.encode(part.data), indent=1).decode())


def wrapped(text: str) -> str:
    """Return a text with its long lines wrapped below where they begin."""
    return "\n".join(line for long in text.splitlines() for line in narrowed(long))


def narrowed(line: str) -> list[str]:
    """Return a line as lines of WIDTH at most, where it has blanks; those of a label's text stand below that text."""
    if len(line) <= WIDTH:
        return [line]
    label = re.match(r"\s*(\S+(:|\s{2,})\s*)?", line)
    hang = " " * min(len(label[0]) if label else 0, 24)
    folded = textwrap.wrap(
        line, WIDTH, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
    return folded or [line]
