"""Removing files of a tree: nothing outside of it, not through a link either."""

import os
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from envkit.environments.prefix import Tree
from envkit.report.progress import say
from envkit.system.files import discard_in, opened


def discarded(tree: Tree, path: Path) -> bool:
    """Remove a file or folder of a tree, a link itself and not what it leads to; return whether it is gone.

    What lies behind a link is not. Raises PermissionError.
    """
    try:
        with opened(tree.root.parent, tree.root.name, *path.parent.relative_to(tree.root).parts) as folder:
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
