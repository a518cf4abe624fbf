"""Starting ranks: from what is asked and what is here to the command line of a launcher, and why that one."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from envkit.environments.environment import Environment
from envkit.environments.receipt import Mpi
from envkit.errors import EnvironmentDamaged, HostProblem, UsageProblem
from envkit.inside.probe.started import detect, is_shell, outlived, variables_of, whole
from envkit.launch import hosts, srun_mpi
from envkit.launch.table import table
from envkit.machine.host import MPI_FAMILIES, physical_cores
from envkit.machine.modules_tool import require_entered
from envkit.report.words import count
from envkit.system import process


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """How many ranks, on how many nodes or on which hosts (name and slots), by which launcher.

    ``ends_together`` says that one which fails is to end the others, which else would wait for it.
    """

    ranks: int
    nodes: int | None = None
    hosts: tuple[tuple[str, int], ...] = ()
    launcher: str = "auto"
    ends_together: bool = False

    @property
    def on(self) -> int | None:
        """On how many nodes the ranks should be, or None where nothing says it; a host may be named twice."""
        return self.nodes or len({host for host, _ in self.hosts}) or None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The launcher's part of a command line. ``remote``: it reaches other hosts, and takes no environment there."""

    argv: tuple[str, ...]
    why: str
    remote: bool = False

    @property
    def launcher(self) -> str:
        """The launcher's name, such as srun."""
        return self.argv[0]

    @property
    def spans(self) -> bool:
        """Whether it places ranks on all nodes of a job by itself."""
        return spans(self.launcher)


def select(mpi: Mpi | None, wanted: LaunchRequest, env: Mapping[str, str] = os.environ) -> Launch:
    """Choose the launcher that fits the environment's MPI and this place.

    Raises UsageProblem for what contradicts itself, HostProblem for what cannot be had here.
    """
    if wanted.launcher not in names():
        raise UsageProblem(
            what=f"There is no launcher named {wanted.launcher!r}.", fix=f"Use one of {', '.join(names())}."
        )
    require_slots(wanted, env)
    wanted = placed(wanted, env)
    family = mpi.family if mpi else ""
    if wanted.launcher == "srun":
        return srun(mpi, wanted, env)
    if wanted.launcher == "horovodrun" or (wanted.launcher == "auto" and mpi is None):
        why = "you asked for it" if wanted.launcher == "horovodrun" else "this Horovod has Gloo and no MPI"
        return horovodrun(wanted, env, why)
    if mpi and wanted.launcher == "auto" and not wanted.hosts and env.get("SLURM_JOB_ID") and process.which("srun"):
        if srun_mpi.chosen(mpi, env):
            return srun(mpi, wanted, env)
        return mpi_launcher(mpi, on_nodes(wanted, env), srun_mpi.why_not(mpi, env), env=env)
    if wanted.launcher == "auto":
        return mpi_launcher(mpi, wanted, belonging(family), env=env)
    if words := table()["launcher"].get(wanted.launcher):
        return by_table(words, wanted, env)
    return mpi_launcher(mpi, on_nodes(wanted, env), "you asked for it", wanted.launcher, env)


def belonging(family: str) -> str:
    """Return the reason for the launcher of the MPI that Horovod was built with."""
    return f"it belongs to {family}, which this Horovod was built with"


def names() -> tuple[str, ...]:
    """Return every launcher that can be asked for."""
    of_mpi = (words["program"] for words in table()["mpi"].values())
    return ("auto", *dict.fromkeys((*table()["launcher"], *of_mpi)))


def may_leave(launch: Launch, env: Mapping[str, str]) -> bool:
    """Say whether ranks may come to other nodes than this one."""
    return launch.remote or launch.spans or hosts.nodes(env) > 1


def spans(name: str) -> bool:
    """Say whether a launcher places ranks on all nodes of a job by itself."""
    return bool(table()["launcher"].get(name, {}).get("spans"))


def by_table(words: Mapping[str, Any], wanted: LaunchRequest, env: Mapping[str, str]) -> Launch:
    """Use a launcher as the table describes it."""
    name, job = wanted.launcher, words.get("job", "")
    if process.which(name, path=env.get("PATH")) is None or (job and not env.get(job)):
        program = process.which(name, path=env.get("PATH"))
        raise HostProblem(
            what=f"{name} cannot be used here.",
            why=f"This is no job of its scheduler: {job} is not set." if program else f"There is no {name} on PATH.",
            fix="Get an allocation first, or leave --launcher out.",
        )
    if wanted.hosts and words["spans"]:
        raise UsageProblem(what=f"--hosts does not go with {name}.", fix="Use --nodes; its scheduler knows the hosts.")
    argv = [*words["words"], *(words["nodes"] if wanted.nodes else ())]
    filled = (word.format(ranks=wanted.ranks, nodes=wanted.nodes) for word in argv)
    return Launch(argv=tuple(filled), why="you asked for it")


def mpi_launcher(
    mpi: Mpi | None, wanted: LaunchRequest, why: str, program: str = "", env: Mapping[str, str] = os.environ
) -> Launch:
    """Use the MPI's own launcher."""
    words = table()["mpi"].get(mpi.family if mpi else "", table()["mpi"]["MPICH"])
    program = program or words["program"]
    place = place_words(words, wanted)
    if mpi is None or mpi.family != "Open MPI":
        return Launch(argv=(program, "-n", str(wanted.ranks), *place), why=why, remote=bool(wanted.hosts))
    newer = (whole(mpi.version.partition(".")[0]) or 5) >= 5  # one built from its repository has no number
    argv = [program, "-np", str(wanted.ranks), *place]
    by = "slot" if place else ""  # by its default some of 5.0 fill the first host (openpmix/prrte#2696)
    if newer:
        argv += ["--map-by", f"{by}:OVERSUBSCRIBE"]
    else:
        argv += [*(["--map-by", by] if by else []), "--oversubscribe"]
    # It binds each of two ranks to one core, and more to all cores of a socket, which they would share.
    argv += ["--bind-to", "none"] if not any(name in env for name in BINDING) else []
    return Launch(argv=tuple(argv), why=why, remote=bool(wanted.hosts))


def place_words(words: Mapping[str, Any], wanted: LaunchRequest) -> list[str]:
    """Return the words that name the hosts."""
    if not wanted.hosts:
        return []
    values = {
        "hosts": ",".join(f"{host}:{slots}" for host, slots in wanted.hosts),
        "names": ",".join(host for host, _ in wanted.hosts),
        "each": ",".join(host for host, slots in wanted.hosts for _ in range(slots)),
        "most": max(slots for _, slots in wanted.hosts),
    }
    return [word.format(**values) for word in words["hosts"]]


def srun(mpi: Mpi | None, wanted: LaunchRequest, env: Mapping[str, str]) -> Launch:
    """Use Slurm's launcher."""
    if not env.get("SLURM_JOB_ID") or process.which("srun") is None:
        raise HostProblem(
            what="srun cannot be used here.",
            why="This is no Slurm job." if process.which("srun") else "There is no srun on PATH.",
            fix="Get an allocation first (salloc, sbatch), or leave --launcher out.",
        )
    if wanted.hosts:
        raise UsageProblem(what="--hosts does not go with srun.", fix="Use --nodes; Slurm knows the hosts.")
    kind = srun_mpi.chosen(mpi, env)
    if not kind:
        of_gloo = f"Gloo, which this Horovod uses, speaks nothing that srun has here: {', '.join(srun_mpi.listed()[0])}"
        raise HostProblem(
            what="srun cannot start these ranks as one world.",
            why=f"{srun_mpi.why_not(mpi, env) if mpi else of_gloo}.",
            fix="Leave --launcher out: the MPI's own launcher works inside a Slurm job, too.",
        )
    argv = ["srun", f"--mpi={kind}", f"--kill-on-bad-exit={wanted.ends_together:d}", "-n", str(wanted.ranks)]
    argv += ["-N", str(wanted.nodes)] if wanted.nodes else []
    argv += ["--overlap"] if env.get("SLURM_STEP_ID") else []
    # From 22.05 to 23.02 it does not take over what the job was granted for each rank.
    cpus = whole(env.get("SLURM_CPUS_PER_TASK", ""))
    argv += [f"--cpus-per-task={cpus}"] if cpus and cpus * wanted.ranks <= sum(hosts.granted_cpus(env)) else []
    argv += srun_mpi.exported(mpi, env)
    why = f"this is a Slurm job, and {mpi.family if mpi else 'Gloo'} and srun both speak {kind}"
    return Launch(argv=tuple(argv), why=why)


def horovodrun(wanted: LaunchRequest, env: Mapping[str, str], why: str) -> Launch:
    """Use Horovod's own launcher."""
    named = wanted.hosts or hosts.of_slurm(wanted.ranks, wanted.nodes, env)
    place = ["-H", ",".join(f"{host}:{slots}" for host, slots in named)] if named else []
    return Launch(argv=("horovodrun", "-np", str(wanted.ranks), *place), why=why, remote=bool(place))


def on_nodes(wanted: LaunchRequest, env: Mapping[str, str]) -> LaunchRequest:
    """Name the hosts of a Slurm job that has several: a launcher that does not ask Slurm would fill the first."""
    return replace(wanted, hosts=hosts.of_slurm(wanted.ranks, wanted.nodes, env)) if not wanted.hosts else wanted


def placed(wanted: LaunchRequest, env: Mapping[str, str]) -> LaunchRequest:
    """Name the hosts of a job that its scheduler lists in a file which launchers do not read. Raises HostProblem."""
    if wanted.hosts or spans(wanted.launcher):
        return wanted
    return replace(wanted, hosts=hosts.in_file(wanted.ranks, wanted.nodes, env))


BINDING = ("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy")  # the caller's own
OF_THREADS = "OMP_NUM_THREADS"
OF_A_STEP = re.compile("SLURM_(PTY_|CPU_BIND)")


def require_slots(wanted: LaunchRequest, env: Mapping[str, str]) -> None:
    """Raise UsageProblem when the ranks do not fit what was named or granted."""
    slots = sum(slots for _, slots in wanted.hosts)
    if wanted.hosts and wanted.ranks > slots:
        raise UsageProblem(
            what=f"{wanted.ranks} ranks do not fit into {slots} slots.",
            why="--hosts " + ",".join(f"{host}:{n}" for host, n in wanted.hosts),
            fix="Name more slots (HOST:SLOTS), or fewer ranks (-n).",
        )
    if wanted.nodes and wanted.nodes > wanted.ranks:
        raise UsageProblem(
            what=f"{count(wanted.ranks, 'rank')} cannot fill {wanted.nodes} nodes.",
            fix="Ask for at least one rank per node.",
        )
    if wanted.nodes and wanted.nodes > 1 and not (wanted.hosts or hosts.in_job(env)):
        raise UsageProblem(
            what=f"There are no {wanted.nodes} nodes here.",
            why="This is not a job of a scheduler, and --hosts names none.",
            fix="Get an allocation, or name the hosts: --hosts node1:2,node2:2",
        )
    there = hosts.nodes(env)
    if wanted.nodes and 0 < there < wanted.nodes and not wanted.hosts:
        raise UsageProblem(
            what=f"There are no {wanted.nodes} nodes here.",
            why=f"This job has {count(there, 'node')}.",
            fix="Ask the scheduler for more, or leave --nodes out.",
        )
    granted = hosts.slurm_slots(env)
    if granted and not wanted.hosts and wanted.ranks > granted:
        raise UsageProblem(
            what=f"{wanted.ranks} ranks do not fit this Slurm job.",
            why=f"It was granted {granted} (SLURM_NTASKS, SLURM_JOB_CPUS_PER_NODE).",
            fix=f"Ask Slurm for more (-n {wanted.ranks}), or start fewer ranks.",
        )


def threads(wanted: LaunchRequest, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variable for each rank's number of OpenMP threads: the caller's own, or the rank's share of a node.

    Ranks are not bound: without it, each would start a thread for every core.
    """
    if OF_THREADS in env:
        return {OF_THREADS: env[OF_THREADS]}
    named, granted = placed(wanted, env).hosts, hosts.granted_cpus(env)
    nodes = len(named) or min(wanted.nodes or len(granted) or 1, wanted.ranks)
    each = max((slots for _, slots in named), default=-(-wanted.ranks // nodes))
    share = (min(granted) if granted else physical_cores()) // each
    said = whole(env.get("SLURM_CPUS_PER_TASK", "")) if granted else None
    return {OF_THREADS: str(max(1, min(share, said or share)))}


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` as ranks are started with it: all of it, whatever a batch script was told to export.

    What another launch has left over is left out, and so is what Slurm tells the step that this is called in: that it
    has a terminal, which CPUs are its, and that it is the one rank of a world. Root gets what Open MPI wants from it.
    """
    of_step = [name for name in env if OF_A_STEP.match(name)] if env.get("SLURM_STEP_ID") else []
    here = detect(env) if env.get("SLURM_STEP_ID") else None
    of_shell = variables_of(here, env) if here and is_shell(here, 2) else []
    dropped = {*outlived(env), *of_step, *of_shell}
    settings = {name: value for name, value in env.items() if name not in dropped}
    if not re.match("(ALL)?(,|$)", env.get("SLURM_EXPORT_ENV", ""), re.IGNORECASE):
        settings["SLURM_EXPORT_ENV"] = "ALL"  # by it srun, and an MPI's launcher that calls it, would pass on less
    if os.geteuid() != 0:
        return settings
    return {
        **settings,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


def mpi_of(environment: Environment, env: Mapping[str, str], *, embedded: bool = False) -> Mpi:
    """Ask the environment which MPI it brings. Raises EnvironmentDamaged, ModuleNotLoaded."""
    argv = ["sh", "-c", "command -v mpirun; mpirun --version"]
    text = require_entered(process.capture(environment.command(argv), env=environment.variables(variables(env)))).stdout
    for family, pattern in MPI_FAMILIES:
        if match := re.search(pattern, text):
            return Mpi(family=family, version=match[1], embedded=embedded)
    raise EnvironmentDamaged(
        what="The environment has no MPI launcher.",
        why=text.strip() or "mpirun was not found in it.",
        fix="If files of it are damaged, 'envkit repair' with its name builds those modules again.",
    )
