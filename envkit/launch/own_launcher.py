"""The launcher of the MPI that Horovod was built with, where mpirun in its environment may be another MPI's."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from envkit.environments.environment import Environment, ModuleEnvironment
from envkit.environments.receipt import Mpi
from envkit.errors import HostProblem
from envkit.launch.launcher import Launch, belonging, variables
from envkit.machine.host import MPI_FAMILIES, VARIANTS, Program, of_launcher
from envkit.system import process

PATIENCE_S = 20
OF_MACHINE = "OpenMPI/system*"  # the module that stands for the machine's own; other stacks bring one
SYSTEM = ("/usr/bin", "/bin", "/usr/local/bin")  # which stay on PATH, whatever modules are unloaded
NAMES = ("mpirun", "mpiexec")
# EasyBuild's module of the machine's own MPI says in EBROOTOPENMPI where that was when it was built.
ASK = """
for one in "$@" ${EBROOTOPENMPI:+"$EBROOTOPENMPI/bin/$1"}; do
    path=$(command -v "$one") && printf '\\f%s %s\\n' "$one" "$path" && "$path" --version
done
"""


def own(launch: Launch, inside: Environment, mpi: Mpi | None, env: Mapping[str, str]) -> Launch:
    """Return a launch by Open MPI's launcher, if Horovod was built with the machine's own: another's may be first.

    Debian's alternatives choose it, and so do modules; scripts in an environment call that of each other MPI by its
    path, and a wheel's is in it. What the first does not tell is left as it is. Raises HostProblem where there is only
    another MPI's: each rank would be a world of its own, without an error.
    """
    if mpi is None or mpi.family != "Open MPI" or mpi.embedded or launch.launcher not in NAMES:
        return launch
    if not isinstance(inside, ModuleEnvironment) or not any(inside.modulepath.glob(OF_MACHINE)):
        return launch
    first = first_outside(launch.launcher, inside, env)
    if first.family in (mpi.family, "unknown"):
        return launch if first.family == mpi.family else of_unknown(launch, mpi, first)
    found = launchers(launch.launcher, inside, env)
    if not found:
        return launch
    if launch.launcher in found and found[launch.launcher].family == "unknown":
        return of_unknown(launch, mpi, found[launch.launcher])
    first = next(iter(found.values()))
    fitting = [name for name, program in found.items() if program.family == mpi.family]
    there = ", ".join(dict.fromkeys(f"{one.path} is of {one.family} {one.version}" for one in found.values()))
    if fitting:
        other = "" if first.family == mpi.family else f"; {first.path} is of {first.family} {first.version}"
        return replace(launch, argv=(fitting[0], *launch.argv[1:]), why=f"{launch.why}{other}")
    raise HostProblem(
        what=f"There is no launcher of {mpi.family} {mpi.version} here, which this Horovod was built with.",
        why=f"{there}: it would start each rank as a world of its own.",
        fix=f"Load the module of that {mpi.family}, put its bin folder first on PATH, or install it again (Debian, "
        "Ubuntu: openmpi-bin).",
    )


def of_unknown(launch: Launch, mpi: Mpi, first: Program) -> Launch:
    """Return a launch by a launcher that does not tell which MPI it is of."""
    told = f"{first.path} is the first on PATH; it does not say of which MPI it is"
    return replace(launch, why=told if launch.why == belonging(mpi.family) else f"{launch.why}; {told}")


def first_outside(name: str, inside: ModuleEnvironment, env: Mapping[str, str]) -> Program:
    """Return the launcher that is the first here, of family "" if entering may change which one is."""
    path = process.which(name, path=env.get("PATH")) or ""
    is_loaded = bool(env.get("LOADEDMODULES")) and str(Path(path).parent) not in SYSTEM
    if not path or inside.load or inside.venv or is_loaded:
        return Program(path=Path(path), version="", family="")
    return of_launcher(path, env)


def launchers(name: str, inside: Environment, env: Mapping[str, str]) -> dict[str, Program]:
    """Return the launchers that an environment has, by what they are called in it, that which it takes first."""
    argv = ["sh", "-c", ASK, "sh", *(f"{name}{variant}" for variant in VARIANTS)]
    told = process.capture(inside.command(argv), env=inside.variables(variables(env)), timeout_s=PATIENCE_S).stdout
    found = {}
    for block in told.split("\f")[1:]:
        line, _, version = block.partition("\n")
        called, _, path = line.partition(" ")
        matches = ((family, re.search(pattern, version)) for family, pattern in MPI_FAMILIES)
        family, number = next(((family, match[1]) for family, match in matches if match), ("unknown", "unknown"))
        found[called] = Program(path=Path(path), version=number, family=family)
    return found
