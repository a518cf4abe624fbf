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

import msgspec
from rich.console import Console

from envkit import __version__
from envkit.apptainer.build import make_own
from envkit.apptainer.image_plan import DEBIAN, IMAGE, Layer, note_of
from envkit.cache import binaries, fit, unpack
from envkit.cache.manifest import Manifest, folder_of, layer_name
from envkit.cache.offers import FoundBuilds, Offer, by_trust_and_place, judged, not_taken
from envkit.cache.place import Caches, Looking, SignedManifest
from envkit.environments.receipt import Cached
from envkit.errors import CacheInvalid, Interrupted
from envkit.planning.request import Request
from envkit.planning.stack import Stack
from envkit.report import words
from envkit.report.progress import say, transfer
from envkit.system import process, record
from envkit.system.files import discard, read, replace, sha256, write

OTHER = "it was made from another recipe, other arguments, patches or base, or by another envkit"


def name_of(stack: Stack, layer: Layer) -> str:
    """Return what caches call a layer, or the image that is the last."""
    return stack.name if layer.name == IMAGE else layer_name(stack.name, layer.name)


def find(
    request: Request, stack: Stack, layers: Sequence[Layer], machine: str, caches: Caches, plan: Sequence[Layer] = ()
) -> FoundBuilds:
    """Look for the image of a plan and the layers below it by what caches call them, for those first that fit.

    ``plan`` are all layers of it, where others are there already.
    A server is not asked without a network, nor any place for what is not ours. No cache has an image that is a folder,
    or that is itself signed.
    """
    is_own = bool(stack.recipe) and not (request.source or request.dockerfile)
    if not caches.places or not is_own or request.rebuild or request.again:
        return FoundBuilds()
    is_whole = not (request.sign or request.sandbox)
    wanted = {name_of(stack, layer): layer for layer in layers if is_whole or layer.name != IMAGE}
    if not wanted:
        return FoundBuilds()
    folders = {folder_of(name) for name in wanted}
    places = (place for place in caches.kept if not (place.is_remote and request.offline))
    looking = Looking(places, folders)
    offers = [
        judged(entry, [*unfit(entry, layer, machine, plan or layers)], caches)
        for entry in looking
        if (layer := wanted.get(entry.manifest.module))
    ]
    offers.sort(key=lambda offer: offer.entry.manifest.provenance.built, reverse=True)
    offers = by_trust_and_place(offers, caches)
    offers.sort(key=lambda offer: [*wanted].index(offer.entry.manifest.module))
    return FoundBuilds.of(offers, looking, caches)


def unfit(entry: SignedManifest, layer: Layer, machine: str, plan: Sequence[Layer]) -> Iterator[str]:
    """Yield why an image or a layer is not that which would be built, or cannot run on this machine."""
    yield from fit.of_image(entry.manifest, machine, binaries.features())
    if entry.manifest.is_layer != (layer.name != IMAGE):
        yield OTHER
    elif entry.manifest.part.sha256 != layer.shared_key:
        yield difference(entry.manifest, layer, plan)


def difference(manifest: Manifest, layer: Layer, plan: Sequence[Layer]) -> str:
    """Say in what an image or a layer is another than that of a plan, as far as its lock tells."""
    made, planned = {part.name: part.sha256 for part in manifest.provenance.lock.parts}, [one.name for one in plan]
    if (DEBIAN in made) != (DEBIAN in planned):
        kinds = "the Debian of a mirror", "an image"
        was, here = kinds if DEBIAN in made else kinds[::-1]
        how = "--base mirror" if DEBIAN in made else "--base registry, unless it was another image,"
        return f"it was made from {was}, and here it would be from {here} ({how} plans the former)"
    if layer.name == DEBIAN and made.get(DEBIAN) == layer.key:
        return f"it is from another mirror of Debian than {layer.mirror} (--base URL names one)"
    by = manifest.provenance.envkit
    other = f" (by envkit {by}, and this is {__version__})" if by != __version__ else ""
    for one in plan:
        if one.name in made and made[one.name] != one.key:
            if one.name == DEBIAN:
                return "it was made from another Debian: of another release, or of a mirror with another date"
            called = "the image itself" if one.name == IMAGE else f"its layer {one.name}"
            base = "" if DEBIAN in made else ", or another base"
            return f"{called} has another recipe, other arguments or files{base}{other}"
    return OTHER


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
    fitting = [TakenImage(offer=offer, image=taken_to(layers, offer)) for offer in fit_of(looked)]
    return next((taken for taken in fitting if is_put(taken, IMAGE, console)), None)


def take_layer(looked: FoundBuilds, layer: Layer, console: Console) -> bool:
    """Put a layer of a cache where it would be built, if one fits, with a note of where it is from; say whether it is.

    What is bad is said in a line, and leaves nothing. Raises Interrupted, OSError.
    """
    for taken in [TakenImage(offer=offer, image=layer.image) for offer in fit_of(looked)]:
        layer.image.parent.mkdir(parents=True, exist_ok=True)
        note = msgspec.json.encode(taken.origin)
        write(note_of(layer.image), note)  # before the layer is seen
        if is_put(taken, layer.name, console):
            write(note_of(layer.image), note)  # again: another installation may have built it meanwhile
            return True
        discard(note_of(layer.image))
    return False


def taken_to(layers: Path, offer: Offer) -> Path:
    """Return where the image of a cache lies until it is verified."""
    return layers / f"taken-{offer.entry.id[:20]}.sif"


def fit_of(looked: FoundBuilds) -> list[Offer]:
    """Return the offers that fit."""
    return [offer for offer in looked.offers if not offer.why_not]


def is_put(taken: TakenImage, name: str, console: Console) -> bool:
    """Put an image or a layer of a cache in its place; say whether it is as it should be. Raises Interrupted."""
    called = "the image" if name == IMAGE else f"the layer {name}"
    origin = taken.origin
    try:
        with process.interruptible():
            put(taken.offer.entry, taken.image, name, console)
    except CacheInvalid as error:
        say(console, not_taken(taken.offer.entry, called.capitalize(), error))
        return False
    except Interrupted as stopped:
        stopped.why = f"{called.capitalize()} was being taken from {origin.place}."
        stopped.fix = "Run the same command again."
        raise
    say(
        console,
        f"Taken from {origin.place}: {called}, built on {origin.host}, {origin.built}; {taken.offer.signed_by}.",
    )
    return True


def is_noted(layer: Path) -> bool:
    """Say whether a layer was taken from a cache, also where it cannot be told from which."""
    return os.path.lexists(note_of(layer))


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
        with partial.open("xb") as stream, transfer(console, f"Taking {name}", size, stream.tell):
            unpack.fetch(entry, stream)
        make_own(partial)
        replace(partial, target)
    finally:
        discard(partial)
