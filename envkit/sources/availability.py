"""Whether files can be had from where they are sought, asked for all at the same time; nothing is downloaded."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from envkit.sources.answers import RefusedError, UnreachableError
from envkit.sources.connection import Connection
from envkit.sources.download import Unavailable
from envkit.sources.index import Candidate, FileStore, candidates
from envkit.sources.pipconfig import pip_settings
from envkit.sources.source_cache import Source
from envkit.system.addresses import host_of, shown

ASKED_AT_ONCE = 16  # also the most silent places that one look can meet
SILENT_SHARE = 0.3  # who has been waited for during this share of the time is silent, and not just the last one asked
CONNECT_S = 2.0
BACKOFF_S = (0.5,)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What was said of a ``number`` of sources.

    ``refused`` are those that no place gives, ``unanswered`` those that were asked about and had no answer in time,
    ``unasked`` those that it did not come to. ``silent`` is who was waited for at the end, and had been for long.
    ``places`` are those of indexes and recipes that give a source.
    """

    number: int = 0
    refused: tuple[Unavailable, ...] = ()
    unanswered: tuple[Source, ...] = ()
    unasked: tuple[Source, ...] = ()
    silent: tuple[str, ...] = ()
    places: Mapping[Source, Candidate] = field(default_factory=dict)


class Given(NamedTuple):
    """A source that some place gives: one of indexes and recipes, None of a store of files."""

    source: Source
    place: Candidate | None = None


def ask(sources: Sequence[Source], patience_s: float, kept: Sequence[FileStore] = ()) -> Answers:
    """Ask every place for sources, and wait ``patience_s`` for all answers.

    Raises HostProblem if pip's configuration is unusable.
    """
    if not sources:
        return Answers()
    configured = pip_settings()
    settings = msgspec.structs.replace(configured, timeout_s=min(configured.timeout_s, patience_s))
    connection = Connection(settings, connect_s=CONNECT_S, backoff_s=BACKOFF_S)
    waiting: queue.SimpleQueue[Source] = queue.SimpleQueue()
    answers: queue.SimpleQueue[Unavailable | Given | BaseException] = queue.SimpleQueue()
    for source in sources:
        waiting.put(source)

    def work() -> None:
        try:
            for source in taken(waiting, connection):
                try:
                    answers.put(asked(source, connection, kept))
                except BaseException as error:  # handed to the thread that waits
                    answers.put(error)
        finally:
            ended()

    working = [True]  # this thread; each of the others adds one

    def ended() -> None:
        with ending:
            working.pop()
            if not working:  # the last one: others would complain of a connection that is closed
                connection.close()

    ending = threading.Lock()
    outcomes = list[Unavailable | Given | BaseException]()
    deadline = time.monotonic() + patience_s
    started = 0
    try:
        for _ in range(min(ASKED_AT_ONCE, len(sources))):
            working.append(True)
            try:
                threading.Thread(target=work, daemon=True).start()  # nobody waits for a server that is silent
                started += 1
            except RuntimeError:  # the limit of this user's processes
                working.pop()
                break
        with suppress(queue.Empty):
            while started and len(outcomes) < len(sources):
                outcomes.append(answers.get(timeout=max(deadline - time.monotonic(), 0)))
    finally:
        connection.stopped.set()
        long_ago = time.monotonic() - patience_s * SILENT_SHARE
        silent = {host_shown(url) for url, since in list(connection.asking.values()) if since < long_ago}
        unasked = tuple(drained(waiting))
        ended()
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    refused = tuple(outcome for outcome in outcomes if isinstance(outcome, Unavailable))
    given = [outcome for outcome in outcomes if isinstance(outcome, Given)]
    told = {one.source for one in given} | {one.source for one in refused}
    unanswered = tuple(source for source in sources if source not in told and source not in unasked)
    return Answers(
        number=len(sources),
        refused=refused,
        unanswered=unanswered,
        unasked=unasked,
        silent=tuple(sorted(silent)) if unanswered else (),
        places={one.source: one.place for one in given if one.place},
    )


def taken(waiting: "queue.SimpleQueue[Source]", connection: Connection) -> Iterator[Source]:
    """Yield what is left to be asked about, until it is too late."""
    with suppress(queue.Empty):
        while not connection.stopped.is_set():
            yield waiting.get_nowait()


def drained(waiting: "queue.SimpleQueue[Source]") -> Iterator[Source]:
    """Yield what is left, and leave nothing."""
    with suppress(queue.Empty):
        while True:
            yield waiting.get_nowait()


def host_shown(url: str) -> str:
    """Return the host of a URL without a login; a place that is no URL as it is."""
    return host_of(shown(url)).rpartition("@")[2] or shown(url)


def asked(source: Source, connection: Connection, kept: Sequence[FileStore]) -> Unavailable | Given:
    """Return a source that no place gives, with what each place said; or the source where one of them gives it."""
    reasons: list[str] = []
    for store in kept:
        require_time(connection)
        try:
            with connection.waiting_for(store.shown), store.source(source.sha256 or ""):
                return Given(source)
        except RefusedError as error:
            reasons.append(f"{store.shown}: {error}")
    for place in candidates(source, connection, reasons.append):
        require_time(connection)

        def attempt(url: str = place.url) -> None:
            with connection.opened(url):
                pass

        try:
            with connection.waiting_for(place.url):
                connection.with_retries(place.url, attempt, lambda _: None)
        except RefusedError as error:
            reasons.append(f"{shown(place.url)}: {error}")
        else:
            return Given(source, place)
    return Unavailable(source=source, reasons=reasons)


def require_time(connection: Connection) -> None:
    """Require that somebody still waits for answers. Raises UnreachableError."""
    if connection.stopped.is_set():
        raise UnreachableError("nobody waits for an answer any more")
