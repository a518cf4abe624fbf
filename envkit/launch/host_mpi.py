"""The host's MPI library, bound into an image: which files, and whether they can load there."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from envkit.binary.elf import Elf, ElfError
from envkit.binary.loader import loading, read_loader_cache
from envkit.environments.environment import ContainerEnvironment
from envkit.environments.receipt import Mpi
from envkit.errors import HostProblem
from envkit.system import process

TARGET = "/.envkit/mpi"
CRAY_ABI = "lib-abi-mpich"  # the folder of Cray MPICH with its libraries for programs of any MPICH
IMAGES_OWN = re.compile(
    r"(ld-linux|libc|libm|libdl|librt|libpthread|libutil|libresolv|libnss_\w+|libstdc\+\+|libgcc_s)[.-]"
)
PLUGINS = ("pmix", "ucx", "libfabric", "libibverbs")
GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The binds (SOURCE:TARGET) and the variables by which an image uses the host's MPI."""

    binds: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]


def bound(inside: ContainerEnvironment, mpi: Mpi, soname: str, env: Mapping[str, str]) -> Bound:
    """Return what binds the host's library ``soname`` into an image. Raises HostProblem where it cannot load there."""
    library = find(soname, env) if soname else None
    if library is None:
        raise HostProblem(
            what=f"The host's MPI cannot take the place of the image's {mpi.family} {mpi.version}.",
            why=f"The image wants {soname or 'a library that is not known'}, and this host does not have it.",
            fix="Load the module of an MPI that has it, or use --mpi-model hybrid or inside.",
        )
    folders = open_mpi_folders(env) if mpi.family == "Open MPI" else []
    folders += plugin_folders(closure([library, *objects(folders)], env))
    libraries = closure([library, *objects(folders)], env)
    require_libc(inside, libraries, env)
    apart = [path for path in libraries if not any(path.is_relative_to(folder) for folder in folders)]
    binds = [f"{path}:{TARGET}/{name}" for name, path in sorted(named(apart).items())]
    binds += [f"{folder}:{folder}" for folder in folders]
    return Bound(binds=tuple(binds), settings=(("LD_LIBRARY_PATH", f"{TARGET}:/.singularity.d/libs"),))


def find(soname: str, env: Mapping[str, str]) -> Path | None:
    """Return the host's library of a name: on LD_LIBRARY_PATH, beside its launcher, or where the loader looks.

    Cray MPICH has its libraries for programs of any MPICH in a folder of their own (module cray-mpich-abi).
    """
    launcher = process.which("mpirun", path=env.get("PATH"))
    beside = [Path(launcher).resolve().parents[1] / lib for lib in ("lib", "lib64")] if launcher else []
    cray = [Path(env["MPICH_DIR"]) / CRAY_ABI] if "MPICH_DIR" in env else []
    folders = [Path(word) for word in env.get("LD_LIBRARY_PATH", "").split(":") if word] + cray + beside
    cache = read_loader_cache(Path("/etc/ld.so.cache").read_bytes()) if Path("/etc/ld.so.cache").is_file() else {}
    places = [*(folder / soname for folder in folders), *cache.get(soname, [])]
    return next((place for place in places if place.is_file()), None)


def open_mpi_folders(env: Mapping[str, str]) -> list[Path]:
    """Return the folders where Open MPI looks for its plug-ins, its settings and its messages."""
    answer = process.capture(["ompi_info", "--path", "all", "--parsable"], env=env).stdout
    paths = {word[1]: Path(word[2]) for line in answer.splitlines() if len(word := line.split(":", 2)) == 3}
    return [paths[name] for name in ("pkglibdir", "sysconfdir", "pkgdatadir") if name in paths and paths[name].is_dir()]


def plugin_folders(libraries: Iterable[Path]) -> list[Path]:
    """Return the folders beside libraries from which they load their plug-ins."""
    return sorted(
        {folder for path in libraries for name in PLUGINS if (folder := path.resolve().parent / name).is_dir()}
    )


def objects(folders: Iterable[Path]) -> list[Path]:
    """Return the shared objects in folders."""
    return sorted(path for folder in folders for path in folder.rglob("*.so*") if path.is_file())


def closure(objects: Iterable[Path], env: Mapping[str, str]) -> list[Path]:
    """Return shared objects with all that they need, but for what belongs to a C or C++ library."""
    search = [Path(word) for word in env.get("LD_LIBRARY_PATH", "").split(":") if word]
    needed: dict[Path, None] = {}
    for path in objects:
        try:
            libraries = loading(Elf.open(path), search, []).libraries
        except (OSError, ElfError):
            continue
        for library in (path, *libraries):
            if not IMAGES_OWN.match(library.name):
                needed[library] = None
    return list(needed)


def named(libraries: Iterable[Path]) -> dict[str, Path]:
    """Return libraries by the name that others know them by."""
    return {Elf.open(path).soname or path.name: path for path in libraries}


def require_libc(inside: ContainerEnvironment, libraries: Iterable[Path], env: Mapping[str, str]) -> None:
    """Raise HostProblem where the host's libraries want a newer C library than the image has."""
    answer = process.capture(inside.command(["getconf", "GNU_LIBC_VERSION"]), env=inside.variables(env))
    match = re.search(r"(\d+(?:\.\d+)+)", answer.stdout)
    if match is None:
        raise HostProblem(
            what=f"The C library of {inside.name} is not glibc, so the host's MPI cannot load there.",
            why=(answer.stderr or answer.stdout).strip()[:300],
            fix="Use --mpi-model hybrid or inside.",
        )
    newest, path = max(((version, path) for path in libraries for version in wanted(path)), default=((), None))
    if newest > number(match[1]):
        raise HostProblem(
            what=f"The host's MPI cannot load in {inside.name}.",
            why=f"{path} wants glibc {'.'.join(map(str, newest))}; the image has {match[1]}.",
            fix="Use --mpi-model hybrid or inside, or an image on a newer system.",
        )


def wanted(path: Path) -> Iterator[tuple[int, ...]]:
    """Yield the versions of glibc that a library wants."""
    for versions in Elf.open(path).needed_versions.values():
        for version in versions:
            if match := GLIBC.fullmatch(version):
                yield number(match[1])


def number(version: str) -> tuple[int, ...]:
    """Return "2.36" as (2, 36)."""
    return tuple(map(int, version.split(".")))
