"""Opening a log: a file or a stream, compressed or not."""

import bz2
import gzip
import io
import itertools
import os
import re
import shlex
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from envkit.diagnose.scan import CHUNK, Deadline, OverError, blocks, whole_lines
from envkit.errors import STORAGE, LogUnreadable
from envkit.system import decompression
from envkit.system.files import kind, open_plain

SHOWN = 300  # characters of a line
STREAMS = {b"\xfd7zXZ\x00": decompression.of_xz, b"(\xb5/\xfd": decompression.of_zstd}
HEAD = 8  # bytes, by which it is known how a file is compressed
OPENERS: dict[bytes, Callable[[BinaryIO], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open}
UTF16 = "iconv -f UTF-16 -t UTF-8"
OTHER = {b"PK\x03\x04": "unzip -p", b"\xff\xfe": UTF16, b"\xfe\xff": UTF16}
HOLE, CONTROL = re.compile(rb"\0+"), re.compile(rb"[\x01-\x06\x0e-\x1a]")
FOREIGN = 0.3  # share of characters that are none of UTF-8, in what has no line, from which it is no text


class TimedStream:
    """A packed stream, of which nothing more is had when the time is over, whether or not anything comes out of it."""

    def __init__(self, raw: BinaryIO, limit: Deadline) -> None:
        self.raw, self.limit = raw, limit

    def read(self, size: int = -1, /) -> bytes:
        """Read like the stream itself. Raises OverError."""
        self.limit.require()
        return self.raw.read(size)


@contextmanager
def opened(name: str, limit: Deadline, stream: io.BufferedReader | None = None) -> Iterator[Iterator[bytes]]:
    """Yield the blocks of the log ``name``, or of a stream in its place. Raises LogUnreadable if it is none.

    The blocks raise OverError when the time is over, but not before the first.
    """
    try:
        with nullcontext(stream) if stream is not None else plain_file(name) as raw:
            yield checked(name, raw, limit)
    except FileNotFoundError as error:
        raise unreadable(f"There is no log {name}.", fix="Correct its path; '-' reads standard input.") from error
    except IsADirectoryError as error:
        raise unreadable(f"{name} is a folder.", fix=inside(Path(name))) from error
    except PermissionError as error:
        raise unreadable(f"{name} may not be read by this user.", fix=f"See ls -l {shlex.quote(name)}.") from error
    except decompression.TooMuchMemoryError as error:
        fix = f"{error.command} {shlex.quote(name) if Path(name).is_file() else 'LOG'} | envkit diagnose -"
        raise unreadable(f"{name}: {error}.", fix=fix) from error
    except (OSError, ValueError, zlib.error, *decompression.BROKEN) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in STORAGE:
            raise
        if number is not None or isinstance(error, ValueError):
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise unreadable(f"{name} cannot be read.", why=why, fix="Name the file of a log, or give '-'.") from error
        raise unreadable(
            f"{name} is a compressed file that is damaged.", why=str(error), fix="Copy it again, or take the original."
        ) from error


def lines(name: str, behind: int, count: int, limit: Deadline) -> list[str]:
    """Return some lines of the log ``name`` that stand behind one, given by its number from 1, each cut to 300.

    None where the time is over before.
    """
    raw_lines = list[bytes]()
    with opened(name, limit) as parts, suppress(OverError):
        each = (line for part in whole_lines(parts) for line in part.removesuffix(b"\n").split(b"\n"))
        raw_lines = [*itertools.islice(each, behind, behind + count)]
    return [line.decode(errors="replace").strip()[:SHOWN] for line in raw_lines]


def is_packed(path: Path) -> bool:
    """Say whether a file is compressed in a way that is read here. Raises OSError."""
    with open_plain(path) as stream:
        return stream.read(HEAD).startswith((*OPENERS, *STREAMS))


def plain_file(name: str) -> io.BufferedReader:
    """Open a file, and nothing that could be waited for without an end. Raises LogUnreadable, OSError."""
    mode = Path(name).stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise unreadable(
            f"{name} is {kind(mode)}, not a file.", fix=f"envkit diagnose - < {shlex.quote(name)} reads it to its end."
        )
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    return os.fdopen(descriptor, "rb")


def checked(name: str, raw: io.BufferedReader, limit: Deadline) -> Iterator[bytes]:
    """Yield a log in blocks. Raises LogUnreadable for one that is empty or no text, OverError."""
    head = raw.peek(HEAD)[:HEAD]
    for magic, tool in OTHER.items():
        if head.startswith(magic):
            how = "encoded" if tool == UTF16 else "compressed"
            fix = f"{tool} {shlex.quote(name) if Path(name).is_file() else ''}".rstrip() + " | envkit diagnose -"
            raise unreadable(f"{name} is {how} in a way that is not read here.", fix=fix)
    count = 0
    for block in unpacked(head, raw, limit):
        if count:
            limit.require()
        if not count and is_foreign(block[:CHUNK]):
            raise unreadable(f"{name} is no text, so it is no log.", fix="Name the log that the build or job wrote.")
        count += bool(block)
        yield block
    if not count:
        raise unreadable(f"{name} is empty.", fix="Write both outputs of the command into it: COMMAND > LOG 2>&1")


def unpacked(head: bytes, raw: io.BufferedReader, limit: Deadline) -> Iterator[bytes]:
    """Yield a file in blocks, unpacked if it is compressed. Raises OverError, and what tells of damage."""
    packed = cast("BinaryIO", TimedStream(raw, limit))
    for magic, stream in STREAMS.items():
        if head.startswith(magic):
            return stream(packed)
    opener = next((opener for magic, opener in OPENERS.items() if head.startswith(magic)), None)
    return blocks(opener(packed) if opener else raw)


def is_foreign(head: bytes) -> bool:
    """Say whether what a file begins with is no text of lines.

    A few holes of zero bytes are those of a file server, or of a log that was cut while it was written.
    """
    filled = head.replace(b"\0", b"")
    if len(filled) < len(head):
        holes, odd = len(HOLE.findall(head)), len(CONTROL.findall(filled[:4096]))
        return b"\n" not in filled or holes > 1 + len(filled) / 1000 or odd > len(filled[:4096]) / 100
    text = head[:4096].decode(errors="replace")
    return "\n" not in text and text.count("\ufffd") > FOREIGN * len(text)


def inside(folder: Path) -> str:
    """Return what to do with a folder: name its newest log, if there is one."""
    logs = [path for path in folder.glob("*.log*") if path.is_file() and str(path).isprintable()]
    newest = max(logs, key=lambda path: path.stat().st_mtime, default=None)
    return f"Name a log in it: envkit diagnose {shlex.quote(str(newest))}" if newest else "Name a log in it."


def unreadable(what: str, *, why: str = "", fix: str) -> LogUnreadable:
    """Return the error for something that cannot be diagnosed."""
    return LogUnreadable(what=what, why=why, fix=fix)
