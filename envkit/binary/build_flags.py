"""Reads what a Horovod installation was built with, and whether its extensions can load, with nothing imported.

The answers of `horovodrun --check-build` (Horovod 0.28.1: horovod/runner/launch.py, horovod/common/util.py),
read from the files: symbols `horovod_*_built` of each compiled extension, metadata.json, and the names of
dist-info directories.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from envkit.binary.elf import Elf, ElfError
from envkit.binary.loader import loading
from envkit.binary.machine_code import LONGEST, returned_constant

ROOT = Path("/")
MOST = 1 << 20  # bytes of a text
FLAGS = ("rocm", "cuda", "nccl", "mpi", "gloo", "ddl", "ccl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """The place of what Horovod built for a framework, and the libraries that importing that one loads."""

    name: str
    title: str
    extension: str
    metadata_key: str
    distributions: tuple[str, ...]
    preloaded: tuple[str, ...]


FRAMEWORKS = (
    Framework(
        name="tensorflow",
        title="TensorFlow",
        extension="mpi_lib",
        metadata_key="tensorflow",
        distributions=("tensorflow", "tensorflow_cpu", "tensorflow_gpu", "tensorflow_rocm"),
        preloaded=("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"),
    ),
    Framework(
        name="torch",
        title="PyTorch",
        extension="mpi_lib_v2",
        metadata_key="pytorch",
        distributions=("torch",),
        preloaded=("lib/libtorch_python.so",),
    ),
    Framework(
        name="mxnet",
        title="MXNet",
        extension="mpi_lib",
        metadata_key="mxnet",
        distributions=("mxnet", "mxnet_mkl", "mxnet_cu112"),
        preloaded=("libmxnet.so",),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A compiled extension. A flag is None where it cannot be told; nccl is NCCL's version code.

    `mpi_libraries` are the files, free of links, that the loader would take for MPI. `others` are the names of files
    beside it that Horovod does not take: of another Python, or without its tag.
    """

    framework: str
    path: str | None
    exists: bool
    flags: Mapping[str, int | None]
    framework_found: bool
    unreadable: str | None
    missing_libraries: tuple[str, ...]
    missing_symbols: tuple[str, ...]
    built_for: str | None
    installed: str | None
    mpi_libraries: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def loads(self) -> bool:
        wrong = self.unreadable or self.missing_libraries or self.missing_symbols
        return self.exists and self.framework_found and not wrong

    @property
    def has_drifted(self) -> bool:
        """Whether the framework installed is another version than the one the extension was built for."""
        return bool(self.built_for and self.installed) and not same_version(self.built_for, self.installed)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFlags:
    """A Horovod installation: its version and one extension per framework, in Horovod's own order."""

    version: int = 1
    horovod: str
    extensions: tuple[Extension, ...]

    def flags_of(self, framework: str) -> Mapping[str, int | None]:
        """The flags of one framework's extension; empty where there is none."""
        return next((e.flags for e in self.extensions if e.framework == framework and e.exists), {})

    def flag(self, name: str) -> int | None:
        """By Horovod's rule: the answer of the first extension that loads."""
        answers = (extension.flags.get(name) for extension in self.extensions if extension.loads)
        return next((answer for answer in answers if answer is not None), None)


def same_version(first: str | None, second: str | None) -> bool:
    """Whether two version strings agree; a local part (`+cpu`) counts only where both have one."""
    if not first or not second:
        return False
    public, local = zip(*(version.partition("+")[::2] for version in (first, second)), strict=True)
    return public[0] == public[1] and (not all(local) or local[0] == local[1])


def read_extensions(
    horovod_dir: Path,
    library_path: Sequence[Path],
    site_packages: Sequence[Path],
    *,
    suffix: str = EXTENSION_SUFFIXES[0],
    root: Path = ROOT,
) -> BuildFlags:
    """Read an installation.

    `horovod_dir` is the package directory (the one that holds metadata.json), `library_path` what
    LD_LIBRARY_PATH is inside the environment, `site_packages` the directories on its module search path,
    of which the first match wins. `suffix` is how the interpreter inside names extensions: Horovod asks for the first
    of those that importlib takes, and for no other (horovod/common/util.py: get_ext_suffix). `root` is where the
    loader's cache and default directories lie: `/`, or the prefix of a compatibility layer (EESSI's
    `.../compat/linux/x86_64`).
    """
    built_for = metadata(horovod_dir)
    names = [(directory, name) for directory in site_packages for name in listdir(directory)]
    return BuildFlags(
        horovod=horovod_version(horovod_dir),
        extensions=tuple(
            read_extension(framework, horovod_dir, library_path, names, built_for, suffix, root)
            for framework in FRAMEWORKS
        ),
    )


def read_extension(
    framework: Framework,
    horovod_dir: Path,
    library_path: Sequence[Path],
    names: Sequence[tuple[Path, str]],
    built_for: Mapping[str, str],
    suffix: str,
    root: Path,
) -> Extension:
    """Read the extension of one framework."""
    candidates = files(horovod_dir / framework.name, framework.extension)
    path = next((file for file in candidates if file.name == framework.extension + suffix), None)
    installed = installed_version(framework.distributions, names)
    package = next((d / framework.name for d, name in names if name == framework.name), None)
    flags: dict[str, int | None] = dict.fromkeys(FLAGS)
    unreadable: str | None = None
    libraries: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    mpi: tuple[str, ...] = ()
    if path is not None:
        try:
            elf = Elf.open(path)
            flags = read_flags(elf)
            if elf.machine != machine():
                raise ElfError(f"{path}: it is for another type of machine (ELF {elf.machine}, here {machine()})")
            preloaded = open_preloaded(package, framework.preloaded)
            met = loading(elf, library_path, preloaded, root=root)
            libraries, symbols = met.missing_libraries, met.missing_symbols
            shared_objects = (*met.libraries, *met.damaged)
            mpi = tuple(str(library.resolve()) for library in shared_objects if library.name.startswith("libmpi"))
        except (ElfError, OSError) as error:
            unreadable = str(error)
    return Extension(
        framework=framework.name,
        path=None if path is None else str(path),
        exists=path is not None,
        flags=flags,
        framework_found=package is not None,
        unreadable=unreadable,
        missing_libraries=libraries,
        missing_symbols=symbols,
        built_for=built_for.get(framework.metadata_key),
        installed=installed,
        mpi_libraries=mpi,
        others=tuple(file.name for file in candidates if file != path),
    )


@functools.cache
def machine() -> int:
    """ELF's number of this type of machine."""
    return Elf.open(Path("/proc/self/exe")).machine


def read_flags(elf: Elf) -> dict[str, int | None]:
    """The build flags of an extension: 0 or 1, for nccl its version code, None where it cannot be told."""
    flags: dict[str, int | None] = {}
    for name in FLAGS:
        symbol = elf.defined(f"horovod_{name}_built")
        is_function = symbol is not None and symbol.is_function
        code = elf.code(symbol, LONGEST) if symbol is not None and is_function else b""
        flags[name] = returned_constant(elf.machine, code, bits=32 if name == "nccl" else 8)
    return flags


def files(directory: Path, stem: str) -> list[Path]:
    """Return the shared objects of a directory whose names begin with a stem."""
    return [directory / name for name in listdir(directory) if name.startswith(f"{stem}.") and name.endswith(".so")]


def open_preloaded(package: Path | None, names: Sequence[str]) -> list[Elf]:
    """Open the libraries that importing a framework loads. Raises ElfError and OSError."""
    if package is None:
        return []
    return [Elf.open(package / name) for name in names if (package / name).is_file()]


def installed_version(distributions: Sequence[str], names: Sequence[tuple[Path, str]]) -> str | None:
    """Return the version of a distribution that is installed; None where none is."""
    pattern = re.compile(rf"(?:{'|'.join(distributions)})-(.+?)\.(?:dist|egg)-info", re.IGNORECASE)
    matches = (pattern.fullmatch(name) for _, name in names)
    return next((match[1] for match in matches if match), None)


def metadata(horovod_dir: Path) -> dict[str, str]:
    """Return the versions that Horovod was built for, by framework; nothing where it does not say."""
    try:
        content = json.loads(text(horovod_dir / "metadata.json"))
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(key): str(value) for key, value in content.items()} if isinstance(content, dict) else {}


def horovod_version(horovod_dir: Path) -> str:
    """Return the version of a Horovod; "unknown" where it cannot be told."""
    try:
        source = text(horovod_dir / "__init__.py")
    except OSError:
        return "unknown"
    match = re.search(r"^__version__ = ['\"](.+?)['\"]", source, re.MULTILINE)
    return match[1] if match else "unknown"


def text(path: Path) -> str:
    """Return what a plain file holds, its beginning if it is long. Raises OSError, for a pipe or a device as well."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "It is not a plain file", str(path))
        return stream.read(MOST).decode(errors="replace")


def listdir(directory: Path) -> list[str]:
    """Return the names in a directory; none where it cannot be read."""
    try:
        return sorted(entry.name for entry in os.scandir(directory))
    except OSError:
        return []
