"""The builds that caches have of a plan's Horovod: which fits, why the others do not, and putting it in place."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rich.console import Console

from envkit.binary.build_flags import read_extensions
from envkit.cache import binaries, fit, unpack
from envkit.cache.fit import Provided
from envkit.cache.manifest import rules
from envkit.cache.place import Caches, Place, SignedManifest, signer
from envkit.easybuild import build, mpi
from envkit.environments import filelocks, manifest
from envkit.environments.lockfile import Lock
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Cached, Receipt
from envkit.errors import BuildFailed, CacheInvalid, ModuleNotLoaded
from envkit.machine.host import Host
from envkit.planning.method import Offered
from envkit.planning.plan import Plan
from envkit.planning.request import Request
from envkit.planning.stack import Stack
from envkit.report import words
from envkit.report.progress import say

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
    """Look for builds of the Horovod of a plan, if that is to be built. A server is not asked without a network."""
    module = work.stack.module
    if not work.caches.places or work.request.rebuild or module not in work.missing or module in work.again:
        return FoundBuilds()
    if not module.startswith("Horovod/"):
        return FoundBuilds()
    provided, offers, wrong = here(work), list[Offer](), list[str]()
    for place in [Place(named=named) for named in work.caches.places]:
        if place.is_remote and work.request.offline:
            continue
        try:
            names = place.names(module)
        except CacheInvalid as error:
            wrong.append(f"{error.what} {error.why}")
            continue
        offers += [offered(entry, provided, work.caches) for entry in place.entries(names, wrong)]
    order = {place: number for number, place in enumerate(work.caches.places)}
    offers.sort(key=lambda offer: fit.nearness(offer.entry.manifest, provided), reverse=True)
    offers.sort(key=lambda offer: (bool(offer.why_not), order[offer.entry.place.named]))
    return FoundBuilds(offers=tuple(offers), wrong=tuple(wrong))


def offered(entry: SignedManifest, provided: Provided, caches: Caches) -> Offer:
    """Return what a cache has, and why it does not fit."""
    why, key = [*fit.reasons(entry.manifest, provided)], ""
    if not why:
        key = signer(entry, caches.keys)
        if not key and not caches.unsigned:
            why.append(untrusted(entry) or "it is not signed (--unsigned-cache takes it all the same)")
    return Offer(entry=entry.without_files if why else entry, key=key, why_not=tuple(why))


def untrusted(entry: SignedManifest) -> str:
    """Say that no key verifies what is signed; nothing of what is not signed."""
    return "none of your keys ('cache.keys') has signed it" if entry.signed.signature else ""


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
    best = looked.best
    if best is not None:
        taken, origin = best.entry.manifest, best.entry.manifest.provenance
        by = f"signed with {best.key}" if best.key else "not signed"
        yield f"Cache:    {taken.module} is taken from {best.entry.place.shown}, not built here:"
        start = f"          object {best.entry.id[:12]}, {words.size(taken.size)}"
        yield f"{start}, built on {origin.host}, {origin.built}; {by}"
        yield f"          with {taken.needs.mpi.family} {taken.needs.mpi.version}; it needs {needed(best.entry)}"
    others = [offer for offer in looked.offers if offer.why_not]
    title = "Cache:    " if best is None else "          "
    for number, other in enumerate(others[:SHOWN]):
        start = title if not number else "          "
        yield f"{start}not {other.entry.id[:12]} of {other.entry.place.shown}: {'; '.join(other.why_not)}"
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
            taken=offer is looked.best,
            why_not=offer.why_not,
        )
        for offer in looked.offers
    )


def needed(entry: SignedManifest) -> str:
    """Return what an object needs of a machine, in words."""
    needs = entry.manifest.needs
    return ", ".join([*(f"{kind} {version}" for kind, version in needs.versions.items()), *needs.cpu])


def take(work: Work, console: Console) -> bool:
    """Put the build of a cache into the tree, if one fits; say whether that was done. What is bad is said in a line."""
    looked, module, tree = work.looked, work.stack.module, work.tree
    for text in looked.wrong:
        say(console, f"{text} It is left out.")
    for offer in [candidate for candidate in looked.offers if not candidate.why_not]:
        entry, began = offer.entry, time.monotonic()
        origin = Cached(
            place=entry.place.shown, id=entry.id, host=entry.manifest.provenance.host,
            built=entry.manifest.provenance.built, key=offer.key,
        )  # fmt: skip

        def record(origin: Cached = origin, began: float = began) -> None:
            build.note(tree, work.plan.steps[-1], time.monotonic() - began, origin)

        message = f"Another process is building {module}; waiting for it."
        with filelocks.held(tree, filelocks.lock_name(module), console, message):
            if tree.has(module):
                return False
            try:
                unpack.take(entry, tree, work.host.python.path, record)
            except CacheInvalid as error:
                say(console, f"{error.what} {error.why} {module} is not taken from there.")
                continue
            manifest.write(tree, module)
        say(console, f"Taken from {entry.place.shown}: {module}, built on {origin.host}, {origin.built}.")
        return True
    return False


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
