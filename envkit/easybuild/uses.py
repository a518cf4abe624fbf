"""The parts of the machine that a plan uses: in words, and as a lock holds them."""

import os
from collections.abc import Iterator

from envkit.easybuild import eb_command, mpi
from envkit.environments.lockfile import LockedMachine
from envkit.machine import host
from envkit.planning.chosen_mpi import Unloaded
from envkit.planning.method import FoundMpi, MpiOfSession, PlannedMpi
from envkit.planning.plan import Plan
from envkit.planning.stack import Stack
from envkit.system import process

OF_WHEEL = "Open MPI"


def lines(machine: host.Host, plan: Plan, stack: Stack, offered: Unloaded | None = None) -> Iterator[str]:
    """Yield what a plan uses of the machine; ``offered`` is the MPI that only the caller's session has."""
    own = embedded(plan)
    python = machine.python
    yield f"Machine:  {machine.machine} ({host.cpu_target()}), Python {python.version} ({python.path})"
    machines = dict.fromkeys(trial.machine for trial in stack.tried)
    pythons = dict.fromkeys(trial.python for trial in stack.tried if trial.machine == machine.machine)
    if machines and machine.machine not in machines:
        yield f"          Not tried on {machine.machine}: {stack.name} was built on {', '.join(machines)}."
    elif pythons and python.minor not in pythons:
        yield f"          Not tried with Python {python.minor}: {stack.name} was built with {', '.join(pythons)}."
    if mpi.module_of(plan):
        named = found(machine.mpi, mpi.is_embedded(plan), not_used(machine, offered))
        yield f"MPI:      {named}{mpi.abi(machine, plan)}"
        if offered:
            yield from (f"          {offered.what}", f"          {offered.fix}")
        yield from mpi.limits(machine, plan, stack)
    if "CMake/system" in own:
        hangs = host.not_ended(process.which("cmake", path=machine.env["PATH"]))
        yield f"CMake:    {found(machine.cmake, own['CMake/system'], hangs)}"
    if hooks := eb_command.site_hooks(os.environ):
        yield f"Hooks:    {hooks} (the site's own, called as well)"
    if machine.load:
        yield f"Loaded:   {', '.join(machine.load)}"


def not_used(machine: host.Host, offered: Unloaded | None) -> str:
    """Say which MPI is there where none can be used; nothing where there is none at all."""
    return mpi.without_wrappers(machine) or ("none without the modules of your session" if offered else "")


def planned_mpi(machine: host.Host, plan: Plan, offered: Unloaded | None) -> PlannedMpi | None:
    """Return the MPI of a plan for scripts; None where it brings its own."""
    if not mpi.module_of(plan):
        return None
    is_wheel, own = mpi.is_embedded(plan), machine.mpi
    taken = of_program(own) if own and not is_wheel else FoundMpi(family=OF_WHEEL * is_wheel, version="", path="")
    return PlannedMpi(
        family=taken.family,
        version=taken.version,
        path=taken.path,
        abi=mpi.library(machine, plan),
        why=machine.why_mpi if taken.path else why_wheel(own, not_used(machine, offered)),
        from_wheel=is_wheel,
        others=tuple(of_program(one) for one in machine.other_mpis if mpi.toolchain_of(one)),
        session=of_session(offered) if offered else None,
    )


def of_program(program: host.Program) -> FoundMpi:
    """Return an MPI for scripts."""
    return FoundMpi(family=program.family, version=program.version, path=str(program.path))


def of_session(offered: Unloaded) -> MpiOfSession:
    """Return an MPI that only the session has for scripts."""
    one = offered.mpi
    return MpiOfSession(family=one.family, version=one.version, path=str(one.path), load=offered.load)


def counts(machine: host.Host, plan: Plan) -> LockedMachine:
    """Return what a lock holds of the machine."""
    named = f"{machine.mpi.family} {machine.mpi.version}" if machine.mpi else ""
    return LockedMachine(
        type=machine.machine,
        python=machine.python.version,
        compiler=f"GCC {machine.compiler.version}" if machine.compiler else "",
        mpi="from a wheel" if mpi.is_embedded(plan) else named if mpi.module_of(plan) else "",
        load=machine.load,
    )


def embedded(plan: Plan) -> dict[str, bool]:
    """Return for each module of a plan whether its recipe stands in for what the host lacks."""
    return {step.module: "/embedded/" in step.easyconfig for step in plan.steps}


def found(program: host.Program | None, stood_in: bool, otherwise: str = "") -> str:
    """Say which program is used; ``otherwise`` what there is where there is none to be used."""
    if stood_in or program is None:
        return f"from a wheel ({why_wheel(program, otherwise)})"
    return f"{program.family} {program.version} ({program.path})".strip()


def why_wheel(program: host.Program | None, otherwise: str) -> str:
    """Say why a wheel is used in the place of a program."""
    if program is None:
        return otherwise or "none on this machine"
    return f"the host's {program.family or program.path.name} {program.version} does not fit"
