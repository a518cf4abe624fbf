"""The results of the functions of ``envkit.api``: values that do not change once they are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from envkit.doctor.combination import Answer
    from envkit.doctor.report import Report as DoctorReport
    from envkit.verify.report import Report


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An installed environment.

    ``method`` is easybuild, apptainer or eessi; ``mpi`` a family and version such as "Open MPI 4.1.4", "" without one;
    ``prefix`` the folder that it is installed below; ``verified`` the day on which it passed, None where there is no
    Horovod in it; ``problem`` why it cannot be used as it is, "" if it can.
    """

    name: str
    method: str
    framework: str
    accelerator: str
    python: str
    mpi: str
    prefix: Path
    verified: date | None
    problem: str


@dataclass(frozen=True, kw_only=True)
class Check:
    """The finding of one check of a verification.

    ``cause`` and ``remedy`` say why it failed and what to do, ``commands`` what to type; ``required`` tells whether a
    skip keeps the verdict from passing; ``because_of`` names the check that found the root cause, where this follows
    from it.
    """

    id: str
    status: Literal["pass", "fail", "warn", "skip"]
    framework: str
    message: str
    cause: str
    remedy: str
    commands: tuple[str, ...]
    required: bool
    because_of: str


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The verdict on an environment; ``cause`` is the root cause where it failed, ``seconds`` the whole time."""

    passed: bool
    environment: str
    ranks: int
    seconds: float | None
    cause: Check | None
    checks: tuple[Check, ...]
    _report: Report = field(repr=False, compare=False)

    def to_json(self) -> str:
        """Return the whole report, as ``envkit verify --json`` prints it."""
        from envkit.verify.report import to_json

        return to_json(self._report).decode()

    def to_junit(self) -> str:
        """Return it as JUnit XML, as ``envkit verify --junit`` writes it."""
        from envkit.verify.report.junit import junit

        return junit(self._report).decode()

    def to_html(self) -> str:
        """Return it as one HTML page, as ``envkit verify --html`` writes it."""
        from envkit.verify.report.page import html

        return html(self._report)


@dataclass(frozen=True, kw_only=True)
class Installation:
    """The outcome of an installation.

    ``environment`` is None where what was built did not pass, so that it is not offered. ``verification`` is None where
    the environment was there already, or has no Horovod.
    """

    environment: Environment | None
    verification: Verification | None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something in the way, and what to do about it."""

    what: str
    fix: str


@dataclass(frozen=True, kw_only=True)
class Method:
    """Whether a method of installation works on this machine: wholly, in part, not, or nobody knows; and why."""

    name: str
    state: Literal["works", "partly", "fails", "unknown"]
    why: str
    problems: tuple[Problem, ...]


@dataclass(frozen=True, kw_only=True)
class Examination:
    """The doctor's findings on this machine; ``works``: an environment can be had by at least one method."""

    works: bool
    methods: tuple[Method, ...]
    notes: tuple[Problem, ...]
    _report: DoctorReport = field(repr=False, compare=False)

    def to_json(self) -> str:
        """Return all facts and verdicts, as ``envkit doctor --json`` prints them."""
        from envkit.doctor.report import to_json

        return to_json(self._report)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The first cause of a failure, from its log.

    ``state`` is "cause" where one was found, "unknown" where the log shows a failure that no rule knows, and "no
    failure" where it shows none: all texts are empty then, and ``number`` is 0. ``id`` names the rule, ``line`` is the
    line of the log that it found and ``number`` which one that is, ``confirmed`` what makes it certain, ``complete``
    whether the log was read to its end.
    """

    state: Literal["cause", "unknown", "no failure"]
    complete: bool
    id: str = ""
    certainty: Literal["confirmed", "likely", "unknown", ""] = ""
    line: str = ""
    number: int = 0
    cause: str = ""
    remedy: str = ""
    confirmed: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Something known of versions that are asked for: what it says, where that is from, and what cures it, if anything.

    ``cures`` are lists of measures; each list is one way.
    """

    id: str
    status: str
    note: str
    source: str
    cures: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A complete combination of versions, how it is had, what it takes, and which parts are not as asked for."""

    parts: Mapping[str, str]
    how: str
    stack: str
    measures: tuple[str, ...]
    differs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Compatibility:
    """Whether versions go together.

    ``parts`` are the versions that were judged, one of each range; ``unproven`` are those that nobody is
    known to have had with the rest; ``best`` is the best complete combination on this machine.
    """

    verdict: Literal["works", "fails", "risky", "unknown"]
    parts: Mapping[str, str]
    rules: tuple[Rule, ...]
    unproven: tuple[str, ...]
    best: Combination | None
    _answer: Answer = field(repr=False, compare=False)

    def to_json(self) -> str:
        """Return it with its evidence, as ``envkit compat --json`` prints it."""
        from envkit.compat.report import to_json

        return to_json(self._answer.judgement, self._answer.best, self._answer.asked.ranges)
