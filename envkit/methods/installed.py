"""What is installed, by whatever method: reading and finding receipts."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Union

import msgspec

from envkit.environments import receipt, replaced, trust
from envkit.environments.lockfile import Lock
from envkit.environments.names import is_name, shown
from envkit.environments.prefix import Prefix, Tree, listed
from envkit.environments.receipt import Receipt
from envkit.errors import EnvironmentDamaged, EnvironmentMissing, NotReadable
from envkit.methods.registry import NAMES, receipt_of
from envkit.planning.plan import current_recipe
from envkit.planning.stack import stacks
from envkit.system import files, record


@cache
def decoder() -> msgspec.json.Decoder[Any]:
    """Return what decodes a receipt of any method."""
    return msgspec.json.Decoder(Union[tuple(map(receipt_of, NAMES))])  # noqa: UP007  (made while running)


def read(path: Path) -> Receipt:
    """Read a receipt. Its tree is where it lies, whatever it says. Raises EnvironmentDamaged."""
    try:
        found: Receipt = record.decode(files.read(path, record.LARGEST), decoder())
    except (OSError, msgspec.DecodeError) as error:
        raise damaged(path, str(getattr(error, "strerror", "") or error)) from error
    if odd := oddity(path, found):
        raise damaged(path, odd)
    tree = Tree(root=path.parent.parent)
    if receipt.is_same(Path(found.tree), tree.root):
        return msgspec.structs.replace(found, copied_from=msgspec.UNSET)
    return found.here(tree)


def oddity(path: Path, found: Receipt) -> str:
    """Say what in a receipt cannot be; nothing if all can."""
    if not is_name(found.name) or found.name != path.stem:
        return f"Its name is {found.name!r}, that of its file {path.stem!r}."
    return found.oddity() if found.tree.startswith("/") else f"Its tree is {found.tree!r}."


def damaged(path: Path, why: str) -> EnvironmentDamaged:
    """Say that a receipt cannot be read, or holds what none of envkit's does."""
    again = "Delete it"
    if is_name(path.stem):
        tree = Tree(root=path.parent.parent)
        command = f"envkit install {recipe_of(tree, path.stem) or path.stem} --prefix {tree.root.parent}"
        again = f"Put it back with '{command}', or delete it"
    return EnvironmentDamaged(
        what=f"The receipt {shown(str(path))} cannot be read.",
        why=shown(why),
        fix=f"{again}; what is built already is kept.",
    )


def recipe_of(tree: Tree, name: str) -> str:
    """Return the name or recipe that installs an environment whose modules are in a tree; nothing if none are."""
    for stack in stacks():
        if stack.name == name:
            return name if stack.module and receipt.built(tree, stack.module) else ""
    for path in tree.root.glob("built/*.json"):
        with suppress(OSError, msgspec.DecodeError):
            built: receipt.Built = record.read(path, receipt.Built)
            recipe = built.easyconfig
            if Path(recipe).stem == name and recipe.isprintable():
                return shlex.quote(str(current_recipe(recipe)))
    return ""


def there(tree: Tree, name: str) -> Receipt | None:
    """Return the receipt of an environment in a tree; None without one, with one that cannot be read or was copied."""
    replaced.recover(tree)
    try:
        found = read(receipt.path_of(tree, name))
    except EnvironmentDamaged:
        return None
    return None if found.copied_from else found


def all_in(tree: Tree) -> Iterator[tuple[str, Receipt | EnvironmentDamaged]]:
    """Yield the name of each environment in a tree, and its receipt, or what is wrong with that. Raises NotReadable."""
    replaced.recover(tree)
    for path in receipt.files_in(tree):
        try:
            yield path.stem, read(path)
        except EnvironmentDamaged as error:
            yield path.stem, error


def every(prefix: Prefix) -> Iterator[tuple[Tree, str, Receipt | EnvironmentDamaged]]:
    """Yield the environments for this machine type, newest Python first: tree, name, receipt or what is wrong with it.

    Raises NotReadable.
    """
    for tree in trees(prefix):
        yield from ((tree, name, found) for name, found in all_in(tree))


def trees(prefix: Prefix) -> Iterator[Tree]:
    """Yield the trees for this machine type, in the order in which names are looked for.

    Of several prefixes one that cannot be read is named on standard error; of one alone that raises NotReadable.
    """
    for one in prefix.every:
        try:
            found = one.trees(os.uname().machine)
            for tree in found:
                listed(tree.environments)
        except NotReadable as error:
            if len(prefix.every) == 1:
                raise
            print(f"envkit: {error.what} {error.why}", file=sys.stderr)
            continue
        yield from found


def installed(prefix: Prefix) -> Iterator[Receipt]:
    """Yield the receipts for this machine type that can be read, newest Python first. Raises NotReadable."""
    yield from (found for _, _, found in every(prefix) if not isinstance(found, EnvironmentDamaged))


def find(prefix: Prefix, name: str | None) -> Receipt:
    """Return the receipt of an environment; the name may be left out where there is only one.

    Raises EnvironmentMissing, EnvironmentDamaged when its modules or its image have gone or lie elsewhere, HostProblem
    when somebody can change it who is not trusted.
    """
    tree, found = placed(prefix, name)
    modules = [module.name for module in found.recipes]
    trust.require(tree.root.parent, tree, receipt.path_of(tree, found.name), modules)
    require_in_place(tree, found)
    if damage := found.damage():
        raise not_as_installed(found, damage)
    return found


def require_same_image(found: Receipt) -> None:
    """Require that an image is the one that was installed: it is read to its end. Raises EnvironmentDamaged."""
    if found.is_image and found.damaged():
        raise not_as_installed(found, f"its image is not the one that was installed (SHA-256 {found.sha256})")


def not_as_installed(found: Receipt, damage: str) -> EnvironmentDamaged:
    """Say in what an environment is not as it was installed."""
    return EnvironmentDamaged(
        what=f"The environment {found.name} is damaged: {damage}.",
        fix=f"Put it back with 'envkit repair {found.name} --prefix {Path(found.tree).parent}'.",
    )


def require_in_place(tree: Tree, found: Receipt) -> None:
    """Require that an environment lies where it was installed. Raises EnvironmentDamaged."""
    if found.copied_from:
        raise EnvironmentDamaged(
            what=f"The environment {found.name} does not work where it lies.",
            why=f"It was installed in {found.copied_from} and was copied or moved to {found.tree}; "
            "the paths in its files are still those.",
            fix=f"Move it back; or remove it here, which leaves {found.copied_from} alone, and install it again:\n"
            f"  envkit remove {found.name} --dependencies --prefix {tree.root.parent}\n"
            f"  envkit install {found.name} --prefix {tree.root.parent}",
        )


def lock_of(made: Receipt) -> Lock:
    """Return the lock of an environment. Raises EnvironmentMissing for one that an earlier envkit installed."""
    if made.lock is None:
        raise EnvironmentMissing(
            what=f"The environment {made.name} has no lock.",
            why=f"It was installed by envkit {made.envkit}, before there were locks.",
            fix=f"Install it again: envkit install {made.name} --rebuild",
        )
    return made.lock


def placed(prefix: Prefix, name: str | None) -> tuple[Tree, Receipt]:
    """Find an environment, whether its modules are there or not: its tree and its receipt.

    Raises EnvironmentMissing, EnvironmentDamaged where its receipt cannot be read.
    """
    there = list(every(prefix))
    fitting = [(tree, one) for tree, called, one in there if name is None or name in names_of(called, one)]
    if not fitting or (name is None and len({called for _, called, _ in there}) > 1):
        raise missing(prefix, name, [called for _, called, _ in there])
    tree, found = fitting[0]
    if isinstance(found, EnvironmentDamaged):
        raise found
    return tree, found


def names_of(called: str, found: Receipt | EnvironmentDamaged) -> tuple[str, ...]:
    """Return what the user may call an environment."""
    return (called,) if isinstance(found, EnvironmentDamaged) else found.names


def missing(prefix: Prefix, name: str | None, there: Sequence[str]) -> EnvironmentMissing:
    """Say that no environment fits."""
    names = ", ".join(map(shown, dict.fromkeys(there)))
    if name is None and there:
        return EnvironmentMissing(
            what="Which environment? There is more than one.",
            why=f"Installed in {prefix}: {names}.",
            fix="Name one of them.",
        )
    if name and any(replaced.of(tree, name) for tree in trees(prefix)):
        return EnvironmentMissing(
            what=f"The environment {name} is being built again.",
            why="It is offered again when the new one has passed, or as it was before if that fails.",
            fix=f"Wait for the installation. If none is running any more: envkit install {name} --prefix {prefix.root}",
        )
    recipe = next((one for tree in trees(prefix) if (one := recipe_of(tree, name or ""))), "")
    if name and recipe:
        return EnvironmentMissing(
            what=f"There is no environment {name!r}.",
            why="Its modules are there, but not its receipt: it was not verified, or its receipt has gone.",
            fix=f"Have it verified, and mended where it is damaged: envkit install {recipe} --prefix {prefix.root}",
        )
    return EnvironmentMissing(
        what=f"There is no environment {name!r}." if name else "No environment is installed.",
        why=f"Installed in {prefix}: {names or 'none'}.",
        fix="See with 'envkit list' what there is and what can be installed.",
    )
