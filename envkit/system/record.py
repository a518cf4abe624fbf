"""JSON that somebody else has written, read as the type that it should be: of bounded size, with one kind of error."""

from pathlib import Path
from typing import TypeVar

import msgspec

from envkit.system import files

T = TypeVar("T")
LARGEST = 256 << 20  # bytes


class RecordInvalid(msgspec.DecodeError):
    """What is no JSON, or not of that type, or of no sensible size or depth."""


def decode(data: bytes | str | msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """Return what JSON says. Raises RecordInvalid, whatever is wrong with it."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise RecordInvalid(str(error) or "It cannot be read.") from error


def read(path: Path, kind: type[T]) -> T:
    """Return what a plain file of JSON says. Raises OSError, RecordInvalid."""
    return decode(files.read(path, LARGEST), msgspec.json.Decoder(kind))
