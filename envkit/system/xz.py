"""Unpacks with bounded memory what xz has packed: the dictionary that a file asks for can be of gigabytes."""

import lzma
from collections.abc import Iterator
from typing import BinaryIO, Protocol

MEMORY = 256 << 20  # bytes; xz -9 takes a quarter of it
CHUNK = 1 << 20  # bytes


class Readable(Protocol):
    """A stream that can be read from."""

    def read(self, size: int = -1, /) -> bytes:
        """Return at most so many bytes."""


class TooMuchMemoryError(lzma.LZMAError):
    """To unpack it would take more memory than ``MEMORY``."""

    def __str__(self) -> str:
        """Say so."""
        return f"unpacking it takes more than {MEMORY >> 20} MiB of memory"


def unpacked(raw: Readable | BinaryIO) -> Iterator[bytes]:
    """Yield what xz has packed, one stream after another. Raises LZMAError, TooMuchMemoryError, EOFError."""
    data = raw.read(CHUNK)
    while data:
        decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
        while not decompressor.eof:
            if decompressor.needs_input and not data:
                raise EOFError("It ends before its end was reached")
            try:
                yield decompressor.decompress(data, CHUNK)
            except lzma.LZMAError as error:
                if "Memory usage limit" in str(error):
                    raise TooMuchMemoryError from error
                raise
            data = raw.read(CHUNK) if decompressor.needs_input and not decompressor.eof else b""
        data = (decompressor.unused_data or raw.read(CHUNK)).lstrip(b"\0")
