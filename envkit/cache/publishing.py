"""Putting builds into a place: an object, its manifest, then the index, so that what is seen is always whole."""

import errno
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from shlex import quote
from typing import BinaryIO, Literal

import msgspec

from envkit.cache import manifest
from envkit.cache.layout import INDEX, NAME, Index, Stored
from envkit.cache.manifest import Manifest
from envkit.cache.place import Place, SignedManifest, is_unread, sentence, signer
from envkit.errors import (
    CacheBlocked,
    CacheInvalid,
    CacheSilent,
    HostProblem,
    NotWritable,
    UsageProblem,
    of_handles,
    of_storage,
)
from envkit.system import record

NO_FILE = {errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENXIO}  # a link, a folder or a pipe in the place of a file
AGAIN = "Run the same command again: what is there already is not sent again."

Opened = AbstractContextManager[BinaryIO]
Part = Literal["object", "manifest"]
Sent = frozenset[Part]


def publish(
    place: Place, build: Manifest, packed: BinaryIO, signed: bytes, keys: Iterable[str] = (),
    shown: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Sent:  # fmt: skip
    """Put an object and its manifest into a place; return which of them was sent. Raises OSError, RefusedError.

    An object is sent within what is ``shown``, since it may take long.
    What one of some public keys has signed is not replaced, nor is anything by what is not signed.
    """

    def stays(before: SignedManifest) -> bool:
        return not signed or bool(signer(before, keys))

    @contextmanager
    def given() -> Iterator[BinaryIO]:
        with shown():
            yield packed

    return put(place, build, manifest.packed(build, signed), stays, given)


def require_name(place: Place, module: str) -> None:
    """Require that a place can have a build of this name; it is not asked. Raises HostProblem."""
    if why := place.writable.refuses(module):
        fix = "Push it into a folder or a bucket; or have your site offer the stack under a shorter name."
        raise HostProblem(what=f"{module} cannot be put into {place.shown}.", why=why, fix=fix)


def put(
    place: Place, build: Manifest, content: bytes, stays: Callable[[SignedManifest], bool], packed: Callable[[], Opened]
) -> Sent:
    """Put an object and the file of its manifest into a place; return which of them was sent.

    The object comes first, so that what is seen is always whole. What is there already is neither asked for nor sent,
    and a manifest that is there is left where it ``stays``. Raises HostProblem for one that is too large, or whose name
    the place cannot have, OSError, RefusedError, and what ``packed`` does.
    """
    require_name(place, build.module)
    require_cache(place)
    if len(content) > manifest.MOST:
        raise HostProblem(
            what=f"{build.module} cannot be put into a cache.",
            why=f"The list of its {len(build.files)} files is larger than {manifest.MOST // 1_000_000} MB.",
            fix="Build it without what nobody needs, such as tests, and push again.",
        )
    store, name = place.writable, f"{manifest.folder_of(build.module)}/{build.key}.json"

    def require_object() -> bool:
        if store.holds(place.named, build.object_name, build.size, build.sha256):
            return False
        with packed() as stream:
            stream.seek(0)
            store.put(place.named, build.object_name, stream)
        return True

    was_sent, is_new = require_object(), False

    def is_right() -> bool:
        try:
            return stays(place.entry(name))
        except CacheInvalid as error:
            if is_unread(error) and error.__cause__:  # it may be better than this one
                raise error.__cause__ from None
            return False

    if was_sent or not is_right():  # a manifest whose object was bad may just be tidied up
        with store.locked(place.named):  # else one that is signed could be replaced by one that is not
            if not is_right():
                store.put(place.named, f"manifests/{name}", io.BytesIO(content))
                is_new = True
        if not was_sent:  # what no manifest named may have been tidied up meanwhile
            was_sent = require_object()
    if was_sent or is_new or name not in indexed(place):
        index(place)
    parts: list[tuple[Part, bool]] = [("object", was_sent), ("manifest", is_new)]
    return frozenset(part for part, is_sent in parts if is_sent)


def require_place(place: Place) -> None:
    """Require that a place is there, can be written to, and is a cache or empty. Raises what its kind does, OSError."""
    place.writable.require(place.named)
    require_cache(place)


def require_cache(place: Place) -> None:
    """Require that an index.json that is there is that of a cache, since it is written anew.

    One that is damaged is known as such by what else there is: a build, or a source. Raises UsageProblem, CacheBlocked
    where a folder is in its place, which is not envkit's.
    """
    with suppress(CacheInvalid):
        try:
            content = place.read(INDEX, manifest.MOST)
        except CacheInvalid as error:
            if not isinstance(error.__cause__ and error.__cause__.__cause__, IsADirectoryError):
                raise
            path = f"{place.shown}/{INDEX}"
            raise CacheBlocked(
                what=f"Nothing can be put into {place.shown}: its {INDEX} is a folder.",
                why="That is where the names of its builds are written, and envkit removes no folder there.",
                fix=f"Look at what is in it, then remove it: ls -l {quote(path)}; rm -r {quote(path)}",
            ) from error
        if not is_index(content) and not place.names() and all(one.name == INDEX for one in stored(place)):
            foreign = f"It has an {INDEX} that is that of something else, and nothing else of a cache."
            fix = "Name the folder of a cache, or an empty one for a new cache."
            raise UsageProblem(what=f"{place.shown} is no cache of builds.", why=foreign, fix=fix)


def is_index(content: bytes) -> bool:
    """Say whether a file is the index of a cache, which names manifests or none."""
    with suppress(msgspec.MsgspecError):
        return all(map(NAME.fullmatch, record.decode(content, Index).manifests))
    return False


def stored(place: Place) -> list[Stored]:
    """Return the files of a place. Raises CacheInvalid."""
    from envkit.sources.answers import RefusedError

    try:
        return [*place.writable.stored(place.named)]
    except (RefusedError, OSError) as error:
        raise place.refused(error) from error


def indexed(place: Place) -> tuple[str, ...]:
    """Return which manifests the index of a place names."""
    with suppress(CacheInvalid, msgspec.MsgspecError):
        return record.decode(place.read(INDEX, manifest.MOST), Index).manifests
    return ()


def index(place: Place) -> None:
    """Write anew which manifests there are. Raises OSError, RefusedError.

    Whoever wrote it last has seen afterwards that it is right, also where there are no locks.
    """
    store = place.writable
    with store.locked(place.named):
        written, names = None, tuple(place.names())
        while names != written:
            written = names
            content = msgspec.json.format(msgspec.json.encode(Index(manifests=written)), indent=1)
            store.put(place.named, INDEX, io.BytesIO(content))
            names = tuple(place.names())


@contextmanager
def writing(to: Place, what: str) -> Iterator[None]:
    """Say in one way why something cannot be put into a place.

    Raises NotWritable, CacheSilent where its server does not answer, CacheBlocked where something else stands in the
    place of a file, DiskFull, StorageFailed.
    """
    from envkit.sources.answers import RefusedError, SlowError, TransientError

    try:
        yield
    except (SlowError, TransientError) as error:
        raise CacheSilent(
            what=f"Nothing can be put into {to.shown}: its server does not answer, or fails.",
            why=sentence(error),
            fix=f"Check its name and the network. Once it answers: {AGAIN[0].lower()}{AGAIN[1:]}",
        ) from error
    except RefusedError as error:
        raise not_written(to, sentence(error), to.remedy(error, "write to")) from error
    except BlockingIOError:  # no process can be started
        raise
    except OSError as error:
        failed = f"{what} could not be put into {to.shown}."
        if too_many := of_handles(error, failed):
            raise too_many from error
        problem = of_storage(error, failed)
        if problem:
            problem.fix += f" {AGAIN}"
        if error.errno in NO_FILE:
            raise CacheBlocked(
                what=f"Nothing can be put into {to.shown}: something else stands in the place of a file.",
                why=reason(error),
                fix=f"Look at it, then remove it. What else is wrong there: envkit cache verify {quote(to.shown)}",
            ) from error
        raise problem or not_written(to, reason(error)) from error


def reason(error: OSError) -> str:
    """Return what a system says of a failure, with the file if it names one: of two, that which is written."""
    return ": ".join(str(part) for part in (error.strerror or error, error.filename2 or error.filename) if part)


def is_of_build(error: CacheBlocked) -> bool:
    """Say whether it is a file of one build that could not be written, and not one that all need."""
    return isinstance(error.__cause__, OSError)


def not_written(to: Place, why: str, fix: str = "") -> NotWritable:
    """Say that a place cannot be written to."""
    return NotWritable(
        what=f"Nothing can be put into {to.shown}.", why=why, fix=fix or "Ask its owner for the right to write to it."
    )
