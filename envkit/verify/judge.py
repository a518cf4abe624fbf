"""From what the ranks left to the report."""

from __future__ import annotations

import time
from collections.abc import Sequence

from envkit.knowledge.known import catalogue
from envkit.verify import baseline, checks, speed
from envkit.verify.checks import check
from envkit.verify.checks.upstream import upstream
from envkit.verify.facts import RankFacts, decoders_by_fact
from envkit.verify.options import Options
from envkit.verify.outcome import Expected
from envkit.verify.report import Report, StartedBy, make_report
from envkit.verify.upstream import FileResult


def prepare() -> None:
    """Read what judging needs and no rank tells."""
    catalogue()
    decoders_by_fact()


def judged(
    name: str,
    facts: Sequence[RankFacts],
    expected: Expected,
    options: Options,
    runs: Sequence[Sequence[RankFacts]],
    started: StartedBy,
    began: float,
    tests: Sequence[FileResult] = (),
) -> Report:
    """The report on an environment, whose ranks left these facts; `runs` are those over which training scales.

    `began` is when the verification began, by the monotonic clock, `tests` what came of Horovod's own. Raises
    EnvkitError for a baseline that cannot be read.
    """
    results = check(facts, expected)
    if options.scale:
        results += checks.speed.scaling(runs, options.scale, expected)
    if options.baseline:
        saved = baseline.read(options.baseline)
        results.append(baseline.settle(options.baseline, saved, facts, expected, options.tolerance))
    if options.upstream_tests:
        results = upstream(tests, expected) + results
    return make_report(
        name,
        facts,
        results,
        expected=expected,
        said=expected.launcher_said,
        seconds=time.monotonic() - began,
        started=started,
        bandwidth=speed.bandwidth(facts),
        scaling=speed.scaling(runs),
        tests=tests,
    )
