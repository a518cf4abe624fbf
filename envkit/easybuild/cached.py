"""The builds that caches have of a plan's modules: looking for them, and putting them in place.

These are its Horovod, what is made of wheels alone, such as PyTorch, and the modules that stand for the same tools of a
machine as are here.
"""

import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rich.console import Console

from envkit.binary.build_flags import read_extensions
from envkit.cache import binaries, fit, unpack, wheels
from envkit.cache.fit import Provided
from envkit.cache.manifest import folder_of, rules
from envkit.cache.offers import FoundBuilds, Offer, by_trust_and_place, judged, left_out, not_taken
from envkit.cache.place import Caches, Looking, Place, SignedManifest, is_of_server
from envkit.easybuild import build, machine_tools, mpi
from envkit.environments import filelocks, manifest
from envkit.environments.lockfile import Lock
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Cached, Receipt
from envkit.errors import BuildFailed, CacheInvalid, ModuleNotLoaded
from envkit.machine.host import Host
from envkit.planning.plan import Plan, Step
from envkit.planning.request import Request
from envkit.planning.stack import Stack
from envkit.report.progress import say
from envkit.sources.index import Candidate
from envkit.sources.progress import fetch_all
from envkit.sources.source_cache import Source


class Work(Protocol):
    """The part of an installation by modules (``installation.py``) that is used here."""

    @property
    def request(self) -> Request:
        """The request that it follows."""

    @property
    def stack(self) -> Stack:
        """The stack that is installed."""

    @property
    def host(self) -> Host:
        """This machine."""

    @property
    def plan(self) -> Plan:
        """The plan that is built."""

    @property
    def tree(self) -> Tree:
        """The tree that it is built in."""

    @property
    def caches(self) -> Caches:
        """The caches that builds may be taken from."""

    @property
    def missing(self) -> list[str]:
        """The modules that are not there."""

    @property
    def again(self) -> list[str]:
        """The modules that are damaged."""

    @property
    def lock(self) -> Lock:
        """The lock, which names all that it is made from."""

    @property
    def known(self) -> Mapping[Source, Candidate]:
        """Where sources are, as far as that was asked."""

    @property
    def looked(self) -> FoundBuilds:
        """The builds that the caches have."""

    def asked(self, folder: Path) -> Receipt:
        """Return the receipt of what is there."""


def find_builds(work: Work) -> FoundBuilds:
    """Look for builds of what is to be built of a plan. A server is not asked without a network."""
    steps = [] if work.request.rebuild else [step for step in work.plan.steps if is_sought(step, work)]
    if not work.caches.places or not steps:
        return FoundBuilds()
    provided, offers = here(work), list[Offer]()
    recipes = {part.name: part.sha256 for part in work.lock.parts}
    by_folder = {folder_of(step.module): step for step in steps}
    of_other_mpi = by_other_mpi(work.stack.module) if folder_of(work.stack.module) in by_folder else ()
    places = (place for place in work.caches.kept if not (place.is_remote and work.request.offline))
    looking = Looking(places, {*by_folder, *map(folder_of, of_other_mpi)})
    for entry in looking:
        if entry.manifest.module in of_other_mpi:
            if why := [*fit.of_mpi(entry.manifest.needs, provided)]:
                offers.append(judged(entry, why, work.caches))
            continue
        step = by_folder.get(folder_of(entry.manifest.module))
        if step is None or entry.manifest.module != step.module:  # names of folders are not one to one
            continue
        is_alone = wheels.is_all(step.sources) or is_of_machine(step)
        own = fit.of_module(provided, step.module, recipes[step.module]) if is_alone else provided
        pinned = {source.sha256 for source in step.sources}
        why = [*fit.reasons(entry.manifest, own)]
        if not entry.manifest.wheels.keys() <= pinned:
            why.append("it takes files from wheels that the recipe does not pin here")
        offers.append(judged(entry, why, work.caches))
    order = {step.module: number for number, step in enumerate(steps)}
    offers.sort(key=lambda offer: fit.nearness(offer.entry.manifest, provided), reverse=True)
    offers = by_trust_and_place(offers, work.caches)
    offers.sort(key=lambda offer: order.get(offer.entry.manifest.module, len(order)))
    return FoundBuilds.of(offers, looking, work.caches)


def is_sought(step: Step, work: Work) -> bool:
    """Say whether a cache may have what a step makes, and that is to be made."""
    if step.module not in work.missing or step.module in work.again:
        return False
    is_horovod = step.module == work.stack.module and step.module.startswith("Horovod/")
    return is_horovod or is_of_machine(step) or (wheels.is_all(step.sources) and not step.eula)


def by_other_mpi(module: str) -> set[str]:
    """Return what a Horovod is called where it is linked with another MPI of the machine."""
    systems = [f"-{name.removesuffix('/system')}-system" for name in rules()["compared"] if name.endswith("/system")]
    return {module.replace(own, other) for own in systems if own in module for other in systems if other != own}


def is_of_machine(step: Step) -> bool:
    """Say whether what a step makes stands for what the machine has."""
    return step.module in rules()["compared"]


def here(work: Work) -> Provided:
    """Return what this machine and a plan have of what objects need."""
    return replace(
        machine(work.host, is_embedded=mpi.is_embedded(work.plan)),
        recipes=fit.recipes_of(work.lock, rules()["compared"]),
        accelerator=work.stack.accelerator.value,
        load=work.request.load,
    )


def machine(host: Host, *, is_embedded: bool) -> Provided:
    """Return what a machine has of it, whatever the plan, but for whether the MPI is a wheel's."""
    own = (host.mpi.family, host.mpi.version) if host.mpi else ("", "")
    return Provided(
        recipes={},
        machine=host.machine,
        python=host.python.minor,
        accelerator="",
        mpi=("Open MPI", "") if is_embedded else own,
        is_embedded=is_embedded,
        mpi_library="" if is_embedded else mpi.own_library(host),
        versions=binaries.offered(host.env),
        cpu=binaries.features(),
        syntax="Lua" if host.modules_tool and host.modules_tool.kind == "Lmod" else "Tcl",
        load=host.load,
        tools=machine_tools.found(host),
    )


def take(work: Work, console: Console) -> list[str]:
    """Put the builds of caches that fit into the tree; return the modules. What is bad is said in a line.

    Raises what fetching their wheels does.
    """
    for text in left_out(work.looked):
        say(console, text)
    failed, modules, of_machine = set(work.looked.failed), list[str](), dict[str, list[str]]()
    chosen = [(offer.entry, step) for step in work.plan.steps if (offer := work.looked.taken.get(step.module))]
    fetch_wheels([source for entry, step in chosen for source in wheels_of(entry, step)], work, console, failed)
    for step in work.plan.steps:
        if (place := taken(step, work, console, failed)) is not None:
            modules.append(step.module)
            if is_of_machine(step):
                of_machine.setdefault(place.shown, []).append(step.module)
    for shown, names in of_machine.items():
        say(console, f"Taken from {shown}, where the same tools were: {', '.join(names)}.")
    return modules


def taken(step: Step, work: Work, console: Console, failed: set[Place]) -> Place | None:
    """Put the build of a cache into the tree, if one fits; return the place that it is from.

    A place whose server has ``failed`` is asked for nothing; one that fails now is added.
    """
    module, tree, request = step.module, work.tree, work.request
    fitting = [one for one in work.looked.offers if not one.why_not and one.entry.manifest.module == module]
    for offer in (one for one in fitting if one.entry.place not in failed):
        entry, began = offer.entry, time.monotonic()
        origin = Cached(
            place=entry.place.shown, id=entry.id, host=entry.manifest.provenance.host,
            built=entry.manifest.provenance.built, key=offer.key,
        )  # fmt: skip
        sources = wheels_of(entry, step)
        if offer is not work.looked.taken[module]:  # of which they are there already
            fetch_wheels(sources, work, console, failed)

        def record(origin: Cached = origin, began: float = began) -> None:
            build.note(tree, step, time.monotonic() - began, work.host, origin)

        message = f"Another process is building {module}; waiting for it."
        with filelocks.held(tree, filelocks.lock_name(module), console, message):
            if tree.has(module):
                return None
            try:
                paths = {source.sha256 or "": request.prefix.sources / source.place for source in sources}
                digests = unpack.take(entry, tree, work.host.python.path, record, paths)
            except CacheInvalid as error:
                say(console, not_taken(entry, module, error))
                failed |= {entry.place} if is_of_server(error) else set()
                continue
            manifest.write(tree, module, digests)
        if not is_of_machine(step):
            built = f"built on {origin.host}, {origin.built}; {offer.signed_by}"
            say(console, f"Taken from {entry.place.shown}: {module}, {built}.")
        return entry.place
    return None


def fetch_wheels(sources: Sequence[Source], work: Work, console: Console, failed: Container[Place]) -> None:
    """Fetch wheels. Raises what that does."""
    request, kept = work.request, [place for place in work.caches.kept if place not in failed]
    if sources:
        fetch_all(sources, request.prefix.sources, request.offline, work.stack.name, console, kept, work.known)


def wheels_of(entry: SignedManifest, step: Step) -> list[Source]:
    """Return the sources of a step that an object takes files from."""
    return [source for source in step.sources if source.sha256 in entry.manifest.wheels]


def unusable(work: Work, folder: Path) -> str:
    """Say why the Horovod that was taken cannot be loaded where all that it needs is there; nothing if it can."""
    try:
        environment = work.asked(folder)
    except (BuildFailed, ModuleNotLoaded) as error:
        return error.why or error.what
    if not environment.horovod:
        return "There is no Horovod in it."
    return lacking(environment)


def lacking(receipt: Receipt) -> str:
    """Say what the compiled extension of an environment lacks; nothing if it can be loaded."""
    paths: Sequence[Sequence[Path]] = [
        [Path(folder) for folder in each] for each in (receipt.library_path, receipt.site_packages)
    ]
    built = read_extensions(Path(receipt.horovod), *paths, suffix=receipt.suffix)
    extensions = [extension for extension in built.extensions if extension.exists]
    if any(extension.loads for extension in extensions):
        return ""
    wrong = [
        text
        for extension in extensions
        for text in (extension.unreadable, *extension.missing_libraries, *extension.missing_symbols)
        if text
    ]
    return f"Its extension cannot be loaded: {wrong[0]}." if wrong else "Its extension has gone."
