"""The images that caches have of a plan: whether one is what would be built, and putting it in the place of its layer.

An image fits where it is made of the same, down to the key of its last layer, and is for the same type of machine, with
a CPU that has what its Horovod was compiled for: all else that it needs is in it.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rich.console import Console

from envkit.apptainer.build import make_own
from envkit.apptainer.layers import Layer
from envkit.cache import binaries, fit, unpack
from envkit.cache.offers import FoundBuilds, Offer, judged
from envkit.cache.place import Caches, SignedManifest
from envkit.environments.receipt import Cached
from envkit.errors import CacheInvalid, Interrupted
from envkit.planning.request import Request
from envkit.planning.stack import Stack
from envkit.report import words
from envkit.report.progress import BuildProgress, say
from envkit.system import process
from envkit.system.files import discard, replace, sha256

OTHER = "it was made from another recipe, other arguments, patches or base, or by another envkit"


def find_images(request: Request, stack: Stack, image: Layer, machine: str, caches: Caches) -> FoundBuilds:
    """Look for the image that a plan ends in. A server is not asked without a network, nor any for what is not ours."""
    is_own = bool(stack.recipe) and not (request.source or request.dockerfile)
    if not caches.places or not is_own or request.rebuild or request.again or request.sign or request.sandbox:
        return FoundBuilds()
    offers, wrong = list[Offer](), list[str]()
    for place in caches.kept:
        if place.is_remote and request.offline:
            continue
        try:
            names = place.names(stack.name)
        except CacheInvalid as error:
            wrong.append(f"{error.what} {error.why}")
            continue
        for entry in place.entries(names, wrong):
            if entry.manifest.is_image:
                offers.append(judged(entry, [*unfit(entry, image, machine)], caches))
    order = {place: number for number, place in enumerate(caches.places)}
    offers.sort(key=lambda offer: offer.entry.manifest.provenance.built, reverse=True)
    offers.sort(key=lambda offer: (bool(offer.why_not), order[offer.entry.place.named]))
    return FoundBuilds(offers=tuple(offers), wrong=tuple(wrong))


def unfit(entry: SignedManifest, image: Layer, machine: str) -> Iterator[str]:
    """Yield why an image is not that which would be built, or cannot run on this machine."""
    yield from fit.of_image(entry.manifest, machine, binaries.features())
    if entry.manifest.part.sha256 != image.key:
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
    """An image that was taken from a cache, and where it lies until it is verified: under a name of its own.

    So it is never taken for one that was built here.
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
    for offer in [candidate for candidate in looked.offers if not candidate.why_not]:
        entry = offer.entry
        taken = TakenImage(offer=offer, image=layers / f"taken-{entry.id[:20]}.sif")
        try:
            with process.interruptible():
                put(entry, taken.image, console)
        except CacheInvalid as error:
            say(console, f"{error.what} {error.why} The image is not taken from there.")
            continue
        except Interrupted as stopped:
            stopped.why = f"The image was being taken from {entry.place.shown}."
            stopped.fix = "Run the same command again."
            raise
        origin = taken.origin
        say(console, f"Taken from {origin.place}: the image, built on {origin.host}, {origin.built}.")
        return taken
    return None


def put(entry: SignedManifest, target: Path, console: Console) -> None:
    """Write an image to a place, whole or not at all; one that is there already has to be the same.

    Raises CacheInvalid, OSError.
    """
    unpack.require_small(entry)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and sha256(target) == entry.manifest.sha256:
        return
    size, free = entry.manifest.size, shutil.disk_usage(target.parent).free
    if size > free:
        room = f"The image has {words.size(size)}, and {target.parent} has {words.size(free)} free."
        raise CacheInvalid(what=f"There is no room for what {entry.place.shown} has.", why=room)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    discard(partial)
    try:
        with BuildProgress(console, ["image"], {}) as progress, partial.open("xb") as stream:
            progress.on({"event": "begin", "module": "image"})
            unpack.fetch(entry, Shown(stream=stream, progress=progress, size=size))
        make_own(partial)
        replace(partial, target)
    finally:
        discard(partial)
