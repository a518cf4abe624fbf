"""``eb`` as a program: plans are what it resolves, builds are what it does."""

import hashlib
import importlib.util
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import ConfigParser, Error
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec
import platformdirs
from packaging.version import InvalidVersion, Version

from envkit.environments import receipt
from envkit.environments.prefix import Prefix, Tree, compiler_cache
from envkit.errors import HostProblem, ModuleNotLoaded, PlanFailed
from envkit.machine import modules_tool
from envkit.machine.host import Host, Program
from envkit.planning.plan import ConfigGuess, Patch, Plan, Step
from envkit.planning.stack import Stack, find_easyconfig, shelf
from envkit.sources.fetch import Source
from envkit.system import files, process, record, temporary, toml
from envkit.system.addresses import OF_ADDRESSES, login, redact
from envkit.system.resources import data, easybuild_collection, recipes

LISTED = re.compile(r"^ \* \[(?P<mark>.)\] (?P<path>.+\.eb) \(module: (?P<module>.+)\)$", re.MULTILINE)
VARIABLE = re.compile(r"^CFGS=(.*)$", re.MULTILINE)
USER_IN_URL = re.compile(r"://[^\s/]*@")
OF_SLURM = re.compile(r"SLURM_CONF|SLURM_CLUSTERS|SBATCH_\w+")  # what sbatch itself reads
AS_PIP_COMES = {"PIP_CONFIG_FILE": os.devnull}  # that of a shared Python refuses, and a person's own may steer a build
UNCOMPILED = {"PIP_NO_COMPILE": "0"}  # a name with NO takes the opposite; hooks.py has all of it compiled
# root's tar gives files to the uid that the archive names, and that user could change them while root builds them
AS_ONE_UNPACKS = {"TAR_OPTIONS": "--no-same-owner --no-same-permissions"}


@cache
def rules() -> dict[str, dict[str, str]]:
    """Return the method's own data."""
    return toml.read(data("easybuild/easybuild.toml"), toml.Tables)


@dataclass(frozen=True, kw_only=True)
class Eb:
    """The eb of a method: the words and settings that start it, and options that are its own.

    ``robot`` are recipe folders, ``folders`` variables that name one which it finds empty. A plan is kept under
    ``key``, which holds all that it depends on; without one it is made anew each time. ``in_jobs``: it submits jobs.
    """

    words: tuple[str, ...]
    env: Mapping[str, str]
    robot: tuple[str, ...]
    options: tuple[str, ...] = ()
    folders: tuple[str, ...] = ("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS")
    key: tuple[str, ...] = ()
    ccache: bool = False
    in_jobs: bool = False

    def command(self, tree: Tree, sources: Path, scratch: Path) -> list[str]:
        """Return the start of every command line: where everything lies, and nothing of the site's defaults."""
        return [
            *self.words,
            f"--installpath={tree.root}", f"--sourcepath={sources}", f"--buildpath={tree.root / 'build'}",
            f"--repositorypath={tree.root / 'ebfiles_repo'}", f"--locks-dir={tree.locks / 'easybuild'}",
            f"--tmpdir={scratch}", f"--hooks={data('easybuild/hooks.py')}", f"--robot={os.pathsep.join(self.robot)}",
            "--output-style=no_color", "--disable-show-progress-bar", *self.options,
        ]  # fmt: skip

    def settings(self, scratch: Path) -> dict[str, str]:
        """Return the settings to start with: none of the site's or the user's configuration but its hooks."""
        return {**self.env, **dict.fromkeys(self.folders, str(scratch))}


def plan(eb: Eb, stack: Stack) -> Plan:
    """Resolve a stack with ``eb --dry-run --robot``; a plan whose recipes have not changed comes from a cache.

    Raises PlanFailed with what eb says.
    """
    cached = plan_cache(eb, stack) if eb.key else None
    if cached is not None and (earlier := read_cached(cached)) is not None:
        return earlier
    with temporary.folder("plan") as scratch:
        events = scratch / "events.jsonl"
        nowhere = Tree(root=scratch / "tree")  # eb makes folders even in a dry run
        wanted = [placed(eb, recipe) for recipe in (*stack.extras.values(), stack.easyconfig)]
        argv = [*eb.command(nowhere, scratch / "sources", scratch), "--dry-run", *wanted]
        env = eb.settings(scratch) | {"ENVKIT_EVENTS": str(events), "ENVKIT_INVENTORY": "1"}
        done = process.capture(argv, env=env, cwd=scratch, timeout_s=600)
        if done.status:
            raise plan_failed(stack, done)
        facts = {fact["path"]: fact for fact in map(msgspec.json.decode, events.read_bytes().splitlines())}
        order = tuple(steps(done.stdout, facts, wanted))
        resolved = Plan(stack=stack.name, steps=order, robot=eb.robot, config_guess=config_guess(order, facts))
    if not resolved.steps:
        raise PlanFailed(
            what=f"{stack.module} is there without being built.", fix=f"Load it: module load {stack.module}"
        )
    if cached is not None:
        write_cached(cached, resolved)
    return resolved


def placed(eb: Eb, recipe: str) -> str:
    """Return the path of a recipe, as eb finds it; its name where it is one of a collection that only eb knows.

    eb takes a name for that of a file in the folder that it is in first.
    """
    candidates = (Path(folder, recipe) for folder in eb.robot)
    collected = find_easyconfig(recipe) if str(easybuild_collection()) in eb.robot else None
    return str(next((path for path in candidates if path.is_file()), collected or recipe))


def is_planned(eb: Eb, stack: Stack) -> bool:
    """Say whether the cache has the plan of a stack, so that eb is not called for it."""
    return bool(eb.key) and read_cached(plan_cache(eb, stack)) is not None


def cuda_limits(plan: Plan) -> Iterator[str]:
    """Yield a line on the GPUs that the CUDA of a plan makes no code for."""
    gpus = rules()["cuda_without"]
    for cuda in (re.search(r"(?:^|/)CUDA(?:core)?/(\d[\d.]*)$", step.module) for step in plan.steps):
        lacking = [gpus[since] for since in gpus if cuda and Version(cuda[1]) < Version(since)]
        if cuda and lacking:
            yield f"Warning:  CUDA {cuda[1]} makes no code for {' and '.join(lacking)}: it will not run there."


def robot_path(host: Host, stack: Stack, tree: Tree) -> tuple[str, ...]:
    """Return the recipe folders, those that stand in for what the host lacks first."""
    own = recipes("easyconfigs")
    if Path(stack.easyconfig).is_absolute():
        return str(Path(stack.easyconfig).parent), str(own), str(easybuild_collection())
    in_front = [str(own / name) for name in stand_ins(host, tree)] if (own / stack.easyconfig).is_file() else []
    return (*in_front, str(own), str(easybuild_collection()))


def stand_ins(host: Host, tree: Tree) -> list[str]:
    """Name the folders of recipes that stand in for others, as before or as the host needs them."""
    family = host.mpi.family if host.mpi else ""
    own = host.mpi if host.mpi and family == "Open MPI" else None
    needed = {
        "embedded/openmpi": ("OpenMPI/system", family != "Open MPI"),
        "wrapped": ("OpenMPI/system", own is not None and (not is_first(own, host.env) or is_refused(own, host.env))),
        "embedded/cmake": ("CMake/system", not usable_cmake(host.cmake)),
        "cray": ("MPICH/system", family == "Cray MPICH"),
    }
    return [folder for folder, (module, is_needed) in needed.items() if stands_in(tree, module, folder, is_needed)]


def stands_in(tree: Tree, module: str, folder: str, is_needed: bool) -> bool:
    """Say whether a module is by the recipe of a folder: as it was built, if it was."""
    if not tree.has(module):
        return is_needed
    record = receipt.built(tree, module)
    return record is not None and f"/{folder}/" in record.easyconfig


def is_first(mpi: Program, env: Mapping[str, str]) -> bool:
    """Say whether an MPI is the one that EasyBuild's SystemMPI takes: mpirun and mpicc as they come first on PATH."""
    taken = (process.which(name, path=env["PATH"]) for name in ("mpirun", "mpicc"))
    return mpi.path.name == "mpirun" and all(Path(path or "/").parent == mpi.path.parent for path in taken)


def is_refused(mpi: Program, env: Mapping[str, str]) -> bool:
    """Say whether EasyBuild's SystemMPI refuses an Open MPI: one that was moved, or that gcc has not compiled."""
    program = mpi.path.with_name(mpi.path.name.replace("mpirun", "ompi_info"))
    told = process.capture([str(program)], env=env, timeout_s=20).stdout if program.is_file() else ""
    said = dict(re.findall(r"^ +(Prefix|C compiler): (.*)$", told, re.MULTILINE))
    return bool(said) and not (said.get("C compiler") == "gcc" and Path(said.get("Prefix", "/nowhere")).is_dir())


def usable_cmake(cmake: Program | None) -> bool:
    """Say whether the host's CMake is in the range that builds Horovod (its Gloo refuses CMake 4)."""
    limits = rules()["host"]
    try:
        return cmake is not None and Version(limits["cmake_from"]) <= Version(cmake.version) < Version(
            limits["cmake_below"]
        )
    except InvalidVersion:
        return False


def bundled_eb(host: Host, stack: Stack, tree: Tree) -> Eb:
    """Return the eb that is installed beside envkit, under the host's Python. Raises HostProblem."""
    if host.modules_tool is None:
        raise HostProblem(what="EasyBuild needs a modules tool.", fix=modules_tool.REMEDY)
    syntax = "Lua" if host.modules_tool.kind == "Lmod" else "Tcl"
    robot = robot_path(host, stack, tree)
    return Eb(
        words=(str(host.python.path), "-I", "-S", str(data("easybuild/run_eb.py")), site_packages()),
        env=eb_environment(host),
        robot=robot,
        options=(
            f"--modules-tool={host.modules_tool.kind}",
            f"--module-syntax={syntax}",
            "--optarch=GENERIC",
            *as_read_by_all(),
        ),
        key=(
            *robot,
            metadata.version("easybuild-easyconfigs"),
            metadata.version("easybuild-framework"),
            metadata.version("envkit"),
            str(host.platform),
            host.python.version,
            str(host.mpi),
        ),
        ccache=process.which("ccache", path=host.env["PATH"]) is not None,
        in_jobs=True,
    )


@cache
def site_packages() -> str:
    """Return the folder that the package easybuild lies in."""
    spec = importlib.util.find_spec("easybuild.framework")
    if spec is None or spec.origin is None:
        raise HostProblem(
            what="EasyBuild is not installed beside envkit.",
            fix="Install it: pip install --force-reinstall easybuild",
        )
    return str(Path(spec.origin).parents[2])


def eb_environment(host: Host) -> dict[str, str]:
    """Return the settings that eb starts with: the host's, and what the site or the user has as hooks.

    It fetches nothing, and what it is given lies in files that others may read: so no password is among them.
    """
    env = without_passwords(host.env)
    if len(env) < len(host.env):
        env["ENVKIT_OFFLINE"] = "1"  # without its proxy eb would wait in vain
    if host.modules_tool is not None:
        env["LMOD_CMD" if host.modules_tool.kind == "Lmod" else "MODULES_CMD"] = str(host.modules_tool.command)
        env["PATH"] = os.pathsep.join((env["PATH"], str(host.modules_tool.command.parent)))
    env["EB_SCRIPT_PATH"] = str(easybuild_collection().parents[1] / "bin" / "eb")
    if host.mpi is not None:
        env["ENVKIT_MPIRUN"] = str(host.mpi.path)  # for MPICH-system.eb, wrapped/OpenMPI-system.eb
    if hooks := site_hooks(os.environ):
        env["ENVKIT_SITE_HOOKS"] = str(hooks)
    return env | AS_PIP_COMES | UNCOMPILED | AS_ONE_UNPACKS | as_root()


def as_read_by_all() -> tuple[str, ...]:
    """Return what eb is told besides if this is root, for whom Lmod finds only what others can read."""
    return () if os.geteuid() else ("--umask=022",)


def without_passwords(env: Mapping[str, str]) -> dict[str, str]:
    """Return the settings but for those that hold an address with a user or a password, as that of a proxy may."""

    def has_login(name: str, value: str) -> bool:
        is_login = bool(OF_ADDRESSES.search(name) and login(value))
        return (
            is_login
            or ("@" in value and name.lower().endswith("_proxy"))
            or bool(USER_IN_URL.search(value))
            or redact(value) != value
        )

    return {name: value for name, value in env.items() if not has_login(name, value)}


def as_root() -> dict[str, str]:
    """Return what eb wants from root, if this is root."""
    return {"EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES": "1"} if os.geteuid() == 0 else {}


def site_hooks(env: Mapping[str, str]) -> Path | None:
    """Return the hooks that the site or the user has configured for EasyBuild, by variable or file."""
    if named := env.get("EASYBUILD_HOOKS"):
        return Path(named)
    user = Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "easybuild" / "config.cfg"
    site = [
        file
        for folder in reversed((env.get("XDG_CONFIG_DIRS") or "/etc/xdg:/etc").split(os.pathsep))
        for file in sorted((Path(folder) / "easybuild.d").glob("*.cfg"))
    ]
    for file in (user, *reversed(site)):
        parser = ConfigParser(interpolation=None)
        try:
            parser.read(file)
        except Error:
            continue
        for section in parser.sections():
            if parser.has_option(section, "hooks"):
                return files.at_home(parser.get(section, "hooks"))
    return None


def plan_failed(stack: Stack, done: process.Completed) -> PlanFailed | HostProblem:
    """Say what eb says of a recipe that it cannot resolve, or why there is no eb."""
    if done.status == ModuleNotLoaded.exit_code:
        return HostProblem(what=f"There is no EasyBuild to resolve {stack.easyconfig}.", why=done.stderr.strip())
    complaints = [
        line for line in (done.stderr + done.stdout).splitlines() if re.match(r"ERROR|\s*\*|EasyBuildError", line)
    ]
    return PlanFailed(
        what=f"EasyBuild cannot resolve {stack.easyconfig}.",
        why="\n".join(complaints).removeprefix("ERROR: ") or (done.stderr + done.stdout)[-600:],
        fix="Check the recipe with 'eb --dry-run --robot'.",
    )


def steps(listing: str, facts: Mapping[str, Mapping[str, Any]], asked: Sequence[str]) -> list[Step]:
    """Turn eb's list and the facts of the recipes into steps: what was asked for, its last at the end, and its needs.

    What only a module that is there already was built with is no step. Raises PlanFailed for one without a recipe.
    """
    variable = VARIABLE.search(listing)
    lines = list(LISTED.finditer(listing))
    files = {Path(recipe).name for recipe in asked}
    needed = {line["module"].replace(" | ", "/") for line in lines if Path(line["path"]).name in files}
    resolved = list[Step]()
    for line in reversed(lines):
        module = line["module"].replace(" | ", "/")
        if line["mark"] != "x" and module in needed:
            path = line["path"].replace("$CFGS", variable[1]) if variable else line["path"]
            resolved.append(step(module, path, facts.get(path)))
            needed |= set(resolved[-1].dependencies)
    in_order, last = resolved[::-1], Path(asked[-1]).name
    return sorted(in_order, key=lambda step: Path(step.easyconfig).name == last)


def step(module: str, path: str, fact: Mapping[str, Any] | None) -> Step:
    """Turn the facts of a recipe into a step. Raises PlanFailed without them."""
    if fact is None or fact["event"] != "easyconfig":
        raise PlanFailed(
            what=f"The recipe of {module} cannot be read.",
            why=str(fact and fact.get("message")),
            fix=f"Look at {path}.",
        )
    return Step(
        module=module,
        easyconfig=path,
        dependencies=tuple(fact["dependencies"]),
        sources=tuple(source(entry, path, fact["name"]) for entry in fact["sources"] if not entry["git"]),
        patches=tuple(Patch(filename=patch["filename"], sha256=patch["sha256"]) for patch in fact["patches"]),
        os_dependencies=tuple((d,) if isinstance(d, str) else tuple(d) for d in fact["os_dependencies"]),
        eula="" if fact["accept_eula"] else rules()["eula"].get(fact["name"], ""),
    )


def config_guess(order: Sequence[Step], facts: Mapping[str, Mapping[str, Any]]) -> ConfigGuess | None:
    """Return the config.guess of the first step that needs one; it is the same for all."""
    needed = (facts[step.easyconfig]["config_guess"] for step in order)
    return next((ConfigGuess(**settings) for settings in needed if settings), None)


def source(fact: Mapping[str, Any], easyconfig: str, software: str) -> Source:
    """Return a source of a recipe as fetch takes it, with its name on the package index if it comes from there.

    What a recipe of EasyBuild's collection needs lies by software, as eb has it: there, v3.2.0.tar.gz is several files.
    """
    path, filename, download = Path(easyconfig), fact["filename"], fact["download_filename"]
    project = re.search(r"/packages/(?:source|[\w.]+)/[^/]/([^/]+)", " ".join(fact["urls"]))
    named = filename.partition("-")[0] if filename.endswith(".whl") else project[1] if project else ""
    urls = (url if download == filename else f"{url.rstrip('/')}/{download}" for url in fact["urls"])
    return Source(
        filename=filename,
        folder=f"{shelf(software).name}/{software}" if path.is_relative_to(easybuild_collection()) else "",
        sha256=fact["sha256"],
        urls=tuple(urls),
        project=named or None,
        needed_by=path.name,
    )


class CachedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and the state of the files that it was made from: path, time of change in ns, size in bytes.

    ``format`` is another number where a plan of an earlier envkit lacks something.
    """

    format: Literal[3]
    plan: Plan
    files: tuple[tuple[str, int, int], ...]


def plan_cache(eb: Eb, stack: Stack) -> Path:
    """Return the file that would hold this plan."""
    own = sorted(path.name for path in Path(recipes("easyconfigs")).rglob("*.eb"))
    key = hashlib.sha256("\0".join((stack.easyconfig, *stack.extras.values(), *eb.key, *own)).encode()).hexdigest()[:24]
    return Path(platformdirs.user_cache_dir("envkit")) / "plans" / f"{stack.name}-{key}.json"


def read_cached(path: Path) -> Plan | None:
    """Return the plan in a cache file if every recipe of it is as it was; none that somebody else may have written."""
    if not (files.is_private(path.parent) and files.is_private(path)):
        return None
    try:
        cached: CachedPlan = record.read(path, CachedPlan)
    except (OSError, msgspec.DecodeError):
        return None
    return cached.plan if all(state(name) == (name, changed, size) for name, changed, size in cached.files) else None


def write_cached(path: Path, new_plan: Plan) -> None:
    """Keep a plan; a cache that cannot be written is no failure."""
    cached = CachedPlan(format=3, plan=new_plan, files=tuple(state(step.easyconfig) for step in new_plan.steps))
    try:
        files.make_private(path.parent)
        files.require_own(path.parent)
        path.parent.chmod(0o700)
        files.write(path, msgspec.json.encode(cached), own=True, mode=0o600)
    except (OSError, HostProblem):
        return


def state(path: str) -> tuple[str, int, int]:
    """Return what changes when a file does."""
    try:
        status = Path(path).stat()
    except OSError:
        return path, 0, 0
    return path, status.st_mtime_ns, status.st_size


@dataclass(frozen=True, kw_only=True)
class Build:
    """A plan, and all that its build needs besides; the file ``holding`` stays locked while anything of it runs.

    ``machine`` is the one whose tools modules such as GCC/system stand for.
    """

    eb: Eb
    machine: Host
    prefix: Prefix
    tree: Tree
    plan: Plan
    folder: Path
    jobs: int
    accepted_eulas: tuple[str, ...] = ()
    holding: Path | None = None
    offline: bool = False

    @property
    def log(self) -> Path:
        """The file that takes what eb prints."""
        return self.folder / "eb.log"

    @property
    def events(self) -> Path:
        """The file in which eb's hooks write their events."""
        return self.folder / "events.jsonl"

    @property
    def told(self) -> Path:
        """The folder in which jobs leave what they print, and the events of their eb's hooks."""
        return self.folder / "jobs"


def build(job: Build, watch: Callable[[], None]) -> int:
    """Build what is missing of a plan with one eb; return its exit status."""
    return run(job, [], {}, watch)


def submit(job: Build, words: Sequence[str], watch: Callable[[], None]) -> int:
    """Have eb submit a job of Slurm for each module that is missing, after those that it needs; return eb's status.

    ``words`` are what sbatch is told besides: eb itself knows of no partition and no account, and of hours alone.
    """
    job.told.mkdir(parents=True, exist_ok=True)
    inside = shlex.join(["env", "-u", "ENVKIT_SBATCH", f"ENVKIT_EVENTS={job.told}", *job.eb.words])
    options = ["--job", "--job-backend=Slurm", f"--job-output-dir={job.told}", f"--job-eb-cmd={inside}"]
    slurm = {name: value for name, value in os.environ.items() if OF_SLURM.fullmatch(name)}
    return run(job, options, slurm | {"ENVKIT_SBATCH": shlex.join(words)}, watch)


def run(job: Build, options: Sequence[str], settings: Mapping[str, str], watch: Callable[[], None]) -> int:
    """Run eb for what is missing of a plan; return its exit status."""
    scratch = job.folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    argv = [*job.eb.command(job.tree, job.prefix.sources, scratch), f"--parallel={job.jobs}", *options]
    if job.prefix.is_shared:
        argv.append("--group-writable-installdir")
    if job.eb.ccache:
        argv.append(f"--use-ccache={compiler_cache(job.prefix)}")
    if job.accepted_eulas:
        argv.append(f"--accept-eula-for={','.join(job.accepted_eulas)}")
    # each by name: below a module that is there, eb looks for none that has gone
    argv += [step.easyconfig for step in job.plan.steps if not job.tree.has(step.module)]
    env = job.eb.settings(scratch) | {"ENVKIT_EVENTS": str(job.events), **settings}
    # what was compiled in another prefix, or for another framework, is the same but for where it lies
    env |= {"CCACHE_BASEDIR": str(job.tree.root), "CCACHE_NOHASHDIR": "1", "CCACHE_MAXSIZE": "2G"}
    if job.offline:
        env["ENVKIT_OFFLINE"] = "1"
    return process.supervise(argv, env=env, log=job.log, cwd=job.folder, watch=watch, holding=job.holding)
