"""What this machine offers: interpreter, modules tool, compiler, MPI, CMake, accelerator, room on disk."""

import os
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from envkit.errors import HostProblem
from envkit.machine import modules_tool
from envkit.machine.modules_tool import ModulesTool
from envkit.system import process
from envkit.system.resources import data


class Accelerator(StrEnum):
    """What computes."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"


@dataclass(frozen=True, kw_only=True)
class Platform:
    """What binaries made here depend on: the machine type and the Python, as in x86_64 and 3.11."""

    machine: str
    python: str

    def __str__(self) -> str:
        return f"{self.machine}-py{self.python}"

    @classmethod
    def own(cls) -> "Platform":
        """Return the platform of the interpreter that runs envkit."""
        return cls(machine=platform.machine(), python=".".join(platform.python_version_tuple()[:2]))


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program on this machine. ``family`` tells variants apart, such as "Open MPI" and "MPICH"."""

    path: Path
    version: str
    family: str = ""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The Python that environments are made for; ``headers`` says whether Python.h is there."""

    path: Path
    version: str
    headers: bool

    @property
    def minor(self) -> str:
        """The version without its patch level: "3.11"."""
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True, kw_only=True)
class Host:
    """This machine, as seen with the modules in ``load`` and nothing else of the caller's loaded.

    ``mpi`` is what programs are compiled with, ``why_mpi`` why that one; ``other_mpis`` could be taken in its place.
    """

    machine: str
    python: Interpreter
    modules_tool: ModulesTool | None
    compiler: Program | None
    mpi: Program | None
    cmake: Program | None
    accelerator: Accelerator
    load: tuple[str, ...]
    env: Mapping[str, str]
    other_mpis: tuple[Program, ...] = ()
    why_mpi: str = ""

    @property
    def platform(self) -> Platform:
        """What binaries made here depend on."""
        return Platform(machine=self.machine, python=self.python.minor)


def detect(load: Sequence[str] = (), mpi_family: str = "") -> Host:
    """Look at this machine, and take the first of its MPI libraries, or the first of a family.

    Raises HostProblem when a module in ``load`` cannot be loaded, or there is no MPI of that family.
    """
    tool = modules_tool.find_modules_tool()
    env = modules_tool.clean(os.environ, tool, load)
    compiles_with = compiler(env)  # first: every wrapper of an MPI calls it
    chosen, others = by_preference(list(mpis(env)), mpi_family)
    return Host(
        machine=platform.machine(),
        python=interpreter(env),
        modules_tool=tool,
        compiler=compiles_with,
        mpi=chosen,
        other_mpis=others,
        cmake=cmake(env),
        accelerator=accelerator(),
        load=tuple(load),
        env=env,
    )


def interpreter(env: Mapping[str, str]) -> Interpreter:
    """Return the interpreter that environments are made for.

    It is the one below envkit's own virtual environment, unless a loaded site module has put another one on
    PATH (``env``), such as cray-python.
    """
    found = process.which("python3", path=env["PATH"])
    if found is not None and found != process.which("python3", path=modules_tool.without_private_folders(os.environ)):
        told = process.capture([found, "-I", str(data("inside/base_interpreter.py"))], env=env)
        if told.status == 0 and told.stdout.count("\n") == 3:
            path, version, include = told.stdout.splitlines()
            return Interpreter(path=Path(path), version=version, headers=Path(include, "Python.h").is_file())
    own = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    include = sysconfig.get_path("include", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix})
    return Interpreter(path=own, version=platform.python_version(), headers=Path(include, "Python.h").is_file())


def compiler(env: Mapping[str, str]) -> Program | None:
    """Return the C++ compiler if it compiles a C++17 program here."""
    found = process.which("g++", path=env["PATH"])
    if found is None or process.which("gcc", path=env["PATH"]) is None:
        return None
    compiles = process.capture(
        [found, "-std=c++17", "-fsyntax-only", "-include", "optional", "-xc++", "/dev/null"], env=env
    )
    version = process.capture([found, "-dumpfullversion"], env=env)
    return Program(path=Path(found), version=version.stdout.strip()) if compiles.status == 0 else None


def mpis(env: Mapping[str, str]) -> Iterator[Program]:
    """Yield the MPI libraries whose compiler wrapper, headers and launcher are there, as they come on PATH.

    Distributions split them into packages, and Debian has them side by side, as mpirun.openmpi and mpirun.mpich.
    """
    seen = set[Path]()
    of_cray = env.get("CRAY_MPICH_DIR") or env.get("MPICH_DIR", "") if env.get("CRAY_MPICH_VERSION") else ""
    for folder in map(Path, env["PATH"].split(os.pathsep)):
        for wrapper in (folder / name for name in ((CRAY_WRAPPER,) if of_cray else ()) + WRAPPERS):
            if not os.access(wrapper, os.X_OK) or not wrapper.is_file() or wrapper.resolve() in seen:
                continue
            seen.add(wrapper.resolve())
            compiles = [str(wrapper), "-E", "-dM", "-include", "mpi.h", "-xc++", "/dev/null"]
            told = process.capture(compiles, env=compiling(folder, env), timeout_s=PATIENCE_S)
            if told.status or (
                of_cray and wrapper.is_relative_to(of_cray)
            ):  # its own mpicxx, which CC is in the place of
                continue
            if wrapper.name == CRAY_WRAPPER:
                yield of_launcher(str(wrapper), env)
            elif found := launcher_beside(folder, wrapper.suffix, family_of_header(told.stdout), env):
                yield found


def family_of_header(macros: str) -> str:
    """Return the family of the MPI whose mpi.h defines these macros; nothing where they do not tell."""
    return next((family for family, macro in HEADERS if re.search(rf"^#define {macro}\b", macros, re.MULTILINE)), "")


def launcher_beside(folder: Path, variant: str, family: str, env: Mapping[str, str]) -> Program | None:
    """Return the launcher of the family that a compiler wrapper is of: beside it, or else the first on PATH.

    Debian's alternatives for the two are chosen apart.
    """
    others = [folder / f"mpirun{one}" for one in VARIANTS if one != variant]
    first = process.which("mpirun", path=env["PATH"])
    for place in (folder / f"mpirun{variant}", *others, *([Path(first)] if first else [])):
        if os.access(place, os.X_OK) and place.is_file():
            found = of_launcher(str(place), env)
            if family in ("", found.family):
                return found
    return None


def by_its_own_name(path: Path) -> Path:
    """Return a program by the name that stays its own, where what it is called is one of Debian's alternatives."""
    with suppress(OSError):
        link = path.readlink()
        if link.is_relative_to("/etc/alternatives"):
            return link.readlink()
    return path


def compiling(folder: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` as the compiler wrappers in a folder need it: those of Intel MPI ask where they lie."""
    return {"I_MPI_ROOT": str(folder.parent), **env} if (folder / "impi_info").is_file() else dict(env)


PATIENCE_S = 10
WHERE = "Load its module (--load), put its bin folder on PATH, or install "
REMEDIES = {
    "Open MPI": f"{WHERE}its development package (Debian, Ubuntu: libopenmpi-dev).",
    "MPICH": f"{WHERE}its development package (Debian, Ubuntu: libmpich-dev).",
    "Intel MPI": f"{WHERE}it (from Intel's oneAPI, or as the wheels impi-rt and impi-devel).",
    "MVAPICH": f"{WHERE}it from its source; distributions have no package of it.",
    "Cray MPICH": "On a Cray, load its programming environment: --load PrgEnv-gnu --load cray-mpich.",
}
HEADERS = (
    ("Open MPI", "OPEN_MPI"),
    ("Intel MPI", "I_MPI_VERSION"),
    ("MVAPICH", "MVAPICH2?_VERSION"),
    ("MPICH", "MPICH_VERSION"),
)
VARIANTS = ("", ".openmpi", ".mpich")
WRAPPERS = tuple(f"mpicxx{variant}" for variant in VARIANTS)
CRAY_WRAPPER = "CC"  # of the module craype; it has no mpicxx and no mpirun, but what modules like PrgEnv-gnu say


def by_preference(programs: Sequence[Program], family: str) -> tuple[Program | None, tuple[Program, ...]]:
    """Return the first MPI, of a family if one is named, and the others. Raises HostProblem without any of it."""
    fitting = [one for one in programs if family in ("", one.family)]
    if family and not fitting:
        there = ", ".join(f"{one.family} {one.version} ({one.path})" for one in programs)
        needs = "Its mpicxx, mpi.h and mpirun have to be on PATH."
        if family == "Cray MPICH":
            needs = "Its modules have to put CC on PATH, and to set CRAY_MPICH_DIR and CRAY_MPICH_VERSION."
        raise HostProblem(
            what=f"There is no {family} here that programs can be compiled with.",
            why=f"{needs} There is {there or 'no MPI at all'}.",
            fix=f"{REMEDIES[family]} Without --mpi the first that there is would be taken.",
        )
    chosen = fitting[0] if fitting else None
    return chosen, tuple(one for one in programs if one != chosen)


def launcher_mpi(env: Mapping[str, str]) -> Program | None:
    """Return the MPI whose launcher is on PATH, with or without a compiler wrapper."""
    launcher = process.which("mpirun", path=env.get("PATH", os.defpath))
    return of_launcher(launcher, env) if launcher else None


def of_launcher(launcher: str, env: Mapping[str, str]) -> Program:
    """Return the MPI that a launcher belongs to; Intel's calls what lies beside it by PATH.

    MVAPICH has that of MPICH, and says which one it is by mpiname. Of Cray MPICH it is the compiler wrapper.
    """
    path = Path(launcher)
    if path.name == CRAY_WRAPPER:
        return Program(path=path, version=env.get("CRAY_MPICH_VERSION", "unknown"), family="Cray MPICH")
    beside = {**env, "PATH": os.pathsep.join((str(path.parent), env.get("PATH", os.defpath)))}
    told = process.capture([launcher, "--version"], env=beside, timeout_s=PATIENCE_S).stdout[:10_000]
    for family, pattern in MPI_FAMILIES:
        if match := re.search(pattern, told):
            named = path if family == "Open MPI" else by_its_own_name(path)
            mvapich = version_of_mvapich(path, beside) if family == "MPICH" else ""
            return Program(path=named, version=mvapich or match[1], family="MVAPICH" if mvapich else family)
    return Program(path=path, version="unknown", family="unknown")


def version_of_mvapich(launcher: Path, env: Mapping[str, str]) -> str:
    """Return the version of MVAPICH that the mpiname beside a launcher tells, such as "2.3.7"; nothing of another."""
    name = launcher.resolve().with_name("mpiname")
    told = process.capture([str(name), "-a"], env=env, timeout_s=PATIENCE_S) if name.is_file() else None
    match = re.search(r"MVAPICH(?:2(?:-\w+)?|-Plus)? (\d\S*)", told.stdout) if told else None
    return match[1] if match else ""


MPI_FAMILIES = (
    ("Open MPI", r"\((?:Open MPI|OpenRTE)\) (\S+)"),
    ("MPICH", r"HYDRA build details:\s+Version:\s+(\S+)"),
    ("Intel MPI", r"Intel\(R\) MPI Library for Linux\* OS, Version (\S+)"),
)


def cmake(env: Mapping[str, str]) -> Program | None:
    """Return the CMake on PATH."""
    found = process.which("cmake", path=env["PATH"])
    if found is None:
        return None
    match = re.search(r"cmake version (\S+)", process.capture([found, "--version"], env=env).stdout)
    return Program(path=Path(found), version=match[1]) if match else None


def accelerator() -> Accelerator:
    """Say which kind of GPU this machine has, from its device files."""
    if any(Path("/dev").glob("nvidia[0-9]*")):
        return Accelerator.CUDA
    if Path("/dev/kfd").exists() and any(Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")):
        return Accelerator.ROCM
    return Accelerator.CPU


def no_nvidia(env: Mapping[str, str]) -> str:
    """Say why nvidia-smi shows no NVIDIA GPU; nothing if it shows one."""
    found = process.which("nvidia-smi", path=env.get("PATH"))
    if found is None:
        return "There is no nvidia-smi on PATH."
    told = process.capture([found, "-L"], env=env, timeout_s=20)
    if told.status == 0 and "GPU" in told.stdout:
        return ""
    return (told.stderr or told.stdout).strip() or f"It ended with {told.status}."


def capability(env: Mapping[str, str]) -> str:
    """Return the compute capability of the first NVIDIA GPU, such as "9.0"; nothing without one."""
    argv = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    match = re.match(r"\s*(\d+\.\d+)", process.capture(argv, env=env, timeout_s=20).stdout)
    return match[1] if match else ""


def cpu_target() -> str:
    """Name the microarchitecture of this CPU, such as "zen3" (archspec)."""
    import archspec.cpu

    return str(archspec.cpu.host())


def writable_parent(path: Path) -> Path:
    """Return the nearest folder at or above ``path`` that exists. Raises HostProblem if it is a file."""
    while not path.exists():
        path = path.parent
    if not path.is_dir():
        raise HostProblem(what=f"{path} is a file, not a folder.", fix="Choose another --prefix.")
    return path


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def physical_cores() -> int:
    """Return the number of CPU cores that this process may use, threads of one core (SMT) counted once."""
    of_cpus = Path("/sys/devices/system/cpu")
    siblings = set()
    for number in os.sched_getaffinity(0):
        with suppress(OSError):
            siblings.add((of_cpus / f"cpu{number}/topology/thread_siblings_list").read_text())
    return len(siblings) or cores()
