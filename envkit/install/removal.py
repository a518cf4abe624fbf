"""Removing environments: the receipt first, so that nothing half-removed is ever offered."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from envkit.environments import filelocks, receipt
from envkit.environments.prefix import Prefix, Tree, listed, not_writable
from envkit.environments.receipt import ImageReceipt, Installed
from envkit.errors import EnvironmentDamaged, NotWritable
from envkit.report.progress import say
from envkit.system.files import discard_in, opened


def remove(prefix: Prefix, name: str, *, dependencies: bool, console: Console) -> None:
    """Remove an environment and its own module; with ``dependencies`` all that no other one uses.

    Nothing outside of the tree that its receipt lies in is touched, not through a link either; what lies behind one is
    told. Raises EnvironmentMissing, EnvironmentDamaged where its receipt cannot be read, NotReadable and NotWritable.
    """
    tree, found = receipt.placed(prefix, name)
    lock, message = f"stack-{found.name}", f"Another process is installing {found.name}; waiting for it."
    try:
        with filelocks.held(tree, lock, console, message):
            remove_from(tree, found, dependencies=dependencies, console=console)
    except PermissionError as error:
        raise not_writable(tree.root, error) from error


def remove_from(tree: Tree, found: Installed, *, dependencies: bool, console: Console) -> None:
    """Remove an environment from its tree."""
    own, kept = receipt.path_of(tree, found.name), receipt.kept_path(tree, found.name)
    if not gone(tree, own):
        raise NotWritable(
            what=f"{found.name} is not removed: {own} cannot be.",
            why=f"{own.parent} is a link, and nothing outside of {tree.root} is removed.",
            fix="Make it a folder of the tree again, or remove what it leads to by hand.",
        )
    say_left(tree, [] if gone(tree, kept) else [kept], console)
    everything = list(receipt.all_in(tree))
    others = [one for _, one in everything if not isinstance(one, EnvironmentDamaged)]
    unknown = [str(receipt.path_of(tree, name)) for name, one in everything if isinstance(one, EnvironmentDamaged)]
    if unknown and dependencies:
        say(console, f"What other environments may use is kept: {', '.join(unknown)} cannot be read.")
    busy = dependencies and filelocks.in_use(tree, found.name)
    if busy:
        say(console, f"What other environments may use is kept: another process is at work in {tree.root}.")
    dependencies = dependencies and not unknown and not busy
    for kind in ("old", "new"):
        gone(tree, tree.replaced / kind / found.name)
    if isinstance(found, ImageReceipt):
        remove_image(tree, found, others, dependencies=dependencies, console=console)
        return
    used = {module.name for other in others if not isinstance(other, ImageReceipt) for module in other.modules}
    wanted = [module.name for module in found.modules] if dependencies else [found.module]
    removed = [module for module in wanted if not any(f"{other}/".startswith(f"{module}/") for other in used)]
    say_left(tree, [path for module in removed for path in remove_module(tree, module)], console)
    say(console, f"Removed {found.name}: {', '.join(removed) or 'its receipt'}.")
    there = [module.name for module in found.modules if tree.has(module.name)]
    if there and not dependencies:
        say(console, f"Kept for the next installation: {', '.join(there)}.")


def remove_image(
    tree: Tree, found: ImageReceipt, others: Sequence[Installed], *, dependencies: bool, console: Console
) -> None:
    """Remove an image; with ``dependencies`` the layers that no other image was made of."""
    say_left(tree, [] if gone(tree, Path(found.image)) else [Path(found.image)], console)
    used = {layer.key for other in others if isinstance(other, ImageReceipt) for layer in other.layers}
    own = [layer for layer in found.layers if layer.key not in used]
    files = {f"{name}-{layer.key[:20]}.sif" for layer in own for name in (layer.name, found.name)}
    kept = [path for path in tree.layers.glob("*.sif") if path.name in files]
    say(console, f"Removed {found.name}: {found.image}.")
    say_left(tree, [path for path in kept if not gone(tree, path)] if dependencies else [], console)
    if kept:
        names = ", ".join(path.name for path in kept)
        say(console, f"{'Removed' if dependencies else 'Kept for the next installation'}: {names}.")


def remove_module(tree: Tree, module: str) -> list[Path]:
    """Remove a module file and what it makes available; return what could not be removed."""
    folders = [tree.root / "modules" / name for name in listed(tree.root / "modules")]
    files = [folder / f"{module}{kind}" for folder in folders for kind in ("", ".lua")]
    found = (*files, tree.software / module, receipt.built_path(tree, module))
    left = [path for path in found if os.path.lexists(path) and not gone(tree, path)]
    with_other_versions = (tree.software / module).parent
    if with_other_versions != tree.software and not listed(with_other_versions):
        gone(tree, with_other_versions)
    return left


def gone(tree: Tree, path: Path) -> bool:
    """Remove a file or folder of a tree, a link itself and not what it leads to; return whether it is gone.

    What lies behind a link is not. Raises PermissionError.
    """
    try:
        with opened(tree.root, *path.parent.relative_to(tree.root).parts) as folder:
            return discard_in(folder, path.name)
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return not os.path.lexists(path)


def say_left(tree: Tree, left: Iterable[Path], console: Console) -> None:
    """Name what was to be removed and is still there."""
    for path in left:
        why = f"it lies outside of {tree.root}" if is_elsewhere(tree, path) else "not all of it could be removed"
        say(console, f"Left: {path}; {why}.")


def is_elsewhere(tree: Tree, path: Path) -> bool:
    """Say whether a link on the way to a path leads out of a tree."""
    return not path.parent.resolve().is_relative_to(tree.root.resolve())
