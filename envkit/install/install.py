"""Installing: plan, preflight, lock and look again, fetch, build, verify, write the receipt."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import dropwhile, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from envkit.apptainer import method as apptainer
from envkit.environments import activation, filelocks, lockfile, receipt, replaced, trust
from envkit.environments.manifest import Damage, opening
from envkit.environments.name_syntax import is_name, shown
from envkit.environments.prefix import Prefix, Tree, locate, prune_logs
from envkit.environments.receipt import Receipt
from envkit.errors import (
    BuildFailed,
    DiskFull,
    EnvironmentDamaged,
    EnvkitError,
    HorovodMissing,
    HostProblem,
    Interrupted,
    JobLost,
    Problem,
    SourceMissing,
    SourcesMissing,
    UnknownStack,
    UsageProblem,
    of_storage,
)
from envkit.install import earlier, preference, select, shared_python
from envkit.knowledge import methods
from envkit.launch import launcher
from envkit.machine import host
from envkit.methods import installed, registry
from envkit.planning import chosen_mpi, extras, preflight
from envkit.planning.method import Installation
from envkit.planning.plan import current_recipe, recipe_checksum
from envkit.planning.request import Request
from envkit.planning.stack import FRAMEWORKS, Stack, from_recipe
from envkit.planning.stack import select as select_stack
from envkit.report.progress import say
from envkit.sources import fetch, pipconfig, signature
from envkit.sources.bundle import AGAIN
from envkit.system import process, umask

if TYPE_CHECKING:
    from envkit.binary.build_flags import BuildFlags
    from envkit.verify.report import Report

SHOWN = 5  # damaged files of a module


def install(request: Request, console: Console) -> "Report | None":
    """Install a stack and prove it; return its report, None when there was nothing to do or to prove.

    Raises an EnvkitError that says what to do. An environment becomes visible only when it has passed.
    """
    trust.require_place(request.prefix)
    if (existing := find_installed(request)) is not None:
        shared_python.protect(existing)
        say_already(existing, request.prefix, console)
        return None
    with stoppable():
        return install_now(request, console)


def install_now(request: Request, console: Console, old: Receipt | None = None) -> "Report | None":
    """Install a stack that did not seem to be there, or in the place of an ``old`` one.

    Raises HostProblem where the old one has become another one before its lock was had.
    """
    with umask.like(request.prefix.root):
        return install_into(request, console, old)


def install_into(request: Request, console: Console, old: Receipt | None) -> "Report | None":
    """Do that, with a umask that fits the prefix."""
    work = ready(request, console)
    request.prefix.create()
    message = receipt.waiting(work.tree, work.stack.name)
    with (
        storage_explained(request.prefix),
        filelocks.held(work.tree, f"stack-{work.stack.name}", console, message),
        replaced.guarded(work.tree, work.stack.name, partial(say_put_back, work, console)),
    ):
        if old is not None:
            installed.require_unchanged(work.tree, old)
        if (existing := find_installed(work.request)) is not None:
            say_already(existing, request.prefix, console)
            return None
        say_damaged(work, console)
        say_forced(work, console)
        say_unused(work, console)
        earlier.say_resumed(work, console)
        for line in (*of_mpi(work), *taken_over(work)):
            say(console, line)
        folder = request.prefix.new_log_folder(work.stack.name)
        forget_logs(work)
        try:
            work.build(folder, console)
            return prove(work, folder, console)
        except EnvkitError as error:
            if isinstance(error, BuildFailed):
                earlier.remember(work, error)
            if request.source is not None:  # what was to be taken over leaves nothing to resume
                receipt.end(work.tree, work.stack.name)
            raise


def ready(request: Request, console: Console) -> Installation:
    """Prepare an installation that nothing stands in the way of. Raises HostProblem, PlanFailed, SourcesMissing."""
    try:
        with nullcontext() if request.offline else pipconfig.meanwhile():
            work = supplied(request)
            say_differences(work, console)
            preflight.require(problems(work), work.stack)
    except (HostProblem, SourcesMissing) as error:
        if other := another_framework(request):
            method = "" if request.method in (None, methods.AUTO) else f" --method {request.method}"
            error.fix += f"\nNothing is known to be lacking for {other}: {own_command()} install {other}{method}"
        raise
    return work


def another_framework(request: Request) -> str:
    """Return the framework that this machine can have in the place of the one that was asked for; nothing if none."""
    asked = preference.asked_framework(request)
    if asked not in FRAMEWORKS or request.wanted not in (None, asked) or request.source or request.dockerfile:
        return ""
    for other in FRAMEWORKS:
        with suppress(EnvkitError):
            instead = replace(request, wanted=None, framework=other, tell=lambda _: None)
            if other != asked and not problems(prepare(instead)):
                return other
    return ""


def supplied(request: Request) -> Installation:
    """Prepare an installation; what a bundle has for it is in the cache then, as far as the recipes pin it."""
    if request.bundle is None:
        return prepare(request)
    request.prefix.create()
    with signature.required(request.bundle, request.signed_by, trust.trusted()) as stream:
        brought = fetch.read_bundle(request.bundle, request.prefix.sources, stream)
    work = prepare(request)
    fetch.admit(brought, work.sources, request.prefix.sources, request.bundle)
    return work


def planned(request: Request) -> Installation:
    """Prepare an installation that is only to be shown: a bundle is read, and nothing of it is unpacked."""
    if request.bundle is None:
        return prepare(request)
    with signature.required(request.bundle, request.signed_by, trust.trusted()) as stream:
        return prepare(replace(request, carried=fetch.read_manifest(request.bundle, stream)))


def of_bundle(work: Installation) -> Iterator[str]:
    """Yield what an installation would take from a bundle, which is read for a plan alone."""
    carried, request = work.request.carried, work.request
    if carried is not None:
        absent = {source.place for source in preflight.lacking(work.sources, request.prefix, None)}
        pins = {source.place: source.sha256 for source in work.sources}
        right = {entry.filename for entry in carried.files if pins.get(entry.filename) in (None, entry.sha256)}
        taken = sorted(absent & right)
        yield f"Bundle:   {len(taken)} of its {len(carried.files)} files, which the prefix lacks, would be taken"
        yield from (f"  {shown(name)}" for name in taken)


def forget_logs(work: Installation) -> None:
    """Remove the logs of installations of this stack that are long past, but for those that something names."""
    name = work.stack.name
    notes = [receipt.unfinished(tree, name) for tree in work.request.prefix.trees(os.uname().machine)]
    needed = {old.log for old in installed.installed(work.request.prefix)} | {note.log for note in notes if note}
    prune_logs(work.request.prefix, name, needed)


def say_put_back(work: Installation, console: Console) -> None:
    """Say that what was to be replaced is there again."""
    name, new = work.stack.name, replaced.new(work.tree, work.stack.name).root
    say(console, f"{name} is as it was before.")
    if any(new.glob("built/*.json")):
        wanted = work.request.wanted if (work.request.wanted or "").endswith(".eb") else name
        again = f"envkit repair {name}" if work.request.again else f"envkit install {wanted} --rebuild"
        again += f" --prefix {work.request.prefix.root}"
        say(console, f"What was built is kept in {new}: '{again}' goes on from there.")


@contextmanager
def stoppable() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end an installation at any point, in an orderly way."""
    try:
        with process.interruptible():
            yield
    except Interrupted as stopped:
        stopped.fix = stopped.fix or "Run the same command again: it resumes."
        raise


def prepare(request: Request) -> Installation:
    """Look at the machine and resolve what was asked for; changes nothing. Raises HostProblem, PlanFailed.

    Where the method is left open, the request is told which it is, and why.
    """
    trust.require_place(request.prefix)
    if request.wanted is not None and request.wanted.endswith(".eb") and Path(request.wanted).is_file():
        from_recipe(request.wanted)  # a name that cannot be is refused before the machine is looked at
    machine = chosen_mpi.detect(request)
    if preference.is_open(request):
        if "mpi" not in request.configured:
            chosen_mpi.require(request, machine)
        return select.select(request, machine)
    stack = chosen(request, machine.platform)
    return registry.method(stack.method).prepare(request, machine, stack)


def problems(work: Installation) -> list[Problem]:
    """Return everything that would stop an installation, with what keeps a lock from being honoured."""
    locked = work.request.locked
    carried = work.request.carried
    wrong = fetch.contradictions(carried, work.sources) if carried else ()
    contradicting = [SourceMissing(what=f"The bundle: {line}", fix=AGAIN) for line in wrong]
    return [*work.problems(), *contradicting, *(lockfile.refusals(locked, work.lock) if locked else ())]


def differences(work: Installation) -> list[str]:
    """Say in what the result will not be what is locked, though the lock is honoured."""
    locked = work.request.locked
    return [f"Differs:  {text}" for text in lockfile.differences(locked, work.lock)] if locked else []


def say_differences(work: Installation, console: Console) -> None:
    """Print them, before anything is done."""
    for line in differences(work):
        say(console, line)


def chosen(request: Request, platform: host.Platform) -> Stack:
    """Return the stack that was asked for. Raises UnknownStack, and UsageProblem for options that it does not take."""
    if request.source is not None or request.dockerfile is not None:
        stack = apptainer.adopted(request)
    else:
        stack = selected(request, platform)
    if request.locked and (stack.name, stack.method) != (request.locked.name, request.locked.method):
        raise UsageProblem(
            what=f"The lock is of {request.locked.name} by {request.locked.method}, not of {stack.name}.",
            fix="Leave out STACK, or give the recipe or the image that the lock was made with.",
        )
    for option in preference.options(request):
        if option.method != stack.method:
            raise UsageProblem(
                what=f"{option.words} goes with --method {option.method}; {stack.name} is by {stack.method}.",
                fix="Leave it out.",
            )
    if request.extras:
        extras.added(stack, request.extras)
    if refused := preference.refused_option(stack, request):
        raise UsageProblem(what=f"What was asked for does not go with {stack.name}: {refused.what}", fix=refused.fix)
    return stack


def selected(request: Request, platform: host.Platform) -> Stack:
    """Return the stack that a request names. Raises UnknownStack."""
    try:
        return select_stack(
            request.wanted,
            method=None if request.method == methods.AUTO else request.method,
            framework=request.framework,
            accelerator=request.accelerator,
            release=request.release,
            platform=platform,
        )
    except UnknownStack as error:
        if request.locked is None or request.wanted != request.locked.name:
            raise no_longer(request, error) from error
        raise UnknownStack(
            what=f"The lock is of {request.locked.name}, which is no stack of envkit's, nor one that your site offers.",
            fix="Give what it was made from as well: envkit install ./RECIPE.eb --locked FILE, "
            "or with --from or --from-dockerfile.",
        ) from error


def no_longer(request: Request, error: UnknownStack) -> UnknownStack:
    """Return what is wrong with a name that no stack has: an environment may have it, which was made by one."""
    wanted = request.wanted or ""
    trees = request.prefix.trees(os.uname().machine) if is_name(wanted) else []
    if not any(installed.there(tree, wanted) for tree in trees):
        return error
    return UnknownStack(
        what=f"{wanted} is installed, and there is no stack of that name any more.",
        why="It was made by one that was offered under that name. It is left as it is.",
        fix=f"Use it: envkit run {wanted} -- COMMAND. 'envkit list' has the stacks that there are.",
    )


def find_installed(request: Request) -> Receipt | None:
    """Return the receipt of what is asked for, by any method left open, if it is installed and no rebuild is wanted.

    Quick. Raises HostProblem for one that is not entered, since others can change it.
    """
    for candidate in select.installed(request, host.accelerator()):
        existing = None
        # Where the method is open, what one stack does not have another one may.
        with suppress(*([UsageProblem] if preference.is_open(request) else [])):
            existing = installed_for(candidate)
        if existing is not None:
            tree = Tree(root=Path(existing.tree))
            trust.require(tree.root.parent, tree, receipt.path_of(tree, existing.name))
            return existing
    return None


def installed_for(request: Request) -> Receipt | None:
    """Return the receipt of what a request names, if it is installed in one of its prefixes.

    A damaged one that comes first is what the installation mends.
    """
    here = host.Platform.own()
    stack = chosen(request, here)
    trees = () if request.rebuild else (prefix.tree(here, stack.release) for prefix in request.prefix.every)
    is_other = registry.method(stack.method).is_other
    for tree in trees:
        found = installed.there(tree, stack.name)
        if found is not None and not is_other(request, stack, found) and as_locked(request, found):
            damaged = found.damaged(is_quick=True)
            require_readable(found.name, damaged)
            return None if request.again or found.damage() or found.gone() or damaged else found
    return None


def require_readable(name: str, damaged: Sequence[Damage]) -> None:
    """Require that this user may read the files of an environment, whether they are whole or not.

    Raises EnvironmentDamaged.
    """
    if closed := [damage for damage in damaged if damage.how == "unreadable"]:
        first, more = closed[0], f" and {len(closed) - 1} more" if closed[1:] else ""
        raise EnvironmentDamaged(
            what=f"{name} may be whole: you may not read {shown(first.path)} ({first.access}){more}.",
            why="What cannot be read cannot be compared; building it again would not change who may read it.",
            fix=f"Have its owner, or an administrator, run: {opening(closed)}",
        )


def as_locked(request: Request, environment: Receipt) -> bool:
    """Say whether what is installed is what is locked, if anything is."""
    return request.locked is None or bool(
        environment.lock and not list(lockfile.refusals(request.locked, environment.lock))
    )


def of_mpi(work: Installation) -> Iterator[str]:
    """Yield which MPI an installation takes, and why, as its plan says it: a line, and those indented below it."""
    following = dropwhile(lambda line: not line.startswith("MPI:"), work.heading())
    yield from islice(following, 1)
    yield from takewhile(lambda line: line.startswith(" "), following)


def taken_over(work: Installation) -> Iterator[str]:
    """Yield that the name stands for an environment of another MPI, and will stand for the new one."""
    old = installed.there(work.tree, work.stack.name)
    if old and old.mpi and work.stack.module and work.stack.module not in old.names:
        yield f"Replaces: {old.name} is the one with {old.mpi.family} {old.mpi.version} until the new one has passed,"
        yield "          and the new one from then on. What was built of the other stays: --mpi brings it back."


def say_already(environment: Receipt, prefix: Prefix, console: Console) -> None:
    """Say that there is nothing to do, and which recipes have changed since."""
    state = f"passed on {environment.verified}" if environment.horovod else "there is no Horovod in it to verify"
    place = Path(environment.tree).parent
    own, tree = prefix.root, Path(environment.tree).name
    where = "" if receipt.is_same(place, own) else f" in {place}"
    say(console, f"{environment.name} is installed already{where} and {state}. Nothing to do.")
    if where:
        named = (at.root for at in prefix.every if installed.there(Tree(root=at.root / tree), environment.name))
        if (first := next(named, place)) != place:
            say(console, f"Without --prefix {place} the name means another one, in {first}.")
        say(console, f"To have one of your own: envkit install {environment.name} --prefix {own}")
    edited = [module for module in environment.recipes if changed(module)]
    for module in edited:
        say(console, f"The recipe of {module.name} has changed since: {current_recipe(module.easyconfig)}")
    if edited:
        wanted = installed.recipe_of(Tree(root=Path(environment.tree)), environment.name) or environment.name
        say(console, f"Build again with 'envkit install {wanted} --rebuild --prefix {Path(environment.tree).parent}'.")


def changed(module: receipt.Module) -> bool:
    """Say whether the recipe of an installed module differs from the one it was made from."""
    return recipe_checksum(current_recipe(module.easyconfig)) not in ("", module.sha256)


def say_damaged(work: Installation, console: Console) -> None:
    """Say what of the environment that is there is damaged and mended now, and what of that has another recipe."""
    existing = None if work.request.rebuild else installed.there(work.tree, work.stack.name)
    if existing is None:
        return
    if not work.request.again:  # a repair has said it
        damage = existing.damaged(is_quick=True)
        if not damage:
            return
        say(console, f"{existing.name} is installed and damaged; what is damaged is built again:")
        for line in damage_lines(damage):
            say(console, line)
    digests = {part.name: part.sha256 for part in existing.recipes or (existing.lock.parts if existing.lock else ())}
    others = [part.name for part in work.lock.parts if digests.get(part.name) != part.sha256]
    if others:
        say(console, f"Made from another recipe than before, as it is planned now: {', '.join(others)}.")


def damage_lines(damaged: Sequence[Damage], most: int | None = SHOWN) -> Iterator[str]:
    """Yield each damaged module with its files, so many of them at most."""
    for module in dict.fromkeys(damage.module for damage in damaged):
        own = [damage for damage in damaged if damage.module == module]
        yield f"  {module}: {len(own)} {'file' if len(own) == 1 else 'files'}"
        yield from (f"    {damage.how:<8} {shown(damage.path)}" for damage in own[:most])
        if len(own) > len(own[:most]):
            yield f"    and {len(own) - len(own[:most])} more"


def say_forced(work: Installation, console: Console) -> None:
    """Say what is known to fail and is tried all the same."""
    if not work.request.force:
        return
    for problem in preflight.known_problems(work.host, work.stack, work.steps, force=False):
        say(console, f"{problem.what} It is tried all the same (--force).")


def say_unused(work: Installation, console: Console) -> None:
    """Say that this machine has a GPU which the stack does not use, if nobody asked for that."""
    gpu = host.accelerator()
    if work.request.accelerator == "auto" and gpu not in (host.Accelerator.CPU, work.stack.accelerator):
        say(console, f"This machine has a GPU ({gpu}), which {work.stack.name} does not use: it is for CPUs.")


def build_in_jobs(work: Installation, words: Sequence[str], cpus: int, console: Console) -> None:
    """Build in jobs of Slurm, one for each module, of so many CPUs; ``words`` are what sbatch is told of each.

    What is left to do is what any installation does of what is built already. Raises UsageProblem where eb does not
    build it, and what fetching, submitting and following do.
    """
    if work.refused_in_jobs:
        raise UsageProblem(
            what=f"--job-per-module goes with --method easybuild; {work.refused_in_jobs}.",
            fix="Leave it out: the whole is built in one job then.",
        )
    preflight.require(problems(work), work.stack)
    work.fetch_optional(console)
    message = receipt.waiting(work.tree, work.stack.name)
    with (
        storage_explained(work.request.prefix),
        filelocks.held(work.tree, f"stack-{work.stack.name}", console, message),
    ):
        earlier.say_resumed(work, console)
        try:
            work.build_in_jobs(work.request.prefix.new_log_folder(work.stack.name), words, cpus, console)
        except (BuildFailed, DiskFull, JobLost):  # after others jobs may go on
            if replaced.put_back(work.tree, work.stack.name):
                say_put_back(work, console)
            raise
        receipt.end(work.tree, work.stack.name)


@contextmanager
def storage_explained(prefix: Prefix) -> Iterator[None]:
    """Turn what this process itself meets of the prefix's storage, such as a full disk, into what can be repaired."""
    try:
        yield
    except OSError as error:
        problem = of_storage(error, f"{prefix.root} could not be written to the end.")
        if problem is None:
            raise
        problem.fix += " Or choose another --prefix. Then run the same command again: it resumes."
        raise problem from error


def prove(work: Installation, folder: Path, console: Console) -> "Report | None":
    """Verify what was built on two ranks; write the receipt if it passes."""
    from envkit.verify import drift, last, target
    from envkit.verify.launch import verify
    from envkit.verify.options import Options
    from envkit.verify.report import render

    receipt.begin(work.tree, work.stack.name, "verifying", folder, work.stack.extras)
    result = work.describe(folder)
    if not result.horovod:
        require_no_horovod(work, folder)
    report = None
    built = None
    if result.horovod:
        say(console, "Verifying on 2 ranks")
        goal = target.installed(result, work.entered(result))
        built, required = goal.built, flags_of(work.request.locked)
        report = verify(
            goal, launcher.LaunchRequest(ranks=2), Options(require=required), env=work.env, tell=partial(say, console)
        )
        last.keep(report, result.name, result.tree)
        console.quiet = console.quiet and report.verdict == "pass"
        say(console, render(report, width=console.width), end="")
        if report.verdict != "pass":
            if added := {*result.extras} - {*receipt.extras(work.tree, result.name)} if is_kept(work) else set[str]():
                say(
                    console,
                    f"{result.name} does not pass with {', '.join(sorted(added))}; it stays as it was, without.",
                )
                say(console, f"Mend the cause and run the same command again, or leave {result.name} so.")
                return report
            say(console, f"{result.name} was built but does not pass, so it is not offered as an environment.")
            say(console, "Mend the cause and run the same command again: only what is missing is repeated.")
            if result.origin:
                say(console, f"It was taken from a cache: 'envkit install {result.name} --rebuild' builds it here.")
            return report
    else:
        say(console, f"{result.name} is built. It has no Horovod, so there is nothing to verify.")
    settled = msgspec.structs.replace(work.settle(result), lock=lock_of(work, result, built))
    for line in lockfile.other_packages(work.request.locked, settled.lock):
        say(console, f"Differs:  {line}")
    drift.keep(settled, built)
    shared_python.protect(settled)
    receipt.write(receipt.path_of(work.tree, result.name), settled)
    replaced.settle(work.tree, result.name)
    receipt.end(work.tree, result.name)
    envkit, root = shlex.quote(own_command()), work.tree.root.parent
    is_usual = any(prefix.root == root for prefix in locate(None).every)
    called = result.name if is_usual else f"{result.name} --prefix {shlex.quote(str(root))}"
    say(console, f"Installed {result.name}. Enter it with '{envkit} shell {called}'.")
    with suppress(HostProblem):  # it has no modules
        settled.require_modules()
        line = activation.line(activation.shell_of(os.environ, activation.parent()), f"{envkit} activate {called}")
        say(console, f"In this shell: {line}")
    return report


def is_kept(work: Installation) -> bool:
    """Say whether the environment is there and can be used as it was before this installation."""
    return installed.there(work.tree, work.stack.name) is not None


def require_no_horovod(work: Installation, folder: Path) -> None:
    """Raise HorovodMissing if what was built, which has no Horovod, is for it: by its flags, or by a module of it."""
    modules = (work.stack.module, *work.steps)
    if work.stack.requires or any(module.partition("/")[0] == "Horovod" for module in modules):
        raise HorovodMissing(
            what=f"{work.stack.name} was built, but the Python in it finds no Horovod, so it is not installed.",
            why=f"It is for Horovod. Inside of it there is no package of that name (log: {folder}).",
            fix="Have its recipe install Horovod, or leave 'requires' out where your site offers it."
            if work.stack.of_site
            else "What is built is kept. Run the same command again; if it stays so, build it anew with --rebuild.",
        )


def own_command() -> str:
    """Return what calls this envkit: its name, or where that is another on PATH, or none, its path."""
    own, on_path = Path(sys.executable).with_name("envkit"), shutil.which("envkit")
    return str(own) if own.is_file() and not (on_path and own.samefile(on_path)) else "envkit"


def lock_of(work: Installation, environment: Receipt, built: "BuildFlags | None") -> lockfile.Lock:
    """Return the lock of what was built, with what only that tells: the framework and the build flags."""
    loaded = [extension.flags for extension in built.extensions if extension.loads] if built else []
    flags = {name: value for values in loaded[:1] for name, value in values.items() if value is not None}
    return msgspec.structs.replace(environment.lock or work.lock, framework=environment.framework, flags=flags)


def flags_of(locked: lockfile.Lock | None) -> tuple[str, ...]:
    """Return the build flags that a lock demands."""
    return tuple(name for name, value in locked.flags.items() if value) if locked else ()
