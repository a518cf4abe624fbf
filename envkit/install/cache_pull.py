"""Copying builds from caches into another one: for nodes without a network, or as a mirror."""

import re
import tempfile
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import BinaryIO, Literal

import msgspec
from rich.console import Console

from envkit.cache import contents, fit, folder, place, publishing, unpack
from envkit.cache.fit import Provided
from envkit.cache.offers import NO_OPENSSL, UNCHECKED, untrusted
from envkit.cache.place import Caches, Place, SignedManifest
from envkit.cache.publishing import Sent
from envkit.config import configuration
from envkit.easybuild import cached
from envkit.errors import CacheBlocked, CacheInvalid, EnvkitError, HostProblem, UsageProblem
from envkit.install import cache_push
from envkit.machine import host
from envkit.report import words
from envkit.report.progress import SILENT, transfer
from envkit.sources import signature

AGAIN = "Then run the same command again: what is there already is not fetched again."
FAILED = "the server of that cache has failed"
UNSIGNED = "it is not signed (--unsigned copies it all the same)"
ID = re.compile("[0-9a-f]{6,64}")
BLOCKED = "Something else stands in the place of its file"
SHOWN = 5  # builds that were not copied
State = Literal["copied", "there", "unfit", "unsigned", "bad", "unread", "refused"]


class PulledBuild(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for a build: ``signed_by`` is the key of yours that verifies it, ``place`` where it was copied from.

    ``why`` it was not copied: it does not fit this machine, none of your keys has signed it, it is bad, or it could not
    be read or checked now. ``passed_over``: what is wrong with it in places that come before the one it was copied
    from. ``object_sent``: of what was copied, whether its object was not there before.
    """

    place: str
    id: str
    module: str
    size: int
    signed_by: str
    state: State
    why: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    object_sent: bool = False


class Pulled(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``envkit cache pull``; ``wrong`` is what cannot be read, and what to do.

    ``passed_over``: the same of what does not matter, since all that was asked for is known from other caches.
    """

    version: int = 1
    to: str
    builds: tuple[PulledBuild, ...]
    wrong: tuple[str, ...]
    passed_over: tuple[str, ...] = ()

    def of(self, state: State) -> list[PulledBuild]:
        """Return the builds that this became of."""
        return [build for build in self.builds if build.state == state]


def pull(caches: Caches, to: Place, name: str | None, *, every: bool, console: Console = SILENT) -> Pulled:
    """Copy builds into a place: those that fit this machine, of one name or all; or every one, or the one of an id.

    Raises UsageProblem, CacheInvalid where nothing of the caches can be read, NotWritable, CacheBlocked, DiskFull.
    """
    places = [source for source in caches.kept if source.shown != to.shown]
    if not places:
        raise UsageProblem(
            what=f"There is nothing to copy into {to.shown} from.",
            why="Only that place itself is named, by --from or as 'from' in [cache] of your configuration.",
            fix="Name another cache: --from PLACE.",
        )
    cache_push.require(to)
    entries, looking = contents.entries(places)
    if looking.wrong and not entries:
        raise CacheInvalid(
            what=f"Nothing can be copied from {', '.join(source.shown for source in places)}.",
            why="\n".join(looking.wrong),
            fix="\n".join(dict.fromkeys(error.fix for error in looking.errors if error.fix)),
        )
    order = {source.named: number for number, source in enumerate(places)}
    builds, is_id = chosen(sorted(entries, key=lambda entry: order[entry.place.named]), name, places, looking.wrong)
    machine = None if every or is_id or not builds else here()
    failed = dict.fromkeys(looking.failed, "")
    done = list[PulledBuild]()
    for these in builds:
        try:
            done.append(copied(these, to, caches, machine, failed, console))
        except EnvkitError as error:
            if new := [build for build in done if build.state == "copied"]:
                error.why = f"{error.why}\n{len(new)} of {words.count(len(builds), 'build')} had been copied.".strip()
            raise
    left = {build.id for build in done if build.state not in ("copied", "there", "unfit")}
    known = {entry.id for entry in entries} - left
    wanted = name.lower() if name and is_id else ""
    wrong, passed_over = list[str](), list[str]()
    for one in looking.errors:
        (wrong if may_lack(one, known, left, wanted) else passed_over).append(contents.sentences_of(one))
    (wrong if left else passed_over).extend(filter(None, failed.values()))
    return Pulled(to=to.shown, builds=tuple(done), wrong=tuple(wrong), passed_over=tuple(passed_over))


def may_lack(error: CacheInvalid, known: Container[str], left: Collection[str], wanted: str) -> bool:
    """Say whether, for what cannot be read of a cache, a build that is meant may not have been copied.

    It does not matter of a build that is ``known`` from another cache. Where one is ``wanted`` by its id, and was not
    ``left``, no other is meant.
    """
    if error.build:
        return error.build not in known and error.build.startswith(wanted)
    return bool(left) or not wanted


def chosen(
    manifests: Sequence[SignedManifest], name: str | None, places: Sequence[Place], wrong: Sequence[str]
) -> tuple[list[list[SignedManifest]], bool]:
    """Return the builds that are meant, each as it is in each place, and whether they are meant by an id.

    Raises UsageProblem where there is none of that name, or more than one of that id.
    """
    by_id, key = defaultdict[str, list[SignedManifest]](list), (name or "").lower()  # an id is one in any case
    ids = [build for build in manifests if ID.fullmatch(key) and build.id.startswith(key)]
    for entry in [] if ids else manifests:  # no build is called like the id of another, to be taken in its place
        if name is None or name in names_of(entry):
            by_id[entry.id].append(entry)
    if by_id or name is None:
        return list(by_id.values()), False
    for entry in manifests:
        if entry.id.startswith(key):
            by_id[entry.id].append(entry)
    at = " ".join(quote(place.shown) for place in places)
    if not manifests:
        raise UsageProblem(what=f"There is no build in {at}.", fix="Push one there: envkit cache push NAME --to PLACE")
    if len(by_id) != 1:
        names = sorted({build.manifest.provenance.lock.name for build in manifests})
        raise UsageProblem(
            what=f"More than one build begins with {name!r}." if by_id else f"There is no build for {name!r}.",
            why="\n".join([*wrong, f"There are builds for {', '.join(names) or 'nothing'}."]),
            fix=f"Name one of these, or a build by its id: envkit cache list {at}",
        )
    return list(by_id.values()), True


def names_of(manifest: SignedManifest) -> tuple[str, ...]:
    """Return by which names a build may be meant: of its environment, its stack, its framework."""
    provenance = manifest.manifest.provenance
    return provenance.environment, provenance.lock.name, provenance.lock.framework


def here() -> Provided:
    """Return what this machine has of what builds need. Raises HostProblem."""
    machine = host.detect(tuple(configuration.read().get("load") or ()))
    return cached.machine(machine, is_embedded=machine.mpi is None)


def copied(
    these: Sequence[SignedManifest], to: Place, caches: Caches, provided: Provided | None, failed: dict[Place, str],
    console: Console,
) -> PulledBuild:  # fmt: skip
    """Copy a build from the first place that has it whole and signed; it has to fit the machine ``provided``.

    Where what is not signed is copied as well, that is done only if no place has it signed.

    A place whose server has ``failed`` is asked for nothing more; what is said of one that fails now goes there.
    """
    manifest, origin, signed_by = these[0].manifest, these[0].place, ""
    why = tuple(fit.of_machine(manifest, provided)) if provided is not None else ()
    state: State = "unfit" if why else "unsigned"
    sent: Sent = frozenset()
    passed_over = list[str]()
    signers = [(entry, place.signer(entry, caches.keys)) for entry in (() if why else these)]
    for entry, key in sorted(signers, key=lambda pair: not pair[1]):  # one that is signed by a key of theirs first
        if not key and not caches.unsigned:
            untaken = untrusted(entry, caches.keys) or UNSIGNED
            is_checked = not untaken.startswith(UNCHECKED)
            if state == "unsigned" and not (why and is_checked):
                state, why = "unsigned" if is_checked else "unread", (untaken,)
            continue
        if entry.place in failed:
            state, why = "unread", (FAILED,)
            continue
        try:
            with publishing.writing(to, manifest.module):
                sent = copy(entry, to, caches.keys, console)
                state = "copied" if sent else "there"
        except CacheInvalid as error:
            if place.is_of_server(error):
                failed[entry.place] = contents.sentences_of(error)
                state, why = "unread", (FAILED,)
            else:
                state, why = "unread" if place.is_unread(error) else "bad", (f"{error.what} {error.why}",)
                passed_over += why
            continue
        except HostProblem as error:  # of where it was to go
            state, why = "refused", (error.why,)
            break
        except CacheBlocked as error:
            if not publishing.is_of_build(error):
                raise
            state, why = "refused", (f"{BLOCKED}: {error.why}",)
            break
        origin, signed_by, why = entry.place, key, ()
        break
    return PulledBuild(
        place=origin.shown,
        id=these[0].id,
        module=manifest.module,
        size=manifest.size,
        signed_by=signed_by,
        state=state,
        why=why,
        passed_over=tuple(passed_over) if state in ("copied", "there") else (),
        object_sent="object" in sent,
    )


def copy(entry: SignedManifest, to: Place, keys: Sequence[str], console: Console) -> Sent:
    """Copy a build, byte for byte as it was signed, once its object has been read to its end and is what it should be.

    Return what of it was. What one of the keys has signed takes the place of what none has; what none has
    takes that of what is not signed. Raises CacheInvalid, OSError, RefusedError.
    """
    unpack.require_small(entry)
    size, called = entry.manifest.size, f"{entry.manifest.module}, {entry.id[:12]}"
    content = msgspec.json.encode(entry.signed)

    def stays(before: SignedManifest) -> bool:
        if msgspec.json.encode(before.signed) == content or not entry.signed.signature:
            return True
        return bool(place.signer(before, keys) if place.signer(entry, keys) else before.signed.signature)

    @contextmanager
    def packed() -> Iterator[BinaryIO]:
        at = tempfile.gettempdir() if to.is_remote else str(folder.path_of(to.named))
        with tempfile.TemporaryFile(dir=at) as stream:
            try:
                with transfer(console, f"Fetching {called}", size, stream.tell):
                    unpack.fetch(entry, stream)
                stream.seek(0)
                if not entry.manifest.is_image:
                    unpack.compare(entry.with_files, stream)
                    stream.seek(0)
            except OSError as error:
                error.filename = error.filename or at
                raise
            with transfer(console, f"Putting {called}", size, stream.tell):
                yield stream

    return publishing.put(to, entry.manifest, content, stays, packed)


def problem(done: Pulled) -> EnvkitError | None:
    """Return what is to be said of what was not copied; nothing where all went well."""
    bad, unsigned, unfit, refused = done.of("bad"), done.of("unsigned"), done.of("unfit"), done.of("refused")
    unread = done.of("unread")
    if refused and not (bad or unsigned or unread or done.wrong):
        others = "; the others are there" if len(refused) < len(done.builds) else ""
        is_blocked = any(build.why[0].startswith(BLOCKED) for build in refused)
        return (CacheBlocked if is_blocked else HostProblem)(
            what=f"{words.count(len(refused), 'build')} cannot be put into {done.to}.",
            why="\n".join(listed(refused)),
            fix=f"Remove what stands in their place, or copy them into another folder or bucket{others}.",
        )
    if bad or unsigned or unread or done.wrong:
        what = f"{words.count(len(bad) + len(unsigned) + len(unread), 'build')} could not be copied to {done.to}."
        if not (bad or unread or refused) and len(unsigned) + len(unfit) == len(done.builds):
            what = f"Nothing was copied to {done.to}."
        tell = f"Tell whoever keeps that cache; 'envkit cache verify' names all that is wrong with it. {AGAIN}"
        later = f"See that you can reach and read that cache. {AGAIN}"
        unchecked = [build for build in unread if build.why[0].startswith(UNCHECKED)]
        is_lacking = any(NO_OPENSSL in build.why for build in unchecked)
        mend = "Mend that key, or take it out of 'keys' in [cache] of your configuration (see 'envkit config')."
        keys = "Set 'keys' in [cache] of your configuration to the public keys of those whose builds you take."
        sign = "Have whoever pushed what is not signed push it with --sign, or copy it with --unsigned."
        why = [text for build in (*bad, *unread) for text in build.why if text != FAILED]
        why += [*listed([*unsigned, *refused]), *done.wrong]
        return CacheInvalid(
            what=what if bad or unsigned or unread else "Not all of the caches could be read.",
            why="\n".join(dict.fromkeys(why)),
            fix="\n".join(
                [
                    *([tell] if bad else [f"Mend that. {AGAIN}"] if done.wrong and not unread else ()),
                    *([f"{signature.LACKING if is_lacking else mend} {AGAIN}"] if unchecked else ()),
                    *([later] if len(unread) > len(unchecked) else ()),
                    *([keys] if any(UNSIGNED not in build.why for build in unsigned) else ()),
                    *([sign] if any(UNSIGNED in build.why for build in unsigned) else ()),
                ]
            ),
        )
    if unfit and len(unfit) == len(done.builds):
        return HostProblem(
            what=f"Nothing was copied to {done.to}.",
            why="\n".join(listed(unfit)),
            fix="Copy them on a machine that they are for, or with --all, which does not ask whether they fit.",
        )
    return None


def listed(builds: Sequence[PulledBuild]) -> Iterator[str]:
    """Yield some builds, each with why it was not copied, and how many more there are."""
    for build in builds[:SHOWN]:
        yield f"{build.id[:12]} {build.module}: {'; '.join(build.why)}"
    if len(builds) > SHOWN:
        yield f"and {len(builds) - SHOWN} more"
