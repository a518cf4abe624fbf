"""The doctor's report: the facts, a verdict for each method, and notes; its form as JSON is described by a schema."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from envkit.doctor.facts import Facts, Struct
from envkit.errors import Problem

VERSION = 1


class MethodState(StrEnum):
    """Whether a method works: wholly; in part, as the problems say; not; or it could not be found out."""

    WORKS = "works"
    PARTLY = "partly"
    FAILS = "fails"
    UNKNOWN = "unknown"


class MethodVerdict(Struct, frozen=True, kw_only=True):
    """What becomes of a method here, why, and what to do about each problem."""

    method: str
    state: MethodState
    why: str
    problems: tuple[Problem, ...] = ()


class Difference(Struct, frozen=True, kw_only=True):
    """Something that a node has otherwise than the host that it was asked from."""

    what: str
    node: str
    here: str


class Comparison(Struct, frozen=True, kw_only=True):
    """What differs between a node and the host that it was asked from, both by name."""

    node: str
    here: str
    differences: tuple[Difference, ...]


class Report(Struct, frozen=True, kw_only=True):
    """The report of ``envkit doctor``: the version of its form, which changes with it.

    ``comparison`` is there where a node was asked by a job: all else is of that node.
    """

    version: int
    facts: Facts
    methods: tuple[MethodVerdict, ...]
    notes: tuple[Problem, ...]
    comparison: Comparison | None = None

    @property
    def works(self) -> bool:
        """Whether an environment can be had by at least one method."""
        return any(verdict.state in (MethodState.WORKS, MethodState.PARTLY) for verdict in self.methods)


def to_json(report: Report) -> str:
    """Return the report as JSON, with escapes for what is no text, as names on disk may be."""
    return msgspec.json.format(msgspec.json.encode(as_text(msgspec.to_builtins(report)))).decode()


def as_text(value: Any) -> Any:
    """Return what JSON is made of, with escapes for what is no text."""
    if isinstance(value, dict):
        return {as_text(name): as_text(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_text(one) for one in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
