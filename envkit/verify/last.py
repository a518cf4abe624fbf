"""The last report on each environment, kept for ``envkit report``: for this user alone, few, of bounded size."""

from __future__ import annotations

import hashlib
import time
import zlib
from contextlib import suppress
from pathlib import Path

import msgspec

from envkit.errors import HostProblem
from envkit.system import files, record
from envkit.verify.report import Report

MOST = 20  # environments
LARGEST = 2 << 20  # bytes, packed: some 2,000 ranks
UNPACKED = 64 << 20  # bytes


class LastReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report, of when it is (seconds since 1970), and of which environment; no tree if envkit did not install it."""

    at: float
    name: str
    tree: str
    report: Report


def folder() -> Path:
    """Return where they lie."""
    from platformdirs import user_state_path

    return user_state_path("envkit") / "verdicts"


def path_of(name: str, tree: str) -> Path:
    """Return the file for an environment."""
    digest = hashlib.sha256("\0".join((tree, name)).encode(errors="surrogateescape")).hexdigest()
    return folder() / f"{digest[:24]}.json.z"


def keep(report: Report, name: str, tree: str) -> None:
    """Keep a report in the place of the one before, the latest MOST of all.

    Where it cannot be kept, there is none: an older one would mislead. A verdict never depends on it.
    """
    path = path_of(name, tree)
    with suppress(OSError, HostProblem):
        files.make_private(path.parent)
        files.require_own(path.parent)
        path.unlink(missing_ok=True)
        packed = zlib.compress(msgspec.json.encode(LastReport(at=time.time(), name=name, tree=tree, report=report)))
        if len(packed) <= LARGEST:
            files.write(path, packed, own=True, mode=0o600)
        for old in sorted(path.parent.glob("*.json.z"), key=lambda file: file.stat().st_mtime)[:-MOST]:
            old.unlink(missing_ok=True)


def read(path: Path) -> LastReport | None:
    """Return what a file keeps; None where there is none, or none that can be read."""
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(files.read(path, LARGEST), UNPACKED)
        return record.decode(data, LastReport) if unpacker.eof else None
    except (OSError, zlib.error, msgspec.DecodeError):
        return None


def last(name: str, tree: str) -> LastReport | None:
    """Return the last report on an environment, None without one."""
    return read(path_of(name, tree))


def latest() -> LastReport | None:
    """Return the last report on any environment, None without one."""
    with suppress(OSError):
        paths = sorted(folder().glob("*.json.z"), key=lambda file: file.stat().st_mtime, reverse=True)
        return next((entry for entry in map(read, paths) if entry is not None), None)
    return None
