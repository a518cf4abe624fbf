"""The layout of a place, and what a kind of place does: ``folder.py``, ``server.py``, ``bucket.py``, ``oci.py``.

::

    manifests/MODULE/KEY.json    a manifest and its signature
    objects/SHA256.tar.zst       what it is of, an image as objects/SHA256.sif; it is there before its manifest
    sources/SHA256               a file that an installation fetches
    index.json                   the names of all manifests, for servers that list no folder
"""

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import msgspec

NAME = re.compile(r"(?P<module>[A-Za-z0-9_][\w.+@=~-]*)/(?P<key>[0-9a-f]{64})\.json", re.ASCII)
SOURCE = re.compile(r"sources/[0-9a-f]{64}")
OBJECT = re.compile(r"objects/[0-9a-f]{64}\.(tar\.zst|sif)")
OWN = re.compile(
    r"index\.json|objects/[0-9a-f]{64}\.(tar\.zst|sif)|sources/[0-9a-f]{64}|manifests/[^/]+/[0-9a-f]{64}\.json"
    r"|((objects|sources|manifests/[^/]+)/)?\.envkit-\d+-[0-9a-f]{8}",
    re.ASCII,
)  # files of a place: those that envkit has written, and has begun to write
INDEX = "index.json"
CONNECT_S, SLOWEST = 10.0, 50_000  # a server gives so many bytes/s, or the build is the quicker way
PIECE = 1 << 20  # bytes


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """The names of all manifests."""

    version: int = 1
    manifests: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A file of a place; ``changed`` is when it was written (s since 1970).

    It is no file where a folder stands in its place, which is not envkit's, and is not removed.
    """

    name: str
    size: int
    changed: float
    is_file: bool = True


class Store(Protocol):
    """A kind of place that can be read. What cannot be had raises RefusedError."""

    def names(self, named: str) -> Iterable[str]:
        """Return the names of the manifests, as ``MODULE/KEY.json``."""

    def opened(self, named: str, name: str, most: int) -> AbstractContextManager[Iterable[bytes]]:
        """Give a file in pieces, at most so many bytes."""


class Writable(Store, Protocol):
    """A kind of place that can be written to as well. Also raises OSError."""

    def require(self, named: str) -> None:
        """Require that the place is there, and not open to everybody. Raises UsageProblem, HostProblem."""

    def refuses(self, module: str) -> str:
        """Say why no build can be called so there; nothing where one can."""

    def locked(self, named: str) -> AbstractContextManager[None]:
        """Keep others from writing the index."""

    def holds(self, named: str, name: str, size: int, sha256: str) -> bool:
        """Say whether a file is there as it should be."""

    def put(self, named: str, name: str, stream: BinaryIO) -> None:
        """Write a file, which is seen when it is whole."""

    def stored(self, named: str) -> Iterable[Stored]:
        """Return all files that are ``OWN``, what is half written as well, and no others."""

    def remove(self, named: str, name: str) -> None:
        """Remove a file, if it is there."""


def object_of(sha256: str, *, is_image: bool = False) -> str:
    """Return where an object lies in a place."""
    return f"objects/{sha256}.{'sif' if is_image else 'tar.zst'}"


def sha256_of(name: str) -> str:
    """Return the SHA-256 that an object or a source of a place is called by."""
    return name.rpartition("/")[2].partition(".")[0]


def source_of(sha256: str) -> str:
    """Return where a file that an installation fetches lies in a place."""
    return f"sources/{sha256}"
