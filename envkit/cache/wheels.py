"""What of a module is from wheels, which its recipe pins by SHA-256: its object does without that.

Whoever takes the object has the same wheels. What the build has compiled of their Python is in the object, too: with
the path of its source in the tree, which Python puts right as it loads it, and without the time of that, which is put
in where it is taken.
"""

import hashlib
import os
import stat
import sys
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from envkit.binary import bytecode, compile_python
from envkit.cache.manifest import WheelFiles
from envkit.cache.wheel_members import installed, is_program, recorded
from envkit.environments.manifest import StoredFile
from envkit.environments.prefix import Tree
from envkit.errors import HostProblem
from envkit.system import files, process, temporary

SITE = "/site-packages/"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
COMPILING_S = 3600.0


class Named(Protocol):
    """A source, in a plan or in a lock."""

    @property
    def filename(self) -> str:
        """Its name."""


def is_all(sources: Sequence[Named]) -> bool:
    """Say whether a module is made of wheels alone."""
    return bool(sources) and all(source.filename.endswith(".whl") for source in sources)


def described(
    wheels: Mapping[str, Path], tree: Tree, names: Collection[str], known: Mapping[str, StoredFile]
) -> tuple[dict[str, WheelFiles], set[str]]:
    """Return what is from each wheel of what is in a tree, by the SHA-256 of the wheel, and the names of all that.

    What is ``known`` of a file is not read again. Raises OSError, BadZipFile.
    """
    folders = sorted({name[: name.index(SITE) + len(SITE) - 1] for name in names if SITE in name})
    found, claimed = dict[str, WheelFiles](), set[str]()
    for sha256, path in wheels.items():
        with zipfile.ZipFile(path) as wheel:
            members, told = [member for member in wheel.infolist() if not member.is_dir()], recorded(wheel)
        counted = Counter(installed(member.filename) for member in members)
        for folder in (one for one in folders if any(f"{one}/{name}" in names for name in counted)):
            own = {
                member.filename
                for member in members
                if (name := f"{folder}/{installed(member.filename)}") in names
                and name not in claimed
                and counted[installed(member.filename)] == 1
                and is_as_packed(f"{tree.root}/{name}", member, told.get(member.filename), known.get(name))
            }
            if own:
                inside = {member.filename for member in members}
                found[sha256] = WheelFiles(folder=folder, without=tuple(sorted(inside - own)))
                claimed |= {f"{folder}/{installed(name)}" for name in own}
            break
    return found, claimed


def is_as_packed(path: str, member: zipfile.ZipInfo, told: str | None, known: StoredFile | None) -> bool:
    """Say whether a file is what a wheel has, by the SHA-256 that its own list has ``told``, if any. Raises OSError."""
    state = os.lstat(path)
    if not stat.S_ISREG(state.st_mode) or state.st_size != member.file_size:
        return False
    if bool(state.st_mode & stat.S_IXUSR) != is_program(member):
        return False
    if told and known and is_as_known(state, known):
        return known.sha256 == told
    if told:
        return files.sha256(Path(path)) == told
    checksum = 0
    with open(path, "rb") as stream:  # noqa: PTH123
        while chunk := stream.read(files.PIECE):
            checksum = zlib.crc32(chunk, checksum)
    return checksum == member.CRC


def is_as_known(state: os.stat_result, known: StoredFile) -> bool:
    """Say whether a file has not changed since it was listed, by its time and size."""
    return (state.st_mtime_ns, state.st_size) == (known.changed, known.size)


def compiled(
    tree: Tree, module: str, sources: Collection[str], known: Mapping[str, StoredFile]
) -> Iterator[tuple[str, bytes]]:
    """Yield what this Python compiles of some sources of a module, by name, without what cannot be compiled.

    It is what the build has compiled, if all of that is there as is ``known``; else all is compiled anew. Raises
    HostProblem where the program that does so fails, OSError.
    """
    places = {name: compile_python.compiled_name(name) for name in compile_python.sources(str(tree.root), module)}
    if not places.keys() & sources:
        return
    with temporary.folder("compile") as folder:
        made = tree.root
        if not is_as_built(tree, places, known):
            made = folder / "tree"
            compile_anew(tree, module, made, folder / "said")
        for name in sorted(places.keys() & sources):
            with suppress(FileNotFoundError):
                content = files.read(made / places[name])
                yield places[name], bytecode.timed(content, 0)


def is_as_built(tree: Tree, places: Mapping[str, str], known: Mapping[str, StoredFile]) -> bool:
    """Say whether all compiled Python of a module is there as its build has listed it, and names sources by the tree.

    So envkit compiles it; pip, and Python as it loads a source, put the path of this prefix into it. ``places`` are
    where it is, by source. Raises OSError.
    """
    for source, name in places.items():
        path, file = tree.root / name, known.get(name)
        try:
            state = path.lstat()
        except FileNotFoundError:
            if file:
                return False
            continue
        if file is None or not is_as_known(state, file):
            return False
        content, named = files.read(path), os.fsencode(source)
        is_of_tree = named in content and b"/" + named not in content
        if not (is_of_tree and is_content(content, file) and bytecode.is_taken(path, content)):
            return False
    return any(name in known for name in places.values())


def is_content(content: bytes, known: StoredFile) -> bool:
    """Say whether it is what was listed of a file."""
    return hashlib.sha256(content).hexdigest() == known.sha256


def compile_anew(tree: Tree, module: str, folder: Path, log: Path) -> None:
    """Compile the Python of a module, into a folder. Raises HostProblem, OSError."""
    deadline = time.monotonic() + COMPILING_S
    program = [sys.executable, "-I", "-S", str(Path(compile_python.__file__))]
    status = process.supervise(
        [*program, str(tree.root), module, str(folder)], env=os.environ, log=log,
        until=lambda: time.monotonic() > deadline,
    )  # fmt: skip
    if status:
        said = log.read_text(errors="replace").strip().splitlines()
        raise HostProblem(
            what="The Python of wheels could not be compiled, which goes into a cache.",
            why="\n".join(said[-1:]) or f"It took more than {COMPILING_S:.0f} s.",
            fix=f"See that {log.parents[1]} has room ($TMPDIR names another place), then push again.",
        )
