"""The needs of a module's libraries on a machine: symbol versions, and features of the CPU, read from their files."""

import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from packaging.version import InvalidVersion, Version

from envkit.binary.elf import Elf, ElfError, StaticError
from envkit.binary.loader import read_loader_cache
from envkit.cache.manifest import rules
from envkit.errors import HostProblem
from envkit.system import process

MOST = 1 << 30  # bytes of the machine code of a library, in words
LOADER_CACHE = Path("/etc/ld.so.cache")


def compiled(paths: Iterable[Path]) -> list[Path]:
    """Return those of some files that are libraries or programs. Raises OSError."""
    found = []
    for path in paths:
        with path.open("rb") as stream:
            if stream.read(4) == b"\x7fELF":
                found.append(path)
    return found


def libraries(paths: Iterable[Path]) -> list[Elf]:
    """Return those of some libraries and programs that load others. Raises HostProblem, OSError."""
    elf_files = []
    for path in paths:
        try:
            elf_files.append(Elf.open(path))
        except StaticError:
            continue
        except ElfError as error:
            raise HostProblem(what=f"{path} cannot be read as a library.", why=str(error)) from error
    return elf_files


def highest(names: Iterable[str]) -> dict[str, str]:
    """Return the highest version of each kind of symbols, such as GLIBC 2.34, of those that count."""
    best = dict[str, Version]()
    for kind, version in (name.rsplit("_", 1) for name in names if "_" in name):
        if kind in rules()["versions"]:
            try:
                best[kind] = max(best.get(kind, Version("0")), Version(version))
            except InvalidVersion:  # GLIBC_PRIVATE
                continue
    return {kind: str(best[kind]) for kind in sorted(best)}


def versions(elf_files: Iterable[Elf]) -> dict[str, str]:
    """Return the highest version of each kind of symbols that libraries want of others."""
    return highest(name for elf in elf_files for names in elf.needed_versions.values() for name in names)


def mpi_library(elf_files: Iterable[Elf]) -> str:
    """Return the library of MPI that they load; nothing without one."""
    return next((name for elf in elf_files for name in elf.needed if name.startswith("libmpi")), "")


def cpu(paths: Sequence[Path], machine: str) -> tuple[str, ...]:
    """Return the features of the CPU without which code in libraries and programs does not run. Raises HostProblem.

    Code that is chosen while running counts as well, so that it may be too many.
    """
    patterns = {name: re.compile(text) for name, text in rules()["cpu"].get(machine, {}).items()}
    needed = set[str]()
    for path in paths if patterns else ():
        done = process.capture(["objdump", *rules()["objdump"][machine], str(path)], timeout_s=300, most_bytes=MOST)
        if done.status:
            raise HostProblem(
                what=f"The machine code of {path} cannot be read.",
                why="There is no program objdump on PATH." if done.status == 127 else done.stderr.strip(),
                fix="Install binutils, which has it, and push again.",
            )
        code = {line.strip() + " " for line in set(done.stdout.splitlines()) if line.startswith("\t")}
        needed |= {name for name, pattern in patterns.items() if any(map(pattern.search, code))}
    return tuple(sorted(needed))


def offered(env: Mapping[str, str]) -> dict[str, str]:
    """Return the highest version of each kind of symbols that the libraries of this machine define."""
    defined = dict[str, str]()
    for library in dict.fromkeys(rules()["versions"].values()):
        for path in candidates(library, env):
            with suppress(OSError, ElfError):
                defined |= highest(Elf.open(path).defined_versions)
                break
    return defined


def candidates(library: str, env: Mapping[str, str]) -> Iterator[Path]:
    """Yield where the loader looks for a library: as the settings say, then as its cache does."""
    yield from (Path(folder, library) for folder in env.get("LD_LIBRARY_PATH", "").split(":") if folder)
    with suppress(OSError, struct.error, ValueError):
        yield from read_loader_cache(LOADER_CACHE.read_bytes()).get(library, [])


def features() -> frozenset[str]:
    """Return the features of this CPU, as /proc/cpuinfo names them; a virtual one may lack what its like have."""
    import archspec.cpu
    from archspec.cpu.detect import detected_info

    return frozenset(detected_info().features | archspec.cpu.host().features)
