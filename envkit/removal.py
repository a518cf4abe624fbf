"""Removing environments: the receipt first, so that nothing half-removed is ever offered."""

import shutil
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from envkit import locks, receipt
from envkit.prefix import Prefix, Tree
from envkit.progress import say


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
        used = {
            module.name for other in receipt.installed(prefix) if other.tree == found.tree for module in other.modules
        }
        own = [module.name for module in found.modules] if dependencies else [found.module]
        gone = [module for module in own if module not in used]
        for module in gone:
            remove_module(tree, module)
    say(console, f"Removed {found.name}: {', '.join(gone) or 'its receipt'}.")
    kept = [module.name for module in found.modules if tree.has(module.name)]
    if kept and not dependencies:
        say(console, f"Kept for the next installation: {', '.join(kept)}.")


def remove_module(tree: Tree, module: str) -> None:
    """Remove a module file and what it makes available."""
    for folder in (tree.root / "modules").glob("*/"):
        for path in (folder / module, folder / f"{module}.lua"):
            path.unlink(missing_ok=True)
    shutil.rmtree(tree.software / module, ignore_errors=True)
    with suppress(OSError):  # another version is there
        (tree.software / module).parent.rmdir()
    receipt.built_path(tree, module).unlink(missing_ok=True)
