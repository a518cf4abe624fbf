"""Ranks in a release of EESSI: one entry, and the MPI of its modules starts them inside, on this node."""

from collections.abc import Mapping, Sequence

from envkit.environments.eessi import EessiEnvironment
from envkit.environments.receipt import Mpi
from envkit.knowledge.eessi import known
from envkit.launch.launcher import LaunchRequest, mpi_launcher
from envkit.system.resources import data


def command(inside: EessiEnvironment, number: int, argv: Sequence[str]) -> list[str]:
    """Return the argv that enters once and starts ranks on this node with the MPI of the modules loaded."""
    words = ["bash", "--noprofile", "--norc", str(data("environments/shell/ranks.sh")), inside.repository.mount]
    for one in known().launcher:
        mpi = Mpi(family=one.family, version=one.version)
        launch = mpi_launcher(mpi, LaunchRequest(ranks=number), "it belongs to EESSI's MPI").argv
        words += [one.says, str(len(launch)), *launch]
    return inside.command(argv, [*words, "--"])


def on_one_node(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` so that a launcher starts ranks on this node alone, though a job has others."""
    return {**env, **known().one_node}
