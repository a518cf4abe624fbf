"""The builds that caches offer of what is to be made: which fit, whose key verifies them, what a plan says of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from shlex import quote
from typing import Self

from envkit.cache.manifest import Manifest, rules
from envkit.cache.place import Caches, Looking, Place, SignedManifest, signer
from envkit.errors import CacheInvalid
from envkit.planning.method import Offered
from envkit.report import words
from envkit.sources import signature
from envkit.system.files import at_home

SHOWN, ALIKE = 5, 2  # builds that do not fit, and of how many the same is said
UNCHECKED = "its signature cannot be checked"
NO_OPENSSL = f"{UNCHECKED}: there is no program openssl on PATH"
NO_KEYS = "you have no keys to check its signature by ('cache.keys' in your configuration)"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A build that a cache has of what is to be built; ``why_not`` says why it does not fit, if it does not.

    ``key`` is the public key that verifies it; nothing where none does. ``untrusted``: that is all that is wrong.
    """

    entry: SignedManifest
    key: str
    why_not: tuple[str, ...]
    untrusted: bool = False

    @property
    def signed_by(self) -> str:
        """Whose signature it has, in words."""
        unsigned = "signed by none of your keys" if self.entry.signed.signature else "not signed"
        return f"signed with {self.key}" if self.key else unsigned


@dataclass(frozen=True, kw_only=True)
class FoundBuilds:
    """The offers of caches, the nearest that fits first, what is wrong with caches, and which have ``none`` of it.

    ``untrusted`` says which would be taken for another signature, ``keys`` which keys verify nothing.
    The servers of those that have ``failed`` are asked for nothing more.
    """

    offers: tuple[Offer, ...] = ()
    wrong: tuple[str, ...] = ()
    untrusted: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    none: tuple[str, ...] = ()
    failed: frozenset[Place] = frozenset()

    @classmethod
    def of(cls, offers: Sequence[Offer], looking: Looking, caches: Caches) -> Self:
        """Return the offers of caches that were looked at, but for those whose server has failed meanwhile."""
        return cls(
            offers=tuple(offer for offer in offers if offer.entry.place not in looking.failed),
            wrong=tuple(looking.wrong),
            untrusted=untrusted_of(offers),
            keys=tuple(of_keys(caches.keys)),
            none=tuple(place.shown for place in looking.none),
            failed=frozenset(looking.failed),
        )

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with keys and with caches, and which builds lack a signature that is trusted."""
        return (*self.keys, *self.wrong, *self.untrusted)

    @property
    def taken(self) -> dict[str, Offer]:
        """The one to take of each module that one fits of; of an image by the name of its stack."""
        return {offer.entry.manifest.module: offer for offer in reversed(self.offers) if not offer.why_not}


def by_trust_and_place(offers: Sequence[Offer], caches: Caches) -> list[Offer]:
    """Return offers with those first that fit, of these those that a key verifies, then in the order of the caches."""
    order = {place: number for number, place in enumerate(caches.places)}
    return sorted(offers, key=lambda offer: (bool(offer.why_not), not offer.key, order[offer.entry.place.named]))


def untrusted_of(offers: Sequence[Offer]) -> tuple[str, ...]:
    """Say of the modules that no build fits of which would be taken if one of the user's keys had signed them.

    What is the same of several is said once.
    """
    first = {offer.entry.manifest.module: offer for offer in reversed(offers) if offer.untrusted}
    taken = {offer.entry.manifest.module for offer in offers if not offer.why_not}
    alike = dict[tuple[str, str], list[str]]()
    for module, offer in reversed(first.items()):
        if module not in taken:
            place, why = offer.entry.place.shown, "; ".join(offer.why_not)
            alike.setdefault((place, why), []).append(f"{module} of {place}, object {offer.entry.id[:12]}")
    return tuple(f"{with_others(named)}: {why}." for (_, why), named in alike.items())


def with_others(named: Sequence[str]) -> str:
    """Return the first of some builds, and how many others there are."""
    more = len(named) - 1
    return f"{named[0]}, and {words.count(more, 'other build')}" if more else named[0]


def judged(entry: SignedManifest, why_not: Sequence[str], caches: Caches) -> Offer:
    """Return a build that fits but for what is said, if it is signed as the caches are to be."""
    why, key = tuple(why_not), ""
    if fits := not why:
        key = signer(entry, caches.keys)
        if not key and not caches.unsigned:
            why = (untrusted(entry, caches.keys) or "it is not signed (--unsigned-cache takes it all the same)",)
    return Offer(entry=entry.without_files if why else entry, key=key, why_not=why, untrusted=fits and bool(why))


def untrusted(entry: SignedManifest, keys: Sequence[str]) -> str:
    """Say that no key verifies what is signed, or that it cannot be checked; nothing of what is not signed."""
    if not entry.signed.signature:
        return ""
    if not keys:
        return NO_KEYS
    return unchecked(keys) or "none of your keys ('cache.keys') has signed it"


def unchecked(keys: Sequence[str]) -> str:
    """Say why a signature that none of some keys verifies may be good all the same; nothing where each could verify."""
    if not signature.can_check():
        return NO_OPENSSL
    wrong = unusable(keys)
    return f"{UNCHECKED} by all of your keys ('cache.keys'): {'; '.join(wrong)}" if wrong else ""


def unusable(keys: Sequence[str]) -> list[str]:
    """Say of each public key that can verify nothing why that is so."""
    return [f"{key} {why}" for key in keys if (why := signature.unusable(at_home(key)))]


def of_keys(keys: Sequence[str]) -> list[str]:
    """Say that of the keys of the configuration, each by itself."""
    return [f"A key of your configuration ('cache.keys') verifies nothing: {text}." for text in unusable(keys)]


def not_taken(entry: SignedManifest, called: str, error: CacheInvalid) -> str:
    """Say that a build is not taken from a cache, as it is called here, and where to see what else is wrong there."""
    advice = f" 'envkit cache verify {quote(entry.place.shown)}' names all that is wrong there." if error.fix else ""
    return f"{error.what} {error.why} {called} is not taken from there.{advice}"


def lines(found: FoundBuilds) -> Iterator[str]:
    """Yield what a plan says of caches: what is taken, why other builds are not, what is wrong."""
    of = {module: [*group] for module, group in groupby(found.offers, lambda offer: offer.entry.manifest.module)}
    taken, told = found.taken, set[tuple[str, tuple[str, ...]]]()
    alike = Counter(
        (one.entry.place.shown, one.why_not) for one in found.offers if one.entry.manifest.module not in taken
    )
    if of_machine := [module for module in of if module in taken and module in rules()["compared"]]:
        places = dict.fromkeys(taken[module].entry.place.shown for module in of_machine)
        yield f"Cache:    from {' and '.join(places)}, where the same tools were: {', '.join(of_machine)}"
    for module, group in ((name, group) for name, group in of.items() if name not in of_machine):
        best, is_image, is_layer = taken.get(module), "/" not in module, group[0].entry.manifest.is_layer
        called = f"the layer {module}" if is_layer else "the image" if is_image else module
        if best is not None:
            made, origin = best.entry.manifest, best.entry.manifest.provenance
            yield f"Cache:    {called} is taken from {best.entry.place.shown}, not built here:"
            start = f"          object {best.entry.id[:12]}, {words.size(made.size)}"
            yield f"{start}, built on {origin.host}, {origin.built}; {best.signed_by}"
            if not is_image:
                yield f"          {needed(made)}"
        others = [offer for offer in group if offer.why_not and (offer.entry.place.shown, offer.why_not) not in told]
        for number, other in enumerate(others[:SHOWN]):
            title = "          " if number or best else "Cache:    "
            named = "" if best or called == "the image" else f", {called}"
            same = other.entry.place.shown, other.why_not
            if not best and alike[same] > ALIKE:
                told.add(same)
                named += f" and {alike[same] - 1} others"
            yield f"{title}not {other.entry.id[:12]} of {other.entry.place.shown}{named}: {'; '.join(other.why_not)}"
        if len(others) > SHOWN:
            yield f"          and {len(others) - SHOWN} more that do not fit"
    for text in (*found.keys, *found.wrong):
        yield f"Cache:    {text}"
    for place in found.none:
        yield f"Cache:    {place} has no build of this"


def left_out(found: FoundBuilds) -> Iterator[str]:
    """Yield what is said of caches before anything is taken from one or built."""
    yield from found.keys
    yield from (f"{text.rstrip('.')}. It is left out." for text in (*found.wrong, *found.untrusted))


def needed(build: Manifest) -> str:
    """Return what a module was built with, and what it needs of a machine, in words."""
    if not build.needs.mpi_library:
        return f"plus {words.count(len(build.wheels), 'wheel')} of its recipe"
    wanted = ", ".join([*(f"{kind} {version}" for kind, version in build.needs.versions.items()), *build.needs.cpu])
    return f"with {build.needs.mpi.family} {build.needs.mpi.version}; it needs {wanted}"


def for_scripts(found: FoundBuilds) -> tuple[Offered, ...]:
    """Return the same for scripts."""
    return tuple(
        Offered(
            step=offer.entry.manifest.module,
            place=offer.entry.place.shown,
            id=offer.entry.id,
            taken=offer is found.taken.get(offer.entry.manifest.module),
            why_not=offer.why_not,
        )
        for offer in found.offers
    )
