"""What is taken of a server's answer: how much, and how slowly. No server holds envkit for ever or fills its memory."""

import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

SLOWEST, PATIENCE_S = 1_000, 30.0  # a server gives so many bytes/s, after so many seconds
CLOSING_S = 1.0
MOST_SAID = 10_000_000  # bytes of an answer that is no file

T = TypeVar("T")


class RefusedError(Exception):
    """A URL does not give the file; the text says why, without secrets."""


class TransientError(RefusedError):
    """The same URL may give the file in a moment."""


class SlowError(RefusedError):
    """The server sends less than what is waited for; nor will it send another file sooner."""


class AbsentError(RefusedError):
    """There is no such file, as its place says."""


class DamagedError(RefusedError):
    """What there is is not what it should be."""


class LoginError(RefusedError):
    """Who asks is not known there, or may not do this."""


class UnreachableError(TransientError):
    """There is no connection to the host."""


def begun(ask: Callable[[], T], silent_s: float, sent: Callable[[], int] = int) -> T:
    """Return what a question gives: an answer whose headers are there. Raises SlowError where that takes too long.

    Libraries limit each silence, all in all ``silent_s``; a server that sends a byte at a time is never silent. What is
    ``sent`` along with the question (bytes) may take its time.
    """
    given, raised = list[T](), list[BaseException]()

    def run() -> None:
        try:
            given.append(ask())
        except BaseException as error:
            raised.append(error)

    asking = Thread(target=run, daemon=True)  # one that is left behind ends with its connection, or with envkit
    asking.start()
    before, patience_s = sent(), silent_s + PATIENCE_S
    asking.join(patience_s)
    while asking.is_alive() and (now := sent()) > before:
        before = now
        asking.join(patience_s)
    if raised:
        raise raised[0]
    if not given:
        raise SlowError(f"no whole answer came in {patience_s:.0f} s")
    return given[0]


def in_time(chunks: Iterable[bytes], slowest: int = SLOWEST) -> Iterator[bytes]:
    """Yield what comes. Raises SlowError where that is slower than so many bytes/s.

    Libraries read on within one piece, as long as a server sends something; so another thread waits for it.
    """
    wanted, given = SimpleQueue[bool](), SimpleQueue[bytes | BaseException | None]()
    pieces, done, began = iter(chunks), 0, time.monotonic()

    def run() -> None:
        while wanted.get():
            try:
                given.put(next(pieces, None))
            except BaseException as error:
                given.put(error)

    Thread(target=run, daemon=True).start()
    try:
        while True:
            wanted.put(True)
            left_s = began + PATIENCE_S + done / slowest - time.monotonic()
            try:
                if left_s < 0:
                    raise Empty
                piece = given.get(timeout=left_s)
            except Empty:
                raise SlowError(f"only {done} bytes came in {time.monotonic() - began:.0f} s") from None
            if isinstance(piece, BaseException):
                raise piece
            if piece is None:
                return
            done += len(piece)
            stopped = time.monotonic()
            yield piece
            began += time.monotonic() - stopped  # what is done with it is not the server's time
    finally:
        wanted.put(False)


def end(close: Callable[[], object]) -> None:
    """Close an answer; one that another thread still waits for is left to it."""
    closing = Thread(target=close, daemon=True)
    closing.start()
    closing.join(CLOSING_S)


def limited(chunks: Iterable[bytes], size: int | None, limit: int) -> Iterator[bytes]:
    """Yield what comes, up to the size that was told, else to the limit. Raises DamagedError for more."""
    most, done = limit if size is None else min(size, limit), 0
    if size is not None and size > limit:
        raise DamagedError(f"it has {size} bytes, as the server says; no file of more than {limit} is taken")
    for chunk in chunks:
        done += len(chunk)
        if done > most:
            raise DamagedError(f"more comes than {most} bytes, which {'is the limit' if size is None else 'it has'}")
        yield chunk


def whole(chunks: Iterable[bytes], size: int | None) -> Iterator[bytes]:
    """Yield what comes. Raises RefusedError where it ends before the length that the server has told."""
    done = 0
    for chunk in chunks:
        done += len(chunk)
        yield chunk
    if size is not None and done < size:
        raise RefusedError(f"it ends after {done} of {size} bytes")
