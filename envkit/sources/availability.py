"""Whether files can be had from where they are sought, asked for all at the same time; nothing is downloaded."""

import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from envkit.sources.addresses import shown
from envkit.sources.answers import RefusedError
from envkit.sources.cache import Source
from envkit.sources.connection import Connection
from envkit.sources.download import Unavailable
from envkit.sources.index import FileStore, candidates
from envkit.sources.pipconfig import pip_settings

ASKED_AT_ONCE = 16
CONNECT_S = 2.0
BACKOFF_S = (0.5,)


def refused(sources: Sequence[Source], patience_s: float, kept: Sequence[FileStore] = ()) -> list[Unavailable]:
    """Return the sources that no place gives, and what each place said; without an answer in time nothing is said.

    Raises HostProblem if pip's configuration is unusable.
    """
    configured = pip_settings()
    settings = msgspec.structs.replace(configured, timeout_s=min(configured.timeout_s, patience_s))
    connection = Connection(settings, connect_s=CONNECT_S, backoff_s=BACKOFF_S)
    waiting: queue.SimpleQueue[Source] = queue.SimpleQueue()
    answers: queue.SimpleQueue[Unavailable | BaseException | None] = queue.SimpleQueue()
    for source in sources:
        waiting.put(source)

    def work() -> None:
        with suppress(queue.Empty):
            while not connection.stopped.is_set():
                source = waiting.get_nowait()
                try:
                    answers.put(asked(source, connection, kept))
                except BaseException as error:  # handed to the thread that waits
                    answers.put(error)

    # Daemons: nobody waits for a server that is silent.
    for _ in range(min(ASKED_AT_ONCE, len(sources))):
        threading.Thread(target=work, daemon=True).start()
    deadline = time.monotonic() + patience_s
    outcomes = list[Unavailable | BaseException | None]()
    try:
        with suppress(queue.Empty):
            while len(outcomes) < len(sources):
                outcomes.append(answers.get(timeout=max(deadline - time.monotonic(), 0)))
    finally:
        connection.stopped.set()
        connection.close()
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Unavailable)]


def asked(source: Source, connection: Connection, kept: Sequence[FileStore]) -> Unavailable | None:
    """Return a source that no place gives, with what each place said; None where one of them gives it."""
    reasons: list[str] = []
    for store in kept:
        try:
            with store.source(source.sha256 or ""):
                return None
        except RefusedError as error:
            reasons.append(f"{store.shown}: {error}")
    for place in candidates(source, connection, reasons.append):

        def attempt(url: str = place.url) -> None:
            with connection.opened(url):
                pass

        try:
            connection.with_retries(place.url, attempt, lambda _: None)
        except RefusedError as error:
            reasons.append(f"{shown(place.url)}: {error}")
        else:
            return None
    return Unavailable(source=source, reasons=reasons)
