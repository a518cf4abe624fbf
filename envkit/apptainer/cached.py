"""The images and layers that caches have of a plan: whether one is what would be built, and putting it in place.

An image fits where it is made of the same, down to the key of its last layer, and is for the same type of machine, with
a CPU that has what its Horovod was compiled for: all else that it needs is in it. So does a layer, of which others are
built here.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec
from rich.console import Console

from envkit.apptainer.build import make_own
from envkit.apptainer.image_plan import Layer, note_of
from envkit.cache import binaries, fit, unpack
from envkit.cache.manifest import layer_name
from envkit.cache.offers import FoundBuilds, Offer, judged
from envkit.cache.place import Caches, SignedManifest
from envkit.environments.receipt import Cached
from envkit.errors import CacheInvalid, Interrupted
from envkit.planning.request import Request
from envkit.planning.stack import Stack
from envkit.report import words
from envkit.report.progress import BuildProgress, say
from envkit.system import process, record
from envkit.system.files import discard, read, replace, sha256, write

OTHER = "it was made from another recipe, other arguments, patches or base, or by another envkit"


def find_images(request: Request, stack: Stack, image: Layer, machine: str, caches: Caches) -> FoundBuilds:
    """Look for the image that a plan ends in. A server is not asked without a network, nor any for what is not ours."""
    if request.sign or request.sandbox:  # no cache has one like that
        return FoundBuilds()
    return find(request, stack, stack.name, image, machine, caches)


def find_layers(
    request: Request, stack: Stack, wanted: Sequence[Sequence[Layer]], machine: str, caches: Caches
) -> FoundBuilds:
    """Look for layers, each chain of which is built one on the other: of each the last that a cache has."""
    offers, wrong = list[Offer](), list[str]()
    for chain in wanted:
        for layer in reversed(chain):
            found = find(request, stack, layer_name(stack.name, layer.name), layer, machine, caches)
            offers += found.offers
            wrong += found.wrong
            if found.taken:
                break
    return FoundBuilds(offers=tuple(offers), wrong=tuple(dict.fromkeys(wrong)))


def find(request: Request, stack: Stack, name: str, layer: Layer, machine: str, caches: Caches) -> FoundBuilds:
    """Look for an image or a layer by what caches call it, for those first that fit."""
    is_own = bool(stack.recipe) and not (request.source or request.dockerfile)
    if not caches.places or not is_own or request.rebuild or request.again:
        return FoundBuilds()
    offers, wrong = list[Offer](), list[str]()
    for place in caches.kept:
        if place.is_remote and request.offline:
            continue
        try:
            names = place.names(name)
        except CacheInvalid as error:
            wrong.append(f"{error.what} {error.why}")
            continue
        for entry in place.entries(names, wrong):
            if entry.manifest.module == name:
                offers.append(judged(entry, [*unfit(entry, layer, machine)], caches))
    order = {place: number for number, place in enumerate(caches.places)}
    offers.sort(key=lambda offer: offer.entry.manifest.provenance.built, reverse=True)
    offers.sort(key=lambda offer: (bool(offer.why_not), order[offer.entry.place.named]))
    return FoundBuilds(offers=tuple(offers), wrong=tuple(wrong))


def unfit(entry: SignedManifest, layer: Layer, machine: str) -> Iterator[str]:
    """Yield why an image or a layer is not that which would be built, or cannot run on this machine."""
    yield from fit.of_image(entry.manifest, machine, binaries.features())
    if entry.manifest.part.sha256 != layer.key:
        yield OTHER


@dataclass(kw_only=True)
class Shown:
    """A file that says how much has been written to it."""

    stream: IO[bytes]
    progress: BuildProgress
    size: int
    done: int = 0

    def write(self, chunk: bytes) -> int:
        """Write, and say so."""
        self.done += len(chunk)
        self.progress.on({"event": "step", "step": f"{words.size(self.done)} of {words.size(self.size)}"})
        self.progress.tick()
        return self.stream.write(chunk)


@dataclass(frozen=True, kw_only=True)
class TakenImage:
    """An image or a layer that was taken from a cache, and where it lies.

    An image lies under a name of its own until it is verified, so that it is never taken for one that was built here.
    """

    offer: Offer
    image: Path

    @property
    def origin(self) -> Cached:
        """What a receipt says of where it is from."""
        entry, of = self.offer.entry, self.offer.entry.manifest.provenance
        return Cached(place=entry.place.shown, id=entry.id, host=of.host, built=of.built, key=self.offer.key)


def take(looked: FoundBuilds, layers: Path, console: Console) -> TakenImage | None:
    """Put the image of a cache among the layers, if one fits; return it, or None where that was not done.

    What is bad is said in a line, and leaves nothing. Raises Interrupted, OSError.
    """
    for text in looked.wrong:
        say(console, f"{text} It is left out.")
    fitting = [TakenImage(offer=offer, image=layers / f"taken-{offer.entry.id[:20]}.sif") for offer in fit_of(looked)]
    return first(fitting, "image", console)


def take_layer(looked: FoundBuilds, stack: Stack, layer: Layer, console: Console) -> None:
    """Put a layer of a cache where it would be built, if one fits, with a note of where it is from.

    What is bad is said in a line, and leaves nothing. Raises Interrupted, OSError.
    """
    name = layer_name(stack.name, layer.name)
    fitting = [offer for offer in fit_of(looked) if offer.entry.manifest.module == name]
    if first([TakenImage(offer=offer, image=layer.image) for offer in fitting], layer.name, console) is None:
        discard(note_of(layer.image))


def fit_of(looked: FoundBuilds) -> list[Offer]:
    """Return the offers that fit."""
    return [offer for offer in looked.offers if not offer.why_not]


def first(fitting: Sequence[TakenImage], name: str, console: Console) -> TakenImage | None:
    """Take the first of some images, or of one layer, that is as it should be; None if none is."""
    called = "the image" if name == "image" else f"the layer {name}"
    for taken in fitting:
        entry, origin = taken.offer.entry, taken.origin
        try:
            with process.interruptible():
                if entry.manifest.is_layer:  # before it is seen
                    taken.image.parent.mkdir(parents=True, exist_ok=True)
                    write(note_of(taken.image), msgspec.json.encode(origin))
                put(entry, taken.image, name, console)
        except CacheInvalid as error:
            say(console, f"{error.what} {error.why} {called.capitalize()} is not taken from there.")
            continue
        except Interrupted as stopped:
            stopped.why = f"{called.capitalize()} was being taken from {entry.place.shown}."
            stopped.fix = "Run the same command again."
            raise
        say(console, f"Taken from {origin.place}: {called}, built on {origin.host}, {origin.built}.")
        return taken
    return None


def noted(layer: Path) -> Cached | None:
    """Return the cache that a layer was taken from; None where it was built."""
    with suppress(OSError, msgspec.DecodeError):
        return record.decode(read(note_of(layer)), Cached)
    return None


def put(entry: SignedManifest, target: Path, name: str, console: Console) -> None:
    """Write an image or a layer to a place, whole or not at all; one that is there already has to be the same.

    Raises CacheInvalid, OSError.
    """
    unpack.require_small(entry)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and sha256(target) == entry.manifest.sha256:
        return
    size, free = entry.manifest.size, shutil.disk_usage(target.parent).free
    if size > free:
        room = f"It has {words.size(size)}, and {target.parent} has {words.size(free)} free."
        raise CacheInvalid(what=f"There is no room for what {entry.place.shown} has.", why=room)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    discard(partial)
    try:
        with BuildProgress(console, [name], {}) as progress, partial.open("xb") as stream:
            progress.on({"event": "begin", "module": name})
            unpack.fetch(entry, Shown(stream=stream, progress=progress, size=size))
        make_own(partial)
        replace(partial, target)
    finally:
        discard(partial)
