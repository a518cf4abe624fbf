"""Small programs that are compiled before a build, since builds often fail on them: MPI, flatbuffers.h, a CUDA kernel.

That something compiled is kept by compiler, flags and settings, so that a plan asks only once; a failure is
asked again.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs

from envkit.binary.elf import Elf, ElfError
from envkit.easybuild.eb_command import state
from envkit.errors import HostProblem, Problem
from envkit.machine.host import Host, Program, compiling, reason
from envkit.planning.plan import Plan
from envkit.planning.stack import Stack
from envkit.system import files, process, record, temporary
from envkit.system.resources import data

PATIENCE_S = 60
SETTINGS = re.compile(
    r"\w*PATH|CRAY\w*|PE_\w+|I_MPI_\w+|MPICH\w*|OMPI_\w+|OPAL_\w+|(CUDA|NVCC|GCC)_?\w*|C(XX|PP)?FLAGS"
)
PLACES = ("/usr/include", "/usr/local/include", "/etc/ld.so.cache")  # they change with what is installed
LIBRARY = re.compile(r"lib(mpi|mpich|mpi_abi|mpi_(gnu|cray|intel|nvidia|amd|aocc)\w*)\.so")  # none of C++ or Fortran


@dataclass(frozen=True, kw_only=True)
class TrialProgram:
    """A program to compile by ``argv`` in a folder that has these files; ``made`` is what comes of it."""

    argv: tuple[str, ...]
    files: Mapping[str, str]
    env: Mapping[str, str]
    made: str = ""


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a trial ended: the line that tells why it failed, nothing if it did not; what the program then needs."""

    said: str = ""
    needed: tuple[str, ...] = ()


def program(name: str) -> str:
    """Return the text of a program (``trial/``)."""
    return data(f"easybuild/trial/{name}").read_text()


def compiled(trial: TrialProgram) -> TrialResult:
    """Compile a program, or know that it has compiled."""
    kept = place(trial)
    if files.is_private(kept.parent) and files.is_private(kept):
        try:
            return record.read(kept, TrialResult)
        except (OSError, msgspec.DecodeError):
            pass
    with temporary.folder("trial") as folder:
        for name, text in trial.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        done = process.capture(trial.argv, env={**trial.env, "TMPDIR": str(folder)}, cwd=folder, timeout_s=PATIENCE_S)
        if done.status:
            return TrialResult(said=reason(done))
        found = TrialResult(needed=needed(folder / trial.made) if trial.made else ())
    keep(kept, found)
    return found


def place(trial: TrialProgram) -> Path:
    """Return where it is kept that this trial has passed."""
    program = Path(process.which(trial.argv[0], path=trial.env.get("PATH")) or trial.argv[0])
    states = [state(name) for name in (str(program), str(program.resolve()), *PLACES)]
    settings = sorted((name, value) for name, value in trial.env.items() if SETTINGS.fullmatch(name))
    key = repr((trial.argv, sorted(trial.files.items()), settings, states))
    return (
        Path(platformdirs.user_cache_dir("envkit")) / "trials" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    )


def keep(path: Path, trial_result: TrialResult) -> None:
    """Keep what has passed; a cache that cannot be written is no failure."""
    try:
        files.make_private(path.parent)
        files.require_own(path.parent)
        files.write(path, msgspec.json.encode(trial_result), own=True, mode=0o600)
    except (OSError, HostProblem):
        return


def needed(program: Path) -> tuple[str, ...]:
    """Return the libraries that a program needs."""
    try:
        return tuple(Elf.open(program).needed)
    except (OSError, ElfError):
        return ()


def mpi(wrapper: Path, env: Mapping[str, str]) -> TrialProgram:
    """Return the trial of the compiler wrapper of an MPI."""
    argv = (str(wrapper), "hello.cc", "-o", "hello")
    return TrialProgram(
        argv=argv, files={"hello.cc": program("mpi.cc")}, env=compiling(wrapper.parent, env), made="hello"
    )


def abi(wrapper: Path, env: Mapping[str, str]) -> str:
    """Return the library of MPI that programs need which a compiler wrapper has linked; nothing if it links none."""
    names = compiled(mpi(wrapper, env)).needed
    return next((name for name in names if LIBRARY.match(name)), "")


def problems(machine: Host, stack: Stack, plan: Plan) -> Iterator[Problem]:
    """Yield what of a stack will not compile here."""
    if machine.compiler is None or "-system" not in stack.easyconfig:
        return
    if stack.framework == "tensorflow" and (said := compiled(flatbuffers(machine.compiler, machine.env)).said):
        yield Problem(
            what=f"A flatbuffers.h of another version comes before that of TensorFlow: {said}",
            fix="Do without the module that sets CPATH to it (--load), or that variable.",
        )
    wanted = next((module.partition("/")[2] for module in plan.modules if module.startswith("nvcc/")), "")
    nvcc = of_release(wanted, machine.env) if wanted else ""
    if nvcc and (said := compiled(kernel(nvcc, machine.compiler, machine.env)).said):
        yield Problem(
            what=f"nvcc {wanted} does not compile a kernel with g++ {machine.compiler.version}: {said} ({nvcc})",
            fix="Load another compiler (--load), or leave the GPU out: --accelerator cpu.",
        )


def flatbuffers(compiler: Program, env: Mapping[str, str]) -> TrialProgram:
    """Return the trial of which flatbuffers.h a compiler takes.

    TensorFlow's headers are system headers to Horovod, and what CPATH names comes before those.
    """
    own = {"own/flatbuffers/flatbuffers.h": "struct of_the_framework {};\n", "message.cc": program("flatbuffers.cc")}
    argv = (str(compiler.path), "-std=c++17", "-fsyntax-only", "-isystem", "own", "message.cc")
    return TrialProgram(argv=argv, files=own, env=env)


def kernel(nvcc: str, compiler: Program, env: Mapping[str, str]) -> TrialProgram:
    """Return the trial of nvcc with a compiler, by the standard of Horovod's kernels."""
    argv = (nvcc, "-std=c++11", "-ccbin", str(compiler.path), "-c", "kernel.cu", "-o", "kernel.o")
    return TrialProgram(argv=argv, files={"kernel.cu": program("kernel.cu")}, env=env)


def of_release(wanted: str, env: Mapping[str, str]) -> str:
    """Return the nvcc of this machine if it is of the release that is wanted, such as 13.0."""
    found = process.which("nvcc", path=f"{env.get('PATH', os.defpath)}:/usr/local/cuda/bin")
    told = process.capture([found, "--version"], env=env, timeout_s=20).stdout if found else ""
    match = re.search(r"release (\d+\.\d+),", told)
    return str(found) if match and f"{wanted}.".startswith(f"{match[1]}.") else ""
