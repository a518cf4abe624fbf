"""Installing: plan, preflight, lock and look again, fetch, build, verify, write the receipt."""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from envkit import build, fetch, host, launcher, locks, preflight, process, receipt
from envkit.errors import DiskFull, EnvkitError, Interrupted, UsageProblem
from envkit.plan import recipe_checksum
from envkit.prefix import Prefix
from envkit.progress import say
from envkit.provide import apptainer, easybuild, eessi
from envkit.provide.work import Work
from envkit.receipt import ImageReceipt, Installed, ModuleReceipt
from envkit.request import Request
from envkit.resources import easybuild_collection, recipes
from envkit.stack import Stack, select

if TYPE_CHECKING:
    from envkit.verify.report import Report

METHODS: dict[str, Callable[[Request, host.Host, Stack], Work]] = {
    "easybuild": easybuild.prepare,
    "eessi": eessi.prepare,
    "apptainer": apptainer.prepare,
}


def install(request: Request, console: Console) -> "Report | None":
    """Install a stack and prove it; return its report, None when there was nothing to do or to prove.

    Raises an EnvkitError that says what to do. An environment becomes visible only when it has passed.
    """
    if (there := already(request)) is not None:
        say_already(there, console)
        return None
    with stoppable():
        return install_now(request, console)


def install_now(request: Request, console: Console) -> "Report | None":
    """Install a stack that did not seem to be there."""
    if request.bundle is not None:
        request.prefix.create()
        fetch.read_bundle(request.bundle, request.prefix.sources)
    work = prepare(request)
    preflight.demand(work.problems(), work.stack)
    request.prefix.create()
    message = receipt.waiting(work.tree, work.stack.name)
    with (
        disk_full_explained(request.prefix),
        locks.held(work.tree, f"stack-{work.stack.name}", console, message),
    ):
        if (there := already(request)) is not None:
            say_already(there, console)
            return None
        say_forced(work, console)
        say_unused(work, console)
        say_resumed(work, console)
        folder = build.new_log_folder(request.prefix, work.stack.name)
        try:
            work.build(folder, console)
            return prove(work, folder, console)
        except EnvkitError:
            if request.source is not None:  # what was to be taken over leaves nothing to resume
                receipt.end(work.tree, work.stack.name)
            raise


@contextmanager
def stoppable() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end an installation at any point, in an orderly way."""
    try:
        with process.interruptible():
            yield
    except Interrupted as stopped:
        stopped.fix = stopped.fix or "Run the same command again: it resumes."
        raise


def prepare(request: Request) -> Work:
    """Look at the machine and resolve what was asked for; changes nothing. Raises HostProblem, PlanFailed."""
    machine = host.look(request.load)
    stack = chosen(request, machine.platform)
    return METHODS[stack.method](request, machine, stack)


def chosen(request: Request, platform: host.Platform) -> Stack:
    """Return the stack that was asked for. Raises UnknownStack, and UsageProblem for options that it does not take."""
    if request.source is not None or request.dockerfile is not None:
        return apptainer.adopted(request)
    stack = select(
        request.wanted,
        method=request.method,
        framework=request.framework,
        accelerator=request.accelerator,
        release=request.release,
        platform=platform,
    )
    if stack.method != "eessi" and (request.release or request.access):
        raise UsageProblem(what=f"--version and --access go with --method eessi; {stack.name} is by {stack.method}.")
    if stack.method == "eessi" and request.load:
        raise UsageProblem(what=f"--load does not go with {stack.name}: a site's modules are not seen in EESSI.")
    return stack


def already(request: Request) -> Installed | None:
    """Return the receipt of what is asked for, if it is installed and no rebuild is wanted. Quick."""
    here = host.Platform.own()
    stack = chosen(request, here)
    path = receipt.path_of(request.prefix.tree(here, stack.release), stack.name)
    if request.rebuild or not path.is_file():
        return None
    found = receipt.read(path)
    if isinstance(found, ImageReceipt):
        is_other = apptainer.is_other(request, stack, found)
    else:
        is_other = isinstance(found, ModuleReceipt) and found.load != request.load
    return None if is_other or found.damage() else found


def say_already(there: Installed, console: Console) -> None:
    """Say that there is nothing to do, and which recipes have changed since."""
    say(console, f"{there.name} is installed already and passed on {there.verified}. Nothing to do.")
    edited = [] if isinstance(there, ImageReceipt) else [module for module in there.modules if changed(module)]
    for module in edited:
        say(console, f"The recipe of {module.name} has changed since: {current_recipe(module.easyconfig)}")
    if edited:
        say(console, f"Build again with 'envkit install {there.name} --rebuild'.")


def changed(module: receipt.Module) -> bool:
    """Say whether the recipe of an installed module differs from the one it was made from."""
    return recipe_checksum(current_recipe(module.easyconfig)) not in ("", module.sha256)


def current_recipe(easyconfig: str) -> Path:
    """Return where a recipe lies now: with this envkit, with this EasyBuild, or where it was when it was used."""
    tail = easyconfig.rpartition("/easyconfigs/")[2]
    for folder in (recipes("easyconfigs"), easybuild_collection()):
        if (folder / tail).is_file():
            return folder / tail
    return Path(easyconfig)


def say_forced(work: Work, console: Console) -> None:
    """Say what is known to fail and is tried all the same."""
    for problem in preflight.known_problems(work.host, work.stack, force=False) if work.request.force else ():
        say(console, f"{problem.what} It is tried all the same (--force).")


def say_unused(work: Work, console: Console) -> None:
    """Say that this machine has a GPU which the stack does not use, if nobody asked for that."""
    gpu = host.accelerator()
    if work.request.accelerator == "auto" and gpu not in (host.Accelerator.CPU, work.stack.accelerator):
        say(console, f"This machine has a GPU ({gpu}), which {work.stack.name} does not use: it is for CPUs.")


def say_resumed(work: Work, console: Console) -> None:
    """Say what an earlier installation that did not end has left to do."""
    note = receipt.unfinished(work.tree, work.stack.name)
    if note is None:
        return
    missing = work.missing
    done, left = len(work.steps) - len(missing), ", ".join(missing) or "the verification"
    kind = "layers" if work.stack.method == "apptainer" else "modules"
    say(console, f"Resuming what began {note.began} and ended while {note.stage} (log: {note.log}).")
    say(console, f"{done} of {len(work.steps)} {kind} are in place; left: {left}.")


@contextmanager
def disk_full_explained(prefix: Prefix) -> Iterator[None]:
    """Turn a full disk that this process itself meets into DiskFull."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(
            what=f"{prefix.root} is full.",
            why=f"{error.strerror}: {error.filename or prefix.root}",
            fix="Free space, or choose another --prefix, then run the same command again: it resumes.",
        ) from error


def prove(work: Work, folder: Path, console: Console) -> "Report | None":
    """Verify what was built on two ranks; write the receipt if it passes."""
    from envkit.verify import target
    from envkit.verify.launch import verify
    from envkit.verify.report import render

    receipt.begin(work.tree, work.stack.name, "verifying", folder)
    made = work.describe(folder)
    report = None
    if made.horovod:
        say(console, "Verifying on 2 ranks")
        report = verify(target.installed(made, work.entered(made)), launcher.Wanted(ranks=2), env=work.env)
        console.print(render(report, width=console.width), markup=False, highlight=False, soft_wrap=True, end="")
        if report.verdict != "pass":
            say(console, f"{made.name} was built but does not pass, so it is not offered as an environment.")
            say(console, "Mend the cause and run the same command again: only what is missing is repeated.")
            return report
    else:
        say(console, f"{made.name} is built. It has no Horovod, so there is nothing to verify.")
    receipt.write(receipt.path_of(work.tree, made.name), work.settle(made))
    receipt.end(work.tree, made.name)
    say(console, f"Installed {made.name}. Enter it with 'envkit shell {made.name}'.")
    return report
