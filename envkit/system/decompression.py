"""Unpacks with bounded memory what xz or zstd has packed: what a file asks for can be of gigabytes."""

import lzma
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

MEMORY = 256 << 20  # bytes; xz -9 takes a quarter of it, zstd -19 a thirtieth, and zstd --long half
CHUNK = 1 << 20  # bytes at most that come out at once
PACKED = 1 << 16  # bytes read at once: what is left of them is copied at the end of each stream, which may be tiny


class Readable(Protocol):
    """A stream that can be read from."""

    def read(self, size: int = -1, /) -> bytes:
        """Return at most so many bytes."""


class Decompressor(Protocol):
    """What unpacks one stream, as those of the standard library do."""

    @property
    def eof(self) -> bool:
        """Whether the end of the stream was reached."""

    @property
    def needs_input(self) -> bool:
        """Whether nothing more comes out before more goes in."""

    @property
    def unused_data(self) -> bytes:
        """What came behind the end of the stream."""

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Take some of the stream, and return at most so many bytes of what was packed."""


class TooMuchMemoryError(Exception):
    """To unpack it would take more memory than ``MEMORY``; ``command`` does so all the same."""

    def __init__(self, command: str) -> None:
        super().__init__(command)
        self.command = command

    def __str__(self) -> str:
        """Say so."""
        return f"unpacking it takes more than {MEMORY >> 20} MiB of memory"


BROKEN = (lzma.LZMAError, zstd.ZstdError, TooMuchMemoryError, EOFError)  # what is damaged raises one of these


def of_xz(raw: Readable | BinaryIO) -> Iterator[bytes]:
    """Yield what xz has packed, one stream after another. Raises LZMAError, TooMuchMemoryError, EOFError."""
    return unpacked("xz -dc", raw, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY))


def of_zstd(raw: Readable | BinaryIO) -> Iterator[bytes]:
    """Yield what zstd has packed, one frame after another. Raises ZstdError, TooMuchMemoryError, EOFError."""
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: MEMORY.bit_length() - 1}
    return unpacked("zstd -dc --long=31", raw, lambda: zstd.ZstdDecompressor(options=options))


def unpacked(command: str, raw: Readable | BinaryIO, new: Callable[[], Decompressor]) -> Iterator[bytes]:
    """Yield what was packed, one stream after another, each by a new decompressor; zeros may stand between them."""
    data = raw.read(PACKED)
    while data:
        decompressor = new()
        while not decompressor.eof:
            if decompressor.needs_input and not data:
                raise EOFError("It ends before its end was reached")
            try:
                yield decompressor.decompress(data, CHUNK)
            except (lzma.LZMAError, zstd.ZstdError) as error:
                if "Memory usage limit" in str(error) or "too much memory" in str(error):
                    raise TooMuchMemoryError(command) from error
                raise
            data = raw.read(PACKED) if decompressor.needs_input and not decompressor.eof else b""
        data = decompressor.unused_data.lstrip(b"\0")
        while not data and (more := raw.read(PACKED)):
            data = more.lstrip(b"\0")
