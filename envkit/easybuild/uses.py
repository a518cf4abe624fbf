"""The parts of the machine that a plan uses: in words, and as a lock holds them."""

import os
from collections.abc import Iterator

from envkit.easybuild import eb_command, mpi
from envkit.environments.lockfile import LockedMachine
from envkit.machine import host
from envkit.planning import chosen_mpi
from envkit.planning.plan import Plan
from envkit.planning.stack import Stack


def lines(machine: host.Host, plan: Plan, stack: Stack) -> Iterator[str]:
    """Yield what a plan uses of the machine."""
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
        offered = chosen_mpi.unloaded(machine)
        otherwise = mpi.without_wrappers(machine) or ("none without the modules of your session" if offered else "")
        named = found(machine.mpi, mpi.is_embedded(plan), otherwise)
        yield f"MPI:      {named}{mpi.abi(machine, plan)}"
        if offered:
            yield from (f"          {offered.what}", f"          {offered.fix}")
        yield from mpi.limits(machine, plan, stack)
    if "CMake/system" in own:
        yield f"CMake:    {found(machine.cmake, own['CMake/system'])}"
    if hooks := eb_command.site_hooks(os.environ):
        yield f"Hooks:    {hooks} (the site's own, called as well)"
    if machine.load:
        yield f"Loaded:   {', '.join(machine.load)}"


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
        why = (
            f"the host's {program.family or program.path.name} {program.version} does not fit"
            if program
            else otherwise or "none on this machine"
        )
        return f"from a wheel ({why})"
    return f"{program.family} {program.version} ({program.path})".strip()
