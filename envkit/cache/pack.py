"""A module as an object: its files in one tar file under zstd, without what is of the machine that built it.

What is from wheels is left out as well (``wheels.py``).
"""

import hashlib
import io
import os
import re
import stat
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envkit.cache import binaries, prefixes
from envkit.cache import wheels as of_wheels
from envkit.cache.manifest import PREFIX, PackedFile, WheelFiles, rules
from envkit.environments import manifest as lists
from envkit.environments.manifest import StoredFile
from envkit.environments.prefix import Tree, listed
from envkit.system import files
from envkit.system.decompression import zstd

LEVEL = 3  # zstd's own: of compiled Python level 9 takes four times as long, and saves a seventh


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The packed files, and what their libraries need; ``size`` and ``sha256`` are those of the tar file under zstd.

    Those that are not as the build has listed them, whatever their time says, have ``changed``.
    """

    files: dict[str, PackedFile]
    wheels: dict[str, WheelFiles]
    unpacked: int
    size: int
    sha256: str
    versions: dict[str, str]
    mpi_library: str
    cpu: tuple[str, ...]
    syntax: str
    changed: tuple[str, ...]


def paths(tree: Tree, module: str) -> Iterator[str]:
    """Yield the paths in a tree of all files of a module: software, and its module files."""
    for category in listed(tree.root / "modules"):
        for kind in ("", ".lua"):
            if os.path.lexists(tree.root / f"modules/{category}/{module}{kind}"):
                yield f"modules/{category}/{module}{kind}"
    start = len(f"{tree.root}/")
    for folder, folders, names in os.walk(tree.software / module):
        folders.sort()
        links = (subfolder for subfolder in folders if os.path.islink(f"{folder}/{subfolder}"))  # noqa: PTH114
        yield from (f"{folder[start:]}/{name}" for name in sorted((*names, *links)))


def pack(
    tree: Tree, module: str, machine: str, python: str, place: BinaryIO, wheels: Mapping[str, Path],
    tell: Callable[[str], None] = lambda _: None, tools: Collection[str] = (),
) -> Packed:  # fmt: skip
    """Write the object of a module, without what is from its wheels. Raises NotRelocatable, HostProblem, OSError.

    The same files give the same object, by the same release of zstd, whatever the prefix and whoever they belong to.
    Its Python comes compiled, if ``python`` (3.11) is the one which runs this. ``tell`` is called with
    each step. Links may lead to ``tools``.
    """
    tell("comparing it with its wheels")
    spelled = prefixes.spellings(tree.root.parent)
    entries, changed = dict[str, PackedFile](), list[str]()
    every = {*paths(tree, module)}
    known = listed_files(tree, module)
    described, from_wheels = of_wheels.described(wheels, tree, every, known)
    left_out = re.compile("|".join(rules()["left_out"]))
    names = {name for name in every - from_wheels if not left_out.search(name)}
    if odd := next((name for name in sorted(every) if not is_text(name)), None):
        raise prefixes.refused(ascii(odd), "Its name is no UTF-8.", "Rename or remove it.")

    def add(name: str, content: bytes, places: int, *, is_program: bool) -> None:
        entries[name] = PackedFile(
            size=len(content), sha256=hashlib.sha256(content).hexdigest(), is_program=is_program, places=places
        )
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(content), 0o755 if is_program else 0o644
        tar.format = tarfile.USTAR_FORMAT if fits_ustar(name) else tarfile.PAX_FORMAT
        tar.addfile(member, io.BytesIO(content))

    tell("compressing its files")
    with zstd.open(place, "wb", level=LEVEL) as stream, tarfile.open(fileobj=stream, mode="w|") as tar:
        for name in sorted(names, key=lambda name: (name.endswith(prefixes.LIST), name)):
            path = tree.root / name
            if path.is_symlink():
                entries[name] = PackedFile(link=link_of(path, name, module, spelled, tools))
                continue
            content = read(path, name)
            if name in known and not of_wheels.is_content(content, known[name]):
                changed.append(name)
            if name.endswith(prefixes.LIST):  # the last: it has the digests of the others as they are packed
                content = list_of(content, name, entries)
            content, places = prefixes.marked(content, path, name, spelled)
            add(name, content, places, is_program=bool(path.stat().st_mode & stat.S_IXUSR))
        tell("adding its compiled Python")
        own = {name for name, entry in entries.items() if not (entry.link or entry.places)}  # else it has the prefix
        sources = {name for name in from_wheels | own if name.startswith(f"software/{module}/lib/")}
        for name, content in of_wheels.compiled(tree, module, sources, known) if python == of_wheels.PYTHON else ():
            is_behind_link = name.rpartition("/")[0] in every
            if name not in from_wheels and not is_behind_link and PREFIX not in content:
                add(name, content, 0, is_program=False)
    place.flush()
    place.seek(0)
    tell("looking at what its libraries need")
    compiled = binaries.compiled(tree.root / name for name in sorted(names) if not entries[name].link)
    libraries = binaries.libraries(compiled)
    return Packed(
        files=entries,
        wheels=described,
        unpacked=sum(entry.size for entry in entries.values()),
        size=place.seek(0, os.SEEK_END),
        sha256=digest_of(place),
        versions=binaries.versions(libraries),
        mpi_library=binaries.mpi_library(libraries),
        cpu=binaries.cpu(compiled, machine),
        changed=tuple(changed),
        syntax="Lua" if f"modules/all/{module}.lua" in entries else "Tcl",
    )


def listed_files(tree: Tree, module: str) -> Mapping[str, StoredFile]:
    """Return what the build of a module has listed of its files, by name; nothing without a list that can be read."""
    try:
        listed = lists.read(tree, module)
    except ValueError:
        return {}
    return listed.files if listed else {}


def list_of(content: bytes, name: str, packed: Mapping[str, PackedFile]) -> bytes:
    """Return the list of a Python package as it is packed. Raises NotRelocatable for one that is no UTF-8."""
    try:
        return prefixes.relisted(content, str(Path(name).parents[1]), packed)
    except ValueError as error:
        raise prefixes.refused(name, "It is no UTF-8.", "Install that package anew, and push again.") from error


def fits_ustar(name: str) -> bool:
    """Say whether a tar file can hold a name without a header for it alone, which takes as long to read as a file."""
    prefix = name[: tarfile.LENGTH_PREFIX + 1].rpartition("/")[0]
    is_split = bool(prefix) and len(name) - len(prefix) - 1 <= tarfile.LENGTH_NAME
    return name.isascii() and (len(name) <= tarfile.LENGTH_NAME or is_split)


def is_text(name: str) -> bool:
    """Say whether a name can be written as UTF-8."""
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def read(path: Path, name: str) -> bytes:
    """Return what a file holds. Raises NotRelocatable for what is no plain file, or too large, OSError."""
    if not stat.S_ISREG(path.lstat().st_mode) or path.stat().st_size > files.MOST:
        raise prefixes.refused(name, "It is no plain file of at most 64 MB.")
    return files.read(path)


def digest_of(stream: BinaryIO) -> str:
    """Return the SHA-256 of an open file."""
    stream.seek(0)
    return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]


def link_of(path: Path, name: str, module: str, spelled: tuple[bytes, ...], tools: Collection[str]) -> str:
    """Return where a link leads, as it is packed.

    Raises NotRelocatable for one that leads out of the prefix, but for one to one of some tools.
    """
    target = os.fsencode(path.readlink())
    if os.fsdecode(target) in tools:
        return os.fsdecode(target)
    below = next((spelling for spelling in spelled if target.startswith(spelling + b"/")), None)
    if below is not None:
        return os.fsdecode(target.replace(below, PREFIX, 1))
    inside = os.path.normpath(Path(name).parent / os.fsdecode(target))
    if target.startswith(b"/") or not f"{inside}/".startswith((f"software/{module}/", f"modules/all/{module}")):
        raise prefixes.refused(name, f"It is a link that leads elsewhere: {os.fsdecode(target)}.")
    return os.path.normpath(os.fsdecode(target))
