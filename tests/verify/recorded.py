"""The recorded cases of tests/facts, each with its expected verdict beside the facts."""

from __future__ import annotations

from pathlib import Path

import msgspec

from envkit.verify.checks import Expected
from envkit.verify.facts import RankFacts, ordered

FOLDER = Path(__file__).parents[1] / "facts"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One recording: what was asked for, the records, the verdict, and the checks that do not pass."""

    about: str
    expected: Expected
    verdict: str
    not_passed: dict[str, str]
    facts: tuple[RankFacts, ...]


def case(name: str) -> Case:
    """The case of that file name, its records in order of rank."""
    read = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Case)
    return msgspec.structs.replace(read, facts=ordered(read.facts))


def names() -> list[str]:
    """Every recorded case of a verification."""
    paths = sorted(FOLDER.glob("*.json"))
    return [path.stem for path in paths if b'"not_passed"' in path.read_bytes()]
