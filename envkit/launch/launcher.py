"""Starting ranks: from what is asked and what is here to the command line of a launcher, and why that one."""

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envkit.binary.loader import read_loader_cache
from envkit.environments.environment import Environment
from envkit.environments.receipt import Mpi
from envkit.errors import EnvironmentDamaged, HostProblem, UsageProblem
from envkit.inside.probe.started import counts, leftovers, whole
from envkit.knowledge.known import known
from envkit.machine.host import MPI_FAMILIES, physical_cores
from envkit.machine.modules_tool import require_entered
from envkit.system import files, process, toml
from envkit.system.resources import data


@dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """How many ranks, on how many nodes or on which hosts (name and slots), by which launcher."""

    ranks: int
    nodes: int | None = None
    hosts: tuple[tuple[str, int], ...] = ()
    launcher: str = "auto"


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
    if wanted.launcher == "auto" and not wanted.hosts and env.get("SLURM_JOB_ID") and process.which("srun"):
        if srun_type(mpi):
            return srun(mpi, wanted, env)
        return mpi_launcher(mpi, wanted, without_srun(mpi), env=env)
    if wanted.launcher == "auto":
        return mpi_launcher(mpi, wanted, f"it belongs to {family}, which this Horovod was built with", env=env)
    if words := table()["launcher"].get(wanted.launcher):
        return by_table(words, wanted, env)
    return mpi_launcher(mpi, wanted, "you asked for it", wanted.launcher, env)


def names() -> tuple[str, ...]:
    """Return every launcher that can be asked for."""
    of_mpi = (words["program"] for words in table()["mpi"].values())
    return ("auto", *dict.fromkeys((*table()["launcher"], *of_mpi)))


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
    if not place:
        argv += ["--map-by", ":OVERSUBSCRIBE"] if newer else ["--oversubscribe"]
    # It binds each of two ranks to one core, and more to all cores of a socket, which they would share.
    argv += ["--bind-to", "none"] if not any(name in env for name in BINDING) else []
    return Launch(argv=tuple(argv), why=why, remote=bool(wanted.hosts))


def place_words(words: Mapping[str, Any], wanted: LaunchRequest) -> list[str]:
    """Return the words that name the hosts."""
    hosts = ",".join(f"{host}:{slots}" for host, slots in wanted.hosts)
    return [word.format(hosts=hosts) for word in words["hosts"]] if hosts else []


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
    kind = srun_type(mpi)
    if not kind:
        of_gloo = f"Gloo, which this Horovod uses, speaks nothing that srun has here: {', '.join(srun_types())}"
        raise HostProblem(
            what="srun cannot start these ranks as one world.",
            why=f"{without_srun(mpi) if mpi else of_gloo}.",
            fix="Leave --launcher out: the MPI's own launcher works inside a Slurm job, too.",
        )
    argv = ["srun", f"--mpi={kind}", "--kill-on-bad-exit=0", "-n", str(wanted.ranks)]
    argv += ["-N", str(wanted.nodes)] if wanted.nodes else []
    argv += ["--overlap"] if env.get("SLURM_STEP_ID") else []
    # Since 22.05 it does not take over what the job was granted for each rank.
    cpus = whole(env.get("SLURM_CPUS_PER_TASK", ""))
    argv += [f"--cpus-per-task={cpus}"] if cpus and cpus * wanted.ranks <= sum(granted_cpus(env)) else []
    family = mpi.family if mpi else ""
    argv += srun_export(mpi, env)
    return Launch(argv=tuple(argv), why=f"this is a Slurm job, and {family} and srun both speak {kind}")


def horovodrun(wanted: LaunchRequest, env: Mapping[str, str], why: str) -> Launch:
    """Use Horovod's own launcher."""
    hosts = wanted.hosts or slurm_hosts(wanted, env)
    place = ["-H", ",".join(f"{host}:{slots}" for host, slots in hosts)] if hosts else []
    return Launch(argv=("horovodrun", "-np", str(wanted.ranks), *place), why=why, remote=bool(place))


def slurm_hosts(wanted: LaunchRequest, env: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Return the hosts of a Slurm allocation with even slots; none where it has but one."""
    if not env.get("SLURM_JOB_NODELIST") or whole(env.get("SLURM_JOB_NUM_NODES", "1")) == 1:
        return ()
    answer = process.capture(["scontrol", "show", "hostnames", env["SLURM_JOB_NODELIST"]], env=env, timeout_s=20)
    hosts = answer.stdout.split()[: wanted.nodes or None]
    return tuple((host, -(-wanted.ranks // len(hosts))) for host in hosts)


def placed(wanted: LaunchRequest, env: Mapping[str, str]) -> LaunchRequest:
    """Name the hosts of a job, with even slots, where its scheduler lists them in a file that launchers do not read."""
    jobs = [row for row in known("schedulers").values() if env.get(row["job"]) and env.get(row.get("hosts", ""))]
    if wanted.hosts or not jobs or spans(wanted.launcher):
        return wanted
    words = jobs[0]
    try:
        text = files.read(Path(env[words["hosts"]])).decode(errors="replace")
    except OSError as error:
        raise HostProblem(
            what=f"The hosts of this {words['title']} job are not known.",
            why=f"{words['hosts']} names {env[words['hosts']]}: {error.strerror}.",
            fix=f"Outside of a job: 'unset {words['job']} {words['hosts']}'. In one: name the hosts "
            "(--hosts node1:2,node2:2).",
        ) from error
    listed = list(dict.fromkeys(text.split()))[: wanted.nodes or None]
    slots = -(-wanted.ranks // max(len(listed), 1))
    return replace(wanted, hosts=tuple((host, slots) for host in listed)) if len(listed) > 1 else wanted


@functools.cache
def srun_types() -> tuple[str, ...]:
    """Return the types that ``srun --mpi=list`` names."""
    answer = process.capture(["srun", "--mpi=list"], timeout_s=20)
    text = f"{answer.stdout}\n{answer.stderr}"
    return tuple(dict.fromkeys(re.findall(r"\b(pmix(?:_v\d+)?|pmi2|cray_shasta)\b", text)))


def speaks(mpi: Mpi | None) -> tuple[str, ...]:
    """Return the types of ``srun --mpi`` that an MPI of this version speaks."""
    words, version = of_table(mpi), numbers(mpi.version if mpi else "")
    first = words.get("since", {})
    return tuple(kind for kind in words.get("speaks", ()) if version >= numbers(first.get(api(kind), "")))


def srun_type(mpi: Mpi | None, env: Mapping[str, str] = os.environ) -> str:
    """Return the first type that both an MPI and this srun speak, or nothing."""
    needs = of_table(mpi).get("library")
    usable = (kind for kind in speaks(mpi) if kind in srun_types())
    return next((kind for kind in usable if not needs or library_of_slurm(mpi, kind, env)), "")


def without_srun(mpi: Mpi | None) -> str:
    """Say why srun cannot start the ranks of an MPI here."""
    words, family, types = of_table(mpi), mpi.family if mpi else "", srun_types()
    common = dict.fromkeys(api(kind) for kind in speaks(mpi) if kind in types)
    if common and (given := os.environ.get(words["variable"])):
        return f"{words['variable']} is {given}, and {family} and srun here both speak {' and '.join(common)}"
    if common:
        names = " or ".join(words["library"][kind][0] for kind in common)
        return f"Slurm has no {names} here, which {family} asks for under srun"
    return f"srun here does not speak what {family} does ({', '.join(types)})"


def library_of_slurm(mpi: Mpi | None, kind: str, env: Mapping[str, str]) -> str:
    """Return the library by which an MPI speaks a type with Slurm: as its variable names it, or where Slurm has it."""
    words = of_table(mpi)
    if given := env.get(words.get("variable", "")):
        return given if ("pmix" in Path(given).name) == (api(kind) == "pmix") else ""
    srun = process.which("srun", path=env.get("PATH"))
    root = Path(srun).resolve().parents[1] if srun else Path("/usr")
    cached = read_loader_cache(LOADER_CACHE.read_bytes()) if LOADER_CACHE.is_file() else {}
    for name in words.get("library", {}).get(api(kind), ()):
        places = [root / lib / name for lib in ("lib", "lib64", "lib/slurm", "lib64/slurm")] + cached.get(name, [])
        if library := next((place for place in places if place.is_file()), None):
            return str(library)
    return ""


def of_table(mpi: Mpi | None) -> Mapping[str, Any]:
    """Return the row of an MPI, which is empty where there is none."""
    row: Mapping[str, Any] = table()["mpi"].get(mpi.family if mpi else "", {})
    return row


def api(kind: str) -> str:
    """Return the type of srun --mpi without the version of its plugin: pmix for pmix_v4."""
    return kind.partition("_v")[0]


def numbers(version: str) -> list[int]:
    """Return the numbers of a version; none of one that is not known."""
    return [int(number) for number in re.findall(r"\d+", version)]


LOADER_CACHE = Path("/etc/ld.so.cache")
BINDING = ("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy")  # the caller's own
OF_THREADS = "OMP_NUM_THREADS"


def job_srun_type(mpi: Mpi | None) -> str:
    """Return what srun_type does, for a job; the first that the MPI speaks where no srun here tells its own."""
    if srun_types() or of_table(mpi).get("library"):
        return srun_type(mpi)
    return next(iter(speaks(mpi)), "")


def srun_export(mpi: Mpi | None, env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the word for srun that names Slurm's library to an MPI which asks for it; without srun it must not be set.

    With it ranks that nobody has started, or the MPI's own launcher, would seek Slurm and fail.
    """
    variable, kind = of_table(mpi).get("variable", ""), srun_type(mpi, env)
    library = library_of_slurm(mpi, kind, env) if kind and variable else ""
    return (f"--export=ALL,{variable}={library}",) if library and variable not in env else ()


def ranks_here(env: Mapping[str, str], default: int = 2) -> int:
    """Return how many ranks a scheduler has granted to this job, or the default outside of one."""
    for words in known("schedulers").values():
        tasks = env.get(words["tasks"], "")
        if env.get(words["job"]) and (number := whole(tasks)):
            return number
    return default


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
            what=f"{wanted.ranks} ranks cannot fill {wanted.nodes} nodes.", fix="Ask for at least one rank per node."
        )
    if wanted.nodes and wanted.nodes > 1 and not (wanted.hosts or in_job(env)):
        raise UsageProblem(
            what=f"There are no {wanted.nodes} nodes here.",
            why="This is not a job of a scheduler, and --hosts names none.",
            fix="Get an allocation, or name the hosts: --hosts node1:2,node2:2",
        )
    granted = slurm_slots(env)
    if granted and not wanted.hosts and wanted.ranks > granted:
        raise UsageProblem(
            what=f"{wanted.ranks} ranks do not fit this Slurm job.",
            why=f"It was granted {granted} (SLURM_NTASKS, SLURM_JOB_CPUS_PER_NODE).",
            fix=f"Ask Slurm for more (-n {wanted.ranks}), or start fewer ranks.",
        )


def slurm_slots(env: Mapping[str, str]) -> int:
    """Return how many ranks a Slurm job has room for: its tasks, or its CPUs if more; 0 outside of one."""
    tasks = env.get("SLURM_NTASKS", "") if env.get("SLURM_JOB_ID") else ""
    return max(whole(tasks) or 0, sum(granted_cpus(env)))


def granted_cpus(env: Mapping[str, str]) -> list[int]:
    """Return how many CPUs a Slurm job has on each of its nodes; nothing outside of one."""
    return counts(env.get("SLURM_JOB_CPUS_PER_NODE", "")) if env.get("SLURM_JOB_ID") else []


def threads(wanted: LaunchRequest, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variable for each rank's number of OpenMP threads: the caller's own, or the rank's share of a node.

    Ranks are not bound: without it, each would start a thread for every core.
    """
    if OF_THREADS in env:
        return {OF_THREADS: env[OF_THREADS]}
    hosts, granted = placed(wanted, env).hosts, granted_cpus(env)
    nodes = len(hosts) or min(wanted.nodes or len(granted) or 1, wanted.ranks)
    each = max((slots for _, slots in hosts), default=-(-wanted.ranks // nodes))
    share = (min(granted) if granted else physical_cores()) // each
    said = whole(env.get("SLURM_CPUS_PER_TASK", "")) if granted else None
    return {OF_THREADS: str(max(1, min(share, said or share)))}


def in_job(env: Mapping[str, str]) -> bool:
    """Say whether this process belongs to a job of a scheduler."""
    rows = (*known("schedulers").values(), *table()["launcher"].values())
    return any(env.get(row.get("job", "")) for row in rows)


def parse_hosts(text: str) -> tuple[tuple[str, int], ...]:
    """Read "node1:2,node2" as hosts with slots (1 if left out). Raises UsageProblem."""
    hosts = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([A-Za-z0-9][\w.-]*)(?::([1-9]\d*))?", word)
        if match is None:
            raise UsageProblem(what=f"--hosts: {word!r} is no host.", fix="Write them as node1:2,node2:2")
        hosts.append((match[1], int(match[2] or 1)))
    return tuple(hosts)


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """Return launchers.toml."""
    return toml.read(data("launch/launchers.toml"), toml.Tables)


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` as ranks are started with it: without what another launch has left over, and with what Open MPI
    wants from root, if this is root.
    """
    dropped = leftovers(env)
    settings = {name: value for name, value in env.items() if name not in dropped}
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
