"""Are the ranks one world, of the right size, on the right hosts?"""

from __future__ import annotations

import re
from collections import Counter

from envkit.knowledge.known import catalogue, known
from envkit.verify.facts import RankFacts
from envkit.verify.outcome import Ranks, Result

SHOWN = 8


def init(ranks: Ranks) -> list[Result]:
    failed = next((facts for facts in ranks.facts if facts.init and facts.init.error), None)
    if failed and failed.init:
        return [ranks.outcome("init", "error", rank=failed.label, error=failed.init.error)]
    lacking = ranks.lacking("init")
    return [ranks.not_measured("init", lacking) if lacking else ranks.outcome("init", "pass")]


def shutdown(ranks: Ranks) -> list[Result]:
    """Whether hvd.shutdown() failed on a rank."""
    for facts in ranks.facts:
        if facts.shutdown and facts.shutdown.error:
            return [ranks.outcome("shutdown", "error", rank=facts.label, error=facts.shutdown.error)]
    return []


def world_size(ranks: Ranks) -> list[Result]:
    wanted = ranks.expected.size
    unknown = next((facts for facts in ranks.facts if facts.size is None), None)
    if unknown:
        return [ranks.not_measured("world-size", unknown)]
    values = {"count": len(ranks.facts), "size": wanted}
    if all(facts.size == wanted for facts in ranks.facts):
        return [ranks.outcome("world-size", "pass", **values)]
    started = {facts.started.size if facts.started else None for facts in ranks.facts}
    if started == {facts.size for facts in ranks.facts} and len(started) == 1 and len(ranks.facts) in started:
        launcher = ranks.facts[0].started.title if ranks.facts[0].started else ""
        return [ranks.outcome("world-size", "as-started", launcher=launcher, **values)]
    if ranks.are_singletons:
        return [singletons(ranks)]
    sizes = ", ".join(sorted({str(facts.size) for facts in ranks.facts}))
    return [ranks.outcome("world-size", "wrong", told=sizes, **values)]


def one_rank(ranks: Ranks) -> list[Result]:
    """Whether there is but one rank, which can share nothing."""
    return [ranks.outcome("one-rank", "warn")] if ranks.expected.size == 1 else []


def leftover(ranks: Ranks) -> list[Result]:
    """Whether variables of another launch were there."""
    names = ranks.expected.leftover
    return [ranks.outcome("leftover", "warn", names=", ".join(names), words=" ".join(names))] if names else []


def ranks_unique(ranks: Ranks) -> list[Result]:
    unknown = next((facts for facts in ranks.facts if facts.rank is None), None)
    if unknown:
        return [ranks.not_measured("ranks-unique", unknown)]
    if ranks.are_singletons:
        return [ranks.outcome("not-measured", "no-world", check_id="ranks-unique")]
    numbers = sorted(facts.rank for facts in ranks.facts if facts.rank is not None)
    case = "pass" if numbers == list(range(ranks.expected.size)) else "wrong"
    shown = ", ".join(map(str, numbers[:16])) + (", ..." if len(numbers) > 16 else "")
    return [ranks.outcome("ranks-unique", case, told=shown, size=ranks.expected.size)]


def hosts_used(ranks: Ranks) -> list[Result]:
    """Whether the ranks are on as many hosts as there should be."""
    by_srun = [facts for facts in ranks.facts if facts.started and facts.started.launcher == "srun"]
    step_nodes = [facts.number("SLURM_STEP_NUM_NODES") or 0 for facts in by_srun]
    wanted = ranks.expected.nodes or max(step_nodes, default=0)
    used = Counter(facts.host for facts in ranks.facts)
    pods = any("/etc/mpi" in value for facts in ranks.facts for value in facts.environment.values())
    if pods and len(used) == 1 and ranks.expected.size > 1 and not wanted:
        return [ranks.outcome("hosts-used", "pods", host=next(iter(used)))]
    if len(ranks.facts) < ranks.expected.size:
        return []
    granted = ranks.expected.granted
    # The file of hosts of an LSF with jsrun has the node that jsrun is called on, too.
    by_jsrun = any(facts.started and facts.started.launcher == "jsrun" for facts in ranks.facts)
    if not (wanted or by_jsrun) and len(used) < granted <= ranks.expected.size:
        return [ranks.outcome("hosts-used", "fewer", granted=granted, used=len(used))]
    if not wanted:
        return []
    shown = ", ".join(f"{host} ({count})" for host, count in list(used.items())[:SHOWN])
    case = "pass" if len(used) == wanted else "one" if len(used) == 1 else "wrong"
    return [ranks.outcome("hosts-used", case, wanted=wanted, used=len(used), shown=shown)]


def local_ranks(ranks: Ranks) -> list[Result]:
    """Whether Horovod numbers the ranks of each host from 0 without a gap, in a local world of their number."""
    if not ranks.is_world:
        return []
    by_host: dict[str, list[RankFacts]] = {}
    for facts in ranks.facts:
        by_host.setdefault(facts.host, []).append(facts)
    for host, members in by_host.items():
        places = sorted(
            (w.local_rank, w.local_size) for f in members if (w := f.world) and isinstance(w.local_rank, int)
        )
        if places != [(number, len(members)) for number in range(len(members))]:
            shown = ", ".join(f"{rank} of {size}" for rank, size in places[:SHOWN])
            return [ranks.outcome("local-ranks", "wrong", host=host, count=len(members), told=shown)]
    return [ranks.outcome("local-ranks", "pass")]


def singletons(ranks: Ranks) -> Result:
    """N worlds of one rank, with the cause that fits launcher, MPI library and variables."""
    facts = ranks.facts[0]
    path = next((path for f in ranks.facts for path in mpi_paths(f)), "none")
    seen = {"launcher": facts.started.launcher if facts.started else "", "mpi": family(path)}
    seen["controller"] = facts.environment.get("HOROVOD_CONTROLLER", "").lower()
    seen["built"] = "mpi" if facts.flags and facts.flags.get("mpi") else "gloo"
    seen["container"] = (facts.machine.container if facts.machine else None) or ""
    cases = catalogue()["world-size"]
    case = next(case for case, words in cases.items() if "when" in words and words["when"].items() <= seen.items())
    values = {"count": len(ranks.facts), "size": ranks.expected.size, "mpi": path, "family": seen["mpi"] or "unknown"}
    values["launcher"] = facts.started.title if facts.started else "no known launcher"
    values["type"] = facts.environment.get("SLURM_MPI_TYPE", "none")
    return ranks.outcome("world-size", case, **values)


def family(path: str) -> str:
    """The family of an MPI library, by its path."""
    return next((str(entry["name"]) for entry in known("launch")["families"] if re.search(entry["pattern"], path)), "")


def mpi_paths(facts: RankFacts) -> tuple[str, ...]:
    """The MPI libraries that a rank has loaded."""
    paths: list[str] = []
    for name in ("libmpi", "libmpich"):
        loaded = facts.libraries.get(name, ())
        paths += [] if isinstance(loaded, str) else loaded
    return tuple(paths)


CHECKS = (init, shutdown, world_size, one_rank, leftover, ranks_unique, hosts_used, local_ranks)
