"""Horovod's own tests: which of them are for an environment, what came of them, held against what a stack is known to
give."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from envkit.errors import UsageProblem
from envkit.knowledge.known import known
from envkit.system import record

LIMIT_S = 600.0
KNOWN_RANKS = 2  # on which what is known was found
IN_RANKS = "parallel/"
ALONE = "one process"
CONTROLLERS = {"mpi": "MPI", "gloo": "Gloo"}
TEXT = 4000  # characters of a failure that are kept
LINE = 300
WHOLE = "(the file itself)"
KINDS = ("skipped", "passed", "failed")  # what counts more where ranks differ comes later


class UpstreamEvent(msgspec.Struct, frozen=True):
    """A note of a rank: a test begins, has an outcome, or, with a status, all of them are over."""

    test: str
    outcome: Literal["", "passed", "failed", "skipped"] = ""
    text: str = ""
    status: int | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A test that failed: its error in a line, all that pytest said, and the cause that this stack is known for."""

    test: str
    error: str
    text: str
    cause: str = ""


class FileResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one file of Horovod's own tests, over MPI, over Gloo, or in one process.

    A test has failed where it failed in any rank, and is skipped where all have skipped it. `failures` are those that
    this stack is known for, and `unexpected` those that it is not; `mended` are tests that failed where the table was
    made and passed here, `unsteady` those that failed once and not when the file was run again. `lacking` is how many
    tests that passed there did neither pass nor fail here. `ended` says of a file that did not come to its end why,
    `is_late` that its time was over.
    `is_known`: the table has this file of this stack; `reasons` are those of skips, with how many each is of.
    """

    file: str
    over: str
    ranks: int
    seconds: float
    passed: int
    failed: int
    skipped: int
    failures: tuple[Failure, ...] = ()
    unexpected: tuple[Failure, ...] = ()
    mended: tuple[str, ...] = ()
    unsteady: tuple[Failure, ...] = ()
    lacking: int = 0
    ended: str = ""
    is_late: bool = False
    is_known: bool = True
    reasons: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the file."""
        return stem(self.file)

    @property
    def is_worth_another_start(self) -> bool:
        """Whether something went wrong that may have come of a busy machine."""
        return bool(self.unexpected or self.ended) and not self.is_late

    @property
    def causes(self) -> dict[str, int]:
        """The named causes of failures, with how many each explains."""
        return dict(Counter(failure.cause for failure in self.failures))

    @property
    def failures_in_words(self) -> str:
        """How many failed, and whether that is known."""
        if not self.failed:
            return "0, not ended" if self.ended else "0"
        return f"{self.failed}, " + (f"{len(self.unexpected)} unknown" if self.unexpected else "all known")


@dataclass(frozen=True, kw_only=True)
class UpstreamRun:
    """One file to run, over what, and for how long at most."""

    file: str
    over: str
    limit_s: float

    @property
    def in_ranks(self) -> bool:
        """Whether it runs in ranks."""
        return self.over != ALONE

    @property
    def title(self) -> str:
        """The file and what it runs over, in words."""
        return f"{self.file} {'over ' if self.in_ranks else 'in '}{self.over}"


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """The notes of all ranks on one file: the outcome of each test, and what each rank was at when it ended."""

    tests: Mapping[str, tuple[str, str]]
    broken: str = ""
    is_whole: bool = True
    interrupted: str = ""


def asked(
    framework: str, built: Iterable[str], limit_s: float | None = None, only: Collection[str] = ()
) -> list[UpstreamRun]:
    """The files to run for a framework (torch or tensorflow) and the libraries that Horovod was built with.

    ``only`` names files as they are in their folders, without .py. Raises UsageProblem for one that is not there.
    """
    mine = [
        file
        for file, words in known("upstream_tests")["files"].items()
        if words.get("framework", framework) == framework
    ]
    for name in only:
        if name not in map(stem, mine):
            raise UsageProblem(
                what=f"--tests-only: Horovod has no tests {name!r} for this environment.",
                fix=f"Name some of these: {', '.join(map(stem, mine))}.",
            )
    libraries = set(built)
    runs = []
    for file, words in known("upstream_tests")["files"].items():
        if file not in mine or (only and stem(file) not in only):
            continue
        limit = limit_s or words.get("limit_s", LIMIT_S)
        overs = (
            [CONTROLLERS[name] for name in CONTROLLERS if name in libraries] if file.startswith(IN_RANKS) else [ALONE]
        )
        runs += [UpstreamRun(file=file, over=over, limit_s=limit) for over in overs]
    return runs


def stem(file: str) -> str:
    """The name of a file of tests, without its folder and ending."""
    return file.rpartition("/")[2].removesuffix(".py")


def merged(of_ranks: Sequence[Sequence[UpstreamEvent]]) -> Outcomes:
    """Return what the notes of all ranks come to: a failure in any rank counts, then a pass, then a skip."""
    tests: dict[str, tuple[str, str]] = {}
    broken, interrupted, is_whole = "", "", True
    for rank, lines in enumerate(of_ranks):
        at = ""
        for line in lines:
            before, _ = tests.get(line.test, (KINDS[0], ""))
            if not line.outcome:
                at = line.test
            elif line.test and (line.test not in tests or KINDS.index(line.outcome) > KINDS.index(before)):
                tests[line.test] = (line.outcome, f"rank {rank}:\n{line.text[-TEXT:]}" if line.text else "")
            elif not line.test and line.outcome == "failed":
                broken = broken or line.text
        if not any(line.status is not None for line in lines):
            is_whole, interrupted = False, interrupted or at
    return Outcomes(tests=tests, broken=broken, is_whole=is_whole and bool(of_ranks), interrupted=interrupted)


def error_of(text: str) -> str:
    """The line of a failure that says what went wrong."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [bool(re.match(r"E\s{2,}\S", line)) for line in lines]
    begins = [n for n, is_error in enumerate(errors) if is_error and not (n and errors[n - 1])]
    error = lines[begins[-1]].removeprefix("E") if begins else (lines or ["no text"])[-1]
    return error.strip()[:LINE]


def judged(
    upstream_run: UpstreamRun, ranks: int, seconds: float, outcomes: Outcomes, ended: str, row: Row | None
) -> FileResult:
    """Return what came of a file, held against the row that a stack's table has of it (None: it has no table)."""
    counts = Counter(kind for kind, _ in outcomes.tests.values())
    failed = {test: text for test, (kind, text) in outcomes.tests.items() if kind == "failed"}
    causes = row.failed if row else {}
    failures = [Failure(test=test, error=error_of(text), text=text) for test, text in failed.items()]
    if outcomes.broken:
        text = outcomes.broken[-TEXT:]
        failures.append(Failure(test=WHOLE, error=error_of(text), text=text))
    named = tuple(msgspec.structs.replace(f, cause=causes[f.test]) for f in failures if f.test in causes)
    mended = [test for test in causes if outcomes.tests.get(test, ("",))[0] == "passed"]
    accounted_for = counts["passed"] - len(mended) + sum(test not in causes for test in failed)
    can_tell = not ended and not outcomes.broken and (ranks == KNOWN_RANKS or not upstream_run.in_ranks)
    return FileResult(
        file=upstream_run.file,
        over=upstream_run.over,
        ranks=ranks,
        seconds=round(seconds, 1),
        passed=counts["passed"],
        failed=len(failures),
        skipped=counts["skipped"],
        failures=named,
        unexpected=tuple(f for f in failures if f.test not in causes),
        mended=tuple(mended),
        lacking=max(row.passed - accounted_for, 0) if row and can_tell else 0,
        ended=ended,
        is_known=row is not None,
        reasons=dict(Counter(text.partition("\n")[2] for kind, text in outcomes.tests.values() if kind == "skipped")),
    )


def again(first: FileResult, second: FileResult) -> FileResult:
    """Return what came of a file that was run again, since something went wrong in it: what has come again counts."""
    went = [*first.unexpected, *([Failure(test=WHOLE, error=first.ended, text="")] if first.ended else [])]
    still = {failure.test for failure in second.unexpected}
    unsteady = tuple(failure for failure in went if failure.test not in still) if not second.ended else ()
    return msgspec.structs.replace(second, unsteady=unsteady, seconds=round(first.seconds + second.seconds, 1))


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The known outcomes of a stack in a file: how many tests pass and are skipped, and which fail for which cause."""

    file: str
    over: str
    passed: int
    skipped: int
    failed: dict[str, str] = msgspec.field(default_factory=dict)


def rows(stack: str) -> Iterator[Row]:
    """Yield what is known of a stack, each failure with its cause in words; nothing where nothing is known."""
    table = known("upstream_known")
    for row in table["stacks"].get(stack, {}).get("runs", ()):
        named = {test: table["causes"][cause] for test, cause in row.get("failed", {}).items()}
        yield record.convert({**row, "failed": named}, Row)


def row_of(stack: str, upstream_run: UpstreamRun) -> Row | None:
    """Return what is known of a file in a stack."""
    return next((row for row in rows(stack) if (row.file, row.over) == (upstream_run.file, upstream_run.over)), None)
