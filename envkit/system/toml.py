"""Data in TOML files, read as the type that they are."""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
Tables = dict[str, Any]


def read(path: Path, kind: type[T]) -> T:
    """Return the contents of a file. Raises OSError, tomllib.TOMLDecodeError and msgspec.ValidationError."""
    return msgspec.convert(tomllib.loads(path.read_text()), kind)
