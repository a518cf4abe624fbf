"""Data in TOML files, read as the type that they are."""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from envkit.system import files

T = TypeVar("T")
Tables = dict[str, Any]
LARGEST = 1 << 20  # bytes


def read(path: Path, kind: type[T]) -> T:
    """Return the contents of a file. Raises OSError, ValueError, RecursionError and msgspec.ValidationError."""
    return msgspec.convert(tomllib.loads(files.read(path, LARGEST).decode()), kind)
