"""What this machine offers: interpreter, modules tool, compiler, MPI, CMake, accelerator, room on disk."""

import os
import platform
import re
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from envkit.errors import HostProblem
from envkit.machine import modules_tool
from envkit.machine.modules_tool import ModulesTool
from envkit.system import process
from envkit.system.addresses import redact
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
    """A program on this machine. ``family`` tells variants apart, such as "Open MPI" and "MPICH".

    ``compiles`` is the release of the mpi.h of an MPI where it is another than that of its launcher.
    """

    path: Path
    version: str
    family: str = ""
    compiles: str = ""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """An MPI that is on PATH and cannot be taken, in words, and why."""

    named: str
    why: str

    def __str__(self) -> str:
        return f"{self.named}: {self.why}"


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

    ``mpi`` is what programs are compiled with, ``why_mpi`` why that one; ``other_mpis`` could be taken in its place,
    ``refused_mpis`` could not.
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
    refused_mpis: tuple[Refused, ...] = ()

    @property
    def platform(self) -> Platform:
        """What binaries made here depend on."""
        return Platform(machine=self.machine, python=self.python.minor)


def detect(load: Sequence[str] = ()) -> Host:
    """Look at this machine, and take the first of its MPI libraries.

    Raises HostProblem when a module in ``load`` cannot be loaded, or the compiler does not end.
    """
    tool = modules_tool.find_modules_tool()
    whole = modules_tool.clean(os.environ, tool, load)
    env = {**whole, "PATH": os.pathsep.join(filter(is_text, whole["PATH"].split(os.pathsep)))}
    compiles_with = compiler(env)  # first: every wrapper of an MPI calls it
    if hangs := not_ended(process.which("g++", path=env["PATH"])):
        raise HostProblem(
            what=f"{hangs}.", fix="Try again. If that stays so, take its folder off PATH, or load another one."
        )
    searched = list(candidates(whole))
    found = [one for one in searched if isinstance(one, Program)]
    return Host(
        machine=platform.machine(),
        python=interpreter(env),
        modules_tool=tool,
        compiler=compiles_with,
        mpi=next(iter(found), None),
        other_mpis=tuple(found[1:]),
        refused_mpis=tuple(one for one in searched if isinstance(one, Refused)),
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
    program = [found, "-std=c++17", "-fsyntax-only", "-include", "optional", "-xc++", "/dev/null"]
    compiles = ask(program, env, share=1)  # without it nothing else can be told
    version = ask([found, "-dumpfullversion"], env)
    return Program(path=Path(found), version=version.stdout.strip()) if compiles.status == 0 else None


def ask(argv: Sequence[str], env: Mapping[str, str], share: float = 0.4) -> process.Completed:
    """Ask a program for what it tells at once. One that has not ended in time is not asked again for a while.

    That is PATIENCE_S, and a ``share`` of what is left where all together have a limit, since others are asked as well.
    """
    limit = process.LIMIT.get()
    patience_s = min(PATIENCE_S, limit.left_s * share) if limit else PATIENCE_S
    asked_at, _ = HUNG.get(argv[0], (-AGAIN_S, ""))
    if time.monotonic() - asked_at < AGAIN_S:
        return process.Completed(argv=tuple(argv), status=LATE, stdout="", stderr="", seconds=0.0)
    told = process.capture(argv, env=env, timeout_s=patience_s, most_bytes=MOST_BYTES)
    HUNG.pop(argv[0], None)
    if told.status == LATE and told.stderr == "timed out":
        command = " ".join(map(shown, argv[:2]))
        HUNG[argv[0]] = time.monotonic(), f"'{command}' has not ended in {patience_s:.3g} s"
    return told


def not_ended(program: Path | str | None) -> str:
    """Say that a program did not end when it was last asked; nothing of one that did."""
    return HUNG.get(str(program), (0.0, ""))[1]


def is_nameable(path: Path) -> bool:
    """Say whether a recipe, and the scripts and batch files made of it, can name a path as it is."""
    return is_text(path) and re.fullmatch(r"[\w.+@:,/-]+", str(path)) is not None


def is_text(path: Path | str) -> bool:
    """Say whether a path is text, which recipes and JSON are; on disk it may be any bytes."""
    return str(path) == shown(path)


def shown(path: Path | str) -> str:
    """Return a path as it can be shown, with what is no text in it as escapes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def mpis(env: Mapping[str, str]) -> Iterator[Program]:
    """Yield the MPI libraries whose compiler wrapper, headers and launcher are there, as they come on PATH."""
    return (one for one in candidates(env) if isinstance(one, Program))


def candidates(env: Mapping[str, str]) -> Iterator[Program | Refused]:
    """Yield the MPI libraries as they come on PATH: each that can be taken, and why another cannot.

    Distributions split them into packages, and Debian has them side by side, as mpirun.openmpi and mpirun.mpich.
    """
    seen, taken, named = set[tuple[Path, Path | None]](), set[Path](), set[Path]()
    of_cray = env.get("CRAY_MPICH_DIR") or env.get("MPICH_DIR", "") if env.get("CRAY_MPICH_VERSION") else ""
    if lacking := lacking_of_cray(env):
        yield lacking
    folders = [Path(folder) for folder in env["PATH"].split(os.pathsep) if folder.startswith("/")]
    for folder in folders:
        for wrapper in (folder / name for name in ((CRAY_WRAPPER,) if of_cray else ()) + WRAPPERS):
            beside = folder / wrapper.name.replace("mpicxx", "mpirun")
            if not is_program(wrapper):  # nor is a link that leads to itself
                continue
            both = wrapper.resolve(), beside.resolve() if is_program(beside) else None
            if both in seen:
                continue
            seen.add(both)
            if of_cray and wrapper.name != CRAY_WRAPPER and wrapper.is_relative_to(of_cray):
                continue  # its own mpicxx, which CC is in the place of
            found = by_wrapper(wrapper, beside, env)
            if isinstance(found, Refused):
                named |= {both[1]} if both[1] else set()
                yield found
            elif found.path.resolve() not in taken:
                taken.add(found.path.resolve())
                yield found
    for folder in folders:
        for launcher in (folder / f"mpirun{variant}" for variant in VARIANTS):
            own_of_cray = of_cray and launcher.is_relative_to(of_cray)
            if is_program(launcher) and launcher.resolve() not in taken | named and not own_of_cray:
                named.add(launcher.resolve())
                yield without_wrapper(launcher, env)


def without_wrapper(launcher: Path, env: Mapping[str, str]) -> Refused:
    """Say of an MPI that it has a launcher, and no compiler wrapper of its own."""
    if not is_nameable(launcher):
        return Refused(named=shown(launcher), why=UNREADABLE)
    program = of_launcher(str(launcher), env)
    why = not_ended(launcher) or not_ended(mpiname(launcher))
    wrapper = launcher.with_name(launcher.name.replace("mpirun", "mpicxx"))
    lacks = "the mpicxx beside it is" if is_program(wrapper) else "it has no mpicxx beside it, which"
    lacks += " of another MPI" if is_program(wrapper) else " its development package has"
    return Refused(named=described(program), why=why or lacks)


def is_program(path: Path) -> bool:
    """Say whether a path is a program that may be started."""
    return os.access(path, os.X_OK) and path.is_file()


def lacking_of_cray(env: Mapping[str, str]) -> Refused | None:
    """Say what is lacking of Cray MPICH where a part of it is loaded: its wrapper, or what its module sets."""
    version = env.get("CRAY_MPICH_VERSION", "")
    place = env.get("CRAY_MPICH_DIR") or (env.get("MPICH_DIR", "") if version else "")
    lacks = [name for name, value in (("CRAY_MPICH_DIR", place), ("CRAY_MPICH_VERSION", version)) if not value]
    if len(lacks) == 2:  # nothing of it is loaded
        return None
    why = [f"{name} is not set" for name in lacks]
    if process.which(CRAY_WRAPPER, path=env["PATH"]) is None:
        why.append("CC is not on PATH, which --load PrgEnv-gnu puts there")
    return Refused(named=" ".join(filter(None, ("Cray MPICH", version))), why=", and ".join(why)) if why else None


def by_wrapper(wrapper: Path, beside: Path, env: Mapping[str, str]) -> Program | Refused:
    """Return the MPI of a compiler wrapper, or why it cannot be taken."""
    if not is_nameable(wrapper):
        return Refused(named=shown(wrapper), why=UNREADABLE)
    compiles = [str(wrapper), "-E", "-dM", "-include", "mpi.h", "-xc++", "/dev/null"]
    told = ask(compiles, compiling(wrapper.parent, env))
    if told.status == 0 and wrapper.name != CRAY_WRAPPER:
        return launcher_beside(wrapper, *of_header(told.stdout), env)
    program = of_launcher(str(wrapper), env) if wrapper.name == CRAY_WRAPPER else None
    if program and told.status == 0:
        return program
    program = program or (of_launcher(str(beside), env) if is_program(beside) else Program(path=wrapper, version=""))
    why = not_ended(wrapper) or f"its {wrapper.name} compiles nothing: {reason(told)}"
    if re.search(r"(?<![/\w])mpi\.h: ", told.stderr):  # in any language; an error in it has the number of a line
        why = f"its {wrapper.name} finds no mpi.h, which its development package has"
    return Refused(named=described(program), why=why)


def reason(told: process.Completed) -> str:
    """Return what tells why a program failed: the first line of an error, or its first paragraph, without secrets."""
    if len(told.stdout) + len(told.stderr) > MOST_BYTES:
        return "it prints without an end"
    lines = [line.strip() for line in f"{told.stderr}\n{told.stdout}".splitlines()]
    first = next((line for line in lines if ERROR.search(line)), "")
    telling = [bool(re.search(r"[^\W\d_]{2}", line)) for line in lines]
    if not first and any(telling):  # Open MPI begins with a row of dashes
        begin = telling.index(True)
        end = telling.index(False, begin) if False in telling[begin:] else len(lines)
        first = " ".join(lines[begin:end])
    first = first.removeprefix("[Errno 8] ")  # of a program for another machine
    return redact(SECRET.sub(r"\1=***", first))[:300] or f"it ended with {told.status}"


def of_header(macros: str) -> tuple[str, str]:
    """Return family and version of the MPI whose mpi.h defines these macros; nothing where they do not tell."""
    values = dict(re.findall(r'^#define (\w+) "?([\w.]+)', macros, re.MULTILINE))
    for family, names in HEADERS:
        if names[0] in values:
            return family, ".".join(values[name] for name in names[1:] if name in values)
    return "", ""


def launcher_beside(wrapper: Path, family: str, version: str, env: Mapping[str, str]) -> Program | Refused:
    """Return the MPI of a compiler wrapper by its launcher: that beside it, or else the first of it on PATH.

    Debian's alternatives for the two are chosen apart. One of another family, or of another major release, is not its:
    ranks that it starts may not find one another.
    """
    variants = sorted(VARIANTS, key=lambda variant: wrapper.name != f"mpicxx{variant}")
    on_path = (Path(folder, "mpirun") for folder in env["PATH"].split(os.pathsep) if folder.startswith("/"))
    places = (*(wrapper.with_name(f"mpirun{variant}") for variant in variants), *on_path)
    hung, why = list[str](), ["there is no mpirun of it, beside its mpicxx or on PATH"]
    for place in dict.fromkeys(place for place in places if is_program(place) and is_nameable(place)):
        found = of_launcher(str(place), env)
        if hangs := not_ended(place) or not_ended(mpiname(place)):
            hung.append(hangs)
        elif family not in ("", found.family) and (family, found.family) != ("MPICH", "MVAPICH"):
            tells = f"is that of {found.family} {found.version}"
            why.append(f"{place} {'does not tell which MPI it is of' if found.family == 'unknown' else tells}")
        elif family != found.family or not (other := first_difference(version, found.version)):
            return found
        elif other == 1:
            why.append(f"{place} is that of release {found.version}")
        else:
            return replace(found, compiles=version)
    named = Program(path=wrapper, version=version, family=family)
    return Refused(named=described(named), why="; ".join(hung or why))


def first_difference(*versions: str) -> int:
    """Return which number is the first that two versions differ in, from 1 on; 0 if none that both have."""
    numbers = [re.findall(r"(?:^|\.)(\d+)", version) for version in versions]
    return next((place for place, pair in enumerate(zip(*numbers, strict=False), 1) if len({*pair}) > 1), 0)


def described(program: Program) -> str:
    """Return an MPI in words, with its path."""
    known = program.family not in ("", "unknown")
    return f"{f'{program.family} {program.version}'.strip() if known else 'An MPI'} ({shown(program.path)})"


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


PATIENCE_S = 15.0  # for an answer, on a cold parallel file system as well
AGAIN_S = 60.0  # until a program that had none is asked again
LATE = 124  # the status of a program that has not ended in time
MOST_BYTES = 1 << 20  # of an answer; the macros of an mpi.h are some 100 kB
HUNG = dict[str, tuple[float, str]]()  # by their paths: when a program was asked that did not end, and that it did not
UNREADABLE = (
    "its folder cannot be named in a recipe: reach it by a link whose path has only letters, digits and "
    "_ . + @ : , -, and put that on PATH"
)
ERROR = re.compile(r"\berror\b|No such file|cannot|[Nn]ot found|incompatible|unsupported")
SECRET = re.compile(r"(?i)\b(token|\w*key|passw(?:or)?d|secret)=[^\s;,&]+")
WHERE = "Load its module (--load), put its bin folder on PATH, or install "
REMEDIES = {
    "Open MPI": f"{WHERE}its development package (Debian, Ubuntu: libopenmpi-dev).",
    "MPICH": f"{WHERE}its development package (Debian, Ubuntu: libmpich-dev).",
    "Intel MPI": f"{WHERE}it (from Intel's oneAPI, or as the wheels impi-rt and impi-devel).",
    "MVAPICH": f"{WHERE}it from its source; distributions have no package of it.",
    "Cray MPICH": "On a Cray, load its programming environment: --load PrgEnv-gnu --load cray-mpich.",
}
HEADERS = (  # the macro that tells the family, and those with its version
    ("Open MPI", ("OPEN_MPI", "OMPI_MAJOR_VERSION", "OMPI_MINOR_VERSION", "OMPI_RELEASE_VERSION")),
    ("Intel MPI", ("I_MPI_VERSION",) * 2),
    ("MVAPICH", ("MVAPICH_VERSION",) * 2),
    ("MVAPICH", ("MVAPICH2_VERSION",) * 2),
    ("MPICH", ("MPICH_VERSION",) * 2),
)
VARIANTS = ("", ".openmpi", ".mpich")
WRAPPERS = tuple(f"mpicxx{variant}" for variant in VARIANTS)
CRAY_WRAPPER = "CC"  # of the module craype; it has no mpicxx and no mpirun, but what modules like PrgEnv-gnu say


def require_family(programs: Sequence[Program], family: str, refused: Sequence[Refused] = ()) -> None:
    """Require an MPI of a family, if one is named. Raises HostProblem, which tells the others, and those refused."""
    if family and not any(one.family == family for one in programs):
        there = f"There is {', '.join(map(described, programs)) or 'no MPI at all'}." if programs or not refused else ""
        not_taken = " ".join(f"Not taken: {str(one).rstrip('.')}." for one in refused)
        needs = "Its mpicxx, mpi.h and mpirun have to be on PATH."
        if family == "Cray MPICH":
            needs = "Its modules have to put CC on PATH, and to set CRAY_MPICH_DIR and CRAY_MPICH_VERSION."
        raise HostProblem(
            what=f"There is no {family} here that programs can be compiled with.",
            why=" ".join(filter(None, (needs, there, not_taken))),
            fix=f"{REMEDIES[family]} Without --mpi the first that there is would be taken.",
        )


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
    told = ask([launcher, "--version"], beside).stdout[:10_000]
    for family, pattern in MPI_FAMILIES:
        if match := re.search(pattern, told):
            named = path if family == "Open MPI" else by_its_own_name(path)
            mvapich = version_of_mvapich(path, beside) if family == "MPICH" else ""
            if family == "MPICH" and not_ended(mpiname(path)):
                break
            return Program(path=named, version=mvapich or match[1], family="MVAPICH" if mvapich else family)
    return Program(path=path, version="unknown", family="unknown")


def version_of_mvapich(launcher: Path, env: Mapping[str, str]) -> str:
    """Return the version of MVAPICH that the mpiname beside a launcher tells, such as "2.3.7"; nothing of another."""
    name = mpiname(launcher)
    told = ask([str(name), "-a"], env) if name.is_file() else None
    match = re.search(r"(?i)MVAPICH(?:2(?:-\w+)?|-Plus)? (\d\S*)", told.stdout) if told else None
    return match[1] if match else ""


def mpiname(launcher: Path) -> Path:
    """Return the program by which MVAPICH, whose launcher is MPICH's, tells its name."""
    return launcher.resolve().with_name("mpiname")


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
    match = re.search(r"cmake version (\S+)", ask([found, "--version"], env).stdout)
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
