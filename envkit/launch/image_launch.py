"""How the ranks in an image become one world: by which of the MPI models, with which launcher, and why."""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from envkit.environments.eessi import EessiEnvironment
from envkit.environments.environment import ContainerEnvironment, Environment, MpiModel
from envkit.environments.receipt import Mpi
from envkit.errors import HostProblem, UsageProblem
from envkit.knowledge.eessi import known, symptom
from envkit.launch import hosts, launcher, own_launcher, srun_mpi
from envkit.launch.host_mpi import CRAY_ABI, bound, find
from envkit.launch.launcher import Launch, LaunchRequest
from envkit.machine import host
from envkit.system import toml
from envkit.system.process import which
from envkit.system.resources import data


def plan_launch(
    inside: Environment,
    mpi: Mpi | None,
    wanted: LaunchRequest,
    env: Mapping[str, str] = os.environ,
    model: MpiModel | None = None,
) -> tuple[Environment, Launch]:
    """Return an environment as its ranks are to be started, and their launch.

    ``mpi`` is the environment's own; ``model`` is forced, or chosen by what this machine has. Raises what
    launcher.select and own_launcher.own do, and HostProblem where host and image do not fit, or ranks start where
    EESSI is not mounted.
    """
    if is_here_alone(inside, wanted):
        return inside, replace(launcher.select(mpi, wanted, {}), why="EESSI is mounted for this command, on this node")
    if not isinstance(inside, ContainerEnvironment):
        launch = launcher.select(mpi, wanted, env)
        if isinstance(inside, EessiEnvironment) and inside.way and (launch.remote or launch.spans):
            words = symptom("ranks-elsewhere", launcher=launch.launcher)
            raise HostProblem.of(words)
        return inside, own_launcher.own(launch, inside, mpi, env)
    chosen = model or fitting(mpi, wanted, env)
    if chosen is MpiModel.INSIDE:
        require_one_node(wanted)
        launch = launcher.select(mpi, replace(wanted, launcher=inner(wanted, mpi)), {})
        why = "the launcher in the image, on this node: " + (
            "you asked for it" if model else unfit(mpi, wanted, env) or "nothing of this host's is needed"
        )
        alone = tuple(known().one_node.items()) if hosts.in_job(env) else ()  # it has no srun for other nodes
        return replace(inside, model=chosen, settings=(*inside.settings, *alone)), replace(launch, why=why)
    if mpi is None:
        raise HostProblem(
            what=f"The Horovod of {inside.name} has no MPI, so no launcher of the host's can start its ranks.",
            fix="Use --mpi-model inside: horovodrun in the image starts them by Gloo.",
        )
    require_no_wall(env)
    if reason := unfit(mpi, wanted, env) if chosen is MpiModel.HYBRID else "":
        raise HostProblem(
            what=f"The ranks of {inside.name} would not become one world.",
            why=reason,
            fix="Leave --mpi-model out, or use --mpi-model inside on one node.",
        )
    launch = by_host(of_bound(mpi, env) or mpi if chosen is MpiModel.BIND else mpi, wanted, env)
    if launch.launcher == "srun":
        launch = replace(launch, argv=srun_mpi.merged([*launch.argv, *inside.srun]))
    if chosen is MpiModel.BIND:
        why = f"{launch.why}; the host's MPI library takes the place of the image's"
        return by_binding(inside, mpi, env), replace(launch, why=why)
    return replace(inside, model=chosen), launch


def may_start_its_own(
    inside: Environment, mpi: Mpi | None, wanted: LaunchRequest, env: Mapping[str, str], model: MpiModel | None
) -> bool:
    """Say whether the image's own launcher could start, on this node, ranks that the host's starts."""
    if not isinstance(inside, ContainerEnvironment) or wanted.hosts or (wanted.nodes or 1) > 1:
        return False
    return (model or fitting(mpi, wanted, env)) is not MpiModel.INSIDE


def is_here_alone(inside: Environment, wanted: LaunchRequest) -> bool:
    """Say whether ranks are to be started on this node by EESSI's own launcher, though a job may have others."""
    is_free = wanted.launcher == "auto" and not wanted.hosts and (wanted.nodes or 1) == 1
    return isinstance(inside, EessiEnvironment) and bool(inside.way) and is_free


def enter_as_rank(
    inside: Environment, mpi: Mpi | None, env: Mapping[str, str], model: MpiModel | None = None
) -> Environment:
    """Return an environment for this process, which a launcher of the host has started as a rank.

    Raises UsageProblem for the model ``inside``, and HostProblem where host and image do not fit.
    """
    if not isinstance(inside, ContainerEnvironment):
        return inside
    if model is MpiModel.INSIDE:
        raise UsageProblem(
            what="--mpi-model inside: the launcher in the image starts the ranks, and this process is one already.",
            fix="Call it outside of a launcher, or leave --mpi-model out.",
        )
    require_no_wall(env)
    return by_binding(inside, mpi, env) if model is MpiModel.BIND and mpi else inside


def of_bound(mpi: Mpi | None, env: Mapping[str, str]) -> Mpi | None:
    """Return the MPI whose library is bound into an image: Cray's speaks another PMI, others the image's own."""
    library = find(table()["bind"].get(mpi.family, ""), env) if mpi else None
    if library is None or library.parent.name != CRAY_ABI:
        return mpi
    return Mpi(family="Cray MPICH", version=env.get("CRAY_MPICH_VERSION", ""))


def for_job(mpi: Mpi | None, model: str | None, own: Sequence[str], *, is_image: bool) -> tuple[str, tuple[str, ...]]:
    """Return what ``srun_mpi.for_job`` does, for ranks that become one world by a model, or by what fits."""
    speaking = of_bound(mpi, os.environ) if model == "bind" else mpi
    speaks, words = srun_mpi.for_job(speaking, own, is_image=is_image)
    return "" if model == "inside" else speaks, words


def by_binding(inside: ContainerEnvironment, mpi: Mpi, env: Mapping[str, str]) -> ContainerEnvironment:
    """Return an image with the host's MPI library in it."""
    binding = bound(inside, mpi, table()["bind"].get(mpi.family, ""), env)
    binds, settings = (*inside.binds, *binding.binds), (*inside.settings, *binding.settings)
    return replace(inside, model=MpiModel.BIND, binds=binds, settings=settings)


def fitting(mpi: Mpi | None, wanted: LaunchRequest, env: Mapping[str, str]) -> MpiModel:
    """Choose the model: the host's launcher where it fits, else the image's own."""
    return MpiModel.INSIDE if mpi is None or unfit(mpi, wanted, env) else MpiModel.HYBRID


def unfit(mpi: Mpi | None, wanted: LaunchRequest, env: Mapping[str, str]) -> str:
    """Say why no launcher of this host can start the image's MPI; nothing if one can."""
    if mpi is None:
        return "this Horovod has Gloo and no MPI"
    if launcher.spans(wanted.launcher) and not by_slurm(wanted, env):
        return ""  # how it and the MPI find each other is not known here
    if by_slurm(wanted, env):
        if "library" in srun_mpi.row(mpi):
            return f"{mpi.family} asks for a library of Slurm under srun, which is not in the image"
        return "" if srun_mpi.chosen(mpi, env) else srun_mpi.why_not(mpi, env)
    own = host.launcher_mpi(env)
    if own is None:
        return "this host has no mpirun"
    pair = f"the host's {own.family} {own.version} does not start ranks of the image's {mpi.family} {mpi.version}"
    return "" if any(fits(row, own, mpi) for row in table()["hybrid"]) else f"{pair} as one world"


def fits(row: Mapping[str, Any], program: host.Program, mpi: Mpi) -> bool:
    """Say whether a row of the table is about these two."""
    from packaging.specifiers import SpecifierSet

    sides = ((row["host"], program.family, program.version), (row["image"], mpi.family, mpi.version))
    return all(
        side["family"] == family and version in SpecifierSet(side["versions"]) for side, family, version in sides
    )


def by_slurm(wanted: LaunchRequest, env: Mapping[str, str]) -> bool:
    """Say whether srun is what starts ranks here."""
    inside_job = bool(env.get("SLURM_JOB_ID")) and which("srun") is not None
    return wanted.launcher == "srun" or (wanted.launcher == "auto" and not wanted.hosts and inside_job)


def by_host(mpi: Mpi, wanted: LaunchRequest, env: Mapping[str, str]) -> Launch:
    """Return the launch by the host's own launcher."""
    if by_slurm(wanted, env):
        return launcher.srun(mpi, wanted, env)
    if launcher.spans(wanted.launcher):
        return launcher.select(mpi, wanted, env)
    program = host.launcher_mpi(env)
    if program is None:
        raise HostProblem(
            what="This host has no mpirun.",
            fix="Load the module of an MPI first, or use --mpi-model inside on one node.",
        )
    own = Mpi(family=program.family, version=program.version)
    return launcher.mpi_launcher(
        own,
        launcher.on_nodes(launcher.placed(wanted, env), env),
        f"the host's {program.family} {program.version} starts {mpi.family} {mpi.version}",
    )


def inner(wanted: LaunchRequest, mpi: Mpi | None) -> str:
    """Return the launcher to use in the image."""
    return wanted.launcher if not launcher.spans(wanted.launcher) else "auto" if mpi else "horovodrun"


def require_one_node(wanted: LaunchRequest) -> None:
    """Raise HostProblem where the image's own launcher would have to reach other nodes."""
    if wanted.hosts or (wanted.nodes or 1) > 1:
        raise HostProblem(
            what="The launcher in an image starts ranks on its own node only.",
            why="On other nodes nobody has entered the image.",
            fix="Use the host's launcher (--mpi-model hybrid), or one node.",
        )


def require_no_wall(env: Mapping[str, str]) -> None:
    """Raise HostProblem where Apptainer is told to keep from the ranks what their launcher tells them."""
    for family in ("APPTAINER", "SINGULARITY"):
        for wall in ("CLEANENV", "CONTAIN", "CONTAINALL"):
            if env.get(f"{family}_{wall}", "").lower() not in ("", "0", "false", "no", "off"):
                raise HostProblem(
                    what=f"{family}_{wall} is set, so that each rank would be a world of its own, or none.",
                    why="The launcher tells a rank by variables and by files in /tmp which rank it is.",
                    fix=f"Unset {family}_{wall}, or use --mpi-model inside on one node.",
                )


@functools.cache
def table() -> dict[str, Any]:
    """Return image_launch.toml."""
    return toml.read(data("launch/image_launch.toml"), toml.Tables)
