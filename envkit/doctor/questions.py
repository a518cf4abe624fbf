"""The questions: each looks at one thing of this machine, by what the other commands look with."""

import os
import re
import resource
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from envkit.config import configuration as config
from envkit.doctor.facts import (
    Builder,
    Container,
    Cpu,
    Limits,
    MpiLibrary,
    PackageIndex,
    RepositoryAccess,
    Room,
    SchedulerClient,
    SessionMpi,
    Tool,
)
from envkit.eessi import access
from envkit.environments.prefix import Prefix
from envkit.environments.receipt import Mpi
from envkit.errors import ConfigInvalid, Problem
from envkit.knowledge.eessi import Repository, usual
from envkit.knowledge.known import known
from envkit.launch import host_mpi, image_launch, srun_mpi
from envkit.machine import host, modules_tool, runtime
from envkit.planning import chosen_mpi, preflight
from envkit.planning.stack import stacks
from envkit.system import process

if TYPE_CHECKING:
    from envkit.sources.connection import Connection

LEAST_S = 0.5


def cpu() -> Cpu:
    """Look at the CPU."""
    return Cpu(machine=host.Platform.own().machine, target=host.cpu_target(), cores=host.cores())


def builder(machine: host.Host) -> Builder:
    """Return what a build would take."""
    python = machine.python
    return Builder(
        python=Tool(path=str(python.path), version=python.version),
        compiler=tool(machine.compiler),
        mpi=tool(machine.mpi),
        cmake=tool(machine.cmake),
        accelerator=machine.accelerator.value,
        load=machine.load,
        refused_mpis=tuple(map(str, machine.refused_mpis)),
    )


def tool(program: host.Program | None) -> Tool | None:
    """Return a program as a fact."""
    return Tool(path=str(program.path), family=program.family, version=program.version) if program else None


def toolkits(env: Mapping[str, str]) -> Iterator[Tool]:
    """Yield the CUDA and the ROCm that a build would find."""
    homes = [env[name] for name in ("CUDA_HOME", "CUDA_PATH") if env.get(name)]
    places = [env.get("PATH", os.defpath), *(f"{home}/bin" for home in homes), "/usr/local/cuda/bin"]
    if nvcc := process.which("nvcc", path=":".join(places)):
        match = re.search(r"release (\S+?),", process.capture([nvcc, "--version"], env=env).stdout)
        yield Tool(path=nvcc, family="CUDA", version=match[1] if match else "")
    rocm = Path(env.get("ROCM_PATH") or "/opt/rocm")
    if (rocm / ".info" / "version").is_file():
        yield Tool(path=str(rocm), family="ROCm", version=(rocm / ".info" / "version").read_text().strip())


def mpi(env: Mapping[str, str]) -> Iterator[MpiLibrary]:
    """Yield the MPI libraries: each whose mpirun is on PATH, and Cray's, which has none, and another of MPICH's ABI."""
    programs = dict[Path, host.Program]()
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        if env.get("CRAY_MPICH_VERSION") and (wrapper := process.which(host.CRAY_WRAPPER, path=folder)):
            yield of_cray(host.of_launcher(wrapper, env), env)
        if process.which("mpirun", path=folder):
            program = host.launcher_mpi({**env, "PATH": f"{folder}:{env.get('PATH', '')}"})
            if program is not None:
                programs.setdefault(program.path.resolve(), program)
    for program in programs.values():
        yield described(program.family, program.version, program.path, env)
    if not any(other.family in ("MPICH", "Intel MPI") for other in programs.values()):
        family = "Cray MPICH" if env.get("CRAY_MPICH_VERSION") else "MPICH"
        alone = described(family, env.get("CRAY_MPICH_VERSION", "unknown"), None, env)
        if alone.library:
            yield alone


def session_mpi(machine: host.Host, env: Mapping[str, str]) -> SessionMpi | None:
    """Return the MPI that only the modules of the caller's session bring."""
    offered = chosen_mpi.unloaded(machine, env=env)
    if offered is None:
        return None
    one = offered.mpi
    return SessionMpi(
        family=one.family, version=one.version, path=str(one.path), load=offered.load,
        what=offered.what, fix=offered.fix,
    )  # fmt: skip


def described(family: str, version: str, path: Path | None, env: Mapping[str, str]) -> MpiLibrary:
    """Return an MPI with its ABI and what it speaks."""
    abi = image_launch.table()["bind"].get(family, "")
    first = f"{path.parent}:{env.get('PATH', '')}" if path else env.get("PATH", "")
    library = host_mpi.find(abi, {**env, "PATH": first}) if abi else None
    mpi = Mpi(family=family, version=version)
    return MpiLibrary(
        family=family,
        version=version,
        launcher=host.shown(path) if path else "",
        abi=abi,
        library=host.shown(library) if library else "",
        pmi=tuple(dict.fromkeys(map(srun_mpi.api, srun_mpi.speaks(mpi)))),
        srun=srun_mpi.chosen(mpi) if process.which("srun", path=env.get("PATH")) else "",
    )


def of_cray(program: host.Program, env: Mapping[str, str]) -> MpiLibrary:
    """Return Cray MPICH with the library that programs are linked with by its wrapper."""
    cray = described(program.family, program.version, program.path, env)
    own = sorted(Path(env.get("CRAY_MPICH_DIR") or env.get("MPICH_DIR", "/nowhere"), "lib").glob("libmpi_*.so.12"))
    library = next((path for path in own if re.match(r"libmpi_(gnu|cray|intel|nvidia|amd|aocc)", path.name)), None)
    return msgspec.structs.replace(cray, abi=library.name, library=str(library)) if library else cray


def modules(env: Mapping[str, str]) -> Tool | None:
    """Return the modules tool."""
    program = modules_tool.find_modules_tool(env)
    if program is None:
        return None
    done = process.capture([str(program.command), "--version"], env=env)
    match = re.search(r"(?:Version|Release):?\s+v?(\d\S*)", done.stdout + done.stderr)
    return Tool(path=str(program.command), family=program.kind, version=match[1] if match else "")


def container(env: Mapping[str, str]) -> Container | None:
    """Return the container runtime, and whether this user can build with it."""
    installed = runtime.find()
    if installed is None:
        return None
    settings = process.capture([str(installed.path), "buildcfg"], env=env).stdout
    setuid = re.search(r"_SUID_INSTALL=1$", settings, re.MULTILINE) is not None
    program = Tool(path=str(installed.path), family=installed.family, version=installed.version)
    building = tuple(runtime.build_problems(env))
    return Container(runtime=program, setuid=setuid, building=building)


def namespaces() -> str:
    """Say why this user can make no user namespace; nothing if one can be made."""
    problem = access.no_namespace()
    return problem.what if problem else ""


def mounts() -> tuple[str, ...]:
    """Return the repositories of CernVM-FS that are mounted, without touching them."""
    lines = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return tuple(words[1] for words in lines if words[1].startswith("/cvmfs/"))


def way(
    which: access.Access, env: Mapping[str, str], patience_s: float, repository: Repository | None = None
) -> RepositoryAccess:
    """Try one way to EESSI's repository, or to another one."""
    wanted = repository or usual()
    named = env.get("ENVKIT_EESSI_DIR") if wanted.is_usual else wanted.copy
    copy = Path(named).absolute() if named else None
    request = access.AccessRequest(version=wanted.release, repository=wanted, copy=copy, env=env, patience_s=patience_s)
    probe = access.PROBES[which](request)
    if probe.problem is None:
        return RepositoryAccess(access=which, why=probe.why, refusal=None)
    why = f" ({probe.problem.why})" if probe.problem.why else ""
    return RepositoryAccess(
        access=which, why="", refusal=Problem(what=f"{probe.problem.what}{why}", fix=probe.problem.fix)
    )


def schedulers(env: Mapping[str, str]) -> Iterator[SchedulerClient]:
    """Yield the schedulers whose client is on PATH, or whose job this is."""
    for words in known("schedulers").values():
        client, job = process.which(words["client"], path=env.get("PATH")), bool(env.get(words["job"]))
        if client is None and not job:
            continue
        done = process.capture(words["version"], env=env) if client else None
        match = re.search(r"\d+(?:\.\d+)+\S*", done.stdout + done.stderr) if done else None
        yield SchedulerClient(
            name=words["title"],
            version=match[0] if match else "",
            job=job,
            mpi=srun_mpi.listed()[0] if client and words["client"] == "srun" else (),
            attempt=words["try"],
        )


def limits() -> Limits:
    """Return the limits of this process."""
    kinds = (resource.RLIMIT_MEMLOCK, resource.RLIMIT_STACK, resource.RLIMIT_NPROC)
    soft = [resource.getrlimit(kind)[0] for kind in kinds]
    memlock, stack, nproc = (None if value == resource.RLIM_INFINITY else value for value in soft)
    return Limits(memlock=memlock, stack=stack, nproc=nproc)


def room(prefix: Prefix) -> Room:
    """Look at the prefix, or at the nearest folder above it that is there. Raises HostProblem if it is a file."""
    parent = host.writable_parent(prefix.root)
    free_mb, inodes = preflight.room(parent)
    writable = os.access(parent, os.W_OK | os.X_OK)
    return Room(prefix=str(prefix.root), writable=writable, free_mb=free_mb, inodes=inodes)


def indexes(until: float) -> tuple[PackageIndex, ...]:
    """Ask each index and folder that pip takes packages from, at the same time, until a time (time.monotonic)."""
    from concurrent.futures import ThreadPoolExecutor, wait

    from envkit.sources.connection import Connection
    from envkit.sources.pipconfig import pip_settings
    from envkit.system.addresses import shown

    configured = pip_settings()
    left_s = max(until - time.monotonic(), LEAST_S)
    settings = msgspec.structs.replace(configured, timeout_s=min(configured.timeout_s, left_s))
    places = [*settings.index_urls, *settings.find_links]
    connection, pool = Connection(settings), ThreadPoolExecutor(max(len(places), 1))
    futures = {url: pool.submit(index, connection, url, url in settings.index_urls) for url in places}
    done, _ = wait(futures.values(), left_s)
    pool.shutdown(wait=False, cancel_futures=True)
    connection.close()
    silent = f"it has not answered in {left_s:.1f} s"
    return tuple(
        future.result() if future in done else PackageIndex(url=shown(url), problem=silent)
        for url, future in futures.items()
    )


def index(connection: "Connection", url: str, is_index: bool) -> PackageIndex:
    """Ask one for Horovod; a folder, whether it is there."""
    from envkit.sources.answers import RefusedError
    from envkit.sources.connection import file_path
    from envkit.system.addresses import shown, without_login

    if "://" not in url or url.startswith("file://"):
        path = file_path(url) if "://" in url else Path(url).expanduser()
        return PackageIndex(url=without_login(str(path)), problem="" if path.is_dir() else "there is no such folder")
    try:
        connection.get(f"{url.rstrip('/')}/horovod/" if is_index else url)
    except RefusedError as error:
        return PackageIndex(url=shown(url), problem=str(error))
    return PackageIndex(url=shown(url))


def configuration(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return what is wrong with the configuration, and why a file of it is not used."""
    settings = config.read(env)
    refused = (line for file in settings.files if file.state == "refused" for line in file.why)
    return (*settings.mistakes, *refused, *of_stacks())


def of_stacks() -> list[str]:
    """Return what is wrong with the stacks that the site offers."""
    try:
        stacks()
    except ConfigInvalid as error:
        return error.why.splitlines()
    return []
