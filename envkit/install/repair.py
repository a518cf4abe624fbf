"""Repairing: what is damaged of an environment is found by its files, and built again in its place."""

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote

from rich.console import Console

from envkit.environments import receipt, trust
from envkit.environments.manifest import Measure
from envkit.environments.name_syntax import shown
from envkit.environments.prefix import Prefix, Tree, not_writable
from envkit.environments.receipt import Receipt
from envkit.errors import EnvironmentDamaged, HostProblem
from envkit.install import install
from envkit.machine.host import Platform
from envkit.methods import installed, registry
from envkit.planning.request import Request
from envkit.report.progress import say


def repair(prefix: Prefix, name: str, *, is_dry: bool, console: Console) -> int:
    """Build again what is damaged of an environment, and prove it; say the same and change nothing if ``is_dry``.

    Return the exit code: 1 where the new one does not pass, 6 where it is damaged and not built again. Raises
    EnvironmentMissing, EnvironmentDamaged where its receipt cannot be read, and what an installation does.
    """
    tree, environment = installed.placed(prefix, name)
    prefix = Prefix(root=tree.root.parent)
    trust.require(
        prefix.root, tree, receipt.path_of(tree, environment.name), [module.name for module in environment.recipes]
    )
    installed.require_in_place(tree, environment)
    damaged, lost = environment.damaged(), environment.damage()
    for line in uncompared(environment):
        say(console, line)
    if not damaged and not lost:
        say(console, f"Nothing of {environment.name} is damaged: {compared(environment.measure())}.")
        return 0
    say(console, f"{environment.name} is damaged: {lost}." if lost else f"{environment.name} is damaged:")
    for line in install.damage_lines(damaged, None if is_dry else install.SHOWN):
        say(console, line)
    install.require_readable(environment.name, damaged)
    installed.require_idle(tree, environment.name)
    if is_dry:
        say(console, f"Build it again with 'envkit repair {environment.name} --prefix {prefix.root}'.")
        return EnvironmentDamaged.exit_code
    if not os.access(tree.root, os.W_OK):
        raise not_writable(tree.root, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    if tree.software.is_symlink() and not tree.software.exists():
        raise HostProblem(
            what=f"{environment.name} cannot be built again: {tree.software} is a link that leads nowhere.",
            why=f"It leads to {shown(str(tree.software.readlink()))}.",
            fix=f"Make that folder again, or remove the link (rm {quote(str(tree.software))}). "
            "Then run the same command.",
        )
    request = replace(
        asked(prefix, tree.root, environment), again=tuple(dict.fromkeys(damage.module for damage in damaged))
    )
    with install.stoppable():
        report = install.install_now(request, console, environment)
    return 0 if report is None or report.verdict == "pass" else 1


def asked(prefix: Prefix, root: Path, environment: Receipt) -> Request:
    """Return the request that builds an environment again. Raises HostProblem where that would be in another tree."""
    request = registry.method(environment.method).request_of(prefix, environment)
    own = prefix.tree(Platform.own(), request.release or "")
    if own.root != root:
        raise HostProblem(
            what=f"{environment.name} cannot be built again here.",
            why=f"It is in {root}; what this machine and its Python build is in {own.root}.",
            fix="Repair it where it was built, or with the Python that it was built for first on PATH.",
        )
    return request


def compared(measure: Measure) -> str:
    """Say how much was compared."""
    if not measure.files:
        return "no file of it could be compared"
    files = "1 file" if measure.files == 1 else f"{measure.files} files"
    return f"{files} ({measure.size / 1_000_000:.0f} MB) as built"


def uncompared(environment: Receipt) -> Iterator[str]:
    """Yield a line on what is not compared, and why, and what can be done about it."""
    measure = environment.measure()
    if measure.unlisted and not environment.is_image:
        yield f"Not compared, since nothing says what its files were: {', '.join(measure.unlisted)}."
        recipe = installed.recipe_of(Tree(root=Path(environment.tree)), environment.name) or environment.name
        again = f"envkit install {recipe} --rebuild --prefix {Path(environment.tree).parent}"
        yield f"To build the last of them again all the same: {again}"
    elif measure.unlisted:
        yield f"Not compared: {environment.name} is a folder, which can be changed."
    if measure.behind:
        yield f"Not compared, since it lies behind a link: {', '.join(measure.behind)}."
