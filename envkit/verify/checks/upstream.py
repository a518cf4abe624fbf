"""Do Horovod's own tests give what this stack is known to give? Only where that was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from envkit.verify.outcome import Expected, Ranks, Result
from envkit.verify.upstream import FileResult

SHOWN = 3
CHECK = "upstream-tests"


def upstream(files: Sequence[FileResult], expected: Expected) -> list[Result]:
    """A result for each file that is not as it should be, and one for all that are; one where none was run."""
    ranks = Ranks(framework=expected.frameworks[0], facts=(), expected=expected)
    if not files:
        return [ranks.outcome(CHECK, "not-run")]
    wrong = [result for file in files for result in of_file(ranks, file)]
    passed = sum(file.passed for file in files)
    counts = {
        "passed": passed,
        "failed": sum(file.failed for file in files),
        "skipped": sum(file.skipped for file in files),
        "runs": len(files),
    }
    if any(result.is_bad for result in wrong):
        return wrong
    if not any(file.is_known for file in files):
        return [*wrong, ranks.outcome(CHECK, "no-table", **counts)]
    return [*wrong, ranks.outcome(CHECK, "as-known" if passed else "nothing", **counts)]


def of_file(ranks: Ranks, file: FileResult) -> Iterator[Result]:
    """Return the results for a file that is not as it should be."""
    where = {"file": file.file, "over": file.over if file.ranks == 1 else f"{file.ranks} ranks over {file.over}"}
    if file.ended:
        yield ranks.outcome(CHECK, "ended" if file.is_known else "ended-unknown", ended=file.ended, **where)
    if file.unexpected:
        shown = some(f"{failure.test}: {failure.error}" for failure in file.unexpected)
        case = "failed" if file.is_known else "failed-unknown"
        yield ranks.outcome(CHECK, case, count=len(file.unexpected), failures=shown, **where)
    if file.lacking:
        reasons = some(f"{reason} ({count})" for reason, count in file.reasons.items())
        yield ranks.outcome(CHECK, "lacking", count=file.lacking, reasons=reasons or "nobody says why", **where)
    if file.unsteady:
        shown = some(f"{failure.test}: {failure.error}" for failure in file.unsteady)
        yield ranks.outcome(CHECK, "unsteady", count=len(file.unsteady), failures=shown, **where)
    if file.mended:
        yield ranks.outcome(CHECK, "mended", tests=some(file.mended), **where)


def some(words: Iterable[str]) -> str:
    """Return the first few words, and how many more there are."""
    every = list(words)
    more = f"; and {len(every) - SHOWN} more, in the JSON report" if len(every) > SHOWN else ""
    return "; ".join(every[:SHOWN]) + more
