"""Whether the dynamic loader would find everything that a shared object needs, asked without loading it.

The search order is that of ld.so(8): RPATH of the object and of those that led to it, the library path,
RUNPATH, the loader's cache, the default directories. Objects already loaded are matched by name first.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.binary.elf import Elf, ElfError, gnu_hash

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path("/")
CACHE_MAGIC = b"glibc-ld.so.cache1.1"
DEFAULT_DIRECTORIES = (
    "lib64",
    "usr/lib64",
    "lib",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
)
INTERPRETER_PREFIXES = ("Py", "_Py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """The outcome that loading an object would have: each missing thing is named with the object that wants it.

    ``damaged`` are files of the name that is sought which are no libraries: text for the linker, or cut.
    """

    libraries: tuple[Path, ...]
    missing_libraries: tuple[str, ...]
    damaged: tuple[Path, ...]
    missing_symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded object, and the RPATH that those inherit which it loads."""

    elf: Elf
    rpath: tuple[str, ...]


@dataclass(kw_only=True)
class Process:
    """The objects that one process would hold: by every name that one is known by, and what was not found."""

    library_path: tuple[str, ...]
    machine: int
    root: Path
    known: dict[str, Elf] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    damaged: list[Path] = field(default_factory=list)
    listings: dict[str, frozenset[str]] = field(default_factory=dict)

    def load(self, root: Elf) -> None:
        queue = [self._add(root, root.path.name, ())]
        for loaded in queue:
            for name in loaded.elf.needed:
                if name in self.known:
                    continue
                elf = self._search(name, loaded)
                if elf is None:
                    self.missing.append(f"{name} (needed by {loaded.elf.path.name})")
                    self.known[name] = root
                else:
                    queue.append(self._add(elf, name, loaded.rpath))

    def objects(self) -> tuple[Elf, ...]:
        return tuple({id(elf): elf for elf in self.known.values()}.values())

    def _add(self, elf: Elf, name: str, inherited: tuple[str, ...]) -> Loaded:
        self.known[name] = self.known[elf.soname] = elf
        own = () if elf.runpath else (*expand(elf, elf.rpath), *inherited)
        return Loaded(elf, own)

    def _search(self, name: str, wanted_by: Loaded) -> Elf | None:
        for path in self._candidates(name, wanted_by):
            try:
                elf = Elf.open(path)
                _ = elf.needed, elf.soname, elf.rpath, elf.runpath, elf.defined_versions
            except OSError:
                continue
            except ElfError:
                self.damaged.append(path)
                continue
            if elf.machine == self.machine:
                return elf
        return None

    def _candidates(self, name: str, wanted_by: Loaded) -> Iterator[Path]:
        if "/" in name:
            yield Path(name)
            return
        runpath = expand(wanted_by.elf, wanted_by.elf.runpath)
        for directory in (*wanted_by.rpath, *self.library_path, *runpath):
            if name in self._listing(directory):
                yield Path(directory, name)
        for path in self._cache.get(name, []):
            yield path if path.is_relative_to(self.root) else self.root / path.relative_to(ROOT)
        for directory in DEFAULT_DIRECTORIES:
            yield self.root / directory / name

    def _listing(self, directory: str) -> frozenset[str]:
        if directory not in self.listings:
            try:
                self.listings[directory] = frozenset(entry.name for entry in os.scandir(directory))
            except OSError:
                self.listings[directory] = frozenset()
        return self.listings[directory]

    @cached_property
    def _cache(self) -> dict[str, list[Path]]:
        try:
            return read_loader_cache((self.root / "etc/ld.so.cache").read_bytes())
        except (OSError, struct.error):
            return {}


def read_loader_cache(data: bytes) -> dict[str, list[Path]]:
    """Library name to paths, best first, from what there is of /etc/ld.so.cache (glibc's new format)."""
    start = data.find(CACHE_MAGIC)
    paths: dict[str, list[Path]] = {}
    if start < 0:
        return paths
    data = data[start:]
    with suppress(struct.error, ValueError):
        (count,) = struct.unpack_from("<I", data, len(CACHE_MAGIC))
        for _, key, value, _, _ in struct.iter_unpack("<iIIIQ", data[48 : 48 + count * 24]):
            name = data[key : data.index(b"\0", key)].decode("utf-8", "surrogateescape")
            path = data[value : data.index(b"\0", value)].decode("utf-8", "surrogateescape")
            paths.setdefault(name, []).append(Path(path))
    return paths


def loading(extension: Elf, library_path: Sequence[Path], preloaded: Sequence[Elf], *, root: Path = ROOT) -> Loading:
    """Return what loading `extension` would meet where `preloaded` are loaded and `library_path` is searched.

    `root` is where the loader's cache and default directories lie: `/`, or the prefix of a compatibility layer.
    """
    process = Process(library_path=tuple(map(str, library_path)), machine=extension.machine, root=root)
    for elf in (*preloaded, extension):
        process.load(elf)
    objects = process.objects()
    symbols = () if process.missing else undefined_symbols(extension, objects)
    return Loading(
        libraries=tuple(elf.path for elf in objects if elf is not extension),
        missing_libraries=tuple(process.missing),
        damaged=tuple(process.damaged),
        missing_symbols=(*absent_versions(process.known, objects), *symbols),
    )


def expand(elf: Elf, paths: Sequence[str]) -> tuple[str, ...]:
    """Return paths with $ORIGIN put in, without those that have another token of the loader."""
    origin = str(elf.path.parent.absolute())
    expanded = (path.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for path in paths)
    return tuple(path for path in expanded if "$" not in path)


def undefined_symbols(extension: Elf, objects: Sequence[Elf]) -> tuple[str, ...]:
    """Return the symbols of an extension that no object defines and that may not be absent."""
    definers = list(objects)
    missing = []
    for symbol in extension.undefined():
        if symbol.is_weak or symbol.name.startswith(INTERPRETER_PREFIXES):
            continue
        raw = symbol.name.encode()
        hashed = gnu_hash(raw)
        for place, elf in enumerate(definers):
            if elf.defines(raw, hashed):
                if place:
                    definers.insert(0, definers.pop(place))
                break
        else:
            missing.append(symbol.name)
    return tuple(missing)


def absent_versions(known: dict[str, Elf], objects: Sequence[Elf]) -> tuple[str, ...]:
    """Return the versions of symbols that libraries lack, each with the object that needs it."""
    missing = []
    for elf in objects:
        for name, wanted in elf.needed_versions.items():
            library = known.get(name)
            if library is not None and library.defined_versions:
                lacking = sorted(wanted - library.defined_versions)
                missing += [f"{version} in {library.path} (needed by {elf.path.name})" for version in lacking]
    return tuple(missing)
