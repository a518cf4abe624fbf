"""From facts to results: pure, and in an order in which the first failure usually causes the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envkit.verify import checks_build, checks_process, checks_truth
from envkit.verify.facts import RankFacts, ordered
from envkit.verify.outcome import Expected, Ranks, Result, Status, verdict

__all__ = ["CHECKS", "Expected", "Result", "Status", "check", "verdict"]

CHECKS: tuple[Callable[[Ranks], list[Result]], ...] = (
    checks_process.rank_missing,
    checks_process.rank_died,
    checks_process.launcher_ended,
    checks_process.rank_hung,
    checks_build.horovod_present,
    checks_build.framework_present,
    checks_build.extension_present,
    checks_build.extension_loads,
    checks_build.framework_drift,
    checks_build.flags_required,
    checks_build.flags_agree,
    checks_process.init,
    checks_process.world_size,
    checks_process.ranks_unique,
    checks_process.versions_agree,
    checks_build.mpi_threads,
    checks_build.mpi_loaded,
    checks_process.gpu_shared,
    checks_truth.collectives,
    checks_truth.training,
    checks_truth.keras,
    checks_truth.callbacks,
)


def check(facts: Sequence[RankFacts], expected: Expected) -> list[Result]:
    """Every check of every framework expected; of one that left no record at all, only that."""
    results: list[Result] = []
    for framework in expected.frameworks:
        of_framework = ordered([f for f in facts if f.framework == framework])
        ranks = Ranks(framework=framework, facts=of_framework, expected=expected)
        for one in CHECKS if of_framework else CHECKS[:1]:
            results += one(ranks)
    return results
