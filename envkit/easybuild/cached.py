"""The builds that caches have of a plan's modules: which fit, why the others do not, and putting them in place.

These are its Horovod, and what is made of wheels alone, such as PyTorch.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Protocol

from rich.console import Console

from envkit.binary.build_flags import read_extensions
from envkit.cache import binaries, fit, unpack, wheels
from envkit.cache.fit import Provided
from envkit.cache.manifest import rules
from envkit.cache.place import Caches, SignedManifest, signer
from envkit.easybuild import build, mpi
from envkit.environments import filelocks, manifest
from envkit.environments.lockfile import Lock
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Cached, Receipt
from envkit.errors import BuildFailed, CacheInvalid, ModuleNotLoaded
from envkit.machine.host import Host
from envkit.planning.method import Offered
from envkit.planning.plan import Plan, Step
from envkit.planning.request import Request
from envkit.planning.stack import Stack
from envkit.report import words
from envkit.report.progress import say
from envkit.sources.cache import Source
from envkit.sources.progress import fetch_all
from envkit.system import files
from envkit.system.files import at_home

SHOWN = 5  # objects that do not fit


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A build that a cache has of a module that is to be built; ``why_not`` says why it does not fit, if it does not.

    ``key`` is the public key that verifies it; nothing where none does.
    """

    entry: SignedManifest
    key: str
    why_not: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FoundBuilds:
    """The offers of caches, the nearest that fits first, and what is wrong with caches."""

    offers: tuple[Offer, ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def taken(self) -> dict[str, Offer]:
        """The one to take of each module that one fits of."""
        return {offer.entry.manifest.module: offer for offer in reversed(self.offers) if not offer.why_not}

    @property
    def best(self) -> Offer | None:
        """The one to take, if there is one."""
        return next((offer for offer in self.offers if not offer.why_not), None)


class Work(Protocol):
    """The part of an installation by modules (``method.py``) that is used here."""

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
    def looked(self) -> FoundBuilds:
        """The builds that the caches have."""

    def asked(self, folder: Path) -> Receipt:
        """Return the receipt of what is there."""


def find_builds(work: Work) -> FoundBuilds:
    """Look for builds of what is to be built of a plan. A server is not asked without a network."""
    steps = [] if work.request.rebuild else [step for step in work.plan.steps if is_sought(step, work)]
    if not work.caches.places or not steps:
        return FoundBuilds()
    provided, offers, wrong = here(work), list[Offer](), list[str]()
    for place in work.caches.kept:
        if place.is_remote and work.request.offline:
            continue
        for step in steps:
            try:
                names = place.names(step.module)
            except CacheInvalid as error:
                wrong.append(f"{error.what} {error.why}")
                break
            own = fit.of_module(provided, step.module) if wheels.is_all(step.sources) else provided
            pinned = {source.sha256 for source in step.sources}
            offers += [offered(entry, own, pinned, work.caches) for entry in place.entries(names, wrong)]
    order = {place: number for number, place in enumerate(work.caches.places)}
    modules = [step.module for step in steps]
    offers.sort(key=lambda offer: fit.nearness(offer.entry.manifest, provided), reverse=True)
    offers.sort(key=lambda offer: (bool(offer.why_not), order[offer.entry.place.named]))
    offers.sort(key=lambda offer: modules.index(offer.entry.manifest.module))
    return FoundBuilds(offers=tuple(offers), wrong=tuple(wrong))


def is_sought(step: Step, work: Work) -> bool:
    """Say whether a cache may have what a step makes, and that is to be made."""
    if step.module not in work.missing or step.module in work.again:
        return False
    is_horovod = step.module == work.stack.module and step.module.startswith("Horovod/")
    return is_horovod or (wheels.is_all(step.sources) and not step.eula)


def offered(entry: SignedManifest, provided: Provided, pinned: set[str | None], caches: Caches) -> Offer:
    """Return what a cache has, and why it does not fit; ``pinned`` are the SHA-256 of the sources of its recipe."""
    why, key = [*fit.reasons(entry.manifest, provided)], ""
    if not entry.manifest.wheels.keys() <= pinned:
        why.append("it takes wheels that its recipe does not")
    if not why:
        key = signer(entry, caches.keys)
        if not key and not caches.unsigned:
            why.append(untrusted(entry, caches.keys) or "it is not signed (--unsigned-cache takes it all the same)")
    return Offer(entry=entry.without_files if why else entry, key=key, why_not=tuple(why))


def untrusted(entry: SignedManifest, keys: Sequence[str] = ()) -> str:
    """Say that no key verifies what is signed, and which keys can verify nothing; nothing of what is not signed."""
    if not entry.signed.signature:
        return ""
    unusable = [f"{key} {why}" for key in keys if (why := unusable_key(at_home(key)))]
    return "; ".join(["none of your keys ('cache.keys') has signed it", *unusable])


def unusable_key(path: Path) -> str:
    """Say why a file can be no public key; nothing if it may be one."""
    try:
        content = files.read(path)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if b"PRIVATE KEY" in content:
        return "is a private key: name its public half"
    return "" if b"PUBLIC KEY" in content else "is no public key"


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
    )


def lines(looked: FoundBuilds) -> Iterator[str]:
    """Yield what a plan says of caches: what is taken, why other objects are not, what is wrong."""
    of = {module: [*group] for module, group in groupby(looked.offers, lambda offer: offer.entry.manifest.module)}
    for module, group in of.items():
        best = looked.taken.get(module)
        if best is not None:
            taken, origin = best.entry.manifest, best.entry.manifest.provenance
            unsigned = "signed by none of your keys" if best.entry.signed.signature else "not signed"
            by = f"signed with {best.key}" if best.key else unsigned
            yield f"Cache:    {module} is taken from {best.entry.place.shown}, not built here:"
            start = f"          object {best.entry.id[:12]}, {words.size(taken.size)}"
            yield f"{start}, built on {origin.host}, {origin.built}; {by}"
            yield f"          with {needed(best.entry)}"
        others = [offer for offer in group if offer.why_not]
        for number, other in enumerate(others[:SHOWN]):
            title = "          " if number or best else "Cache:    "
            named = "" if best else f", {module}"
            yield f"{title}not {other.entry.id[:12]} of {other.entry.place.shown}{named}: {'; '.join(other.why_not)}"
        if len(others) > SHOWN:
            yield f"          and {len(others) - SHOWN} more that do not fit"
    for text in looked.wrong:
        yield f"Cache:    {text}"


def offers(looked: FoundBuilds) -> tuple[Offered, ...]:
    """Return the same for scripts."""
    return tuple(
        Offered(
            step=offer.entry.manifest.module,
            place=offer.entry.place.shown,
            id=offer.entry.id,
            taken=offer is looked.taken.get(offer.entry.manifest.module),
            why_not=offer.why_not,
        )
        for offer in looked.offers
    )


def needed(entry: SignedManifest) -> str:
    """Return what an object was built with, and what it needs of a machine, in words."""
    needs, from_wheels = entry.manifest.needs, entry.manifest.wheels
    if not needs.mpi_library:
        return f"what is in {words.count(len(from_wheels), 'wheel')} of its recipe besides"
    wanted = ", ".join([*(f"{kind} {version}" for kind, version in needs.versions.items()), *needs.cpu])
    return f"{needs.mpi.family} {needs.mpi.version}; it needs {wanted}"


def take(work: Work, console: Console) -> list[str]:
    """Put the builds of caches that fit into the tree; return the modules. What is bad is said in a line.

    Raises what fetching their wheels does.
    """
    for text in work.looked.wrong:
        say(console, f"{text} It is left out.")
    return [step.module for step in work.plan.steps if taken(step, work, console)]


def taken(step: Step, work: Work, console: Console) -> bool:
    """Put the build of a cache into the tree, if one fits; say whether that was done."""
    module, tree, request = step.module, work.tree, work.request
    fitting = [one for one in work.looked.offers if not one.why_not and one.entry.manifest.module == module]
    for offer in fitting:
        entry, began = offer.entry, time.monotonic()
        origin = Cached(
            place=entry.place.shown, id=entry.id, host=entry.manifest.provenance.host,
            built=entry.manifest.provenance.built, key=offer.key,
        )  # fmt: skip
        if sources := wheels_of(entry, step):
            cache = request.prefix.sources
            fetch_all(sources, cache, request.offline, work.stack.name, console, work.caches.kept)

        def record(origin: Cached = origin, began: float = began) -> None:
            build.note(tree, step, time.monotonic() - began, origin)

        message = f"Another process is building {module}; waiting for it."
        with filelocks.held(tree, filelocks.lock_name(module), console, message):
            if tree.has(module):
                return False
            try:
                paths = {source.sha256 or "": request.prefix.sources / source.place for source in sources}
                unpack.take(entry, tree, work.host.python.path, record, paths)
            except CacheInvalid as error:
                say(console, f"{error.what} {error.why} {module} is not taken from there.")
                continue
            manifest.write(tree, module)
        say(console, f"Taken from {entry.place.shown}: {module}, built on {origin.host}, {origin.built}.")
        return True
    return False


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
