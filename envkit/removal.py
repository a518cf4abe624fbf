"""Removing environments: the receipt first, so that nothing half-removed is ever offered."""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from envkit import locks, receipt
from envkit.files import discard
from envkit.prefix import Prefix, Tree
from envkit.progress import say
from envkit.receipt import ImageReceipt, Installed


def remove(prefix: Prefix, name: str, *, dependencies: bool, console: Console) -> None:
    """Remove an environment and its own module; with ``dependencies`` all that no other one uses.

    Raises EnvironmentMissing.
    """
    found = receipt.named(prefix, name)
    tree = Tree(root=Path(found.tree))
    with locks.held(
        tree, f"stack-{found.name}", console, f"Another process is installing {found.name}; waiting for it."
    ):
        receipt.path_of(tree, found.name).unlink(missing_ok=True)
        receipt.kept_path(tree, found.name).unlink(missing_ok=True)
        others = [other for other in receipt.installed(prefix) if other.tree == found.tree]
        if isinstance(found, ImageReceipt):
            remove_image(tree, found, others, dependencies=dependencies, console=console)
            return
        used = {module.name for other in others if not isinstance(other, ImageReceipt) for module in other.modules}
        own = [module.name for module in found.modules] if dependencies else [found.module]
        gone = [module for module in own if module not in used]
        for module in gone:
            remove_module(tree, module)
    say(console, f"Removed {found.name}: {', '.join(gone) or 'its receipt'}.")
    kept = [module.name for module in found.modules if tree.has(module.name)]
    if kept and not dependencies:
        say(console, f"Kept for the next installation: {', '.join(kept)}.")


def remove_image(
    tree: Tree, found: ImageReceipt, others: Sequence[Installed], *, dependencies: bool, console: Console
) -> None:
    """Remove an image; with ``dependencies`` the layers that no other image was made of."""
    discard(Path(found.image))
    used = {layer.key for other in others if isinstance(other, ImageReceipt) for layer in other.layers}
    own = {layer.key for layer in found.layers} - used
    kept = [path for path in tree.layers.glob("*.sif") if any(key[:20] in path.name for key in own)]
    say(console, f"Removed {found.name}: {found.image}.")
    for path in kept if dependencies else ():
        path.unlink()
    if kept:
        names = ", ".join(path.name for path in kept)
        say(console, f"{'Removed' if dependencies else 'Kept for the next installation'}: {names}.")


def remove_module(tree: Tree, module: str) -> None:
    """Remove a module file and what it makes available."""
    for folder in (tree.root / "modules").glob("*/"):
        for path in (folder / module, folder / f"{module}.lua"):
            path.unlink(missing_ok=True)
    for root, _, _ in os.walk(tree.software / module):
        Path(root).chmod(0o700)  # EESSI's EasyBuild makes what it installs read-only
    shutil.rmtree(tree.software / module, ignore_errors=True)
    with suppress(OSError):  # another version is there
        (tree.software / module).parent.rmdir()
    receipt.built_path(tree, module).unlink(missing_ok=True)
