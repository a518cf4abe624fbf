"""The doctor's report for people at a terminal: what there is, what becomes of each method, what to know."""

from collections.abc import Iterable, Iterator

from envkit.doctor.facts import Driver, Facts, MpiLibrary, NodeFacts, Tool
from envkit.doctor.report import Comparison, MethodState, Report
from envkit.report.paper import Paper
from envkit.report.words import size

STYLES = {
    MethodState.WORKS: "green",
    MethodState.PARTLY: "yellow",
    MethodState.FAILS: "red",
    MethodState.UNKNOWN: "yellow",
}
LABEL = 10


def render(report: Report, paper: Paper) -> str:
    """Return the report as text, ending in a newline."""
    out = list[str]()
    for label, text in lines(report.facts):
        out += paper.paragraph(label.ljust(LABEL), "bold", text)
    for verdict in report.methods:
        out += [
            "",
            *paper.paragraph(
                verdict.state.value.ljust(LABEL), STYLES[verdict.state], f"{verdict.method}: {verdict.why}"
            ),
        ]
        out += paired(paper, [(problem.what, problem.fix) for problem in verdict.problems])
    for note in report.notes:
        out += ["", *paper.paragraph("note".ljust(LABEL), "cyan", note.what), *remedy(paper, note.fix)]
    if report.comparison:
        out += compared(report.comparison, paper)
    return "\n".join(out) + "\n"


def compared(comparison: Comparison, paper: Paper) -> Iterator[str]:
    """Yield what differs between a node and the host that it was asked from."""
    if not comparison.differences:
        yield from (
            "",
            *paper.paragraph(
                "differs".ljust(LABEL), "cyan", f"nothing between {comparison.node} and {comparison.here}"
            ),
        )
    for difference in comparison.differences:
        yield from ("", *paper.paragraph("differs".ljust(LABEL), "cyan", difference.what))
        yield from paper.paragraph("     there", "dim", f"{difference.node} ({comparison.node})")
        yield from paper.paragraph("      here", "dim", f"{difference.here} ({comparison.here})")


def paired(paper: Paper, problems: list[tuple[str, str]]) -> Iterator[str]:
    """Yield problems, each with its remedy."""
    for what, fix in problems:
        yield from paper.paragraph("   because", "dim", what)
        yield from remedy(paper, fix)


def remedy(paper: Paper, fix: str) -> list[str]:
    """Return what to do."""
    return paper.paragraph("    remedy", "dim", fix)


def lines(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each thing that is known."""
    if facts.node:
        inside = f", in a container ({facts.node.container})" if facts.node.container else ""
        yield "host", f"{facts.node.hostname}, as {facts.user}: Linux {facts.node.kernel}, {facts.node.libc}{inside}"
    if facts.cpu:
        yield "CPU", f"{facts.cpu.machine} ({facts.cpu.target}), {facts.cpu.cores} cores"
    if facts.node:
        yield "GPUs", gpus(facts.node, facts.gpu_driver)
    if facts.toolkits is not None:
        yield "toolkits", joined(f"{tool.family} {tool.version} ({tool.path})" for tool in facts.toolkits)
    yield from software(facts)
    for scheduler in facts.schedulers or ():
        where = "in a job" if scheduler.job else "not in a job"
        yield "scheduler", f"{scheduler.name} {scheduler.version}".strip() + f", {where}" + types(scheduler.mpi)
    yield from machine(facts)


def software(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield what there is of software."""
    if facts.builder:
        python = facts.builder.python
        tools = f"C++: {tool_line(facts.builder.compiler)}; CMake: {tool_line(facts.builder.cmake)}"
        yield ("builds", f"Python {python.version} ({python.path}); {tools}")
    for library in facts.mpi or ():
        yield "MPI", mpi(library)
    if facts.mpi == ():
        yield "MPI", "none on PATH"
    for refused in facts.builder.refused_mpis if facts.builder else ():
        yield "", f"no build takes {refused}"
    hung = {entry.probe for entry in facts.missing}
    if "modules" not in hung:
        yield "modules", tool_line(facts.modules)
    if facts.container:
        runtime = facts.container.runtime
        builds = "cannot build here" if facts.container.building else "can build"
        setuid = ", setuid" if facts.container.setuid else ""
        yield "container", f"{runtime.family} {runtime.version} ({runtime.path}){setuid}, {builds}"
    elif "container" not in hung:
        yield "container", "none"
    if facts.namespaces is not None:
        yield "user ns", facts.namespaces or "can be made"
    if facts.mounts is not None:
        yield "CVMFS", joined(facts.mounts, "nothing is mounted")


def machine(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield what there is of fabric, memory, limits, disk and network."""
    if facts.node:
        yield "fabric", fabric(facts.node)
        yield "/dev/shm", f"{size(facts.node.shm_free)} free of {size(facts.node.shm_size)}"  # noqa: S108
    if facts.limits:
        memlock, stack = (amount(number) for number in (facts.limits.memlock, facts.limits.stack))
        processes = "unlimited" if facts.limits.nproc is None else str(facts.limits.nproc)
        yield "limits", f"memlock {memlock}, stack {stack}, processes {processes}"
    if facts.room:
        inodes = "" if facts.room.inodes is None else f", {facts.room.inodes} inodes"
        writable = "" if facts.room.writable else ", not writable"
        yield "prefix", f"{facts.room.prefix}: {facts.room.free_mb} MB free{inodes}{writable}"
    if facts.indexes is not None:
        yield (
            "pip",
            joined((f"{index.url} {index.problem or 'answers'}" for index in facts.indexes), "no index, no find-links"),
        )


def gpus(node: NodeFacts, driver: Driver | None) -> str:
    """Say which GPUs there are."""
    kernel = node.gpus
    names = [*kernel.nvidia, *kernel.amd] or list(driver.devices if driver else ())
    counted = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    drivers = [f"NVIDIA driver {kernel.nvidia_driver}"] if kernel.nvidia_driver else []
    drivers += [f"for CUDA up to {driver.cuda}"] if driver and driver.cuda else []
    drivers += [f"amdgpu {kernel.amd_driver}"] if kernel.amd_driver else []
    return joined((*counted, *drivers, *(["in slices (MIG)"] if kernel.mig else [])))


def mpi(mpi_library: MpiLibrary) -> str:
    """Describe an MPI."""
    where = mpi_library.launcher or "no mpirun"
    if mpi_library.family == "unknown":
        return f"of no known family ({where})"
    library = (
        f"ABI {mpi_library.abi} ({mpi_library.library})" if mpi_library.library else f"no {mpi_library.abi} is found"
    )
    version = "" if mpi_library.version == "unknown" else f" {mpi_library.version}"
    srun = f", srun starts it by {mpi_library.srun}" if mpi_library.srun else ""
    speaks = ", ".join(mpi_library.pmi) or "nothing known"
    return f"{mpi_library.family}{version} ({where}); {library}; speaks {speaks}{srun}"


def fabric(node: NodeFacts) -> str:
    """Say which networks there are."""
    networks = node.fabric
    rdma = [f"{layer or 'no active port'}: {name}" for name, ports in networks.rdma.items() for layer in ports or ("",)]
    rdma += [f"Slingshot: {', '.join(networks.slingshot)}"] if networks.slingshot else []
    plain = [f"{name} {address or ''}".strip() for name, address in networks.interfaces.items()]
    return joined((*(rdma or ["neither InfiniBand nor Slingshot"]), *plain))


def types(mpi_types: tuple[str, ...]) -> str:
    """Say what srun speaks."""
    return f", srun --mpi: {', '.join(mpi_types)}" if mpi_types else ""


def tool_line(tool: Tool | None) -> str:
    """Describe a program, or say that there is none."""
    return f"{tool.family} {tool.version} ({tool.path})".strip() if tool else "none"


def amount(number: int | None) -> str:
    """Return bytes in words."""
    return "unlimited" if number is None else size(number)


def joined(parts: Iterable[str], nothing: str = "none") -> str:
    """Return parts with commas between them, or what stands for none."""
    return ", ".join(parts) or nothing
