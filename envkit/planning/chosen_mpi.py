"""Which of a machine's MPI libraries is asked for, and the one that only the modules of the caller's session offer."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envkit.config import configuration
from envkit.errors import EnvkitError, HostProblem
from envkit.knowledge.mpi import FAMILIES
from envkit.machine import host, modules_tool
from envkit.machine.host import Host, Program
from envkit.planning.request import Request

MPI = re.compile(r"mpi|mvapich|mpt|hpcx", re.IGNORECASE)  # in the names of their modules
COMPILERS = re.compile(r"PrgEnv", re.IGNORECASE)  # what Cray's MPI has its compiler wrapper from


@dataclass(frozen=True, kw_only=True)
class Unloaded:
    """An MPI that the session has and a build does not; ``load`` are the modules that bring it, none if that failed."""

    mpi: Program
    load: tuple[str, ...]

    @property
    def what(self) -> str:
        """What is so."""
        named = f"{self.mpi.family} {self.mpi.version}"
        if not self.load:
            return f"The modules loaded in your session bring {named} ({self.mpi.path}), and envkit unloads them."
        return f"Your session has {' and '.join(self.load)} loaded ({named}), which envkit unloads."

    @property
    def fix(self) -> str:
        """What to do."""
        words = " ".join(f"--load {module}" for module in self.load)
        return f"Add {words} to build with it." if words else "To build with it, name those that it needs with --load."


def as_configured(request: Request, env: Mapping[str, str] = os.environ) -> Request:
    """Return a request with the family of MPI that the configuration names, which nobody types."""
    family = FAMILIES.get(configuration.read(env).get("mpi") or "", "")
    return replace(request, mpi=family, configured=request.configured | {"mpi"})


def programs(machine: Host) -> list[Program]:
    """Return the MPI libraries of a machine, the one to be taken first."""
    return [program for program in (machine.mpi, *machine.other_mpis) if program]


def detect(request: Request) -> Host:
    """Look at this machine, with the MPI first that is asked for, where it is there. Raises HostProblem."""
    return preferring(request.mpi, host.detect(request.load))


def preferring(family: str, machine: Host) -> Host:
    """Return a machine with the MPI of a family first, if it has one."""
    found = programs(machine)
    first = next((program for program in found if program.family == family), None)
    if first is None:
        return machine
    return replace(machine, mpi=first, other_mpis=tuple(program for program in found if program != first))


def require(request: Request, machine: Host) -> None:
    """Require the family of MPI that is asked for, if one is. Raises HostProblem."""
    try:
        host.require_family(programs(machine), request.mpi, machine.refused_mpis)
    except HostProblem as missing:
        offered = unloaded(machine, request.mpi)
        if "mpi" in request.configured:
            missing.fix = missing.fix.replace("Without --mpi", "Without 'mpi' in your configuration (envkit config)")
        if offered:
            missing.why = f"{missing.why} {offered.what}"
            missing.fix = offered.fix
        raise


def unloaded(machine: Host, family: str = "", env: Mapping[str, str] = os.environ) -> Unloaded | None:
    """Return an MPI that the modules of the session offer, of a family if one is named, and the machine does not."""
    loaded = env.get("LOADEDMODULES", "").split(":")
    session = {**env, "PATH": modules_tool.without_private_folders(env)}
    folders = set(session["PATH"].split(os.pathsep)) - set(machine.env["PATH"].split(os.pathsep))
    wrappers = (Path(folder, name) for folder in folders for name in (host.CRAY_WRAPPER, *host.WRAPPERS))
    if not any(loaded) or machine.modules_tool is None or not any(map(Path.is_file, wrappers)):
        return None
    known = {program.path for program in programs(machine)}
    own = (one for one in host.mpis(session) if one.path not in known and str(one.path.parent) in folders)
    mpi = next((one for one in own if family in ("", one.family)), None)
    if mpi is None:
        return None
    load = next((words for words in candidates(loaded) if brings(machine, words, mpi, env)), ())
    return Unloaded(mpi=mpi, load=load)


def candidates(loaded: list[str]) -> Iterator[tuple[str, ...]]:
    """Yield modules that may bring an MPI, the fewest first: it alone, with the compilers of a Cray, all that are."""
    own = [module for module in loaded if MPI.search(module)]
    compilers = [module for module in loaded if COMPILERS.search(module)]
    yield from ((module,) for module in own[-1:])
    if own and compilers:
        yield (*compilers, own[-1])
    yield tuple(loaded)


def brings(machine: Host, modules: tuple[str, ...], mpi: Program, env: Mapping[str, str]) -> bool:
    """Say whether these modules, on top of those that are asked for, put an MPI on PATH."""
    try:
        seen = modules_tool.clean(env, machine.modules_tool, (*machine.load, *modules))
    except EnvkitError:
        return False
    is_there = str(mpi.path.parent) in seen["PATH"].split(os.pathsep)
    return is_there and (mpi.path.name != host.CRAY_WRAPPER or "CRAY_MPICH_VERSION" in seen)
