"""An installation of modules by eb: what is left to do of a plan, building it, and what it has become."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import msgspec
from rich.console import Console

from envkit import __version__
from envkit.cache import offers
from envkit.cache.place import NOWHERE, Caches
from envkit.easybuild import build, cached, config_guess, eb_command, in_jobs, mpi
from envkit.easybuild.eb_command import Eb
from envkit.easybuild.receipt import ModulesReceipt
from envkit.easybuild.removal import remove_module
from envkit.environments import manifest, receipt, replaced
from envkit.environments.environment import Environment
from envkit.environments.lockfile import Lock, LockedMachine, LockedPart
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Receipt
from envkit.errors import BuildFailed, ModuleNotLoaded, Problem
from envkit.machine import host
from envkit.machine.modules_tool import require_entered
from envkit.planning import extras, preflight
from envkit.planning.method import Offered, PlannedMpi
from envkit.planning.plan import Plan
from envkit.planning.request import Request
from envkit.planning.stack import FRAMEWORKS, Stack
from envkit.report.progress import say
from envkit.sources.availability import Answers
from envkit.sources.fetch import Source
from envkit.sources.index import Candidate
from envkit.sources.progress import fetch_all
from envkit.sources.source_cache import forget
from envkit.system import process
from envkit.system.resources import data


@dataclass(frozen=True, kw_only=True)
class ModulesInstallation:
    """Modules to build with eb.

    ``inside`` is the way into what is built, ``env`` the settings to enter with, ``lacking`` what this machine lacks,
    ``uses`` the lines on what is used of it, ``counts`` what a lock holds of it, ``tools`` the versions of what builds,
    and ``described`` makes the receipt of what is the same for each eb. ``caches`` may have builds of its modules.
    ``mpi`` is that of the machine, or the wheel in its place; None where it brings its own.
    """

    request: Request
    stack: Stack
    host: host.Host
    eb: Eb
    plan: Plan
    tree: Tree
    inside: Environment
    env: dict[str, str]
    lacking: tuple[Problem, ...]
    uses: tuple[str, ...]
    counts: LockedMachine
    tools: dict[str, str]
    described: Callable[..., ModulesReceipt]
    caches: Caches = NOWHERE
    mpi: PlannedMpi | None = None

    @property
    def steps(self) -> Sequence[str]:
        """The modules."""
        return [step.module for step in self.plan.steps]

    @property
    def unit(self) -> str:
        """The word for its steps."""
        return "modules"

    @property
    def missing(self) -> list[str]:
        """The modules that are not there yet, in the order of building."""
        return build.missing(self.plan, self.tree)

    @cached_property
    def again(self) -> list[str]:
        """The modules that are there and damaged, which are built again, in the order of building."""
        modules = [step.module for step in self.plan.steps]
        damaged = {damage.module for damage in manifest.damage(self.tree, modules, digests=False)}
        return [module for module in modules if module in damaged or module in self.request.again]

    @property
    def outdated(self) -> list[str]:
        """The modules that are there and are to be built again (--rebuild), in the order of building."""
        return build.outdated(self.plan, self.tree) if self.request.rebuild else []

    @property
    def left(self) -> list[str]:
        """The modules that are not there, damaged, or to be built again, in the order of building."""
        wanted = {*self.missing, *self.again, *self.outdated}
        return [step.module for step in self.plan.steps if step.module in wanted]

    @cached_property
    def looked(self) -> offers.FoundBuilds:
        """The builds that the caches have of it, asked once."""
        return cached.find_builds(self)

    @property
    def offered(self) -> Sequence[Offered]:
        """The builds that the caches have of it, for scripts."""
        return offers.for_scripts(self.looked)

    @property
    def cache_problems(self) -> Sequence[str]:
        """Why caches, keys, or builds that lack a trusted signature are passed over."""
        return self.looked.problems

    @property
    def to_build(self) -> list[str]:
        """The modules that are left and that no cache has, in the order of building."""
        return [module for module in self.left if module not in self.looked.taken]

    @property
    def accepted_eulas(self) -> tuple[str, ...]:
        """The licences that are accepted, or were when what is built again was built."""
        built = [
            step for step in self.plan.steps if step.module in self.again and receipt.built(self.tree, step.module)
        ]
        return tuple(dict.fromkeys((*self.request.accepted_eulas, *(step.eula for step in built if step.eula))))

    @property
    def sources(self) -> Sequence[Source]:
        """Every source of every module."""
        return self.plan.sources

    def sources_of(self, modules: Collection[str]) -> list[Source]:
        """Return the sources that building these modules takes."""
        return [source for step in self.plan.steps if step.module in modules for source in step.sources]

    @property
    def to_fetch(self) -> list[Source]:
        """The sources of what is left: of what a cache has, the wheels that the rest of it is in."""
        taken = self.looked.taken
        steps = [step for step in self.plan.steps if step.module in taken]
        from_wheels = [source for step in steps for source in cached.wheels_of(taken[step.module].entry, step)]
        return [*self.sources_of(self.to_build), *from_wheels]

    @property
    def lock(self) -> Lock:
        """The lock: the recipes here, but for modules that are there and were made from others."""
        return Lock(
            name=self.stack.name,
            method=self.stack.method,
            framework=self.stack.framework,
            accelerator=self.stack.accelerator.value,
            release=self.stack.release,
            machine=self.counts,
            tools=self.tools,
            parts=tuple(self.parts()),
        )

    @property
    def extras(self) -> dict[str, str]:
        """The module of each extra."""
        return modules_of(self.plan, self.stack)

    def parts(self) -> Iterator[LockedPart]:
        """Yield each module with what it is made from."""
        missing = set(self.left)
        for step in self.plan.steps:
            part, record = step.part(), receipt.built(self.tree, step.module)
            is_kept = record is not None and step.module not in missing and not self.request.rebuild
            if record is not None and is_kept and record.sha256 != part.sha256:
                part = record.part or LockedPart(name=part.name, recipe=part.recipe, sha256=record.sha256)
            yield part

    def problems(self) -> list[Problem]:
        """Return everything that would stop this installation; whether the sources can be had is asked last."""
        remaining = len(self.left) / max(len(self.plan.steps), 1)
        prefix = self.request.prefix
        problems = [
            *self.lacking,
            *preflight.prefix_problems(prefix, self.stack, remaining),
            *preflight.plan_problems(self.plan, self.to_build, self.accepted_eulas, self.host),
            *self.copied(),
        ]
        if self.request.offline:
            problems += preflight.source_problems(
                self.to_fetch, prefix, self.stack, self.request.carried, has_caches=bool(self.caches.places)
            )
        return problems or list(preflight.refused_sources(self.answers, self.stack, self.host))

    @property
    def unanswered(self) -> Sequence[Problem]:
        """The files that no place has answered about in time; none where nobody has asked."""
        return list(preflight.silent_places(self.answers, self.stack)) if "answers" in vars(self) else ()

    @cached_property
    def answers(self) -> Answers:
        """What is said of the sources where they are sought, which is asked once; not where nothing is to be built.

        What caches have takes the wheels that are fetched first of all, and tells at once if they cannot be.
        """
        if self.request.offline or not self.to_build:
            return Answers()
        return preflight.ask(self.to_fetch, self.request.prefix, self.caches.kept)

    @property
    def known(self) -> Mapping[Source, Candidate]:
        """Where sources are, as far as that was asked."""
        return self.answers.places if "answers" in vars(self) else {}

    def copied(self) -> Iterator[Problem]:
        """Yield what was copied or moved here with modules of this plan: they hold the paths of where they were."""
        planned = {step.module for step in self.plan.steps if self.tree.has(step.module)}
        for other in receipt.parts_in(self.tree):
            if receipt.is_same(Path(other.tree), self.tree.root):
                continue
            if shared := sorted(planned & {module.name for module in other.modules}):
                fix = f"envkit remove {other.name} --dependencies --prefix {self.request.prefix.root}"
                what = f"{', '.join(shared)} was built in {other.tree}, and copied or moved here."
                yield Problem(what=what, fix=f"Remove it here first: {fix}")

    def heading(self) -> Iterator[str]:
        """Yield what is installed, where, and with what of the machine."""
        yield f"Stack:    {self.stack.name} ({self.stack.easyconfig}); {self.stack.status}"
        yield f"Prefix:   {self.request.prefix.root}"
        yield from self.uses
        yield from extras.lines(self.stack)
        yield from eb_command.cuda_limits(self.plan)
        yield from offers.lines(self.looked)

    def listing(self) -> Iterator[str]:
        """Yield the steps as eb lists them, and how much there is to do."""
        missing, taken = set(self.to_build), self.looked.taken
        for step in self.plan.steps:
            mark = "c" if step.module in taken else " " if step.module in missing else "x"
            yield f" * [{mark}] {step.easyconfig} (module: {step.module})"
        sources = self.to_fetch
        absent = preflight.lacking(sources, self.request.prefix, self.request.carried)
        if not self.request.offline:  # else it is a problem
            yield from preflight.set_aside(sources, self.request.prefix)
        modules = f"{len(missing)} of {len(self.plan.steps)} modules to build"
        modules += f", {len(taken)} from a cache" if taken else ""
        yield f"\n{modules}; {len(absent)} of {len(sources)} sources to fetch."
        to_build = [step for step in self.plan.steps if step.module in missing]
        if text := build.estimate(self.tree, to_build, self.stack.seconds):
            yield text

    def build(self, folder: Path, console: Console) -> None:
        """Take what a cache has, fetch the sources that are missing, and build the modules that are."""

        def rest() -> None:
            build.build(self.begun(folder, console), self.stack.seconds, console)

        self.take_and_build(cached.take(self, console), rest, folder, console)

    def take_and_build(self, taken: Collection[str], rest: Callable[[], None], folder: Path, console: Console) -> None:
        """Build the ``rest`` of what was taken from a cache; where its Horovod cannot be used here, that as well."""
        rest()
        if self.stack.module in taken and (why := cached.unusable(self, folder)):
            say(console, f"{self.stack.module} from the cache cannot be used here: {why} It is built here.")
            remove_module(self.tree, self.stack.module)  # what it stands on may be another environment's, too
            rest()

    def fetch_optional(self, console: Console) -> tuple[Source, ...]:
        """Fetch a newer config.guess; return it if it is there."""
        cache = self.request.prefix.sources
        if not self.request.offline and (absent := config_guess.get(self.plan, cache, self.caches.kept)):
            say(console, absent)
        return config_guess.carried(self.plan, cache)

    @property
    def refused_in_jobs(self) -> str:
        """Why it cannot be built in a job for each module; nothing if it can."""
        return "" if self.eb.in_jobs else f"{self.stack.name} is by {self.stack.method}"

    def build_in_jobs(self, folder: Path, words: Sequence[str], cpus: int, console: Console) -> None:
        """Do the same in jobs of Slurm, one for each module; ``words`` are what sbatch is told of each.

        What a cache has is taken here, unless jobs of an earlier call are still building.
        """
        note = receipt.unfinished(self.tree, self.stack.name)
        earlier = Path(note.log) if note else None

        def rest() -> None:
            begun = replace(self, request=replace(self.request, jobs=cpus)).begun(folder, console, in_jobs=True)
            job = replace(begun, offline=True)  # nodes often have no network
            in_jobs.build(job, words, self.stack.seconds, console, earlier)

        is_busy = earlier is not None and in_jobs.are_left(earlier, self.plan)
        self.take_and_build([] if is_busy else cached.take(self, console), rest, folder, console)

    def begun(self, folder: Path, console: Console, *, in_jobs: bool = False) -> eb_command.Build:
        """Fetch the sources that are missing; return the build that is left to do. What is built again is set aside."""
        for line in eb_command.cuda_limits(self.plan):
            say(console, line)
        is_begun = replaced.find(self.tree, self.stack.name) is not None
        again = {*self.outdated, *self.again} if not is_begun else set[str]()
        rebuild, accepted = [step.module for step in self.plan.steps if step.module in again], self.accepted_eulas
        wanted = {*self.missing, *rebuild}
        receipt.begin(self.tree, self.stack.name, "fetching", folder, self.stack.extras)
        cache = self.request.prefix.sources
        if rebuild and not self.request.rebuild:
            forget(cache)
        sources, stores = self.sources_of(wanted), self.caches.kept
        fetch_all(sources, cache, self.request.offline, self.stack.name, console, stores, self.known)
        config_guess.put(self.plan, cache)
        receipt.begin(self.tree, self.stack.name, "building", folder, self.stack.extras)
        if rebuild:
            self.set_aside(rebuild, console, in_jobs=in_jobs)
        elif self.stack.module in self.missing and not receipt.has_other_module(
            self.tree, self.stack.name, self.stack.module
        ):
            receipt.path_of(self.tree, self.stack.name).unlink(missing_ok=True)
        return eb_command.Build(
            machine=self.host,
            eb=self.eb,
            prefix=self.request.prefix,
            tree=self.tree,
            plan=self.plan,
            folder=folder,
            jobs=self.request.jobs or host.cores(),
            accepted_eulas=accepted,
            holding=replaced.lock_path(self.tree, self.stack.name),
            offline=self.request.offline,
        )

    def set_aside(self, modules: Sequence[str], console: Console, *, in_jobs: bool) -> None:
        """Set aside what is built again; go on from what an earlier such build has left, as far as it fits."""
        tree, name = self.tree, self.stack.name
        files = (receipt.path_of(tree, name), receipt.kept_path(tree, name))
        others = [
            other.name
            for other in receipt.parts_in(tree)
            if other.name != name and {module.name for module in other.modules} & {*modules}
        ]
        is_installed = receipt.path_of(tree, name).is_file()
        aside = replaced.Aside(
            modules=tuple(modules), files=tuple(str(path.relative_to(tree.root)) for path in files), in_jobs=in_jobs
        )
        replaced.set_aside(tree, name, aside)
        if affected := ", ".join([*([name] if is_installed else []), *others]):
            say(console, f"Built again in its place: until that has passed, {affected} cannot be used.")
            say(console, "If it fails or is stopped, what is there now is put back.")
        replaced.take_up(tree, name, self.left_by_earlier(modules))

    def left_by_earlier(self, modules: Collection[str]) -> list[str]:
        """Return which modules an earlier build has left that are made from the recipes as they are now."""
        fitting = list[str]()
        for step in self.plan.steps:
            again = [dependency for dependency in step.dependencies if dependency in modules]
            new = replaced.new(self.tree, self.stack.name)
            built = receipt.built(new, step.module) if mpi.is_of(new, step.module, self.host.mpi) else None
            if step.module in modules and built and built.sha256 == step.checksum() and {*again} <= {*fitting}:
                fitting.append(step.module)
        return fitting

    def entered(self, environment: Receipt) -> Environment:  # noqa: ARG002
        """Return the way into what was built, which is entered already where that takes a mount."""
        return self.inside

    def describe(self, folder: Path) -> ModulesReceipt:
        """Return the receipt of what was built, asked of the environment itself."""
        try:
            return self.asked(folder)
        except ModuleNotLoaded as failed:
            failed.fix += " What is built is kept: the same command goes on from here."
            raise

    def asked(self, folder: Path) -> ModulesReceipt:
        """Ask it. Raises BuildFailed, ModuleNotLoaded."""
        inside, tree = self.inside, str(self.tree.root)
        argv = inside.command(["python3", str(data("inside/interpreter.py"))])
        answer = require_entered(process.capture(argv, env=inside.variables(self.env), cwd=process.NEUTRAL))
        if answer.status:
            raise BuildFailed(
                what=f"The module {self.stack.module} was built but cannot be entered.",
                why=answer.stderr.strip(),
                fix=f"Run 'envkit install {self.stack.name} --rebuild', and report it if it stays so.",
            )
        facts = msgspec.json.decode(answer.stdout)
        framework = next((name for name in FRAMEWORKS if facts["built_for"].get(name)), self.stack.framework)
        if facts["horovod"] and framework not in FRAMEWORKS:
            raise BuildFailed(
                what=f"The Horovod of {self.stack.module} was built for no framework.",
                why=f"{facts['horovod']}/metadata.json names neither PyTorch nor TensorFlow.",
                fix="Make its recipe demand one: HOROVOD_WITH_PYTORCH=1 or HOROVOD_WITH_TENSORFLOW=1.",
            )
        return self.described(
            name=self.stack.name,
            framework=framework,
            accelerator=self.stack.accelerator.value,
            requires=self.stack.requires,
            machine=self.host.machine,
            python=facts["python"],
            suffix=facts["suffix"],
            tree=tree,
            module=self.stack.module,
            modules=tuple(self.made_from()),
            extras=self.extras,
            mpi=mpi.built_mpi(self.plan, self.host, inside, self.env) if facts["horovod"] else None,
            horovod=facts["horovod"],
            site_packages=tuple(facts["site_packages"]),
            library_path=tuple(facts["library_path"]),
            verified=time.strftime("%Y-%m-%d"),
            log=str(folder),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            envkit=__version__,
        )

    def settle(self, environment: Receipt) -> Receipt:
        """Return the receipt as it is: modules are where they stay. What has no list of its files gets one."""
        for module in self.steps:
            if self.tree.has(module) and not manifest.path_of(self.tree, module).is_file():
                manifest.write(self.tree, module)
        return environment

    def made_from(self) -> Iterator[receipt.Module]:
        """Yield each module with the recipe it was made from."""
        for step in self.plan.steps:
            record = receipt.built(self.tree, step.module)
            recipe, checksum = (record.easyconfig, record.sha256) if record else (step.easyconfig, step.checksum())
            origin = record.cached if record else None
            yield receipt.Module(name=step.module, easyconfig=recipe, sha256=checksum, cached=origin)


def modules_of(plan: Plan, stack: Stack) -> dict[str, str]:
    """Return the module of each extra that a plan has."""
    by_recipe = {Path(step.easyconfig).name: step.module for step in plan.steps}
    return {name: by_recipe[recipe] for name, recipe in stack.extras.items()}
