"""Removing modules that eb has made, with all that belongs to them."""

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from envkit.easybuild.receipt import ModulesReceipt
from envkit.environments import manifest, receipt
from envkit.environments.discard import discarded, say_left
from envkit.environments.prefix import Tree, listed
from envkit.environments.receipt import Parts, Receipt
from envkit.report.progress import say


def removable(tree: Tree, environment: Receipt, others: Sequence[Parts], *, dependencies: bool) -> list[str]:  # noqa: ARG001
    """Return the modules of an environment and its extras; with ``dependencies`` all that no other one uses."""
    assert isinstance(environment, ModulesReceipt)  # noqa: S101  (the registry says so)
    used = {module.name for other in others for module in other.modules}
    wanted = (
        [module.name for module in environment.modules]
        if dependencies
        else [environment.module, *environment.extras.values()]
    )
    return [module for module in wanted if not any(f"{other}/".startswith(f"{module}/") for other in used)]


def remove(tree: Tree, environment: Receipt, others: Sequence[Parts], *, dependencies: bool, console: Console) -> None:
    """Remove what ``removable`` names."""
    assert isinstance(environment, ModulesReceipt)  # noqa: S101  (the registry says so)
    removed = removable(tree, environment, others, dependencies=dependencies)
    say_left(tree, [path for module in removed for path in remove_module(tree, module)], console)
    say(console, f"Removed {environment.name}: {', '.join(removed) or 'its receipt'}.")
    remaining = [module.name for module in environment.modules if tree.has(module.name)]
    if remaining and not dependencies:
        say(console, f"Kept for the next installation: {', '.join(remaining)}.")


def remove_module(tree: Tree, module: str) -> list[Path]:
    """Remove a module file and what it makes available; return what could not be removed."""
    folders = [tree.root / "modules" / name for name in listed(tree.root / "modules")]
    files = [folder / f"{module}{kind}" for folder in folders for kind in ("", ".lua")]
    paths = (*files, tree.software / module, manifest.path_of(tree, module), receipt.built_path(tree, module))
    remaining = [path for path in paths if os.path.lexists(path) and not discarded(tree, path)]
    for folder in (tree.software, *folders):
        with_other_versions = (folder / module).parent
        if with_other_versions != folder and not with_other_versions.is_symlink() and not listed(with_other_versions):
            discarded(tree, with_other_versions)
    return remaining
