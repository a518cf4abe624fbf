"""JSON that somebody else has written, read as the type that it should be: of bounded size, with one kind of error.

msgspec looks at a type when it first meets it, and two threads that both meet it first crash the process: so all of
envkit has its decoders from here, where one looks at a time.
"""

from collections.abc import Hashable, Iterator, Mapping
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar, cast

import msgspec

from envkit.system import files

T = TypeVar("T")
LARGEST = 32 << 20  # bytes: many times what any record has; as objects they take ten times as much
MEETING = Lock()  # held while msgspec looks at a type


class RecordInvalid(msgspec.DecodeError):
    """A content that is no JSON, or not of that type, or of no sensible size or depth."""


def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return what reads JSON as a type; it may be used by several threads."""
    with MEETING:
        return decoder_of(cast("Hashable", kind))


@cache
def decoder_of(kind: Hashable) -> msgspec.json.Decoder[Any]:
    """Return the one decoder of a type."""
    return msgspec.json.Decoder(kind)


def convert(value: Any, kind: type[T]) -> T:
    """Return data of Python as a type. Raises msgspec.ValidationError."""
    decoder(kind)
    return msgspec.convert(value, kind)


def decode(data: bytes | str | msgspec.Raw, kind: type[T]) -> T:
    """Return what JSON says. Raises RecordInvalid, whatever is wrong with it."""
    try:
        return decoder(kind).decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise RecordInvalid(str(error) or "It cannot be read.") from error


def read(path: Path, kind: type[T]) -> T:
    """Return what a plain file of JSON says. Raises OSError, RecordInvalid."""
    return decode(files.read(path, LARGEST), kind)


def texts(value: Any) -> Iterator[str]:
    """Yield every text in plain data, keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts([*value.items()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item)
