"""Did every rank run, to the end, in one world?"""

from __future__ import annotations

from envkit.verify.facts import RankFacts
from envkit.verify.outcome import Ranks, Result

_LAUNCHERS = (
    ("HOROVOD_RANK", "horovodrun"),
    ("OMPI_COMM_WORLD_RANK", "mpirun of Open MPI"),
    ("SLURM_STEP_NUM_TASKS", "srun"),
    ("PMI_RANK", "mpiexec of MPICH or Intel MPI"),
    ("PMIX_RANK", "a launcher with PMIx"),
)


def rank_missing(ranks: Ranks) -> list[Result]:
    found, size = len(ranks.facts), ranks.expected.size
    if found == size:
        case = "pass"
    elif not found:
        case = "none"
    else:
        case = "fewer" if found < size else "more"
    return [ranks.outcome("rank-missing", case, found=found, size=size)]


def launcher_ended(ranks: Ranks) -> list[Result]:
    status = ranks.expected.launcher_status
    if status is None:
        return []
    return [ranks.outcome("launcher-ended", "fail" if status else "pass", status=status)]


def rank_died(ranks: Ranks) -> list[Result]:
    dead = [facts for facts in ranks.facts if not facts.finished and not _hung(facts)]
    if not dead:
        return [ranks.outcome("rank-died", "pass")] if ranks.facts else []
    first = next((f for f in dead if f.ended and f.ended.how != "terminated"), dead[0])
    values = {"rank": first.label, "phase": first.phase, "others": len(dead) - 1}
    if first.ended is None:
        return [ranks.outcome("rank-died", "killed", **values)]
    if first.ended.how == "exit":
        return [ranks.outcome("rank-died", "exit", code=first.ended.status, **values)]
    case = first.ended.how if first.ended.how in {"signal", "terminated"} else "killed"
    return [ranks.outcome("rank-died", case, signal=first.ended.signal, **values)]


def rank_hung(ranks: Ranks) -> list[Result]:
    hung = [facts for facts in ranks.facts if _hung(facts)]
    if not hung:
        return [ranks.outcome("rank-hung", "pass")] if ranks.facts else []
    furthest = max(len(facts.phases) for facts in ranks.facts)
    late = [facts for facts in hung if len(facts.phases) < furthest]
    culprits = late or hung
    limit = hung[0].ended.limit if hung[0].ended else None
    labels = ", ".join(facts.label for facts in culprits[:4]) + (", ..." if len(culprits) > 4 else "")
    stack = next((f.ended.stack for f in culprits if f.ended and f.ended.stack), "no stack")
    died = any(facts.ended and facts.ended.how != "timeout" and not facts.finished for facts in ranks.facts)
    case = "bereaved" if died else "late" if late else "together"
    values = {"ranks": labels, "phase": culprits[0].phase, "limit": limit, "where": _innermost(stack)}
    return [ranks.outcome("rank-hung", case, waiting=len(hung) - len(late), **values)]


def init(ranks: Ranks) -> list[Result]:
    failed = next((facts for facts in ranks.facts if facts.init and facts.init.error), None)
    if failed and failed.init:
        return [ranks.outcome("init", "error", rank=failed.label, error=failed.init.error)]
    lacking = ranks.lacking("init")
    return [ranks.not_measured("init", lacking) if lacking else ranks.outcome("init", "pass")]


def world_size(ranks: Ranks) -> list[Result]:
    wanted = ranks.expected.size
    unknown = next((facts for facts in ranks.facts if facts.size is None), None)
    if unknown:
        return [ranks.not_measured("world-size", unknown)]
    values = {"count": len(ranks.facts), "size": wanted}
    if all(facts.size == wanted for facts in ranks.facts):
        return [ranks.outcome("world-size", "pass", **values)]
    if ranks.are_singletons:
        mpi = next((path for facts in ranks.facts for path in mpi_paths(facts)), "none")
        launcher = _launcher(ranks.facts[0])
        return [ranks.outcome("world-size", "singletons", launcher=launcher, mpi=mpi, **values)]
    told = ", ".join(sorted({str(facts.size) for facts in ranks.facts}))
    return [ranks.outcome("world-size", "wrong", told=told, **values)]


def ranks_unique(ranks: Ranks) -> list[Result]:
    unknown = next((facts for facts in ranks.facts if facts.rank is None), None)
    if unknown:
        return [ranks.not_measured("ranks-unique", unknown)]
    if ranks.are_singletons:
        return [ranks.outcome("not-measured", "no-world", check_id="ranks-unique")]
    told = sorted(facts.rank for facts in ranks.facts if facts.rank is not None)
    case = "pass" if told == list(range(ranks.expected.size)) else "wrong"
    shown = ", ".join(map(str, told[:16])) + (", ..." if len(told) > 16 else "")
    return [ranks.outcome("ranks-unique", case, told=shown, size=ranks.expected.size)]


def versions_agree(ranks: Ranks) -> list[Result]:
    lacking = ranks.lacking("imported")
    if lacking:
        return [ranks.not_measured("versions-agree", lacking)]
    seen = {_versions(facts) for facts in ranks.facts}
    case = "pass" if len(seen) == 1 else "differ"
    return [ranks.outcome("versions-agree", case, versions="; ".join(sorted(seen)))]


def gpu_shared(ranks: Ranks) -> list[Result]:
    users: dict[tuple[str, str], list[str]] = {}
    for facts in ranks.facts:
        if facts.device and facts.device.uuid:
            users.setdefault((facts.host, facts.device.uuid), []).append(str(facts.rank))
    shared = [f"{uuid} on {host}: ranks {' '.join(r)}" for (host, uuid), r in users.items() if len(r) > 1]
    if shared:
        return [ranks.outcome("gpu-shared", "shared", shared="; ".join(shared))]
    return [ranks.outcome("gpu-shared", "pass")] if users else []


def mpi_paths(facts: RankFacts) -> tuple[str, ...]:
    """The MPI libraries that a rank has loaded."""
    paths: list[str] = []
    for name in ("libmpi", "libmpich"):
        found = facts.libraries.get(name, ())
        paths += [] if isinstance(found, str) else found
    return tuple(paths)


def _hung(facts: RankFacts) -> bool:
    return facts.ended is not None and facts.ended.how == "timeout"


def _launcher(facts: RankFacts) -> str:
    return next((name for variable, name in _LAUNCHERS if variable in facts.environment), "no known launcher")


def _versions(facts: RankFacts) -> str:
    horovod = facts.horovod.version if facts.horovod else None
    framework = facts.imported.version if facts.imported else None
    python = facts.python.version if facts.python else None
    return f"Horovod {horovod}, {facts.framework} {framework}, Python {python}"


def _innermost(stack: str) -> str:
    lines = [line.strip() for line in stack.splitlines() if line.strip().startswith("File")]
    return lines[0] if lines else "an unknown place"
