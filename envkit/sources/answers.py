"""What is taken of a server's answer: how much, and how slowly. No server holds envkit for ever or fills its memory."""

import time
from collections.abc import Callable, Iterable, Iterator
from threading import Thread
from typing import TypeVar

SLOWEST, PATIENCE_S = 1_000, 30.0  # a server gives so many bytes/s, after so many seconds
MOST_SAID = 10_000_000  # bytes of an answer that is no file

T = TypeVar("T")


class RefusedError(Exception):
    """A URL does not give the file; the text says why, without secrets."""


class TransientError(RefusedError):
    """The same URL may give the file in a moment."""


class UnreachableError(TransientError):
    """There is no connection to the host."""


def begun(ask: Callable[[], T], silent_s: float) -> T:
    """Return what a question gives: an answer whose headers are there. Raises TransientError where that takes too long.

    Libraries limit each silence, all in all ``silent_s``; a server that sends a byte at a time is never silent.
    """
    given, raised = list[T](), list[BaseException]()

    def run() -> None:
        try:
            given.append(ask())
        except BaseException as error:
            raised.append(error)

    asking = Thread(target=run, daemon=True)  # one that is left behind ends with its connection, or with envkit
    asking.start()
    asking.join(silent_s + PATIENCE_S)
    if raised:
        raise raised[0]
    if not given:
        raise TransientError(f"no whole answer came in {silent_s + PATIENCE_S:.0f} s")
    return given[0]


def in_time(chunks: Iterable[bytes], slowest: int = SLOWEST) -> Iterator[bytes]:
    """Yield what comes. Raises RefusedError where that is slower than so many bytes/s."""
    began, done = time.monotonic(), 0
    for chunk in chunks:
        done += len(chunk)
        if time.monotonic() - began > PATIENCE_S + done / slowest:
            raise RefusedError(f"only {done} bytes came in {time.monotonic() - began:.0f} s")
        yield chunk


def limited(chunks: Iterable[bytes], size: int | None, limit: int) -> Iterator[bytes]:
    """Yield what comes, up to the size that was told, else to the limit. Raises RefusedError for more."""
    most, done = limit if size is None else min(size, limit), 0
    if size is not None and size > limit:
        raise RefusedError(f"it has {size} bytes, as the server says; no file of more than {limit} is taken")
    for chunk in chunks:
        done += len(chunk)
        if done > most:
            raise RefusedError(f"more comes than {most} bytes, which {'is the limit' if size is None else 'it has'}")
        yield chunk


def whole(chunks: Iterable[bytes], size: int | None) -> Iterator[bytes]:
    """Yield what comes. Raises RefusedError where it ends before the length that the server has told."""
    done = 0
    for chunk in chunks:
        done += len(chunk)
        yield chunk
    if size is not None and done < size:
        raise RefusedError(f"it ends after {done} of {size} bytes")
