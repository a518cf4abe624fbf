"""Do the nodes have one installation, and does the machine give the ranks what they need?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from envkit.knowledge.known import known
from envkit.verify.checks.nodes import by_node, listing, odd_ones, warned
from envkit.verify.checks.world import family, mpi_paths
from envkit.verify.facts import Fact, RankFacts
from envkit.verify.outcome import Ranks, Result


def versions_agree(ranks: Ranks) -> list[Result]:
    """Software that must be the same in every rank."""
    if lacking := ranks.lacking("imported"):
        return [ranks.not_measured("versions-agree", lacking)]
    software = [software_of(facts) for facts in ranks.facts]
    if odd := differences(ranks.facts, software):
        return [ranks.outcome("versions-agree", "differ", odd=odd)]
    shown = ", ".join(f"{name} {value}" for name, value in software[0].items() if name in SHOWN and value)
    return [ranks.outcome("versions-agree", "pass", versions=shown)]


def nodes_agree(ranks: Ranks) -> list[Result]:
    """Kernel, C library and drivers, which may differ, but explain what goes wrong on some nodes only."""
    if len(by_node(ranks)) < 2 or ranks.lacking("machine"):
        return []
    odd = differences(ranks.facts, [system(facts) for facts in ranks.facts])
    return [ranks.outcome("nodes-agree", "differ" if odd else "pass", odd=odd)]


def dev_shm(ranks: Ranks) -> list[Result]:
    measured = False
    for host, members in by_node(ranks).items():
        shm = members[0].machine.shm if members[0].machine else None
        if shm is not None and shm.error and re.search(known("machine")["shm"]["absent"], shm.error):
            return [ranks.outcome("dev-shm", "absent", host=host)]
        if shm is None or shm.error:
            continue
        measured = True
        if not shm.writable:
            return [ranks.outcome("dev-shm", "closed", host=host)]
        on_gpus = any(f.flags and f.flags.get("nccl") and f.gpus and f.gpus.count for f in members)
        wanted = len(members) * known("machine")["shm"]["per_gpu_rank" if on_gpus else "per_cpu_rank"]
        if shm.free < wanted:
            case = "container" if shm.size == known("machine")["shm"]["container_default"] else "small"
            values = {"host": host, "free": mebibytes(shm.free), "size": mebibytes(shm.size)}
            result = ranks.outcome("dev-shm", case, count=len(members), wanted=mebibytes(wanted), **values)
            return [warned(result, harmless=not any(lacked_room(facts) for facts in members))]
    return [ranks.outcome("dev-shm", "pass")] if measured else []


def preloaded(ranks: Ranks) -> list[Result]:
    """LD_PRELOAD and /etc/ld.so.preload."""
    seen = [facts for facts in ranks.facts if facts.search_path and not facts.search_path.error]
    for facts in seen:
        paths = (*facts.search_path.preload, *facts.search_path.preload_file) if facts.search_path else ()
        if paths:
            values = {"rank": facts.label, "paths": ", ".join(paths), "what": preloaded_library(paths)}
            return [ranks.outcome("preloaded", "set", **values)]
    return [ranks.outcome("preloaded", "pass")] if seen else []


def search_path(ranks: Ranks) -> list[Result]:
    """Folders of LD_LIBRARY_PATH that hold different files of one library."""
    seen = [facts for facts in ranks.facts if facts.search_path and not facts.search_path.error]
    for facts in seen:
        for library, title in known("libraries")["families"].items():
            places = library_places(facts, library)
            if len(set(places.values())) > 1:
                first, *others = places
                values = {"rank": facts.label, "title": title, "first": first, "others": ", ".join(others)}
                return [ranks.outcome("search-path", "several", library=library, **values)]
    return [ranks.outcome("search-path", "pass")] if seen else []


def binding(ranks: Ranks) -> list[Result]:
    """How many cores the ranks of a node may use, and whether several must share one while others are idle."""
    measured = False
    for host, members in by_node(ranks).items():
        sets = [set(f.affinity) for f in members if isinstance(f.affinity, tuple)]
        cores = usable_cores(members[0])
        if len(sets) < len(members) or not cores:
            continue
        measured = True
        used, fewest = set().union(*sets), min(map(len, sets))
        values = {
            "host": host,
            "cores": cores,
            "used": len(used),
            "count": len(members),
            "fix": more_cores(members[0]),
        }
        if len(used) <= ranks.expected.cores < min(len(members), cores):
            return [ranks.outcome("binding", "session", **values)]
        if len(used) < min(len(members), cores):
            return [ranks.outcome("binding", "stacked", **values)]
        if fewest == 1 and cores >= len(members) * known("machine")["binding"]["wasted"]:
            return [ranks.outcome("binding", "one-core", **values)]
    return [ranks.outcome("binding", "pass")] if measured else []


SHOWN = ("Horovod", "torch", "tensorflow", "Python")


def software_of(facts: RankFacts) -> dict[str, str]:
    """Return the software of a rank by name; what it did not come to measure is not there."""
    mpi = [PurePath(path).name for name in ("libmpi", "libmpich") for path in facts.libraries.get(name, ())]
    software = {
        "Horovod": (facts.horovod.version if facts.horovod else None) or "",
        facts.framework: facts.imported.version if facts.imported else "",
        "Python": facts.python.version if facts.python else "",
        "MPI library": " ".join(sorted(mpi)) if "error" not in facts.libraries else "",
        "NCCL": " ".join(sorted({str(code) for code in facts.nccl.values() if isinstance(code, int)})),
        "CUDA": (facts.compiled.cuda if facts.compiled else None) or "",
    }
    unmeasured = set() if facts.libraries or facts.finished else {"MPI library", "NCCL"}
    return {name: value for name, value in software.items() if name not in unmeasured}


def system(facts: RankFacts) -> dict[str, str]:
    """Return the system of a rank's node by name: kernel, C library, architecture and GPUs."""
    machine, gpus = facts.machine, facts.node_gpus
    return {
        "kernel": machine.kernel if machine else "",
        "C library": machine.libc if machine else "",
        "architecture": machine.architecture if machine else "",
        "GPU driver": (gpus.nvidia_driver or gpus.amd_driver or "none") if gpus else "",
        "number of GPUs": str(len(gpus.nvidia) + len(gpus.amd)) if gpus else "",
    }


def differences(facts: Sequence[RankFacts], rows: Sequence[dict[str, str]]) -> str:
    """Return the nodes (or the ranks, where all are on one node) that differ from most; nothing if none does."""
    one_node = len({f.host for f in facts}) == 1
    names = [f.label if one_node else f.host for f in facts]
    parts = []
    for what in dict.fromkeys(what for each in rows for what in each):
        having = {name: each[what] for name, each in zip(names, rows, strict=True) if what in each}
        common, others = odd_ones(having)
        for value, where in others.items():
            parts.append(f"{what} is {value or 'absent'} on {listing(where)}, {common or 'absent'} elsewhere")
    return "; ".join(parts)


def lacked_room(facts: RankFacts) -> bool:
    """Whether a rank ended as one does that finds no room in shared memory, or NCCL could not work."""
    killed = facts.ended is not None and facts.ended.signal == "SIGBUS"
    return killed or bool(facts.collectives_gpu and facts.collectives_gpu.error)


def mebibytes(size: int) -> str:
    """Return a number of bytes in MiB, in words."""
    return f"{size / 2**20:.0f} MiB"


def preloaded_library(paths: Sequence[str]) -> str:
    """Return the title of a preloaded library, as far as its name tells."""
    titles = (
        entry["what"] for path in paths for entry in known("machine")["preloaded"] if re.search(entry["pattern"], path)
    )
    return next(titles, "a library that envkit does not know by name")


def library_places(facts: RankFacts, library: str) -> dict[str, str]:
    """The folders of the search path that hold a library, in order, and the file that each one's name leads to."""
    folders = facts.search_path.folders if facts.search_path else {}
    return {folder: libraries[library] for folder, libraries in folders.items() if library in libraries}


def usable_cores(facts: RankFacts) -> int | None:
    """How many cores this job may use on the node: the least of what the kernel, the limits and Slurm say."""
    machine = facts.machine
    granted = machine.granted if machine and not isinstance(machine.granted, Fact) else None
    numbers = (machine.cores if machine else None, granted, facts.number("SLURM_CPUS_ON_NODE"))
    return min((number for number in numbers if number), default=None)


def more_cores(facts: RankFacts) -> str:
    """Return the remedy for too few cores that fits what binds the rank: its MPI, or its launcher."""
    families = set(map(family, mpi_paths(facts)))
    fixes = known("machine")["binds"]
    fitting = (fix for fix in fixes if fix["by"] in {"", *families, *facts.environment})
    return str(next(fix["remedy"] for fix in fitting if not is_off(fix.get("unless", ()), facts)))


def is_off(variables: Sequence[str], facts: RankFacts) -> bool:
    """Say whether one of these variables is 0."""
    return any(facts.environment.get(variable) == "0" for variable in variables)


OF_SOFTWARE = (versions_agree, nodes_agree)
CHECKS = (preloaded, search_path, dev_shm, binding)
