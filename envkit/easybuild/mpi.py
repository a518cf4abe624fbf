"""Which MPI Horovod is compiled with: the family of the host's own decides the toolchain of the recipes."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

from envkit.easybuild import trial_compiles
from envkit.easybuild.eb_command import rules
from envkit.environments.environment import Environment
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Mpi
from envkit.errors import HostProblem, Problem, UsageProblem
from envkit.knowledge.mpi import FAMILIES
from envkit.launch import launcher
from envkit.machine.host import Host, Program, ask, compiling, of_launcher
from envkit.planning import chosen_mpi
from envkit.planning.plan import Plan
from envkit.planning.request import Request
from envkit.planning.stack import Stack, is_stack
from envkit.system import process
from envkit.system.resources import recipes

CRAY = Path("/opt/cray/pe")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


def fitted(request: Request, machine: Host, stack: Stack, tree: Tree) -> tuple[Stack, Host]:
    """Return a stack by the recipes for an MPI of this machine, and the machine with that MPI.

    What is built already stays with its own family, unless another one is asked for. Raises HostProblem where the MPI
    that is asked for is not here, or that of what is built has gone, UsageProblem where a stack brings its own MPI, and
    so has none to choose.
    """
    by_toolchain, family = variants(stack), asked(request, stack)
    if not by_toolchain:
        if family:
            raise UsageProblem(
                what=f"--mpi: {stack.name} takes no MPI of the machine.",
                why="It is built with the one that its recipe names." if stack.easyconfig else "",
                fix="Leave it out, or choose a stack whose recipe is for the machine's own: see 'envkit list'.",
            )
        return stack, machine
    if family:
        chosen_mpi.require(request, machine)
    if family and machine.mpi and toolchain_of(machine.mpi) not in by_toolchain:
        raise UsageProblem(
            what=f"--mpi: {stack.name} has no recipes for {machine.mpi.family}.",
            why=f"It has some for the toolchains {', '.join(by_toolchain)} alone.",
            fix="Leave it out, or choose another stack: see 'envkit list'.",
        )
    installed = chosen_mpi.programs(machine)
    own = [toolchain for toolchain in map(toolchain_of, installed) if toolchain in by_toolchain]
    preferred = list(dict.fromkeys([*own, *by_toolchain]))
    built = [] if family else [name for name in preferred if tree.has(by_toolchain[name].module)]
    toolchain = (built or preferred)[0]
    before = None if family else built_with(tree, toolchain)
    if before and os.access(before, os.X_OK) and not any(program.path == before for program in installed):
        installed = [of_launcher(str(before), machine.env), *installed]  # it need not be on PATH now
    fitting = sorted(
        (program for program in installed if toolchain_of(program) == toolchain),
        key=lambda program: program.path != before,
    )
    if before and not before.exists() and not fitting:
        raise gone(before, [program for program in installed if toolchain_of(program) in by_toolchain])
    others = tuple(program for program in installed if program not in fitting[:1])
    is_last_resort = toolchain == next(iter(modules()))  # which has a wheel, and says what does not fit
    chosen = fitting[0] if fitting else machine.mpi if is_last_resort else None
    if family:
        why = "named by your configuration" if "mpi" in request.configured else "asked for with --mpi"
    elif chosen and chosen.path == before:
        why = "what modules of this prefix are built with"
    elif built and fitting:
        why = "of the family that modules of this prefix are built with"
    elif installed and toolchain_of(installed[0]) in by_toolchain:
        why = "the first on PATH"
    else:
        why = f"the first on PATH that {stack.name} has recipes for"
    return by_toolchain[toolchain], replace(machine, mpi=chosen, other_mpis=others, why_mpi=why)


def asked(request: Request, stack: Stack) -> str:
    """Return the family of MPI that is asked for; the configuration's counts only where a stack has recipes for it."""
    is_honoured = "mpi" not in request.configured or rules()["toolchains"].get(request.mpi) in variants(stack)
    return request.mpi if is_honoured else ""


def gone(before: Path, others: Sequence[Program]) -> HostProblem:
    """Return the failure that nothing is left of the MPI whose launcher modules of a prefix call."""
    there = ", ".join(f"{other.family} {other.version} ({other.path})" for other in others)
    own = "MPICH" if before.name == "mpirun.mpich" else "MPI"
    words = [word for word, family in FAMILIES.items() if any(other.family == family for other in others)]
    another = (
        f" To build with another one beside it: {' or '.join(f'--mpi {word}' for word in words)}." if words else ""
    )
    return HostProblem(
        what=f"The {own} that modules of this prefix are built with has gone: {before}.",
        why=f"There is {there}, which cannot take its place." if there else "",
        fix=f"Install it again, with what compiles programs for it, or load its module (--load).{another}",
    )


def toolchain_of(mpi: Program) -> str:
    """Return the toolchain for an MPI; nothing for a family that there is none for."""
    return rules()["toolchains"].get(mpi.family, "")


def modules() -> dict[str, str]:
    """Return the module of MPI of each toolchain; that of the first has a wheel that stands in for it."""
    return rules()["mpi_modules"]


def variants(stack: Stack) -> dict[str, Stack]:
    """Return a stack by the toolchain of each MPI that it has recipes for; none if it brings its own MPI."""
    first, *_ = modules()
    if Path(stack.easyconfig).is_absolute():
        return {}
    of_name = next(
        (toolchain for toolchain in modules() if re.search(rf"(^|-){toolchain}-system", stack.easyconfig)), ""
    )
    if of_name != first or not is_stack(stack.name):
        return {of_name: stack} if of_name else {}
    by_toolchain = {toolchain: named(stack, first, toolchain) for toolchain in modules()}
    return {
        toolchain: variant
        for toolchain, variant in by_toolchain.items()
        if (recipes("easyconfigs") / variant.easyconfig).is_file()
    }


def named(stack: Stack, first: str, toolchain: str) -> Stack:
    """Return a stack by the recipes for another toolchain."""
    old, new = f"{first}-system", f"{toolchain}-system"
    return msgspec.structs.replace(
        stack,
        easyconfig=stack.easyconfig.replace(old, new),
        module=stack.module.replace(old, new),
        seconds={module.replace(old, new): seconds for module, seconds in stack.seconds.items()},
        extras={name: easyconfig.replace(old, new) for name, easyconfig in stack.extras.items()},
    )


def problems(machine: Host, stack: Stack, tree: Tree, *, force: bool = False) -> Iterator[Problem]:
    """Yield what keeps programs from being linked with the MPI that a stack is to be built with.

    One that is too old is no problem where it is to be tried all the same (``force``).
    """
    toolchain = next((name for name in modules() if re.search(rf"(^|-){name}-system", stack.easyconfig)), "")
    mpi, first = machine.mpi, next(iter(modules()))
    if not toolchain:
        return
    if mpi is None or toolchain_of(mpi) != toolchain:
        if toolchain != first and not (tree.has(modules()[toolchain]) and built_with(tree, toolchain)):
            families = " or ".join(family for family, name in rules()["toolchains"].items() if name == toolchain)
            yield Problem(
                what=f"{stack.name} is to be built with {families}, and none is here that programs compile with.",
                fix="Load its module (--load), or put its bin folder, with mpicxx and mpirun, on PATH.",
            )
        return
    if tree.has(module := modules()[toolchain]):
        mpirun = built_with(tree, toolchain)
        if mpirun and mpirun.resolve() != mpi.path.resolve():
            yield Problem(
                what=f"{module} of this prefix is the MPI of {mpirun}, not {mpi.family} {mpi.version} ({mpi.path}).",
                fix="For that one, put its bin folder first on PATH, or load its module; for this one, choose another "
                "folder with --prefix.",
            )
        return
    if not force and (oldest := too_old(mpi)):
        yield Problem(
            what=f"{mpi.family} {mpi.version} ({mpi.path}) is too old: envkit's recipes are for "
            f"{mpi.family} {oldest} and later.",
            fix="Load a newer one (--load), choose another (--mpi), or try it all the same: --force.",
        )
    if toolchain != first and not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        yield Problem(
            what=f"{SHARED_MEMORY} is not there, or cannot be written to: ranks of {mpi.family} fail without it.",
            fix="Docker and Podman: --shm-size=1g. In a pod: an emptyDir with medium: Memory there. "
            f"As root: mount -t tmpfs tmpfs {SHARED_MEMORY}",
        )
    wrapper = wrapper_of(mpi, machine.env)
    trial = trial_compiles.compiled(trial_compiles.mpi(wrapper, machine.env))
    if trial.said:
        yield Problem(
            what=f"{wrapper} cannot compile and link a program of {mpi.family} {mpi.version}: {trial.said}",
            fix="Install all of its development package, or load the compiler that it was made for (--load).",
        )
    of_others = r".+\.so\.12$" if toolchain == first else r".+\.so\.[2-4]0$"
    if other := next(
        (name for name in trial.needed if trial_compiles.LIBRARY.match(name) and re.match(of_others, name)), ""
    ):
        yield Problem(
            what=f"{wrapper} links programs of {mpi.family} {mpi.version} with {other}, which another MPI has.",
            fix="Its own library is not there, or is another machine's: install it, or do without what puts the other "
            "MPI's folder into LIBRARY_PATH.",
        )


def too_old(mpi: Program) -> str:
    """Return the oldest version of a family of MPI that there are recipes for; nothing where this is no older one."""
    oldest = rules()["mpi_from"].get(mpi.family, "0")
    with suppress(InvalidVersion):
        return oldest if Version(mpi.version).release < Version(oldest).release else ""
    return ""


def built_with(tree: Tree, toolchain: str) -> Path | None:
    """Return the launcher of the MPI that a module stands for which starts it by scripts; None of another module."""
    for name in ("mpirun", "mpiexec", "mpicxx", "mpicc"):
        script = tree.software / modules()[toolchain] / "bin" / name
        with suppress(OSError):
            if match := re.search(r'^exec "(/[^"]+)"', script.read_text(errors="replace"), re.MULTILINE):
                return Path(match[1]).with_name(Path(match[1]).name.replace(name, "mpirun"))
    return None


def is_of(tree: Tree, module: str, mpi: Program | None) -> bool:
    """Say whether a module that is there is no MPI, or the one that is given."""
    toolchain = next((candidate for candidate, name in modules().items() if name == module), "")
    mpirun = built_with(tree, toolchain) if toolchain else None
    return mpirun is None or (mpi is not None and mpirun == mpi.path)


def wrapper_of(mpi: Program, env: Mapping[str, str]) -> Path:
    """Return the compiler wrapper that lies beside a launcher, under the same variant of its name; or the first."""
    beside = mpi.path.with_name(mpi.path.name.replace("mpirun", "mpicxx"))
    return beside if beside.is_file() else Path(process.which("mpicxx", path=env["PATH"]) or beside)


def module_of(plan: Plan) -> str:
    """Return the module of the machine's MPI that a plan has; nothing if it brings its own."""
    return next((module for module in modules().values() if module in plan.modules), "")


def is_embedded(plan: Plan) -> bool:
    """Say whether the MPI of a plan is a wheel's."""
    module = module_of(plan)
    return any(step.module == module and "/embedded/" in step.easyconfig for step in plan.steps)


def library(machine: Host, plan: Plan) -> str:
    """Return the library that programs are linked with by the MPI of this machine; nothing of a wheel's."""
    return "" if is_embedded(plan) else own_library(machine)


def own_library(machine: Host) -> str:
    """Return the same where the plan does not count; nothing without an MPI."""
    return trial_compiles.abi(wrapper_of(machine.mpi, machine.env), machine.env) if machine.mpi else ""


def abi(machine: Host, plan: Plan) -> str:
    """Say by which library programs are linked with the MPI of this machine; nothing of a wheel's."""
    name = library(machine, plan)
    return f"; ABI {name}" if name else ""


def built_mpi(plan: Plan, machine: Host, inside: Environment, env: Mapping[str, str]) -> Mpi:
    """Return the MPI of what was built, by its launcher where that tells: that of MPICH may be another's."""
    mpi = machine.mpi
    if mpi and mpi.family in ("MVAPICH", "Cray MPICH") and module_of(plan):
        return Mpi(family=mpi.family, version=mpi.version)
    return launcher.mpi_of(inside, env, embedded=is_embedded(plan))


def untried(machine: Host, stack: Stack) -> str:
    """Say that a stack was built with no MPI of the family and first number of this machine's; nothing if it was."""
    if machine.mpi is None or not stack.tried:
        return ""
    if oldest := too_old(machine.mpi):
        older = f"{machine.mpi.family} {machine.mpi.version}"
        return f"          Not tried with {older}: envkit's recipes are for {machine.mpi.family} {oldest} and later."
    tried = list(dict.fromkeys(trial.mpi.partition(",")[0] for trial in stack.tried if " by " not in trial.mpi))
    own = f"{machine.mpi.family} {machine.mpi.version}".partition(".")[0]
    if any(version.partition(".")[0] == own for version in tried):
        return ""
    return f"          Not tried with {own}: {stack.name} was built and verified with {', '.join(tried)}."


def limits(machine: Host, plan: Plan, stack: Stack) -> Iterator[str]:
    """Yield why not another MPI that is there, what a wheel's cannot do, and what was not tried."""
    if not is_embedded(plan):
        yield from filter(None, (untried(machine, stack), another_release(machine), another_compiler(machine)))
    if is_embedded(plan):
        yield "          It knows no fast network: between nodes it speaks only TCP. Load the module of the site's MPI"
        yield "          (--load), or put its bin folder on PATH, to compile Horovod with that."
        if CRAY.is_dir():
            yield "          This is a Cray: --load PrgEnv-gnu --load cray-mpich has it compiled with Cray MPICH."
    elif others := [program for program in machine.other_mpis if toolchain_of(program)]:
        listing = ", ".join(f"{program.family} {program.version} ({program.path})" for program in others)
        yield f"          It is {machine.why_mpi}; --mpi would choose another: {listing}"
    told = without_wrappers(machine)
    yield from (f"          Not taken: {one}" for one in map(str, machine.refused_mpis) if one != told)


def without_wrappers(machine: Host) -> str:
    """Say which MPI is on PATH that programs cannot be compiled with, and why; nothing without one."""
    return str(machine.refused_mpis[0]) if machine.mpi is None and machine.refused_mpis else ""


def compiler_of(mpi: Program, env: Mapping[str, str]) -> Program | None:
    """Return the compiler that the wrapper of an MPI calls, where it tells; Cray's calls that of its PrgEnv."""
    wrapper = wrapper_of(mpi, env)
    word = "-showme:command" if mpi.family == "Open MPI" else "-show"
    answer = ask([str(wrapper), word], compiling(wrapper.parent, env))
    name = next(iter(answer.stdout.split()), "") if answer.status == 0 else ""
    compiler = process.which(name, path=env["PATH"]) if name else None
    if compiler is None:
        return None
    version = ask([compiler, "-dumpfullversion"], env)
    return Program(path=Path(compiler), version=version.stdout.strip() if version.status == 0 else "")


def another_release(machine: Host) -> str:
    """Say that the wrapper of an MPI compiles for another release than that of the launcher; nothing if it does not."""
    if machine.mpi is None or not machine.mpi.compiles:
        return ""
    return (
        f"          Its mpicxx compiles for release {machine.mpi.compiles}, and its mpirun is of {machine.mpi.version}."
    )


def another_compiler(machine: Host) -> str:
    """Say that the wrapper of an MPI calls another compiler than Horovod is compiled with; nothing if it does not."""
    if machine.mpi is None or machine.compiler is None:
        return ""
    called = compiler_of(machine.mpi, machine.env)
    if called is None or called.version.partition(".")[0] == machine.compiler.version.partition(".")[0]:
        return ""
    named = f"{called.path} {called.version}".strip()
    own = f"{machine.compiler.path} {machine.compiler.version}"
    return f"          Its mpicxx calls {named}; Horovod is compiled with {own}, through MPI's C interface only."
