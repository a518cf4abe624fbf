"""Installing: plan, preflight, lock and look again, fetch, build, verify, write the receipt."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from envkit import __version__, build, environment, fetch, host, launcher, locks, preflight, process, receipt
from envkit.errors import BuildFailed, DiskFull, Interrupted
from envkit.methods import easybuild
from envkit.plan import Plan, recipe_checksum
from envkit.prefix import Prefix, Tree
from envkit.progress import FetchProgress, say
from envkit.receipt import Receipt
from envkit.resources import easybuild_collection, recipes
from envkit.stack import FRAMEWORKS, Stack, select

if TYPE_CHECKING:
    from envkit.verify.report import Report


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for."""

    prefix: Prefix
    wanted: str | None = None
    framework: str | None = None
    accelerator: str = "auto"
    load: tuple[str, ...] = ()
    accepted_eulas: tuple[str, ...] = ()
    bundle: Path | None = None
    offline: bool = False
    rebuild: bool = False
    jobs: int = 0


@dataclass(frozen=True, kw_only=True)
class Work:
    """Everything an installation is about, found out before it starts."""

    request: Request
    stack: Stack
    host: host.Host
    plan: Plan
    tree: Tree

    @property
    def missing(self) -> list[str]:
        """The modules that are not there yet, in the order of building."""
        return build.missing(self.plan, self.tree)

    @property
    def inside(self) -> environment.ModuleEnvironment:
        """The way into what is built."""
        assert self.host.modules_tool is not None  # noqa: S101  (preflight demands one)
        return environment.ModuleEnvironment(
            name=self.stack.name,
            tool=self.host.modules_tool,
            modulepath=self.tree.modulepath,
            modules=(self.stack.module,),
            load=self.request.load,
        )

    @property
    def env(self) -> dict[str, str]:
        """The settings to enter with: the host's, and where the site's modules are found."""
        found = {"MODULEPATH": os.environ.get("MODULEPATH", "")} if self.request.load else {}
        return {**self.host.env, **found}


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
    preflight.demand(problems(work), work.stack)
    request.prefix.create()
    message = receipt.waiting(work.tree, work.stack.name)
    with (
        disk_full_explained(request.prefix),
        locks.held(work.tree, f"stack-{work.stack.name}", console, message),
    ):
        if (there := already(request)) is not None:
            say_already(there, console)
            return None
        say_unused(work, console)
        say_resumed(work, console)
        folder = build.new_log_folder(request.prefix, work.stack.name)
        build_all(work, folder, console)
        return prove(work, folder, console)


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
    stack = select(
        request.wanted,
        framework=request.framework,
        accelerator=request.accelerator,
        platform=machine.platform,
    )
    if machine.modules_tool is None or not stack.runs_on(machine.platform):
        found = [*preflight.host_problems(machine, stack), *preflight.prefix_problems(request.prefix, stack, 1.0)]
        preflight.demand(found, stack)
    plan = easybuild.plan(machine, stack, request.prefix)
    tree = request.prefix.tree(machine.platform)
    return Work(request=request, stack=stack, host=machine, plan=plan, tree=tree)


def problems(work: Work) -> list[preflight.Problem]:
    """Return everything that would stop this installation."""
    remaining = len(work.missing) / max(len(work.plan.steps), 1)
    prefix = work.request.prefix
    found = [
        *preflight.host_problems(work.host, work.stack),
        *preflight.prefix_problems(prefix, work.stack, remaining),
        *preflight.plan_problems(work.plan, work.missing, work.request.accepted_eulas, work.host),
    ]
    if work.request.offline:
        found += preflight.source_problems(work.plan, work.missing, prefix, work.stack)
    return found


def already(request: Request) -> Receipt | None:
    """Return the receipt of what is asked for, if it is installed and no rebuild is wanted. Quick."""
    here = host.Platform.own()
    stack = select(request.wanted, framework=request.framework, accelerator=request.accelerator, platform=here)
    tree = request.prefix.tree(here)
    path = receipt.path_of(tree, stack.name)
    if request.rebuild or not path.is_file():
        return None
    found = receipt.read(path)
    return found if tree.has(found.module) and found.load == request.load else None


def say_already(there: Receipt, console: Console) -> None:
    """Say that there is nothing to do, and which recipes have changed since."""
    say(console, f"{there.name} is installed already and passed on {there.verified}. Nothing to do.")
    edited = [module for module in there.modules if changed(module)]
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


def say_unused(work: Work, console: Console) -> None:
    """Say that this machine has a GPU which the stack does not use, if nobody asked for that."""
    gpu = work.host.accelerator
    if work.request.accelerator == "auto" and gpu not in (host.Accelerator.CPU, work.stack.accelerator):
        say(console, f"This machine has a GPU ({gpu}), which {work.stack.name} does not use: it is for CPUs.")


def say_resumed(work: Work, console: Console) -> None:
    """Say what an earlier installation that did not end has left to do."""
    note = receipt.unfinished(work.tree, work.stack.name)
    if note is None:
        return
    done = len(work.plan.steps) - len(work.missing)
    left = ", ".join(work.missing) or "the verification"
    say(console, f"Resuming what began {note.began} and ended while {note.stage} (log: {note.log}).")
    say(console, f"{done} of {len(work.plan.steps)} modules are in place; left: {left}.")


def build_all(work: Work, folder: Path, console: Console) -> None:
    """Fetch the sources that are missing and build the modules that are."""
    rebuild = build.outdated(work.plan, work.tree) if work.request.rebuild else []
    receipt.begin(work.tree, work.stack.name, "fetching", folder)
    fetch_all(work, {*work.missing, *rebuild}, console)
    receipt.begin(work.tree, work.stack.name, "building", folder)
    receipt.path_of(work.tree, work.stack.name).unlink(missing_ok=True)
    job = easybuild.Build(
        host=work.host,
        prefix=work.request.prefix,
        plan=work.plan,
        folder=folder,
        jobs=build.jobs(work.request.jobs),
        rebuild=tuple(rebuild),
        accepted_eulas=work.request.accepted_eulas,
    )
    build.build(job, work.tree, work.stack.seconds, console)


def fetch_all(work: Work, modules: set[str], console: Console) -> None:
    """Get the sources of some modules into the cache."""
    sources = [source for step in work.plan.steps if step.module in modules for source in step.sources]
    with process.interruptible(), FetchProgress(console) as shown:
        fetch.fetch(
            sources,
            work.request.prefix.sources,
            offline=work.request.offline,
            progress=shown.on,
            stack=work.stack.name,
        )


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
    made = describe(work, folder)
    report = None
    if made.horovod:
        say(console, "Verifying on 2 ranks")
        report = verify(target.installed(made), launcher.Wanted(ranks=2), env=work.env)
        console.print(render(report, width=console.width), markup=False, highlight=False, soft_wrap=True, end="")
        if report.verdict != "pass":
            say(console, f"{made.name} was built but does not pass, so it is not offered as an environment.")
            say(console, "Mend the cause and run the same command again: only what is missing is repeated.")
            return report
    else:
        say(console, f"{work.stack.module} is built. It has no Horovod, so there is nothing to verify.")
    receipt.write(receipt.path_of(work.tree, made.name), made)
    receipt.end(work.tree, made.name)
    say(console, f"Installed {made.name}. Enter it with 'envkit shell {made.name}'.")
    return report


INSIDE = """\
import importlib.util, json, os, sys
spec = importlib.util.find_spec("horovod")
home = list(spec.submodule_search_locations)[0] if spec else ""
print(json.dumps({
    "horovod": home,
    "built_for": json.load(open(os.path.join(home, "metadata.json"))) if home else {},
    "site_packages": [path for path in sys.path if path.endswith("site-packages")],
    "library_path": [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path],
}))
"""


def describe(work: Work, folder: Path) -> Receipt:
    """Return the receipt of what was built, asked of the environment itself."""
    inside, tree = work.inside, str(work.tree.root)
    told = process.capture(inside.command(["python3", "-c", INSIDE]), env=inside.variables(work.env))
    if told.status:
        raise BuildFailed(
            what=f"The module {work.stack.module} was built but cannot be entered.",
            why=told.stderr.strip(),
            fix="Run 'envkit install --rebuild', and report it if it stays so.",
        )
    facts = msgspec.json.decode(told.stdout)
    framework = next((name for name in FRAMEWORKS if facts["built_for"].get(name)), work.stack.framework)
    if facts["horovod"] and framework not in FRAMEWORKS:
        raise BuildFailed(
            what=f"The Horovod of {work.stack.module} was built for no framework.",
            why=f"{facts['horovod']}/metadata.json names neither PyTorch nor TensorFlow.",
            fix="Make its recipe demand one: HOROVOD_WITH_PYTORCH=1 or HOROVOD_WITH_TENSORFLOW=1.",
        )
    return Receipt(
        name=work.stack.name,
        method=work.stack.method,
        framework=framework,
        accelerator=work.stack.accelerator.value,
        requires=work.stack.requires,
        machine=work.host.machine,
        python=work.host.python.version,
        tree=tree,
        module=work.stack.module,
        modules=tuple(made_from(work)),
        modules_tool=inside.tool.kind,
        modules_command=str(inside.tool.command),
        load=work.request.load,
        mpi=launcher.mpi_of(inside, tree, work.env) if facts["horovod"] else None,
        horovod=facts["horovod"],
        site_packages=tuple(facts["site_packages"]),
        library_path=tuple(facts["library_path"]),
        verified=time.strftime("%Y-%m-%d"),
        log=str(folder),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        envkit=__version__,
        easybuild=metadata.version("easybuild-framework"),
    )


def made_from(work: Work) -> Iterator[receipt.Module]:
    """Yield each module with the recipe it was made from."""
    for step in work.plan.steps:
        record = receipt.built(work.tree, step.module)
        checksum = record.sha256 if record else step.checksum()
        yield receipt.Module(name=step.module, easyconfig=step.easyconfig, sha256=checksum)
