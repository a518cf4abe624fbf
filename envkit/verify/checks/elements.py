"""How wrong elements are told in messages: with each digit, since one low bit may be what is wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from envkit.verify.facts import Compared, Timed


def exact(numbers: Sequence[float | str], other: Sequence[float | str]) -> str:
    """Six elements with each digit, from shortly before the first in which a vector differs from another."""
    pairs = enumerate(zip(numbers, other, strict=False))
    first = max(next((place for place, (value, counterpart) in pairs if value != counterpart), 0) - 2, 0)
    shown = ", ".join(digits(number) for number in numbers[first : first + 6])
    begin, end = "[..., " if first else "[", ", ...]" if len(numbers) > first + 6 else "]"
    return f"{begin}{shown}{end}"


def digits(number: float | str) -> str:
    """Return a number with each of its digits."""
    return number if isinstance(number, str) else repr(float(number)).removesuffix(".0")


def wrong_elements(row: Compared | Timed) -> dict[str, str]:
    """The words of a message on a row with wrong elements."""
    where = "" if row.index is None else f", the first at index {row.index}"
    return {
        "count": f"{row.wrong} wrong element{'s' if row.wrong > 1 else ''}{where}",
        "found": row.found,
        "right": row.right,
    }


def others(bad: Collection[str]) -> str:
    """How many more messages were wrong; `bad` names the rank of each."""
    ranks = len(set(bad))
    return f"; {len(bad) - 1} more wrong, in {ranks} rank{'s' if ranks > 1 else ''}" if len(bad) > 1 else ""
