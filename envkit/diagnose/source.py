"""Opening a log: a file or a stream, compressed or not."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

from envkit.diagnose.scan import CHUNK, blocks
from envkit.errors import LogUnreadable

OPENERS: dict[bytes, Callable[[BinaryIO], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
OTHER = {b"(\xb5/\xfd": "zstd -dc", b"PK\x03\x04": "unzip -p"}


@contextmanager
def opened(name: str, stream: io.BufferedReader | None = None) -> Iterator[Iterator[bytes]]:
    """Yield the blocks of the log ``name``, or of a stream in its place. Raises LogUnreadable if it is none."""
    try:
        with nullcontext(stream) if stream is not None else Path(name).open("rb") as raw:
            yield checked(name, raw)
    except FileNotFoundError as error:
        raise unreadable(f"There is no log {name}.", fix="Correct its path; '-' reads standard input.") from error
    except IsADirectoryError as error:
        raise unreadable(f"{name} is a folder.", fix=inside(Path(name))) from error
    except PermissionError as error:
        raise unreadable(f"{name} may not be read by this user.", fix=f"See ls -l {name}.") from error
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise unreadable(
            f"{name} is a compressed file that is damaged.", why=str(error), fix="Copy it again, or take the original."
        ) from error


def checked(name: str, raw: io.BufferedReader) -> Iterator[bytes]:
    """Yield a log in blocks. Raises LogUnreadable for one that is empty or no text."""
    head = raw.peek(8)[:8]
    for magic, tool in OTHER.items():
        if head.startswith(magic):
            raise unreadable(f"{name} is compressed in a way that is not read here.", fix=f"{tool} | envkit diagnose -")
    opener = next((opener for magic, opener in OPENERS.items() if head.startswith(magic)), None)
    stream: BinaryIO = opener(raw) if opener else raw
    count = 0
    for block in blocks(stream):
        if not count and b"\0" in block[:CHUNK]:
            raise unreadable(f"{name} is no text, so it is no log.", fix="Name the log that the build or job wrote.")
        count += 1
        yield block
    if not count:
        raise unreadable(f"{name} is empty.", fix="Write both outputs of the command into it: COMMAND > LOG 2>&1")


def inside(folder: Path) -> str:
    """Return what to do with a folder: name its newest log, if there is one."""
    logs = sorted(folder.glob("*.log*"), key=lambda path: path.stat().st_mtime)
    return f"Name a log in it: envkit diagnose {logs[-1]}" if logs else "Name a log in it."


def unreadable(what: str, *, why: str = "", fix: str) -> LogUnreadable:
    """Return the error for something that cannot be diagnosed."""
    return LogUnreadable(what=what, why=why, fix=fix)
