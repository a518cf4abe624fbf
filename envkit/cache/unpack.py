"""Putting an object in place: unpacked beside the target, made to fit the prefix, then moved in by rename.

Whatever is in an object, nothing is written but the files that its manifest names, and these hold what that says.
"""

import errno
import hashlib
import os
import re
import tarfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import dropwhile
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, cast

from envkit.binary import bytecode
from envkit.cache import prefixes, unpack_wheels
from envkit.cache.manifest import PREFIX, Manifest, PackedFile
from envkit.cache.place import SignedManifest
from envkit.environments import manifest as lists
from envkit.environments import replaced
from envkit.environments.prefix import Tree
from envkit.errors import HANDLES, STORAGE, CacheInvalid, ChecksumMismatch
from envkit.system import decompression, files, process, temporary

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

MOST = 2 << 30  # bytes of a module's object, and of what is in it
MOST_OF_AN_IMAGE = 16 << 30  # as of any file that a server gives
NOT_OF_CACHE = {*STORAGE, *HANDLES, errno.EACCES, errno.EPERM, errno.ENOMEM, errno.EAGAIN}
SLASH = re.compile("/")
HEADERS = 2048  # bytes of a tar file for each of its files


def take(
    entry: SignedManifest, tree: Tree, python: Path, record: Callable[[], None], wheels: Mapping[str, Path]
) -> dict[str, str]:
    """Put the module of an entry into a tree; ``record`` notes what it is, before it is seen.

    Returns the SHA-256 of its files as they are there, by their names in the tree, as far as they are known.
    ``wheels`` are those that its recipe pins, by their SHA-256. Raises CacheInvalid for what is not what the manifest
    says; nothing of it is left then. Raises ChecksumMismatch for a wheel that is not what it was, HostProblem, OSError.
    """
    manifest = entry.manifest
    require_own(entry, tree)
    if unknown := [sha256 for sha256 in manifest.wheels if sha256 not in wheels]:
        raise bad(entry, f"It takes a wheel that its recipe does not: {unknown[0]}.")
    with temporary.folder("cache", tree.root) as folder:
        packed, root = folder / "object", folder / "tree"
        with packed.open("wb") as stream:
            fetch(entry, stream)
        task = unpack_wheels.Task(
            wheels={sha256: str(path) for sha256, path in wheels.items()},
            used=manifest.wheels, module=manifest.module, root=str(root), changed=int(time.time()),
        )  # fmt: skip
        try:
            with unpack_wheels.unpacking(task, folder) as rest:
                own = unpack(entry, packed, root, tree, task.changed)
                digests = own | rest()
            require_sources(own, digests)
            link(manifest, root, tree)
            if not is_compiled(manifest):
                compile_all(root / "software" / manifest.module, tree, manifest, python)
            note(entry, root)
            recipes = recipes_of(root / "software" / manifest.module)
        except ValueError as error:
            require_wheels(manifest, wheels)
            raise bad(entry, f"It cannot be put into this prefix: {error}.") from error
        except OSError as error:
            if error.errno in NOT_OF_CACHE:
                raise
            require_wheels(manifest, wheels)
            name = str(error.filename or manifest.module).removeprefix(f"{root}/")
            wheels_too = " Its manifest and its wheels do not go together." if manifest.wheels else ""
            raise bad(entry, f"{name}: {error.strerror}.{wheels_too}") from error
        move_in(manifest, root, tree, recipes, record)
    return digests


def require_wheels(manifest: Manifest, wheels: Mapping[str, Path]) -> None:
    """Require that wheels are what the recipe pins, now that one could not be unpacked. Raises ChecksumMismatch."""
    for sha256, path in ((sha256, wheels[sha256]) for sha256 in manifest.wheels):
        if not path.is_file() or files.sha256(path) != sha256:
            raise ChecksumMismatch(
                what=f"{path} is not what the recipe pins.",
                why="It has changed or gone since it was fetched, or while it was unpacked.",
                fix="Run the same command again: it is fetched anew.",
            )


def require_own(entry: SignedManifest, tree: Tree) -> None:
    """Require that a manifest names only files of its module, and small enough. Raises CacheInvalid."""
    manifest = entry.manifest
    folders = {name[: slash.start()] for name in manifest.files for slash in SLASH.finditer(name)}
    for name, file in manifest.files.items():
        if not lists.is_own(manifest.module, name) or name in folders or file.size > files.MOST:
            raise bad(entry, f"Its manifest names {name!r}.")
        is_tool = file.link in manifest.tools  # the same as here
        if file.link and not is_tool and not is_inside(file.link, name, manifest.module, tree):
            raise bad(entry, f"Its manifest has a link that leads elsewhere: {name!r}.")
    for wheel in manifest.wheels.values():
        if not lists.is_own(manifest.module, f"{wheel.folder}/x"):
            raise bad(entry, f"Its manifest names {wheel.folder!r}.")
    require_small(entry)


def require_small(entry: SignedManifest) -> None:
    """Require that a manifest tells of no object that is too large. Raises CacheInvalid."""
    most = MOST_OF_AN_IMAGE if entry.manifest.is_image else MOST
    if max(entry.manifest.size, entry.manifest.unpacked) > most:
        raise bad(entry, "It is too large.")


def is_inside(target: str, name: str, module: str, tree: Tree) -> bool:
    """Say whether a link of a module leads to a file of the module, whatever other links are on the way.

    What has .. behind a name may lead elsewhere than it seems: a name may be that of a link.
    """
    start = f"{PREFIX.decode()}/{tree.root.name}/"
    inside = target.removeprefix(start) if target.startswith(start) else f"{name.rpartition('/')[0]}/{target}"
    is_relative = not target.startswith("/") and PREFIX.decode() not in inside
    named = [*dropwhile("..".__eq__, target.removeprefix(start).split("/"))]
    return is_relative and ".." not in named and lists.is_own(module, os.path.normpath(inside))


def fetch(entry: SignedManifest, stream: "SupportsWrite[bytes]") -> None:
    """Write an object into a file. Raises CacheInvalid for one of another size or content, OSError."""
    digest = hashlib.sha256()
    with entry.place.opened(entry.manifest.object_name, entry.manifest.size) as chunks:
        for chunk in chunks:
            digest.update(chunk)
            stream.write(chunk)
    if digest.hexdigest() != entry.manifest.sha256:
        raise bad(entry, f"Its SHA-256 is {digest.hexdigest()}, and its manifest says {entry.manifest.sha256}.")


class Bounded:
    """A stream of what zstd has packed, which gives no more than so many bytes."""

    def __init__(self, packed: decompression.Readable | BinaryIO, most: int) -> None:
        self.chunks, self.left = decompression.of_zstd(packed), most
        self.chunk, self.at = b"", 0

    def read(self, size: int) -> bytes:
        """Return so many bytes, fewer at the end. Raises TarError for more than may come, ``decompression.BROKEN``."""
        content = self.chunk[self.at : self.at + size]
        self.at += len(content)
        while len(content) < size and (chunk := next(self.chunks, None)) is not None:
            self.left -= len(chunk)
            if self.left < 0:
                raise tarfile.TarError("more comes than its manifest says")
            self.chunk, self.at = chunk, min(size - len(content), len(chunk))
            content += chunk[: self.at]
        return content


def unpack(entry: SignedManifest, packed: Path, root: Path, tree: Tree, now: int) -> dict[str, str]:
    """Unpack an object below a folder, made to fit a tree; return the SHA-256 of each file, by its name.

    The prefix is put into texts, the new digests into the lists of packages, and the time that it is ``now`` into all
    Python, compiled or not. Raises CacheInvalid, OSError, ValueError for a damaged list.
    """
    prefix, changed, digests = tree.root.parent, dict[str, PackedFile](), dict[str, str]()
    with packed.open("rb") as stream:
        for name, content, file in members(entry, stream):
            path, fitted = f"{root}/{name}", content
            if file.places:
                fitted = prefixes.put_in(fitted, prefix)
                changed[path] = PackedFile(size=len(fitted), sha256=hashlib.sha256(fitted).hexdigest())
            if name.endswith(prefixes.LIST):
                fitted = prefixes.relisted(fitted, str(Path(path).parents[1]), changed)
            elif name.endswith(".pyc"):
                fitted = bytecode.timed(fitted, now)
            digests[name] = file.sha256 if fitted is content else hashlib.sha256(fitted).hexdigest()
            unpack_wheels.write_new(path, [fitted], now, is_program=file.is_program)
    return digests


def require_sources(names: Iterable[str], there: Collection[str]) -> None:
    """Require that the source of all compiled Python is there. Raises ValueError."""
    for name in (one for one in names if one.endswith(".pyc")):
        if bytecode.source_of(name) not in there:
            raise ValueError(f"{name} is compiled from nothing that is there")


def compare(entry: SignedManifest, packed: decompression.Readable | BinaryIO) -> None:
    """Require that an object holds what its manifest says. Raises CacheInvalid, OSError."""
    for _ in members(entry, packed):
        pass


def members(
    entry: SignedManifest, packed: decompression.Readable | BinaryIO
) -> Iterator[tuple[str, bytes, PackedFile]]:
    """Yield name and content of each file of an object, and what its manifest says of it.

    Raises CacheInvalid for what that does not say, OSError.
    """
    rest = {name: file for name, file in entry.manifest.files.items() if not file.link}
    if large := next((name for name, file in rest.items() if file.size > files.MOST), None):
        raise bad(entry, f"Its manifest names {large!r}, which is too large.")
    most = entry.manifest.unpacked + HEADERS * (len(rest) + 10)
    try:
        with tarfile.open(fileobj=cast("IO[bytes]", Bounded(packed, most)), mode="r|") as tar:
            for member in tar:
                expected = rest.pop(member.name, None)
                is_plain = member.type == tarfile.REGTYPE and not member.issparse()  # a hole has any size
                source = tar.extractfile(member) if is_plain else None
                if expected is None or source is None or member.size != expected.size:
                    raise bad(entry, f"It holds {member.name!r}, which its manifest does not name so.")
                content = source.read()
                if hashlib.sha256(content).hexdigest() != expected.sha256:
                    raise bad(entry, f"The content of {member.name!r} is not what its manifest says.")
                if content.count(PREFIX) != expected.places:
                    raise bad(entry, f"The prefix does not stand in {member.name!r} as often as its manifest says.")
                yield member.name, content, expected
    except (tarfile.TarError, *decompression.BROKEN, ValueError, OverflowError, RecursionError) as error:
        raise bad(entry, f"It cannot be unpacked: {error}.") from error
    if rest:
        raise bad(entry, f"It lacks {next(iter(rest))!r}.")


def link(manifest: Manifest, root: Path, tree: Tree) -> None:
    """Make the links of a module, with the prefix in those that lead to it. Raises OSError."""
    for name, file in manifest.links.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(file.link.replace(PREFIX.decode(), str(tree.root.parent)))


def is_compiled(manifest: Manifest) -> bool:
    """Say whether all Python of a module comes compiled, but for what cannot be, or there is none."""
    sources = [file for name, file in manifest.files.items() if name.endswith(".py")]
    has_compiled = any(name.endswith(".pyc") for name in manifest.files)
    if not sources and not manifest.wheels:
        return True
    return has_compiled and not any(file.places for file in sources)


def compile_all(folder: Path, tree: Tree, manifest: Manifest, python: Path) -> None:
    """Compile the Python in a module for where it will lie; without that it only begins more slowly."""
    argv = [str(python), "-I", "-m", "compileall", "-q", "-s", str(folder), "-p", str(tree.software / manifest.module)]
    process.capture([*argv, str(folder / "lib")], cwd=folder, timeout_s=300)


def note(entry: SignedManifest, root: Path) -> None:
    """Write into the folder where eb keeps its log where the module came from. Raises CacheInvalid for a link there."""
    provenance = entry.manifest.provenance
    path = root / "software" / entry.manifest.module / lists.NOTES / "envkit-cache.log"
    if path.parent.is_symlink() or path.is_symlink():
        raise bad(entry, f"It has a link in the place of {lists.NOTES} or of {path.name}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"{entry.manifest.module} was not built here.\n"
        f"Taken from the cache {entry.place.shown}, object {entry.id} (SHA-256 {entry.manifest.sha256}).\n"
        f"Built on {provenance.host}, {provenance.built}, and verified there as {provenance.environment}, "
        f"by envkit {provenance.envkit} and EasyBuild {provenance.easybuild}.\n"
    )


def recipes_of(software: Path) -> dict[str, bytes]:
    """Return the recipes that eb has kept in a module, by their names. Raises OSError for what is none."""
    kept = (path for path in (software / lists.NOTES).glob("*.eb") if not path.is_symlink())
    return {path.name: files.read(path) for path in kept}


def move_in(
    manifest: Manifest, root: Path, tree: Tree, recipes: Mapping[str, bytes], record: Callable[[], None]
) -> None:
    """Move a module into a tree: its software first, its module file, by which it is seen, last. Raises OSError."""
    target = tree.software / manifest.module
    files.discard(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    (root / "software" / manifest.module).rename(target)
    for name, content in recipes.items():
        copy = tree.root / "ebfiles_repo" / manifest.module.partition("/")[0] / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        files.write(copy, content, own=True)
    record()
    for name in in_order(manifest.files):
        replaced.move(root / name, tree.root / name)


def in_order(names: Iterable[str]) -> Iterator[str]:
    """Yield the module files of an object, that in the folder of all modules last."""
    yield from sorted(
        (name for name in names if name.startswith("modules/")), key=lambda one: one.startswith("modules/all/")
    )


def bad(entry: SignedManifest, why: str) -> CacheInvalid:
    """Say that an object cannot be used."""
    return entry.place.invalid(f"{entry.manifest.module}, object {entry.id[:12]}: {why}", is_build=True)
