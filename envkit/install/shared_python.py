"""Keeping pip from changing a Python that all environments of a tree share.

EasyBuild's ``Python/system`` is a virtual environment itself, so that neither PIP_REQUIRE_VIRTUALENV nor a file
EXTERNALLY-MANAGED stops pip there. Its own pip.conf does: what it requires is a text, which pip shows as an error.
Virtual environments on top have a pip.conf of their own, and builds read none.
"""

from contextlib import suppress
from pathlib import Path

from envkit.environments.prefix import Tree
from envkit.environments.receipt import Receipt
from envkit.system import files
from envkit.system.resources import data

CONFIG, NOTE = "pip.conf", "no_pip.txt"


def protect(receipt: Receipt) -> None:
    """Have pip refuse to install into the Python of an environment, and to remove from it; what is there is left.

    Where this user may not write, neither may their pip.
    """
    tree = Tree(root=Path(receipt.tree))
    for module in receipt.recipes:
        folder = tree.software / module.name
        if module.name.startswith("Python/") and folder.is_dir() and not (folder / CONFIG).exists():
            with suppress(OSError):
                files.write(folder / NOTE, data(f"install/{NOTE}").read_bytes(), own=True)
                text = "".join(f"[{verb}]\nrequirement = {folder / NOTE}\n" for verb in ("install", "uninstall"))
                files.write(folder / CONFIG, text.encode(), own=True)
