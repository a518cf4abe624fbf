"""The cache of a client that envkit starts: how much it may hold, and whether it mounts without a server."""

import os
import shutil
from pathlib import Path

from envkit.errors import DiskFull
from envkit.knowledge.eessi import known, symptom
from envkit.machine.host import writable_parent

PART = 0.8  # of the room that there is: others write there, too
MB = 1_000_000


def limit_mb(folder: Path, configured_mb: int | None) -> int:
    """Return how much a cache may hold: what the configuration tells, and no more than there is room for.

    Raises DiskFull where there is room for next to nothing.
    """
    wanted = configured_mb or known().cache_mb
    free = shutil.disk_usage(writable_parent(folder)).free // MB
    room = int((free + held_mb(folder, wanted)) * PART) if free < wanted / PART else wanted
    if room < known().least_cache_mb:
        words = symptom("no-cache-room", folder=folder, free_mb=free, least_mb=known().least_cache_mb)
        raise DiskFull.of(words)
    return min(wanted, room)


def held_mb(folder: Path, enough_mb: int) -> int:
    """Return how much (MB) a cache holds, looking no further than ``enough_mb``."""
    held = 0
    for place, _, names in os.walk(folder):
        if held >= enough_mb * MB:
            break
        for name in names:
            try:
                held += Path(place, name).lstat().st_size
            except FileNotFoundError:  # a client cleans it
                continue
    return held // MB


def is_warm(folder: Path, repository: str) -> bool:
    """Say whether a client has mounted the repository from this cache before: it can again, without a server."""
    name = f"cvmfschecksum.{repository}"
    return any((place / name).is_file() for place in (folder, folder / repository, folder / "shared"))
