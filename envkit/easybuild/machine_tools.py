"""The tools of this machine that modules such as GCC/system stand for, by path and version.

What eb makes of such a recipe is the same wherever these are the same.
"""

from pathlib import Path

from envkit.cache.manifest import rules
from envkit.easybuild import mpi
from envkit.machine.host import Host
from envkit.planning.plan import Step
from envkit.system import process


def found(machine: Host) -> dict[str, str]:
    """Return each tool that is there, by its name, as "PATH VERSION"; of an MPI the family comes before its version.

    Where the path is a link, it is followed by where that leads.
    """
    programs: dict[str, tuple[Path | str | None, str]] = {"python": (machine.python.path, machine.python.version)}
    if machine.compiler:
        programs["g++"] = machine.compiler.path, machine.compiler.version
        programs["gcc"] = process.which("gcc", path=machine.env["PATH"]), machine.compiler.version
    if machine.cmake:
        programs["cmake"] = machine.cmake.path, machine.cmake.version
    if machine.mpi:
        version = f"{machine.mpi.family} {machine.mpi.version}"
        programs["mpirun"] = machine.mpi.path, version
        programs["mpicxx"] = mpi.wrapper_of(machine.mpi, machine.env), version
        for name in ("mpicc", "ompi_info"):  # by which EasyBuild looks for it
            programs[name] = process.which(name, path=machine.env["PATH"]), version
    return {name: f"{path} {version}{led(Path(path))}" for name, (path, version) in programs.items() if path}


def led(path: Path) -> str:
    """Return where a path leads, in words; nothing where that is itself."""
    real = path.resolve()
    return f" ({real})" if real != path else ""


def of(step: Step, machine: Host) -> dict[str, str] | None:
    """Return the tools that a module stands for; None of any other module, and where one is not there."""
    wanted = rules()["compared"].get(step.module)
    if wanted is None or "/embedded/" in step.easyconfig:  # another module, or a wheel's
        return None
    there = found(machine)
    return {name: there[name] for name in wanted} if there.keys() >= {*wanted} else None
