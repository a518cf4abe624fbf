"""From facts to results: pure, and the root cause first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envkit.verify.causes import ranked
from envkit.verify.checks import (
    build,
    collectives,
    drift,
    extras,
    fabric,
    gpu,
    machine,
    process,
    security,
    settings,
    speed,
    training_truth,
    world,
)
from envkit.verify.facts import RankFacts, ordered
from envkit.verify.outcome import Expected, Ranks, Result, Status, verdict

__all__ = ["CHECKS", "Expected", "Result", "Status", "check", "verdict"]

Check = Callable[[Ranks], list[Result]]

# In the order in which they are told, where neither causes the other. Each module lists its own.
CHECKS: tuple[Check, ...] = (
    *process.CHECKS,
    *build.CHECKS,
    *world.CHECKS,
    *machine.OF_SOFTWARE,
    *build.OF_MPI,
    *machine.CHECKS,
    *build.OF_FOLDER,
    *fabric.CHECKS,
    *gpu.CHECKS,
    *fabric.OF_NCCL,
    *collectives.CHECKS,
    *training_truth.CHECKS,
    *extras.CHECKS,
    *security.CHECKS,
    *drift.CHECKS,
    *speed.CHECKS,
)
# Those of ranks that left no record at all.
UNSEEN: tuple[Check, ...] = (
    process.rank_missing,
    process.rank_died,
    process.launcher_ended,
    process.rank_hung,
    world.leftover,
    drift.drift,
)
# Those that explain a failure.
EXPLAINING: tuple[Check, ...] = (*settings.OF_SETTINGS, *drift.EXPLAINING, *settings.EXPLAINING)


def check(facts: Sequence[RankFacts], expected: Expected) -> list[Result]:
    """Every check of every framework expected, the root cause first."""
    results: list[Result] = []
    for framework in expected.frameworks:
        of_framework = ordered([f for f in facts if f.framework == framework])
        ranks = Ranks(framework=framework, facts=of_framework, expected=expected)
        outcomes = [result for each_check in (CHECKS if of_framework else UNSEEN) for result in each_check(ranks)]
        if verdict(outcomes) is Status.FAIL:
            outcomes += [result for each_check in EXPLAINING for result in each_check(ranks)]
        else:
            outcomes += drift.broken(ranks)
        results += outcomes
    for framework in expected.left_out:
        results.append(
            Ranks(framework=framework, facts=(), expected=expected).outcome("left-out", "skip", framework=framework)
        )
    return ranked(results)
