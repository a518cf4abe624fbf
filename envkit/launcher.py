"""From a number of ranks to the command line of a launcher."""

import os
import re
from collections.abc import Mapping

from envkit import process
from envkit.environment import Environment
from envkit.errors import EnvironmentDamaged
from envkit.host import MPI_FAMILIES, cores
from envkit.receipt import Mpi


def command(mpi: Mpi | None, ranks: int) -> list[str]:
    """Return the launcher's part of the command line for ``ranks`` ranks on this machine.

    More ranks than cores is asked for explicitly, and then ranks are not bound to cores.
    """
    crowded = ranks > cores()
    if mpi is None or mpi.family != "Open MPI":
        return ["mpiexec", "-n", str(ranks)]
    argv = ["mpirun", "-np", str(ranks)]
    if int(mpi.version.partition(".")[0]) >= 5:
        return [*argv, "--map-by", ":OVERSUBSCRIBE", *(["--bind-to", "none"] if crowded else [])]
    return [*argv, "--oversubscribe", *(["--bind-to", "none"] if crowded else [])]


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` with what Open MPI wants from root, if this is root."""
    if os.geteuid() != 0:
        return dict(env)
    return {
        **env,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def mpi_of(environment: Environment, tree: str, env: Mapping[str, str]) -> Mpi:
    """Ask the environment which MPI it brings. Raises EnvironmentDamaged if it has no launcher."""
    argv = ["sh", "-c", "command -v mpirun; mpirun --version"]
    told = process.capture(environment.command(argv), env=environment.variables(variables(env))).stdout
    path = told.partition("\n")[0]
    for family, pattern in MPI_FAMILIES:
        if match := re.search(pattern, told):
            return Mpi(family=family, version=match[1], embedded=path.startswith(tree))
    raise EnvironmentDamaged(
        what="The environment has no MPI launcher.",
        why=told.strip() or "mpirun was not found in it.",
        fix="Build it again: 'envkit install --rebuild'.",
    )
