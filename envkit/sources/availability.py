"""Whether files can be had from where they are sought, asked for all at the same time; nothing is downloaded."""

import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from envkit.sources.addresses import host_of, shown
from envkit.sources.answers import RefusedError
from envkit.sources.cache import Source
from envkit.sources.connection import Connection
from envkit.sources.download import Unavailable
from envkit.sources.index import FileStore, candidates
from envkit.sources.pipconfig import pip_settings

ASKED_AT_ONCE = 16  # also the most silent places that one look can meet
CONNECT_S = 2.0
BACKOFF_S = (0.5,)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What was said of a ``number`` of sources.

    ``refused`` are those that no place gives, ``unanswered`` those without an answer in time, ``silent`` the hosts that
    were then waited for.
    """

    number: int = 0
    refused: tuple[Unavailable, ...] = ()
    unanswered: tuple[Source, ...] = ()
    silent: tuple[str, ...] = ()


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
    answers: queue.SimpleQueue[Unavailable | Source | BaseException] = queue.SimpleQueue()
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
        with ending:
            working.pop()
            if not working:  # the last one: others would complain of a connection that is closed
                connection.close()

    ending, working = threading.Lock(), [True] * min(ASKED_AT_ONCE, len(sources))
    # Daemons: nobody waits for a server that is silent.
    for _ in tuple(working):
        threading.Thread(target=work, daemon=True).start()
    deadline = time.monotonic() + patience_s
    outcomes = list[Unavailable | Source | BaseException]()
    try:
        with suppress(queue.Empty):
            while len(outcomes) < len(sources):
                outcomes.append(answers.get(timeout=max(deadline - time.monotonic(), 0)))
    finally:
        silent = sorted({host_of(shown(url)) for url in list(connection.asking.values())})
        connection.stopped.set()
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    refused = tuple(outcome for outcome in outcomes if isinstance(outcome, Unavailable))
    answered = {outcome for outcome in outcomes if isinstance(outcome, Source)} | {one.source for one in refused}
    unanswered = tuple(source for source in sources if source not in answered)
    return Answers(
        number=len(sources), refused=refused, unanswered=unanswered, silent=tuple(silent) if unanswered else ()
    )


def asked(source: Source, connection: Connection, kept: Sequence[FileStore]) -> Unavailable | Source:
    """Return a source that no place gives, with what each place said; or the source where one of them gives it."""
    reasons: list[str] = []
    for store in kept:
        try:
            with store.source(source.sha256 or ""):
                return source
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
            return source
    return Unavailable(source=source, reasons=reasons)
