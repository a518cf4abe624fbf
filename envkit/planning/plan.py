"""Plans: what will be built, in order, from which files. A plan is a value: it can be printed and compared."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from envkit.environments import lockfile
from envkit.sources.fetch import Source
from envkit.system import files
from envkit.system.resources import easybuild_collection, recipes


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """A patch of a recipe, and the SHA-256 that the recipe pins, if any."""

    filename: str
    sha256: str | None


class ConfigGuess(msgspec.Struct, frozen=True, kw_only=True):
    """The config.guess that eb takes from its sources, or else the network: where it lies there, and its SHA-256."""

    place: str
    sha256: str


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One module and the recipe that makes it. ``eula`` names a licence that must be accepted first."""

    module: str
    easyconfig: str
    dependencies: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()
    patches: tuple[Patch, ...] = ()
    os_dependencies: tuple[tuple[str, ...], ...] = ()
    eula: str = ""

    def checksum(self) -> str:
        """Return the SHA-256 of the recipe and of the patches beside it, to notice an edited recipe."""
        return recipe_checksum(Path(self.easyconfig))

    def part(self) -> lockfile.LockedPart:
        """Return what a lock holds of this step."""
        collected = self.easyconfig.rpartition("/easyconfigs/")[2]
        return lockfile.LockedPart(
            name=self.module,
            recipe=Path(collected).name if collected.startswith("/") else collected,
            sha256=self.checksum(),
            sources=tuple(locked(self.sources)),
            patches=tuple(lockfile.file(patch.filename, patch.sha256) for patch in self.patches),
        )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of a stack in the order of building, with the recipe folders they were found in.

    ``config_guess`` is there where something is configured.
    """

    stack: str
    steps: tuple[Step, ...]
    robot: tuple[str, ...]
    config_guess: ConfigGuess | None = None

    @property
    def modules(self) -> list[str]:
        """The module of every step, and those that the steps need."""
        return list(dict.fromkeys(name for step in self.steps for name in (step.module, *step.dependencies)))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Every source of every step."""
        return tuple(source for step in self.steps for source in step.sources)


def locked(sources: Iterable[Source]) -> Iterator[lockfile.LockedFile]:
    """Yield sources as a lock holds them."""
    for source in sources:
        yield lockfile.file(source.filename, source.sha256, source.urls, source.project)


def current_recipe(easyconfig: str) -> Path:
    """Return where a recipe lies now: with this envkit, with this EasyBuild, or where it was when it was used."""
    tail = easyconfig.rpartition("/easyconfigs/")[2]
    for folder in (recipes("easyconfigs"), easybuild_collection()):
        if (folder / tail).is_file():
            return folder / tail
    return Path(easyconfig)


def recipe_checksum(easyconfig: Path) -> str:
    """Return the SHA-256 of a recipe followed by those of the patches it names that lie beside it.

    A recipe that is not there counts as empty.
    """
    if not easyconfig.is_file():
        return ""
    text = files.read(easyconfig)
    digest = hashlib.sha256(text)
    for name in sorted(set(re.findall(rb"[\w.+-]+\.patch", text))):
        patch = easyconfig.parent / name.decode()
        if patch.is_file():
            digest.update(files.read(patch))
    return digest.hexdigest()
