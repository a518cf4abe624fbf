"""What the user asked to install."""

from dataclasses import dataclass
from pathlib import Path

from envkit.environments.lockfile import Lock
from envkit.environments.prefix import Prefix


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for; ``mpi`` is a family as host.py names them.

    ``again`` are modules, or an image, that are damaged and to be built again.
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
