"""From a log to the first cause of a failure, by the rules in diagnoses.toml."""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from envkit.resources import data


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One known failure. A lower ``order`` outranks an earlier line."""

    id: str
    pattern: str
    example: str
    cause: str
    fix: str
    order: int = 1


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The first cause found: the rule, the line that matched, and where it stands (counted from 1)."""

    rule: Rule
    line: str
    number: int


@cache
def rules() -> tuple[Rule, ...]:
    """Return every rule."""
    tables = tomllib.loads(data("diagnoses.toml").read_text())
    return tuple(msgspec.convert({"id": name, **table}, Rule) for name, table in tables.items())


def first_cause(lines: Iterable[str]) -> Diagnosis | None:
    """Return the first line that the weightiest rule explains; None when no rule matches. Reads as a stream."""
    patterns = [(rule, re.compile(rule.pattern)) for rule in rules()]
    best: Diagnosis | None = None
    for number, line in enumerate(lines, start=1):
        for rule, pattern in patterns:
            if (best is None or rule.order < best.rule.order) and pattern.search(line):
                best = Diagnosis(rule=rule, line=line.strip()[:300], number=number)
    return best


def first_cause_in(path: Path) -> Diagnosis | None:
    """Return the first cause in a log file, None if it does not exist."""
    if not path.is_file():
        return None
    with path.open(errors="replace") as stream:
        return first_cause(stream)
