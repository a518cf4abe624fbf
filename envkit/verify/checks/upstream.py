"""Do Horovod's own tests give what this stack is known to give? Only where that was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from envkit.verify.outcome import Expected, Ranks, Result
from envkit.verify.upstream import FileResult

_SHOWN = 3
_CHECK = "upstream-tests"


def upstream(files: Sequence[FileResult], expected: Expected) -> list[Result]:
    """A result for each file that is not as it should be, and one for all that are; one where none was run."""
    ranks = Ranks(framework=expected.frameworks[0], facts=(), expected=expected)
    if not files:
        return [ranks.outcome(_CHECK, "not-run")]
    wrong = [result for file in files for result in _of_file(ranks, file)]
    passed = sum(one.passed for one in files)
    counts = {
        "passed": passed,
        "failed": sum(one.failed for one in files),
        "skipped": sum(one.skipped for one in files),
        "runs": len(files),
    }
    if any(result.is_bad for result in wrong):
        return wrong
    if not any(one.is_known for one in files):
        return [*wrong, ranks.outcome(_CHECK, "no-table", **counts)]
    return [*wrong, ranks.outcome(_CHECK, "as-known" if passed else "nothing", **counts)]


def _of_file(ranks: Ranks, file: FileResult) -> Iterator[Result]:
    where = {"file": file.file, "over": file.over if file.ranks == 1 else f"{file.ranks} ranks over {file.over}"}
    if file.ended:
        yield ranks.outcome(_CHECK, "ended" if file.is_known else "ended-unknown", ended=file.ended, **where)
    if file.unexpected:
        shown = _some(f"{one.test}: {one.error}" for one in file.unexpected)
        case = "failed" if file.is_known else "failed-unknown"
        yield ranks.outcome(_CHECK, case, count=len(file.unexpected), failures=shown, **where)
    if file.lacking:
        reasons = _some(f"{reason} ({count})" for reason, count in file.reasons.items())
        yield ranks.outcome(_CHECK, "lacking", count=file.lacking, reasons=reasons or "nobody says why", **where)
    if file.unsteady:
        shown = _some(f"{one.test}: {one.error}" for one in file.unsteady)
        yield ranks.outcome(_CHECK, "unsteady", count=len(file.unsteady), failures=shown, **where)
    if file.mended:
        yield ranks.outcome(_CHECK, "mended", tests=_some(file.mended), **where)


def _some(words: Iterable[str]) -> str:
    every = list(words)
    more = f"; and {len(every) - _SHOWN} more, in the JSON report" if len(every) > _SHOWN else ""
    return "; ".join(every[:_SHOWN]) + more
