"""A release of EESSI as files: which there are, for which CPU targets, with which modules."""

import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from envkit.errors import EnvkitError
from envkit.system import files, record

RELEASE = re.compile(r"(\d{4}\.\d{2}|\d{8})(-\d+)?")


@dataclass(frozen=True, kw_only=True)
class Release:
    """A release in a repository that can be read at ``root``."""

    root: Path
    version: str

    @property
    def software(self) -> Path:
        """The folder of the CPU targets."""
        return self.root / "versions" / self.version / "software" / "linux"

    @property
    def init(self) -> Path:
        """What is required to be there."""
        return self.root / "versions" / self.version / "init"


class ModuleVersions(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of one software in a folder of modules, as of a time."""

    changed: int
    versions: tuple[str, ...]


def versions(root: Path) -> list[str]:
    """Return the releases that a repository has."""
    return sorted(entry.name for entry in (root / "versions").iterdir() if RELEASE.fullmatch(entry.name))


def targets(release: Release, see: Callable[[Path], None] = lambda _: None) -> list[str]:
    """Return the CPU targets of this machine's kind, such as "x86_64/amd/zen3"; ``see`` is told where it looks."""
    folder = release.software / platform.machine()
    see(folder)
    found = []
    for path in (*folder.glob("*"), *folder.glob("*/*")):
        see(path / "modules" / "all")
        if (path / "modules" / "all").is_dir():
            found.append(str(path.relative_to(release.software)))
    return sorted(found)


def target(
    release: Release,
    names: Sequence[str],
    env: Mapping[str, str] = os.environ,
    see: Callable[[Path], None] = lambda _: None,
) -> str:
    """Return the CPU target for a CPU, given its name and its ancestors' as archspec has them; else the generic one.

    Inside a release it is the one that was chosen; EESSI_ARCHDETECT_OPTIONS_OVERRIDE counts as for EESSI itself.
    """
    there = targets(release, see)
    by_name = {path.rpartition("/")[2]: path for path in there}
    wanted = [env.get("EESSI_SOFTWARE_SUBDIR", ""), *env.get("EESSI_ARCHDETECT_OPTIONS_OVERRIDE", "").split(":")]
    wanted += [by_name.get(name, "") for name in names]
    return next((path for path in wanted if path in there), f"{platform.machine()}/generic")


def module_folders(
    release: Release,
    subdir: str,
    gpu: str = "",
    env: Mapping[str, str] = os.environ,
    see: Callable[[Path], None] = lambda _: None,
) -> list[Path]:
    """Return the folders of modules that there are: of a CPU target, of a GPU target ("cc80"), and the site's own.

    As for EESSI itself, a GPU takes what is there for its major version where there is nothing for it alone, and
    EESSI_ACCELERATOR_TARGET_OVERRIDE, EESSI_ACCEL_SOFTWARE_SUBDIR_OVERRIDE and EESSI_SITE_SOFTWARE_PREFIX count.
    ``see`` is told of each folder before it is looked at.
    """

    def is_there(path: Path) -> bool:
        see(path)
        return path.is_dir()

    software = release.software / subdir
    named = env.get("EESSI_ACCELERATOR_TARGET_OVERRIDE") or (f"accel/nvidia/{gpu}" if gpu else "")
    of_gpu = release.software / (env.get("EESSI_ACCEL_SOFTWARE_SUBDIR_OVERRIDE") or subdir)
    found = [path for one in (named, f"{named[:-1]}0") if named and is_there(path := of_gpu / one)]
    usual = release.root / "host_injections" / release.version / "software" / "linux" / subdir
    prefix = env.get("EESSI_SITE_SOFTWARE_PREFIX")
    site = Path(prefix, "versions", release.version, "software", "linux", subdir) if prefix else usual
    return [path for place in (software, *found[:1], site) if is_there(path := place / "modules" / "all")]


def modules(folder: Path, cache: Path, see: Callable[[Path], None] = lambda _: None) -> list[str]:
    """Return every module in a folder as NAME/VERSION; only what has changed since the last time is read.

    ``see`` is told of each folder before it is read.
    """
    before = remembered(cache)
    now = {}
    see(folder)
    for name, changed in software(folder):
        old = before.get(name)
        see(folder / name)
        now[name] = (
            old if old and old.changed == changed else ModuleVersions(changed=changed, versions=read(folder / name))
        )
    if now != before:
        remember(cache, now)
    return [f"{name}/{version}" for name, listed in now.items() for version in listed.versions]


def software(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the name of each software in a folder of modules, and when its folder was changed (ns)."""
    with os.scandir(folder) as entries:
        found = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    for entry in sorted(found, key=lambda entry: entry.name.lower()):
        yield entry.name, entry.stat().st_mtime_ns


def read(folder: Path) -> tuple[str, ...]:
    """Return the versions in the folder of one software."""
    names = (entry.name.removesuffix(".lua") for entry in folder.iterdir() if not entry.name.startswith("."))
    return tuple(sorted(names))


def remembered(cache: Path) -> dict[str, ModuleVersions]:
    """Return what was read before; nothing if it was not, or is damaged."""
    try:
        return record.read(cache, dict[str, ModuleVersions])
    except (OSError, msgspec.DecodeError):
        return {}


def remember(cache: Path, listed: dict[str, ModuleVersions]) -> None:
    """Keep what was read, for the next time; where that cannot be, it is read again."""
    with suppress(OSError, EnvkitError):
        files.make_private(cache.parent)
        files.write(cache, msgspec.json.encode(listed))
