"""The first cause among all that was found in a log, and how certain it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from envkit.diagnose.reader import Reader
from envkit.diagnose.rule import Rule, done, rules
from envkit.diagnose.scan import Hit, LogLine, ScannedLog, Search, blocks, scan
from envkit.knowledge.known import owner

if TYPE_CHECKING:
    from envkit.diagnose.surroundings import Surroundings

SHOWN = 300  # characters of a line
NAME = re.compile(r"\w[\w.+/-]{0,99}", re.ASCII)
PLACE = re.compile(r"( (?=\{\w+\}[ .,;:)']))?\{(\w+)\}")


class Certainty(StrEnum):
    """How much is known: a line or the machine confirms it; only the line was seen; no rule knows the cause."""

    CONFIRMED = "confirmed"
    LIKELY = "likely"
    UNKNOWN = "unknown"


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The first cause found: the rule, its words, the line, where it stands (from 1), and what confirms it."""

    rule: Rule
    certainty: Certainty
    line: str
    number: int
    cause: str
    fix: str
    confirmed: tuple[str, ...]


def first_cause(lines: Iterable[str | bytes], place: Surroundings | None = None) -> Diagnosis | None:
    """Return what explains a log, given as lines or as blocks of bytes; None if nothing does.

    ``place`` is where the log was written, if that can be looked at.
    """
    return judged(seen_in(lines), place)


def seen_in(lines: Iterable[str | bytes]) -> ScannedLog:
    """Return what a log has, given as lines or as blocks of bytes."""
    read = (line.encode(errors="replace") + b"\n" if isinstance(line, str) else line for line in lines)
    return scan(read, search())


@cache
def search() -> Search:
    """Return what looks for all rules."""
    return Search(rules(), done())


def first_cause_in(path: Path) -> Diagnosis | None:
    """Return the first cause in a log file, None if it does not exist."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return first_cause(blocks(stream))


def judged(seen: ScannedLog, place: Surroundings | None, reader: Reader | None = None) -> Diagnosis | None:
    """Return the weightiest of what was seen that is not refuted, of equals the first; or what explains that."""
    candidates = [(rule, seen.hits[rule.id]) for rule in rules() if rule.id in seen.hits]
    candidates.sort(key=lambda item: (item[0].order, item[1].line.number))
    first, looked, told = None, candidates, set[str]()
    while looked:
        diagnoses = (diagnosis(rule, hit, seen, place, reader or Reader()) for rule, hit in looked)
        cause = next((result for result in diagnoses if result is not None), None)
        first = cause or first
        told |= {cause.rule.id} if cause else set()
        looked = [one for one in candidates if cause and one[0].id not in told and explains(*one, cause)]
    return first


def explains(rule: Rule, hit: Hit, failure: Diagnosis) -> bool:
    """Say whether what stands above a failure, or anywhere for some rules, explains it."""
    return (rule.anywhere or hit.line.number < failure.number) and failure.rule.id in rule.explains


def diagnosis(rule: Rule, hit: Hit, seen: ScannedLog, place: Surroundings | None, reader: Reader) -> Diagnosis | None:
    """Return what a rule says of a log to one who reads it; None if something refutes it."""
    signs = [seen.signs.get(sign) if sign else None for sign in (rule.also, rule.proof)]
    if (rule.also and signs[0] is None) or (rule.unless and rule.unless in seen.signs):
        return None
    holds, facts = place.holds(rule.machine) if place and rule.machine else (None, [])
    if holds is False or (rule.quiet and not holds):
        return None
    certain = holds or signs[1] is not None or not (rule.bare or rule.proof or rule.machine)
    certain = certain and (seen.whole or rule.unless is None)
    ours = owned(rule, hit)
    others = {line.number: line for line in (hit.above, *signs) if line is not None and line.number != hit.line.number}
    certainty = Certainty.CONFIRMED if certain else Certainty.LIKELY
    return Diagnosis(
        rule=rule,
        certainty=Certainty.UNKNOWN if rule.unknown else certainty,
        line=hit.line.text[:SHOWN],
        number=hit.line.number,
        cause=filled(rule.cause, {**hit.groups, **ours}),
        fix=reader.told(filled(rule.fix, {**reader.words, **fit(hit.groups), **ours})),
        confirmed=confirmations(rule, list(others.values()), facts if holds else [])
        if certain and not rule.unknown
        else (),
    )


def confirmations(rule: Rule, log_lines: Sequence[LogLine], facts: Sequence[str]) -> tuple[str, ...]:
    """Return in words what makes a rule certain."""
    lines = [f"line {line.number}: {line.text[:SHOWN]}" for line in log_lines]
    absent = ["no line of the log speaks against it"] if rule.unless else []
    return (*lines, *facts) or (*absent,) or ("the line itself says so",)


def owned(rule: Rule, hit: Hit) -> Mapping[str, str]:
    """Return whose library is missing, or should have a missing symbol, and what to do."""
    if not rule.library:
        return {}
    entry = owner(rule.library, hit.groups["missing"])
    return {"owner": entry["library"], "fix": entry["remedy"], "where": ""}


def fit(groups: Mapping[str, str]) -> Mapping[str, str]:
    """Return what a log names as it may be part of a command; what is no plain name is left to the reader."""
    return {name: value if not value or NAME.fullmatch(value) else name.upper() for name, value in groups.items()}


def filled(text: str, names: Mapping[str, str]) -> str:
    """Return words with what stands for the names in braces put in."""
    return PLACE.sub(lambda match: substitute(match, names.get(match[2])), text)


def substitute(match: re.Match[str], value: str | None) -> str:
    """Return what takes the place of a name in braces, and of the blank before it; nothing for one that is empty."""
    return match[0] if value is None else value and (match[1] or "") + value
