"""Ranks in a release of EESSI: one entry, and the MPI of its modules starts them inside, on this node."""

import re
from collections.abc import Mapping, Sequence

from envkit.environments.eessi import EessiEnvironment
from envkit.environments.receipt import Mpi
from envkit.errors import HostProblem
from envkit.knowledge.eessi import known
from envkit.launch.launcher import Wanted, mpi_launcher
from envkit.machine.host import MPI_FAMILIES
from envkit.machine.modules_tool import entered
from envkit.system import process


def command(inside: EessiEnvironment, number: int, argv: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the argv that enters once and starts ranks on this node with the MPI of the modules loaded.

    Raises HostProblem where they bring none, and ModuleNotLoaded.
    """
    show = ["sh", "-c", "command -v mpirun && mpirun --version"]
    told = entered(process.capture(inside.command(show), env=env))
    path = told.stdout.partition("\n")[0]
    for family, pattern in MPI_FAMILIES:
        if path.startswith(known().mount) and (match := re.search(pattern, told.stdout)):
            launch = mpi_launcher(
                Mpi(family=family, version=match[1]), Wanted(ranks=number), "it belongs to EESSI's MPI"
            )
            return inside.command(argv, launch.argv)
    if told.status and not path:
        raise HostProblem(what="EESSI could not be entered to start ranks.", why=told.stderr.strip())
    raise HostProblem(
        what="The modules loaded bring no MPI, so there is nothing of EESSI's to start ranks with.",
        why=f"The first mpirun on PATH is {path}." if path else "There is no mpirun on PATH.",
        fix="Load one that does: --load foss/2023a",
    )


def on_one_node(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` so that a launcher starts ranks on this node alone, though a job has others."""
    return {**env, **known().one_node}
