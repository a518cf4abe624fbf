"""What is in caches: listing their builds, finding one, reading all to the end, and removing what is of no use."""

import hashlib
import time
from collections.abc import Collection, Container, Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from shlex import quote
from typing import Literal

import msgspec

from envkit.cache import folder, layout, manifest, offers, place, publishing, unpack
from envkit.cache.layout import Stored
from envkit.cache.manifest import Needs, folder_of
from envkit.cache.place import Looking, Place, SignedManifest
from envkit.environments.prefix import Tree
from envkit.errors import CacheInvalid, NotWritable, UsageProblem, of_storage
from envkit.report import words

State = Literal["good", "unsigned", "bad", "unread"]
NOT_YOURS = "None of your keys has signed it."
LEFT_S = 24 * 3600  # what is half written for longer belongs to nobody


class ListedBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A build in a cache, as ``envkit cache list`` tells of it; ``signed_by`` is the key of yours that verifies it.

    ``layer``: it is one that an image was built on. ``arguments`` are those that an image's recipe was given.
    """

    place: str
    id: str
    module: str
    size: int
    host: str
    built: str
    signed: bool
    signed_by: str
    needs: Needs
    layer: bool = False
    arguments: dict[str, str] = {}


class CacheListing(msgspec.Struct, frozen=True, kw_only=True):
    """What ``envkit cache list`` tells; ``wrong`` is what cannot be read."""

    version: int = 1
    builds: tuple[ListedBuild, ...]
    wrong: tuple[str, ...]


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """A build, or why it is not ``good``: ``wrong``. It was ``read`` to its end and checked, unless it is ``unread``.

    What is ``unread`` may be good: it, or its signature, could not be checked now.
    """

    place: str
    id: str
    module: str
    state: State
    wrong: str
    read: bool = True


class CheckedSource(msgspec.Struct, frozen=True, kw_only=True):
    """A source that was ``read`` to its end, or could not be; ``wrong`` says what of it is, if anything is."""

    place: str
    sha256: str
    size: int
    wrong: str
    read: bool = True


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What ``envkit cache verify`` tells; of sources, which a web server does not list, only those of other places.

    ``wrong`` is what is of the indexes of places, and of several places those that cannot be read at all.
    ``signatures``: whether there were keys to check them by.
    """

    version: int = 1
    signatures: bool = False
    builds: tuple[Checked, ...]
    sources: tuple[CheckedSource, ...] = ()
    wrong: tuple[str, ...] = ()


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """What ``envkit cache prune`` has removed, or would (bytes); what it could not read, and so leaves.

    ``index``: what was wrong with the index of the place, which is written anew; "" where nothing is.
    """

    version: int = 1
    place: str
    index: str = ""
    size: int
    removed: tuple[str, ...]
    unread: tuple[str, ...] = ()


def entries(places: Sequence[Place]) -> tuple[list[SignedManifest], Looking]:
    """Return every build in some caches without its files, the last built first, and the look at them."""
    looking = Looking(places)
    found = [entry.without_files for entry in looking]
    return sorted(found, key=lambda one: one.manifest.provenance.built, reverse=True), looking


def listing(places: Sequence[Place], keys: Sequence[str]) -> CacheListing:
    """Return what there is in some caches."""
    found, looking = entries(places)
    wrong = tuple(sentences_of(error) for error in looking.errors)
    return CacheListing(builds=tuple(described(one, keys) for one in found), wrong=wrong)


def sentences_of(error: CacheInvalid) -> str:
    """Return in one line what is wrong, why, and what to do."""
    why = " ".join(error.why.split()).rstrip(".")
    return " ".join(filter(None, (error.what, f"{why}." if why else "", "; ".join(error.fix.splitlines()))))


def described(entry: SignedManifest, keys: Sequence[str]) -> ListedBuild:
    """Return what is told of a build."""
    return ListedBuild(
        place=entry.place.shown,
        id=entry.id,
        module=entry.manifest.module,
        size=entry.manifest.size,
        host=entry.manifest.provenance.host,
        built=entry.manifest.provenance.built,
        signed=bool(entry.signed.signature),
        signed_by=place.signer(entry, keys),
        needs=entry.manifest.needs,
        layer=entry.manifest.is_layer,
        arguments=entry.manifest.provenance.arguments,
    )


def find(places: Sequence[Place], wanted: str) -> SignedManifest:
    """Return the build whose id begins so, in any case. Raises UsageProblem where there is none, or more than one.

    Raises CacheInvalid for one that is there and cannot be read.
    """
    (found, looking), wanted = entries(places), wanted.lower()
    fitting = {
        one.id: one for one in reversed(found) if one.id.startswith(wanted) or one.manifest.sha256.startswith(wanted)
    }  # of equal ones the first
    for place_of in places if looking.wrong and not fitting else ():
        names = list[str]()
        with suppress(CacheInvalid):
            names = place_of.names([])
        for name in names:
            if name.rpartition("/")[2].startswith(wanted):
                place_of.entry(name)
    if looking.wrong and not fitting:
        raise CacheInvalid(
            what=f"There is no build {wanted!r} in what could be read.",
            why="\n".join(looking.wrong),
            fix=looking.errors[0].fix,
        )
    if len(fitting) != 1:
        raise UsageProblem(
            what=f"There is no build {wanted!r}." if not fitting else f"More than one build begins with {wanted!r}.",
            fix=f"See their ids: envkit cache list {' '.join(quote(one.shown) for one in places)}",
        )
    [one] = fitting.values()
    return one.place.entry(f"{folder_of(one.manifest.module)}/{one.id}.json")


def verified(places: Sequence[Place], keys: Sequence[str]) -> Verified:
    """Read every build of some caches to its end; of several the others where one cannot be read at all.

    Raises CacheInvalid where that is the only one.
    """
    done, wrong = [], list[str]()
    for each in places:
        try:
            done.append(verified_one(each, keys))
        except CacheInvalid as error:
            if len(places) == 1:
                raise
            wrong.append(sentences_of(error))
    return Verified(
        signatures=bool(keys),
        builds=tuple(build for one in done for build in one.builds),
        sources=tuple(source for one in done for source in one.sources),
        wrong=(*(text for one in done for text in one.wrong), *wrong),
    )


def verified_one(of: Place, keys: Sequence[str]) -> Verified:
    """Read every build of a cache to its end. Raises CacheInvalid where it cannot be read at all."""
    unread = list[CacheInvalid]()
    names = of.names(unread)
    require_there(of)
    if no_sources := wrong_of_sources(of):
        unread.append(no_sources)
    checked = [check(of, name, keys) for name in names]
    sources = [check_named(of, one) for one in publishing.stored(of) if is_source(one)] if of.is_listed else []
    is_known = of.is_listed and not of.is_registry and not [one for one in unread if one is not no_sources]
    why = wrong_of_index(of, names) if is_known else ""
    wrong = [*map(sentences_of, unread)]
    if why:
        wrong.append(f"The index of {of.shown} is wrong: {why} 'envkit cache prune {quote(of.shown)}' writes it anew.")
    return Verified(builds=tuple(checked), sources=tuple(sources), wrong=tuple(wrong))


def require_there(of: Place) -> None:
    """Require that a folder is a cache, or empty: one of something else is no cache without faults.

    Raises CacheInvalid.
    """
    if not of.is_remote and folder.is_foreign(of.named) and not wrong_of_sources(of):
        raise CacheInvalid(
            what=f"There is no cache in {of.shown}.", why="It has files, but none of a cache.", fix="Check its name."
        )


def wrong_of_sources(of: Place) -> CacheInvalid | None:
    """Return what keeps the sources of a folder from being read: else it would seem to have none."""
    from envkit.sources.answers import RefusedError

    try:
        if not of.is_remote:
            folder.require_sources(of.named)
    except RefusedError as error:
        return CacheInvalid(
            what=f"The sources of the cache {of.shown} cannot be used.",
            why=place.sentence(error),
            fix="Have its owner put a folder in its place, or let you read it.",
        )
    return None


def wrong_of_index(of: Place, names: Sequence[str]) -> str:
    """Say why a web server that serves a place does not offer what is there by these names; nothing if it does.

    Raises CacheInvalid where it is the server of the place that fails.
    """
    from envkit.sources.answers import AbsentError, DamagedError

    try:
        content = of.read(layout.INDEX, manifest.MOST)
    except CacheInvalid as error:
        if place.is_of_server(error):
            raise
        if isinstance(error.__cause__, AbsentError) and not names:
            return ""
        odd = " Remove what stands in its place;" if isinstance(error.__cause__, DamagedError) else ""
        return f"{error.why}{odd}"
    if not publishing.is_index(content):
        return "It is none, or is damaged."
    listed = set(publishing.indexed(of))
    if lacking := len(set(names) - listed):
        return f"It lacks {words.count(lacking, 'build')}."
    gone = len(listed - set(of.names()))
    return f"It names {words.count(gone, 'build')} that is not there." if gone else ""


def is_source(build: Stored) -> bool:
    """Say whether a file of a place is a source."""
    return layout.SOURCE.fullmatch(build.name) is not None


def check_named(of: Place, build: Stored) -> CheckedSource:
    """Read a source, or an object, to its end: its name is its SHA-256.

    Raises CacheInvalid where it is the server that fails.
    """
    from envkit.sources.connection import LIMIT_BYTES

    sha256, digest, wrong, was_read = layout.sha256_of(build.name), hashlib.sha256(), "", True
    try:
        with of.opened(build.name, LIMIT_BYTES) as chunks:
            for chunk in chunks:
                digest.update(chunk)
    except CacheInvalid as error:
        if place.is_of_server(error):
            raise
        wrong, was_read = error.why, not place.is_unread(error)
    if not wrong and digest.hexdigest() != sha256:
        wrong = f"It has the SHA-256 {digest.hexdigest()}."
    return CheckedSource(place=of.shown, sha256=sha256, size=build.size, wrong=wrong, read=was_read)


class Hashed:
    """What comes in pieces, as a file, with the SHA-256 and the size of what has come (bytes)."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.chunks, self.rest, self.digest, self.size = iter(chunks), b"", hashlib.sha256(), 0

    def read(self, size: int = -1, /) -> bytes:
        """Return at most so many bytes, or what there is next; nothing at the end."""
        if not self.rest:
            self.rest = next(self.chunks, b"")
            self.digest.update(self.rest)
            self.size += len(self.rest)
        most = len(self.rest) if size < 0 else size
        given, self.rest = self.rest[:most], self.rest[most:]
        return given

    @property
    def sha256(self) -> str:
        """The SHA-256 of what has come."""
        return self.digest.hexdigest()


def check(of: Place, name: str, keys: Sequence[str]) -> Checked:
    """Read a build to its end. Raises CacheInvalid where it is the server that fails."""
    wrong = ""
    try:
        entry = of.entry(name)
        needs = entry.manifest.needs
        if entry.manifest.is_image:
            unpack.require_small(entry)
        else:
            unpack.require_own(entry, Tree(root=Path("/prefix", f"{needs.machine}-py{needs.python}")))
        with of.opened(entry.manifest.object_name, entry.manifest.size) as chunks:
            content = Hashed(chunks)
            if not entry.manifest.is_image:
                try:
                    unpack.compare(entry, content)
                except CacheInvalid as error:
                    wrong = error.why
            while content.read(layout.PIECE):
                pass
    except CacheInvalid as error:
        if place.is_of_server(error):
            raise
        called, key = name.removesuffix(".json").split("/")
        module = called.replace("--", "/", 1)
        was_read = not place.is_unread(error)
        state: State = "bad" if was_read else "unread"
        return Checked(place=of.shown, id=key, module=module, state=state, wrong=error.why, read=was_read)
    was_read = True
    if content.sha256 != entry.manifest.sha256:
        here = f"Its object has {content.size} bytes and the SHA-256 {content.sha256}"
        wrong = f"{here}; its manifest says {entry.manifest.size} bytes and {entry.manifest.sha256}."
    elif not wrong and keys and entry.signed.signature and not place.signer(entry, keys):
        why = offers.unchecked(keys)
        wrong, was_read = f"{why[0].upper()}{why[1:]}." if why else NOT_YOURS, not why
    state = "good" if entry.signed.signature else "unsigned"
    state = state if not wrong else "bad" if was_read else "unread"
    return Checked(place=of.shown, id=entry.id, module=entry.manifest.module, state=state, wrong=wrong, read=was_read)


def is_damaged(done: Checked | CheckedSource) -> bool:
    """Say whether something is not what it should be, whoever has signed it."""
    return done.read and done.wrong not in ("", NOT_YOURS)


def is_same(of: Place, bad: Stored, same: Container[str]) -> bool:
    """Say whether what was found to be bad is as it was, its object included: it is not read to its end again."""
    if bad.name not in same or not bad.name.startswith("manifests/"):
        return bad.name in same
    try:
        return of.entry(bad.name.removeprefix("manifests/")).manifest.object_name in same
    except CacheInvalid:
        return False  # it is soon read again


def prune(of: Place, older_s: float, *, dry_run: bool) -> Gone:
    """Remove from a place what is of no use: what is damaged or half written, and builds that are older, not sources.

    What cannot be read now may be good, and stays; while that is so of a build, all objects do, one of which is its.
    What is pushed while all is read, which may take long, stays as well.
    Raises UsageProblem for what is no cache, CacheInvalid, also where there is none, StorageFailed.
    """
    from envkit.sources.answers import RefusedError

    try:
        store = of.writable
        require_there(of)
        publishing.require_cache(of)
        there = {one.name: one for one in store.stored(of.named)}
        names = of.names()
        index = wrong_of_index(of, names) if there and not of.is_registry else ""
        kept, old, bad, unread = set[str](), list[Stored](), list[Stored](), list[str]()
        named = [there[f"manifests/{name}"] for name in names if f"manifests/{name}" in there]
        for one in (*named, *filter(is_source, there.values())):
            state = looked_at(of, one)
            if not state.read:
                unread.append(one.name)
            elif state.wrong:
                bad.append(one)
            elif not is_source(one) and older_s and age(one) > older_s:
                old.append(one)
            elif not is_source(one):
                kept.add(of.entry(one.name.removeprefix("manifests/")).manifest.object_name)
        unread += ["sources"] if wrong_of_sources(of) else []
        old += [one for one in there.values() if is_unused(one, kept)]
        bad += [] if of.is_registry else damaged_objects(of, there.values(), {*kept, *(one.name for one in old)})
        with nullcontext() if dry_run or not there else store.locked(of.named):  # what was pushed meanwhile counts
            now = {one.name: one for one in store.stored(of.named)}
            same = {name for name, one in there.items() if now.get(name) == one}
            again = {one.name: looked_at(of, one) for one in bad if one.name in now and not is_same(of, one, same)}
            unread += [name for name, state in again.items() if not state.read]
            still = {name for name, state in again.items() if state.read and state.wrong}
            doomed = [one for one in bad if one.name in still or (one.name in now and one.name not in again)]
            doomed += [one for one in old if one.name in same]
            decided = there.keys() - {one.name for one in (*bad, *old)} | {one.name for one in doomed}
            new = [name for name in of.names() if f"manifests/{name}" not in decided]
            kept |= {entry.manifest.object_name for entry in of.entries(new, [])}
            if any(name.startswith("manifests/") for name in unread):
                kept |= {name for name in now if name.startswith("objects/")}
            unread += [one.name for one in doomed if not one.is_file]
            doomed = [one for one in doomed if one.is_file and one.name not in kept]
            for one in () if dry_run else doomed:
                store.remove(of.named, one.name)
        if there and not dry_run:
            publishing.index(of)
    except RefusedError as error:
        raise of.refused(error) from error
    except OSError as error:
        problem = of_storage(error, f"{of.shown} could not be tidied up.")
        raise problem or NotWritable(
            what=f"{of.shown} could not be tidied up.",
            why=publishing.reason(error),
            fix="Ask its owner for the right to write to it.",
        ) from error
    removed = tuple(one.name for one in doomed)
    return Gone(
        place=of.shown, index=index, size=sum(one.size for one in doomed), removed=removed, unread=tuple(unread)
    )


def damaged_objects(of: Place, there: Iterable[Stored], known: Container[str]) -> list[Stored]:
    """Return the objects of a folder or a bucket that are not what their names say, but for those that are ``known``.

    A push would find them there by their names, and send nothing in their place.
    Raises CacheInvalid where it is the server that fails.
    """
    objects = (one for one in there if layout.OBJECT.fullmatch(one.name) and one.name not in known)
    return [one for one in objects for state in [check_named(of, one)] if state.read and state.wrong]


def looked_at(of: Place, one: Stored) -> Checked | CheckedSource:
    """Read a build, by the file of its manifest, or what is called by its SHA-256: a source, an object.

    Raises CacheInvalid where it is the server that fails.
    """
    if one.name.startswith("manifests/"):
        return check(of, one.name.removeprefix("manifests/"), ())
    return check_named(of, one)


def is_unused(build: Stored, kept: Collection[str]) -> bool:
    """Say whether a file is of no use: an object that no manifest names, or half written, once it is a day old."""
    is_left = build.name.startswith("objects/") and build.name not in kept
    return (is_left or build.name.rpartition("/")[2].startswith(".envkit-")) and age(build) > LEFT_S


def age(build: Stored) -> float:
    """Return how long ago a file was written (s)."""
    return time.time() - build.changed
