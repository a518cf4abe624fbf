"""Finds recipes and data: the only module that knows where they lie.

In a wheel the recipe folders lie inside the package (``envkit/recipes``); in a checkout, and so in an
editable install, they lie beside it.
"""

import sysconfig
from functools import cache
from pathlib import Path

from envkit.errors import HostProblem

PACKAGE = Path(__file__).resolve().parents[1]


def data(name: str) -> Path:
    """Return a data file of the package, such as ``planning/stacks.toml``."""
    return PACKAGE / name


def recipes(kind: str) -> Path:
    """Return the folder of recipes of a kind: ``easyconfigs``, ``containers``, ``eessi`` or ``examples``."""
    for parent in (PACKAGE / "recipes", PACKAGE.parent):
        folder = parent / kind
        if folder.is_dir():
            return folder
    raise HostProblem(
        what=f"The folder of recipes '{kind}' is missing from this installation of envkit.",
        why=f"It was looked for in {PACKAGE / 'recipes'} and beside {PACKAGE}.",
        fix="Install envkit again: pip install --force-reinstall envkit",
    )


@cache
def easybuild_collection() -> Path:
    """Return the folder of EasyBuild's own easyconfigs (package ``easybuild-easyconfigs``).

    The usual place is tried first: reading the package's record of 15,000 files takes 0.2 s.
    """
    usual = Path(sysconfig.get_path("data")) / "easybuild" / "easyconfigs"
    if usual.is_dir():
        return usual
    from importlib import metadata

    for file in metadata.files("easybuild-easyconfigs") or ():
        if file.name == "GCC-system.eb":
            return Path(str(file.locate())).resolve().parents[2]
    raise HostProblem(
        what="EasyBuild's collection of easyconfigs is not installed.",
        why="The package easybuild-easyconfigs has no files beside this Python.",
        fix="Install it again: pip install --force-reinstall easybuild-easyconfigs",
    )
