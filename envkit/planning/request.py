"""The request of the user to install something."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from envkit.environments.lockfile import Lock
from envkit.environments.prefix import Prefix
from envkit.report.paper import is_quiet
from envkit.sources.bundle import BundleManifest


def tell(text: str) -> None:
    """Say something on standard error, where it is not to be quiet."""
    if not is_quiet():
        print(f"envkit: {text}", file=sys.stderr)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The request of the user; ``mpi`` is a family as host.py names them.

    ``configured`` are the names of those that the configuration says and nobody typed: they count where they can.
    ``tell`` gets the lines that say which method is taken, and why, where that was left open.
    ``again`` are modules, or an image, that are damaged and to be built again. ``carried`` is what the bundle has,
    where this is for a plan alone, so that it is not in the cache.
    """

    prefix: Prefix
    wanted: str | None = None
    method: str | None = None
    framework: str | None = None
    accelerator: str = "auto"
    load: tuple[str, ...] = ()
    mpi: str = ""
    release: str | None = None
    access: str | None = None
    accepted_eulas: tuple[str, ...] = ()
    bundle: Path | None = None
    carried: BundleManifest | None = None
    configured: frozenset[str] = frozenset()
    offline: bool = False
    rebuild: bool = False
    again: tuple[str, ...] = ()
    jobs: int = 0
    force: bool = False
    base: str = "auto"
    build_args: tuple[tuple[str, str], ...] = ()
    source: str | None = None
    dockerfile: Path | None = None
    sandbox: bool = False
    site: str | None = None
    binds: tuple[str, ...] = ()
    sign: Path | None = None
    signed_by: Path | None = None
    locked: Lock | None = None
    unsigned_cache: bool = False
    extras: tuple[str, ...] = ()
    tell: Callable[[str], None] = tell
