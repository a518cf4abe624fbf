"""Does every rank have a GPU of its own, and do driver, framework and NCCL fit it and each other?"""

from __future__ import annotations

import re
from collections.abc import Sequence

from packaging.version import InvalidVersion, Version

from envkit.knowledge.known import known
from envkit.verify.checks.nodes import by_node, listing, warned
from envkit.verify.checks.world import family, mpi_paths
from envkit.verify.facts import Fact, RankFacts
from envkit.verify.outcome import Ranks, Result

ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)$|gfx")


def gpu_visible(ranks: Ranks) -> list[Result]:
    """Of nodes that have GPUs: does the framework see any?"""
    having = [facts for facts in ranks.facts if node_count(facts)]
    if not having:
        return []
    for facts in having:
        if facts.imported is None or facts.imported.error:
            return [ranks.not_measured("gpu-visible", facts, required=False)]
        if facts.gpus is None or facts.gpus.error or not facts.gpus.count:
            case = invisible(facts)
            if case:
                values = {"rank": facts.label, "count": node_count(facts), "framework": facts.framework}
                return [ranks.outcome("gpu-visible", case, **values, **hidden(facts))]
            if facts.gpus is None:
                return [ranks.not_measured("gpu-visible", facts, required=False)]
    few = next((facts for members in by_node(ranks).values() for facts in members if has_few(facts, members)), None)
    if few and few.gpus and few.world:
        return [ranks.outcome("gpu-visible", "few", rank=few.label, seen=few.gpus.count, local=few.world.local_rank)]
    return [ranks.outcome("gpu-visible", "pass")]


def has_few(facts: RankFacts, members: Sequence[RankFacts]) -> bool:
    """Say whether a rank sees only GPUs that no other one of its node does, and fewer than its local rank asks for."""
    local = facts.world.local_rank if facts.world else None
    own = {*visible(facts)}
    others = {uuid for other in members if other is not facts for uuid in visible(other)}
    is_own = bool(facts.gpus and own) and not own & others
    return is_own and isinstance(local, int) and len(own) <= local < len(own | others)


def gpu_driver(ranks: Ranks) -> list[Result]:
    """Is the NVIDIA driver new enough for the CUDA of the framework?"""
    having = [f for f in ranks.facts if f.gpu_driver and f.gpu_driver.cuda and f.compiled and f.compiled.cuda]
    for facts in having:
        driver, cuda = facts.gpu_driver, facts.compiled.cuda if facts.compiled else None
        if driver and cuda and not driver_suits(cuda, cuda_release(driver.cuda), kernel_driver(facts)):
            values = {"rank": facts.label, "cuda": cuda, "supported": cuda_release(driver.cuda)}
            worked = all(f.collectives_gpu and not f.collectives_gpu.error for f in ranks.facts)
            result = ranks.outcome("gpu-driver", "old", driver=kernel_driver(facts), **values)
            return [warned(result, harmless=worked)]
    return [ranks.outcome("gpu-driver", "pass")] if having else []


def gpu_architecture(ranks: Ranks) -> list[Result]:
    """Was the framework compiled for the GPUs that the ranks see?"""
    any_gpu = False
    for facts in ranks.facts:
        names = facts.compiled.architectures if facts.compiled else ()
        built = () if isinstance(names, Fact) else tuple(name for name in names if ARCHITECTURE.match(name))
        if not built:
            continue
        for name, architecture in seen_gpus(facts):
            any_gpu = True
            if not compiled_for(architecture, built):
                values = {"rank": facts.label, "gpu": name, "architecture": architecture, "built": " ".join(built)}
                return [ranks.outcome("gpu-architecture", "missing", framework=facts.framework, **values)]
    return [ranks.outcome("gpu-architecture", "pass")] if any_gpu else []


def gpu_shared(ranks: Ranks) -> list[Result]:
    """By UUID, since an index counts among the visible GPUs."""
    users: dict[tuple[str, str], list[str]] = {}
    for facts in ranks.facts:
        if uuid := used_gpu(facts):
            users.setdefault((facts.host, uuid), []).append(str(facts.rank))
    shared = [f"{uuid} on {host}: ranks {' '.join(r)}" for (host, uuid), r in users.items() if len(r) > 1]
    if shared:
        return [ranks.outcome("gpu-shared", "shared", shared="; ".join(shared))]
    return [ranks.outcome("gpu-shared", "pass")] if users else []


def gpu_unused(ranks: Ranks) -> list[Result]:
    """Of the GPUs that the ranks of a node see, or that Slurm gave the job there: is any left without a rank?"""
    idle: list[str] = []
    used_any = False
    for host, members in by_node(ranks).items():
        used = {uuid for facts in members if (uuid := used_gpu(facts))}
        used_any = used_any or bool(used)
        granted = max(len({uuid for facts in members for uuid in visible(facts)}), *map(granted_gpus, members))
        if used and granted > len(used):
            idle.append(f"{granted - len(used)} of {granted} on {host}")
    if idle:
        return [ranks.outcome("gpu-unused", "idle", idle=listing(idle))]
    return [ranks.outcome("gpu-unused", "pass")] if used_any else []


def gpu_slices(ranks: Ranks) -> list[Result]:
    """Slices of GPUs (MIG) under several ranks."""
    sliced = [f for f in ranks.facts if f.gpu_driver and any(device.mig for device in f.gpu_driver.devices)]
    if not sliced:
        return []
    case = "several" if len(ranks.facts) > 1 else "one"
    return [ranks.outcome("gpu-slices", case, rank=sliced[0].label, count=len(sliced))]


def nccl_version(ranks: Ranks) -> list[Result]:
    """The NCCL built with, the one loaded, and the framework's own."""
    for facts in ranks.facts:
        built = facts.flags.get("nccl") if facts.flags else None
        if not built:
            continue
        loaded = {path: nccl_release(code) for path, code in facts.nccl.items() if isinstance(code, int)}
        own = facts.compiled.nccl if facts.compiled and isinstance(facts.compiled.nccl, str) else None
        shown = ", ".join(f"{version} ({path})" for path, version in loaded.items()) or "none of its own"
        values = {"rank": facts.label, "built": nccl_release(built), "loaded": shown, "framework": own or "not told"}
        if case := nccl_case(built, loaded, own):
            worked = all(f.collectives_gpu and not f.collectives_gpu.error for f in ranks.facts)
            return [warned(ranks.outcome("nccl-version", case, **values), harmless=worked)]
        return [ranks.outcome("nccl-version", "pass", **values)]
    return []


def mpi_gpu(ranks: Ranks) -> list[Result]:
    """Where Horovod gives MPI the addresses of GPU memory, which it does without NCCL: does that MPI take them?"""
    seen = False
    for facts in ranks.facts:
        runtime = next((name for name in ("cuda", "rocm") if facts.flags and facts.flags.get(name)), "")
        by_mpi = runtime and facts.flags and facts.flags.get("mpi") and not facts.flags.get("nccl")
        if not by_mpi or not facts.gpus or not facts.gpus.count or facts.mpi_gpu.get("running") is not True:
            continue
        mpi = next(iter(mpi_paths(facts)), "the MPI")
        values = {"rank": facts.label, "mpi": mpi, "runtime": runtime.upper().replace("ROCM", "ROCm")}
        switch = known("gpu")["mpi_switches"].get(family(mpi))  # what it was built with does not count without that
        if switch and facts.environment.get(switch) != "1":
            case, values["variable"] = "off", switch
        else:
            case = "unaware" if not switch and facts.mpi_gpu.get(runtime) is False else ""
        if case:
            worked = all(f.collectives_gpu and not f.collectives_gpu.error for f in ranks.facts)
            return [warned(ranks.outcome("mpi-gpu", case, **values), harmless=worked)]
        seen = seen or facts.mpi_gpu.get(runtime) is True
    return [ranks.outcome("mpi-gpu", "pass")] if seen else []


def node_count(facts: RankFacts) -> int:
    """Return the number of GPUs on the node of a rank."""
    return len(facts.node_gpus.nvidia) + len(facts.node_gpus.amd) if facts.node_gpus else 0


def kernel_driver(facts: RankFacts) -> str:
    """Return the version of the NVIDIA driver on the node of a rank."""
    return (facts.node_gpus.nvidia_driver if facts.node_gpus else None) or "unknown"


def invisible(facts: RankFacts) -> str | None:
    """Why the framework sees no GPU of its node, or None where it was not asked."""
    built, hiding = facts.compiled, known("gpu")["hiding"]
    if built and not built.error and not built.cuda and not built.rocm:
        return "cpu-build"
    if any(facts.environment.get(name) in hiding["values"] for name in hiding["variables"]):
        return "hidden"
    driver = facts.gpu_driver
    if driver and driver.error:
        return "no-library"
    if driver and driver.present and driver.status:
        return "refused"
    if facts.node_gpus and facts.node_gpus.nvidia and not facts.node_gpus.nvidia_files:
        return "no-files"
    return "unknown" if facts.gpus else None


def hidden(facts: RankFacts) -> dict[str, object]:
    """Return values for the messages on GPUs that are not seen: the driver's answer, and variables that hide them."""
    status = facts.gpu_driver.status if facts.gpu_driver else 0
    why = known("gpu")["status"].get(str(status), "an error that envkit does not know")
    names = [name for name in known("gpu")["hiding"]["variables"] if name in facts.environment]
    variables = [f"{name}={facts.environment[name]}" for name in names]
    error = facts.gpu_driver.error if facts.gpu_driver else None
    return {"status": status, "why": why, "variables": ", ".join(variables), "error": error}


def cuda_release(code: int) -> str:
    """Return a CUDA release as people write it: 12040 as 12.4."""
    return f"{code // 1000}.{code % 1000 // 10}"


def driver_suits(cuda: str, supported: str, driver: str) -> bool:
    """Whether a driver runs a CUDA release: it supports it, or is of its major release and new enough."""
    wanted, given = parsed_version(cuda), parsed_version(supported)
    if wanted is None or given is None or wanted <= given:
        return True
    least, installed = parsed_version(known("gpu")["minor_compatible"].get(str(wanted.major))), parsed_version(driver)
    return wanted.major == given.major and least is not None and (installed is None or installed >= least)


def parsed_version(text: str | None) -> Version | None:
    """Return a version, or None where a text is none."""
    try:
        return Version(text or "")
    except InvalidVersion:
        return None


def seen_gpus(facts: RankFacts) -> list[tuple[str, str]]:
    """The GPUs that a rank may use: name, and capability (9.0) or architecture (gfx90a)."""
    devices = facts.gpu_driver.devices if facts.gpu_driver else ()
    seen = [(device.name, device.capability) for device in devices if device.capability]
    amd = facts.node_gpus.amd if facts.node_gpus and facts.gpus and facts.gpus.count else ()
    return seen or [(gpu.name, gpu.name) for gpu in amd]


def compiled_for(architecture: str, built: tuple[str, ...]) -> bool:
    """Whether code for sm_XY (same major, not newer), or PTX of an older capability, or that very gfx is there."""
    if architecture.startswith("gfx"):
        return any(name.partition(":")[0] == architecture for name in built)
    major, minor = (int(part) for part in architecture.split("."))
    for name in built:
        match = ARCHITECTURE.match(name)
        if not match or not match[1]:
            continue
        kind, has = match[1], (int(match[2]), int(match[3]))
        fits = has == (major, minor) if match[4] else has <= (major, minor)
        if fits and (kind == "compute" or has[0] == major):
            return True
    return False


def used_gpu(facts: RankFacts) -> str | None:
    """The UUID of the GPU that a rank used: as the framework told it, else as the driver has it under that index."""
    if facts.device is None or facts.device.error:
        return None
    devices = facts.gpu_driver.devices if facts.gpu_driver else ()
    uuid = devices[facts.device.index].uuid if facts.device.index < len(devices) else None
    return plain_uuid(uuid or facts.device.uuid)


def visible(facts: RankFacts) -> list[str]:
    """Return the UUIDs of the GPUs that a rank sees."""
    devices = facts.gpu_driver.devices if facts.gpu_driver else ()
    uuids = [device.uuid for device in devices] or list(facts.gpus.uuids if facts.gpus else ())
    return [plain for uuid in uuids if (plain := plain_uuid(uuid))]


def granted_gpus(facts: RankFacts) -> int:
    """Return the number of GPUs that Slurm gave the job on the node of a rank."""
    return facts.number("SLURM_GPUS_ON_NODE") or 0


def plain_uuid(uuid: str | None) -> str | None:
    """Return a UUID without the driver's `GPU-`, as PyTorch tells it."""
    return uuid.removeprefix("GPU-") if uuid else None


def nccl_release(code: int) -> str:
    """Return an NCCL release as people write it: 22907 as 2.29.7; 2708 (before 2.9) as 2.7.8."""
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def nccl_case(built: int, loaded: dict[str, str], own: str | None) -> str | None:
    """Return the fault between the NCCL versions, or None; a newer one than was built with is compatible."""
    versions = {Version(version) for version in loaded.values()}
    if any(version < Version(nccl_release(built)) for version in versions):
        return "older"
    if len(loaded) > 1:
        return "several"
    framework_version = parsed_version(own)
    return "two" if framework_version and versions and framework_version not in versions else None


CHECKS = (gpu_visible, gpu_driver, gpu_architecture, gpu_shared, gpu_unused, gpu_slices, nccl_version, mpi_gpu)
