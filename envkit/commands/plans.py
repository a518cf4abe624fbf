"""How a plan is shown."""

import os
from collections.abc import Iterator

from rich.console import Console

from envkit import fetch, host, install
from envkit.methods import easybuild
from envkit.progress import say


def show(work: install.Work, console: Console) -> int:
    """Print what an installation would do; return 0 if nothing stands in its way, otherwise 3."""
    problems = install.problems(work)
    lines = [*heading(work), "", *listing(work), *(f"Problem: {p.what}\n  -> {p.fix}" for p in problems)]
    say(console, "\n".join(lines))
    return 3 if problems else 0


def heading(work: install.Work) -> Iterator[str]:
    """Yield what is installed, where, and with what of the machine."""
    machine, robot = work.host, work.plan.robot
    yield f"Stack:    {work.stack.name} ({work.stack.easyconfig}); {work.stack.status}"
    yield f"Prefix:   {work.request.prefix.root}"
    yield f"Machine:  {machine.machine} ({host.cpu_target()}), Python {machine.python.version} ({machine.python.path})"
    yield f"MPI:      {found(machine.mpi, any(folder.endswith('embedded/openmpi') for folder in robot))}"
    yield f"CMake:    {found(machine.cmake, any(folder.endswith('embedded/cmake') for folder in robot))}"
    if hooks := easybuild.site_hooks(os.environ):
        yield f"Hooks:    {hooks} (the site's own, called as well)"
    if machine.load:
        yield f"Loaded:   {', '.join(machine.load)}"


def listing(work: install.Work) -> Iterator[str]:
    """Yield the steps as eb lists them, and how much there is to do."""
    missing = set(work.missing)
    for step in work.plan.steps:
        yield f" * [{' ' if step.module in missing else 'x'}] {step.easyconfig} (module: {step.module})"
    left = [source for step in work.plan.steps if step.module in missing for source in step.sources]
    absent = fetch.missing(left, work.request.prefix.sources) if work.request.prefix.sources.is_dir() else left
    modules = f"{len(missing)} of {len(work.plan.steps)} modules to build"
    yield f"\n{modules}; {len(absent)} of {len(left)} sources to fetch."
    if expected := sum(work.stack.seconds.get(module, 5) for module in missing if work.stack.seconds):
        yield f"About {expected / 60:.0f} minutes on two cores."


def found(program: host.Program | None, stood_in: bool) -> str:
    """Say which program is used."""
    if stood_in or program is None:
        why = (
            f"the host's {program.family or program.path.name} {program.version} does not fit"
            if program
            else "none on this machine"
        )
        return f"from a wheel ({why})"
    return f"{program.family} {program.version} ({program.path})".strip()
