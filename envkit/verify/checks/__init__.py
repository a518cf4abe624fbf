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
    truth,
    world,
)
from envkit.verify.facts import RankFacts, ordered
from envkit.verify.outcome import Expected, Ranks, Result, Status, verdict

__all__ = ["CHECKS", "Expected", "Result", "Status", "check", "verdict"]

CHECKS: tuple[Callable[[Ranks], list[Result]], ...] = (
    process.rank_missing,
    process.rank_died,
    process.launcher_ended,
    process.rank_hung,
    process.rank_late,
    build.horovod_present,
    build.framework_present,
    build.extension_present,
    build.extension_loads,
    build.framework_drift,
    build.flags_required,
    build.flags_agree,
    world.init,
    world.world_size,
    world.one_rank,
    world.leftover,
    world.ranks_unique,
    world.hosts_used,
    world.local_ranks,
    machine.versions_agree,
    machine.nodes_agree,
    build.mpi_threads,
    build.mpi_loaded,
    machine.preloaded,
    machine.search_path,
    machine.dev_shm,
    machine.binding,
    build.working_folder,
    fabric.interface_named,
    fabric.network_shared,
    fabric.fabric_libraries,
    gpu.gpu_visible,
    gpu.gpu_driver,
    gpu.gpu_architecture,
    gpu.gpu_shared,
    gpu.gpu_unused,
    gpu.gpu_slices,
    gpu.nccl_version,
    fabric.nccl_network,
    collectives.collectives,
    collectives.process_sets,
    collectives.barrier,
    truth.training,
    truth.keras,
    truth.callbacks,
    extras.extras,
    security.vulnerabilities,
    drift.drift,
    drift.venv,
    speed.bandwidth,
    speed.throughput,
    speed.ddp,
)


UNSEEN: tuple[Callable[[Ranks], list[Result]], ...] = (
    process.rank_missing,
    process.launcher_ended,
    world.leftover,
    drift.drift,
)  # of ranks that left no record at all
EXPLAINING: tuple[Callable[[Ranks], list[Result]], ...] = (
    settings.settings,
    drift.damage,
    settings.limits,
    settings.ended_job,
    settings.interposed,
    settings.places,
    settings.hosts,
    settings.trials,
)  # where something failed


def check(facts: Sequence[RankFacts], expected: Expected) -> list[Result]:
    """Every check of every framework expected, the root cause first."""
    results: list[Result] = []
    for framework in expected.frameworks:
        of_framework = ordered([f for f in facts if f.framework == framework])
        ranks = Ranks(framework=framework, facts=of_framework, expected=expected)
        found = [result for one in (CHECKS if of_framework else UNSEEN) for result in one(ranks)]
        if verdict(found) is Status.FAIL:
            found += [result for one in EXPLAINING for result in one(ranks)]
        else:
            found += drift.broken(ranks)
        results += found
    for framework in expected.left_out:
        results.append(
            Ranks(framework=framework, facts=(), expected=expected).outcome("left-out", "skip", framework=framework)
        )
    return ranked(results)
