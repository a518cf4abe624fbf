"""Building what is missing of a plan: one eb, watched through its hooks, nothing of it left behind."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from rich.console import Console

from envkit import diagnose
from envkit.easybuild import eb_command, machine_tools
from envkit.environments import filelocks, manifest, receipt
from envkit.environments.prefix import ALMOST_NOTHING, Prefix, Tree
from envkit.errors import BuildFailed, DiskFull, Interrupted
from envkit.machine.host import Host
from envkit.planning.plan import Plan, Step
from envkit.report.progress import BuildProgress, Events, say
from envkit.system.resources import recipes

QUICK_S = 5  # that a module takes which only says where something is, or unpacks some wheels
SHOWN = 5  # modules that are named


def missing(plan: Plan, tree: Tree) -> list[str]:
    """Return the modules of a plan that are not there yet, in the order of building."""
    return [step.module for step in plan.steps if not tree.has(step.module)]


def outdated(plan: Plan, tree: Tree) -> list[str]:
    """Return the modules to build again: whose recipe has changed, or which a cache had, and what depends on them.

    When there is none it is the last one, the stack's own.
    """
    records = {step.module: receipt.built(tree, step.module) for step in plan.steps}
    affected = {s.module for s in plan.steps if (r := records[s.module]) and (r.cached or r.sha256 != s.checksum())}
    affected = affected or {plan.steps[-1].module}
    for step in plan.steps:
        if affected & set(step.dependencies):
            affected.add(step.module)
    return [s.module for s in plan.steps if s.module in affected and tree.has(s.module)]


def build(job: eb_command.Build, seconds: dict[str, int], console: Console) -> None:
    """Build what is missing. Raises BuildFailed, DiskFull, Interrupted.

    A module that another process is building is waited for, and not built again.
    """
    with claimed(job, console) as held:
        if not held:
            return
        modules = list(held)
        count = f"{len(modules)} of {len(job.plan.steps)} modules"
        say(console, f"Building {count}; log: {job.log}")
        with BuildProgress(console, modules, durations(job.tree, modules, seconds)) as shown:
            watched(job, shown, held)
    shutil.rmtree(job.folder / "tmp", ignore_errors=True)


@contextmanager
def claimed(job: eb_command.Build, console: Console) -> Iterator[dict[str, FileLock]]:
    """Hold the locks of the modules that are to be built, by module, in the order of building.

    One that another process is building is waited for, and left out where that has built it.
    """
    tree = job.tree
    with ExitStack() as stack:
        held = {}
        for module in sorted(missing(job.plan, tree)):
            message = f"Another process is building {module}; waiting for it."
            held[module] = stack.enter_context(filelocks.held(tree, filelocks.lock_name(module), console, message))
        modules = missing(job.plan, tree)
        for module in set(held) - set(modules):
            held[module].release(force=True)
        if modules:
            shutil.rmtree(tree.locks / "easybuild", ignore_errors=True)
        yield {module: held[module] for module in modules}


def durations(tree: Tree, modules: Sequence[str], seconds: Mapping[str, int]) -> dict[str, int]:
    """Return how long modules take (s), as far as it is known: what each took here before, else ``seconds``."""
    records = {module: receipt.built(tree, module) for module in modules}
    measured = {module: round(built.seconds) for module, built in records.items() if built and not built.cached}
    return {**seconds, **measured}


def estimate(tree: Tree, steps: Sequence[Step], seconds: Mapping[str, int]) -> str:
    """Return a line on how long some modules take to build; an empty one where nothing can be said.

    Of a recipe of envkit, what has no time in stacks.toml takes seconds; one of EasyBuild's collection may take hours,
    unless it stands for what the machine has.
    """
    modules = [step.module for step in steps]
    known = durations(tree, modules, seconds)
    rest = [step for step in steps if step.module not in known]
    own = recipes("easyconfigs")
    longer = [
        step.module
        for step in rest
        if not step.module.endswith("/system") and not Path(step.easyconfig).is_relative_to(own)
    ]
    names = ", ".join([*longer[:SHOWN], *([f"and {len(longer) - SHOWN} more"] if len(longer) > SHOWN else [])])
    if len(rest) == len(steps):
        return f"How long this takes is not known, hours perhaps: {names}." if longer else ""
    minutes = (sum(known.get(module, 0) for module in modules) + QUICK_S * (len(rest) - len(longer))) / 60
    is_of_here = any(known[module] != seconds.get(module) for module in modules if module in known)
    text = f"About {max(minutes, 1):.0f} minute{'s' if minutes >= 1.5 else ''}{'' if is_of_here else ' on two cores'}"
    return f"{text}, and longer for what was never built here: {names}." if longer else f"{text}."


def watched(job: eb_command.Build, shown: BuildProgress, held: dict[str, FileLock]) -> None:
    """Run eb under the eyes of its hooks; a module's lock is dropped as soon as the module is there."""
    tree, steps = job.tree, {step.module: step for step in job.plan.steps}
    events = Events(job.events)
    failures: list[str] = []
    logs: list[Path] = []

    def watch() -> None:
        for event in events.new():
            shown.on(event)
            module = event.get("module", "")
            if event["event"] == "begin":
                logs.append(Path(event["log"]))
            if event["event"] == "failed":
                failures.append(event["message"])
            if event["event"] == "ended" and module in steps and module in shown.took and tree.has(module):
                record(job, steps[module], shown.took.get(module, 0.0))
                if module in held:
                    held[module].release(force=True)
        shown.tick()

    try:
        status = eb_command.build(job, watch)
    except Interrupted as stopped:
        stopped.why = f"{shown.module or 'eb'} was being built; nothing of the build goes on."
        stopped.fix = f"Run the same command again: it resumes. Log: {job.log}"
        raise
    if status:
        raise failed(job, shown, status, failures, logs[-1:])


def record(job: eb_command.Build, step: Step, seconds: float) -> None:
    """Record what a module was made from, and what its files are."""
    manifest.write(job.tree, step.module)
    note(job.tree, step, seconds, job.machine)


def note(tree: Tree, step: Step, seconds: float, machine: Host, cached: receipt.Cached | None = None) -> None:
    """Record what a module was made from and with, and the cache that it was taken from, if it was."""
    built = receipt.Built(
        module=step.module,
        easyconfig=step.easyconfig,
        sha256=step.checksum(),
        seconds=round(seconds, 1),
        part=step.part(),
        cached=cached,
        tools=machine_tools.of(step, machine),
    )
    receipt.write(receipt.built_path(tree, step.module), built)


@dataclass(frozen=True, kw_only=True)
class BuildCause:
    """Why the build of a module failed, what to do about it, where that is told, and whether it was a full disk."""

    why: str
    fix: str
    log: Path
    is_full: bool


def failed(
    job: eb_command.Build, shown: BuildProgress, status: int, failures: Sequence[str], logs: Sequence[Path]
) -> BuildFailed | DiskFull:
    """Say why a build failed, in a few lines, from the log of the module, else from the fullest that there is."""
    candidates = [log for log in logs if log.is_file()] or (job.folder / "tmp").rglob("easybuild-*.log")
    log = max(candidates, key=lambda path: path.stat().st_size, default=job.log)
    killed = f"eb was ended by signal {status - 128}; was there too little memory?" if status > 128 else ""
    reason = cause((log, job.log), "\n".join(failures) or killed or f"See {job.log}.", job.prefix)
    what = f"Building {shown.module} failed in step {shown.step}." if shown.module else "The build did not start."
    kind = DiskFull if reason.is_full else BuildFailed
    return kind(what=what, why=reason.why, fix=f"{reason.fix}\nLog: {reason.log}")


def cause(logs: Sequence[Path], said: str, prefix: Prefix) -> BuildCause:
    """Return the first cause in the first of some logs that has one, else what eb itself ``said``."""
    places = ((log, finding) for log in logs if (finding := diagnose.first_cause_in(log)))
    log, first = next(places, (logs[0], None))
    room = shutil.disk_usage(prefix.root).free
    told_full = first is not None and first.rule.id == "disk-full"
    why, fix = said, "Look into the log, mend the cause, and run the same command again: it resumes."
    if first is not None:
        why, fix = f"{first.cause}\n{log}:{first.number}: {first.line}", first.fix
    if room < ALMOST_NOTHING and not told_full:
        why = f"The disk is full: {room // 1_000_000} MB are free at {prefix.root}."
        fix = "Free space, or choose another --prefix, then run the same command again: it resumes."
    return BuildCause(why=why, fix=fix, log=logs[0], is_full=told_full or room < ALMOST_NOTHING)
