"""How a plan is shown."""

from rich.console import Console

from envkit import fetch, host, install
from envkit.methods import easybuild


def show(work: install.Work, console: Console) -> int:
    """Print what an installation would do; return 0 if nothing stands in its way, otherwise 3."""
    machine, prefix = work.host, work.request.prefix

    def line(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    line(f"Stack:    {work.stack.name} ({work.stack.easyconfig}); {work.stack.status}")
    line(f"Prefix:   {prefix.root}")
    line(f"Machine:  {machine.machine} ({host.cpu_target()}), Python {machine.python.version} ({machine.python.path})")
    line(f"MPI:      {found(machine.mpi, 'openmpi' in work.plan.robot[0])}")
    line(f"CMake:    {found(machine.cmake, any('embedded/cmake' in folder for folder in work.plan.robot))}")
    if hooks := easybuild.site_hooks(dict(machine.env)):
        line(f"Hooks:    {hooks} (the site's own, called as well)")
    if machine.load:
        line(f"Loaded:   {', '.join(machine.load)}")
    line("")
    for step in work.plan.steps:
        line(f" * [{' ' if step.module in work.missing else 'x'}] {step.easyconfig} (module: {step.module})")
    left = [source for step in work.plan.steps if step.module in work.missing for source in step.sources]
    absent = fetch.missing(left, prefix.sources) if prefix.sources.is_dir() else left
    line("")
    line(
        f"{len(work.missing)} of {len(work.plan.steps)} modules to build; {len(absent)} of {len(left)} sources to fetch."
    )
    if expected := sum(work.stack.seconds.get(module, 5) for module in work.missing if work.stack.seconds):
        line(f"About {expected / 60:.0f} minutes on two cores.")
    problems = install.problems(work)
    for problem in problems:
        line(f"Problem: {problem.what}\n  -> {problem.fix}")
    return 3 if problems else 0


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
