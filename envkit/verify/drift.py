"""The files of an environment that are not as they were installed: hashed only where sizes or times differ.

Looked at are the module files, the files of Horovod's package, the list of files of every other package, and the MPI
library that the extension loads: what the verdict of an installation was about. Nothing of it runs in a rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.environments import receipt
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Fingerprint, Fingerprints, Receipt
from envkit.system.files import sha256
from envkit.verify.outcome import FileChange

if TYPE_CHECKING:
    from envkit.binary.build_flags import BuildFlags

OWN = ("*.py", "*.so", "metadata.json")


def keep(environment: Receipt, built: BuildFlags | None) -> None:
    """Keep what the files of an environment are now; of an image the receipt itself says it."""
    if environment.is_image:
        return
    tree = Tree(root=Path(environment.tree))
    files = {short(tree, path): state(path) for _, path in watched(environment, built)}
    receipt.write(receipt.kept_path(tree, environment.name), Fingerprints(files=files))


def changes(environment: Receipt, built: BuildFlags | None) -> tuple[FileChange, ...] | None:
    """Return what has changed since the installation, None where nothing was kept of it."""
    tree = Tree(root=Path(environment.tree))
    fingerprints = receipt.kept(tree, environment.name)
    if fingerprints is None or environment.lock is None or environment.is_image:
        return None
    files = {short(tree, path): (kind, path) for kind, path in watched(environment, built)}
    has_mpi = any(
        kind == "mpi" for kind, _ in files.values()
    )  # else the extension does not load, which is said elsewhere
    changed = [
        FileChange(kind=kind, path=name, how="changed" if name in fingerprints else "added")
        for name, (kind, path) in files.items()
        if name not in fingerprints or is_other(path, fingerprints[name])
    ]
    lost = fingerprints.keys() - files.keys()
    gone = [FileChange(kind=kind_of(environment, tree, name), path=name, how="gone") for name in lost]
    relevant = [change for change in gone if has_mpi or change.kind != "mpi"]
    return tuple(sorted((*changed, *relevant), key=lambda change: change.path))


def watched(environment: Receipt, built: BuildFlags | None) -> Iterator[tuple[str, Path]]:
    """Yield the files that matter, and of which kind they are."""
    tree = Tree(root=Path(environment.tree))
    for module in environment.recipes:
        if file := tree.file(module.name):
            yield "modules", file
    for pattern in OWN if environment.horovod else ():
        for path in Path(environment.horovod).rglob(pattern):
            yield "horovod", path
    for folder in map(Path, environment.site_packages):
        if folder.is_relative_to(tree.root):
            for path in folder.glob("*.dist-info/RECORD"):
                yield "packages", path
    for extension in built.extensions if built else ():
        for name in extension.mpi_libraries:
            yield "mpi", Path(name)


def kind_of(environment: Receipt, tree: Tree, name: str) -> str:
    """Return of which kind a file was that has gone."""
    path = tree.root / name
    if path.is_relative_to(tree.modulepath):
        return "modules"
    if path.is_relative_to(environment.horovod or "/nothing"):
        return "horovod"
    return "packages" if path.name == "RECORD" else "mpi"


def short(tree: Tree, path: Path) -> str:
    """Return a path as it is kept."""
    return str(path.relative_to(tree.root)) if path.is_relative_to(tree.root) else str(path)


def state(path: Path) -> Fingerprint:
    """Return what a file is now."""
    status = path.stat()
    return Fingerprint(size=status.st_size, changed=status.st_mtime_ns, sha256=sha256(path))


def is_other(path: Path, kept: Fingerprint) -> bool:
    """Say whether the content of a file is another; what cannot be read is."""
    try:
        status = path.stat()
        if (status.st_size, status.st_mtime_ns) == (kept.size, kept.changed):
            return False
        return status.st_size != kept.size or sha256(path) != kept.sha256
    except OSError:
        return True
