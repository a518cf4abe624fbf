"""A cache behind an HTTP(S) server, which can only be read: the folder of one, as its index lists it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

import msgspec

from envkit.cache.layout import CONNECT_S, INDEX, SLOWEST, Index
from envkit.cache.manifest import MOST
from envkit.system import record

ASKING = Lock()

if TYPE_CHECKING:
    from envkit.sources.connection import Connection
    from envkit.sources.pipconfig import PipSettings


def names(named: str) -> tuple[str, ...]:
    """Return the names that its index has. Raises RefusedError."""
    from envkit.sources.answers import RefusedError

    with opened(named, INDEX, MOST) as chunks:
        content = b"".join(chunks)
    try:
        return record.decode(content, Index).manifests
    except msgspec.MsgspecError as error:
        raise RefusedError(f"Its {INDEX} cannot be read: {error}") from error


@contextmanager
def opened(named: str, name: str, most: int) -> Iterator[Iterable[bytes]]:
    """Give a file in pieces. Raises RefusedError, also while it is read.

    A server that fails for one file is asked for no other: UnreachableError.
    """
    from envkit.sources.answers import TransientError, UnreachableError, in_time, limited, whole

    try:
        with connected() as connection, connection.opened(f"{named.rstrip('/')}/{name}") as (size, chunks):
            yield whole(in_time(limited(chunks, size, most), SLOWEST), size)
    except TransientError as error:
        raise UnreachableError(str(error)) from error


@contextmanager
def connected() -> Iterator["Connection"]:
    """Give a connection with pip's settings of certificates and proxies, which gives up soon, whatever pip does."""
    from envkit.sources.answers import PATIENCE_S
    from envkit.sources.connection import Connection

    patient = settings()
    hurried = msgspec.structs.replace(patient, timeout_s=min(patient.timeout_s, PATIENCE_S))
    connection = Connection(hurried, connect_s=CONNECT_S, backoff_s=())
    try:
        yield connection
    finally:
        connection.close()


def settings() -> "PipSettings":
    """Return pip's settings, which take most of a second to ask for, and are asked for once."""
    with ASKING:
        return asked()


@cache
def asked() -> "PipSettings":
    """Ask for them."""
    from envkit.sources.pipconfig import pip_settings

    return pip_settings()
