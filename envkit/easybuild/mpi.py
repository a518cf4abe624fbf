"""Which MPI Horovod is compiled with: the family of the host's own decides the toolchain of the recipes."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from envkit.easybuild.eb_command import rules
from envkit.environments.prefix import Tree
from envkit.errors import Problem, UsageProblem
from envkit.machine.host import Host, Program, compiling
from envkit.planning.request import Request
from envkit.planning.stack import Stack
from envkit.system import process, temporary
from envkit.system.resources import recipes

HELLO = "#include <mpi.h>\nint main(int count, char **words) { return MPI_Init(&count, &words); }\n"


def fitted(request: Request, machine: Host, stack: Stack, tree: Tree) -> tuple[Stack, Host]:
    """Return a stack by the recipes for an MPI of this machine, and the machine with that MPI.

    What is built already stays with its own family, unless another one is asked for. Raises UsageProblem where a stack
    brings its own MPI, and so has none to choose.
    """
    known = variants(stack)
    if not known:
        if request.mpi:
            raise UsageProblem(
                what=f"--mpi: {stack.name} takes no MPI of the machine.",
                why="It is built with the one that its recipe names." if stack.easyconfig else "",
                fix="Leave it out, or choose a stack whose recipe is for the machine's own: see 'envkit list'.",
            )
        return stack, machine
    own = [toolchain for toolchain in map(toolchain_of, mpis(machine)) if toolchain in known]
    preferred = list(dict.fromkeys([*own, *known]))
    built = [] if request.mpi else [one for one in preferred if tree.has(known[one].module)]
    toolchain = (built or preferred)[0]
    fitting = [one for one in mpis(machine) if toolchain_of(one) == toolchain]
    if not request.mpi:
        fitting.sort(key=lambda one: one.path != built_with(tree, toolchain))
    others = tuple(one for one in mpis(machine) if one not in fitting[:1])
    return known[toolchain], replace(machine, mpi=fitting[0], other_mpis=others) if fitting else machine


def mpis(machine: Host) -> list[Program]:
    """Return the MPI libraries of a machine, the one to be taken first."""
    return [one for one in (machine.mpi, *machine.other_mpis) if one]


def toolchain_of(mpi: Program) -> str:
    """Return the toolchain for an MPI; nothing for a family that there is none for."""
    return rules()["toolchains"].get(mpi.family, "")


def modules() -> dict[str, str]:
    """Return the module of MPI of each toolchain; that of the first has a wheel that stands in for it."""
    return rules()["mpi_modules"]


def variants(stack: Stack) -> dict[str, Stack]:
    """Return a stack by the toolchain of each MPI that it has recipes for; none if it brings its own MPI."""
    first, *_ = modules()
    if f"-{first}-system" not in stack.easyconfig or Path(stack.easyconfig).is_absolute():
        return {}
    found = {one: named(stack, first, one) for one in modules()}
    return {one: made for one, made in found.items() if (recipes("easyconfigs") / made.easyconfig).is_file()}


def named(stack: Stack, first: str, toolchain: str) -> Stack:
    """Return a stack by the recipes for another toolchain."""
    old, new = f"{first}-system", f"{toolchain}-system"
    return msgspec.structs.replace(
        stack,
        easyconfig=stack.easyconfig.replace(old, new),
        module=stack.module.replace(old, new),
        seconds={module.replace(old, new): seconds for module, seconds in stack.seconds.items()},
    )


def problems(machine: Host, stack: Stack, tree: Tree) -> Iterator[Problem]:
    """Yield what keeps programs from being linked with the MPI that a stack is to be built with."""
    toolchain = next((one for one in modules() if f"-{one}-system" in stack.easyconfig), "")
    mpi = machine.mpi
    if not toolchain or mpi is None or toolchain_of(mpi) != toolchain:
        return
    if tree.has(module := modules()[toolchain]):
        there = built_with(tree, toolchain)
        if there not in (None, mpi.path):
            yield Problem(
                what=f"{module} of this prefix is the MPI of {there}, not {mpi.family} {mpi.version} ({mpi.path}).",
                fix="For that one, put its bin folder first on PATH, or load its module; for this one, choose another "
                "folder with --prefix.",
            )
        return
    if toolchain == next(iter(modules())) and str(mpi.path) != process.which("mpirun", path=machine.env["PATH"]):
        yield Problem(
            what=f"{mpi.family} {mpi.version} ({mpi.path}) is not the first MPI on PATH, which EasyBuild takes.",
            fix="Put its bin folder first on PATH, or load its module (--load). Where both are of Debian: "
            "update-alternatives --config mpi, and --config mpirun, as root.",
        )
    wrapper = wrapper_of(mpi)
    with temporary.folder("mpi") as folder:
        (folder / "hello.cc").write_text(HELLO)
        env = compiling(wrapper.parent, machine.env)
        done = process.capture([str(wrapper), "hello.cc", "-o", "hello"], env=env, cwd=folder, timeout_s=60)
        if done.status:
            said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            yield Problem(
                what=f"{wrapper} cannot compile and link a program of {mpi.family} {mpi.version}: "
                f"{next((line for line in said if 'error' in line or 'cannot' in line), ' '.join(said[:1]))}",
                fix="Install all of its development package, or load the compiler that it was made for (--load).",
            )


def built_with(tree: Tree, toolchain: str) -> Path | None:
    """Return the launcher of the MPI that a module stands for which starts it by a script; None of another module."""
    script = tree.software / modules()[toolchain] / "bin" / "mpirun"
    try:
        found = re.search(r'^exec "(/[^"]+)"', script.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return Path(found[1]) if found else None


def wrapper_of(mpi: Program) -> Path:
    """Return the compiler wrapper that lies beside a launcher, under the same variant of its name."""
    return mpi.path.with_name(mpi.path.name.replace("mpirun", "mpicxx"))
