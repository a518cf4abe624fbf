"""The environments that are installed, by whatever method: reading and finding receipts."""

import difflib
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any, Union

import msgspec

from envkit.config import configuration as config
from envkit.config.configuration import Value
from envkit.environments import filelocks, receipt, replaced, trust, venv
from envkit.environments.lockfile import Lock
from envkit.environments.name_syntax import is_name, shown
from envkit.environments.prefix import Prefix, Tree, listed
from envkit.environments.receipt import Receipt, Unfinished
from envkit.errors import (
    EnvironmentDamaged,
    EnvironmentMissing,
    EnvkitError,
    HostProblem,
    NotReadable,
    UsageProblem,
)
from envkit.knowledge import foreign
from envkit.machine.host import Platform
from envkit.methods.registry import NAMES, receipt_of
from envkit.planning.plan import current_recipe
from envkit.planning.stack import FRAMEWORKS, is_stack, stacks
from envkit.report import words
from envkit.system import record

LONGEST = 300  # characters of what is wrong with a receipt
Place = tuple[Tree, str, Receipt | EnvironmentDamaged]  # an environment: where it lies, its name, its receipt


@cache
def any_receipt() -> Any:
    """Return the type of a receipt of any method."""
    return Union[tuple(map(receipt_of, NAMES))]  # noqa: UP007  (made while running)


def read(path: Path) -> Receipt:
    """Read a receipt. Its tree is where it lies, whatever it says. Raises EnvironmentDamaged."""
    try:
        environment: Receipt = record.read(path, any_receipt())
    except (OSError, msgspec.DecodeError) as error:
        raise damaged(path, str(getattr(error, "strerror", "") or error)) from error
    if odd := validation_error(path, environment):
        raise damaged(path, odd)
    tree = Tree(root=path.parent.parent)
    if receipt.is_same(Path(environment.tree), tree.root):
        return msgspec.structs.replace(environment, copied_from=msgspec.UNSET)
    return environment.here(tree)


def validation_error(path: Path, environment: Receipt) -> str:
    """Say what in a receipt cannot be; nothing if all can."""
    if not is_name(environment.name) or environment.name != path.stem:
        return f"Its name is {environment.name!r}, that of its file {path.stem!r}."
    return environment.validation_error() if environment.tree.startswith("/") else f"Its tree is {environment.tree!r}."


def damaged(path: Path, why: str) -> EnvironmentDamaged:
    """Say that a receipt cannot be read, or holds what none of envkit's does."""
    again = "Delete it"
    if is_name(path.stem):
        tree = Tree(root=path.parent.parent)
        command = f"envkit install {recipe_of(tree, path.stem) or path.stem} --prefix {tree.root.parent}"
        again = f"Put it back with '{command}', or delete it"
    return EnvironmentDamaged(
        what=f"The receipt {shown(str(path))} cannot be read.",
        why=shown(why if len(why) <= LONGEST else f"{why[:LONGEST]}..."),
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
        environment = read(receipt.path_of(tree, name))
    except EnvironmentDamaged:
        return None
    return None if environment.copied_from else environment


def all_in(tree: Tree) -> Iterator[tuple[str, Receipt | EnvironmentDamaged]]:
    """Yield the name of each environment in a tree, and its receipt, or what is wrong with that. Raises NotReadable."""
    replaced.recover(tree)
    for path in receipt.files_in(tree):
        try:
            yield path.stem, read(path)
        except EnvironmentDamaged as error:
            yield path.stem, error


def every(prefix: Prefix) -> Iterator[tuple[Tree, str, Receipt | EnvironmentDamaged]]:
    """Yield the environments for this machine type: tree, name, receipt or what is wrong with it.

    Raises NotReadable.
    """
    for tree in trees(prefix):
        yield from ((tree, name, environment) for name, environment in all_in(tree))


def holding(horovod: Path) -> Receipt | None:
    """Return the environment whose Horovod lies there, as one of its modules; None where none is found."""
    for folder in (parent for parent in horovod.parents if parent.name == "software"):
        with suppress(NotReadable, HostProblem, OSError):
            for _, environment in all_in(Tree(root=folder.parent)):
                if not isinstance(environment, EnvironmentDamaged) and environment.horovod == str(horovod):
                    return environment
    return None


def trees(prefix: Prefix) -> Iterator[Tree]:
    """Yield the trees for this machine type, in the order in which names are looked for: first envkit's own Python.

    Of several prefixes one that cannot be read is named on standard error; of one alone that raises NotReadable.
    """
    for member in prefix.every:
        try:
            machine_trees = member.trees(os.uname().machine)
            for tree in machine_trees:
                listed(tree.environments)
        except NotReadable as error:
            if len(prefix.every) == 1:
                raise
            print(words.shown(f"envkit: {error.what} {error.why}"), file=sys.stderr)
            continue
        own = member.tree(Platform.own()).root
        yield from sorted(machine_trees, key=lambda tree: tree.root != own)


def named_apart(tree: Tree, name: str) -> str:
    """Return the name of an environment that no other Python's has, as in pytorch-2.13-cpu-py3.11."""
    python = re.search(r"-py(3\.\d+)$", tree.root.name)
    return f"{name}-py{python[1]}" if python else name


def installed(prefix: Prefix) -> Iterator[Receipt]:
    """Yield the receipts for this machine type that can be read. Raises NotReadable."""
    yield from (environment for _, _, environment in every(prefix) if not isinstance(environment, EnvironmentDamaged))


def find(prefix: Prefix, name: str | None) -> Receipt:
    """Return the receipt of an environment, or of that below a virtual environment which is named by its folder.

    The name may be left out where there is only one environment, or where the configuration names the one to take.

    Raises EnvironmentMissing, EnvironmentDamaged when its modules or its image have gone or lie elsewhere, HostProblem
    when somebody can change it who is not trusted.
    """
    if name is None and (chosen := config.read().values.get("environment")):
        return default(prefix, chosen)
    if folder := venv_named(prefix, name):
        return in_venv(folder)
    try:
        return usable(*placed(prefix, name))
    except (EnvironmentDamaged, HostProblem) as error:
        if name and (root := other_than_first(prefix, name)):
            error.fix += f"\nOr take the one of {root}, which is as it was installed: --prefix {root}"
        raise


def other_than_first(prefix: Prefix, name: str) -> Path | None:
    """Return the prefix that has an environment that can be entered, behind another one of its name."""
    for tree, _, environment in list(meant(list(every(prefix)), name))[1:]:
        with suppress(EnvironmentDamaged, HostProblem):
            if not isinstance(environment, EnvironmentDamaged) and usable(tree, environment).broken() is None:
                return tree.root.parent
    return None


def default(prefix: Prefix, chosen: Value) -> Receipt:
    """Return the environment that the configuration names, where the user names none. Raises what ``find`` does.

    What a project's file names is no folder: that would be the project's, and run as the user.
    """
    try:
        if chosen.level == "project" and venv_named(prefix, chosen.value):
            raise missing(prefix, chosen.value, [called for _, called, _ in every(prefix)])
        return find(prefix, chosen.value)
    except EnvironmentMissing as error:
        error.why = f"{error.why}\n{chosen.value} is meant where none is named: {chosen.where}.".strip()
        raise


def usable(tree: Tree, environment: Receipt) -> Receipt:
    """Return an environment that can be entered. Raises EnvironmentDamaged, HostProblem."""
    modules = [module.name for module in environment.recipes]
    trust.require(tree.root.parent, tree, receipt.path_of(tree, environment.name), modules)
    require_in_place(tree, environment)
    if damage := environment.damage():
        for note in under_way(tree):
            if (aside := replaced.find(tree, note.stack)) and {*modules} & {*aside.modules}:
                raise busy(tree, environment.name, note)
        raise not_as_installed(environment, damage)
    return environment


def under_way(tree: Tree) -> Iterator[Unfinished]:
    """Yield the notes of the installations that are at work in a tree right now."""
    for path in sorted(tree.unfinished.glob("[!.]*.json")):
        note = receipt.unfinished(tree, path.stem)
        if note is not None and note.stack == path.stem and filelocks.is_running(tree, note):
            yield note


def busy(tree: Tree, name: str, note: Unfinished) -> HostProblem:
    """Say that an environment cannot be used while an installation is at work on it, and which one that is."""
    is_again = replaced.find(tree, note.stack) is not None or receipt.path_of(tree, note.stack).is_file()
    return HostProblem(
        what=f"The environment {name} is being built again." if is_again else f"{name} is being installed now.",
        why=f"By process {note.pid} on {note.node}, since {note.began}; {note.stage} (log: {note.log}).",
        fix="Wait for it, or end it (Ctrl-C there); then run the same command again."
        + (" If the new one does not pass, the old one is offered as it was." if is_again else ""),
    )


def require_idle(tree: Tree, name: str) -> None:
    """Require that no installation of an environment is at work. Raises HostProblem."""
    for note in under_way(tree):
        if note.stack == name:
            raise busy(tree, name, note)


def require_unchanged(tree: Tree, environment: Receipt) -> None:
    """Require, under its lock, that an environment is the one that was found before. Raises HostProblem."""
    current = there(tree, environment.name)
    if current is None and not environment.copied_from:
        raise changed(environment.name, "removed")
    if current is not None and (current.created, current.log) != (environment.created, environment.log):
        raise changed(environment.name)


def changed(name: str, how: str = "built again") -> HostProblem:
    """Say that another process was faster, so that an environment is not what a command was given for."""
    return HostProblem(
        what=f"{name} was {how} in the meantime, by another process. Nothing was done to it here.",
        fix="See with 'envkit list --installed' what there is now; then run the same command again, if you still want.",
    )


def venv_named(prefix: Prefix, name: str | None) -> Path | None:
    """Return the virtual environment that a name is the folder of, if it is not the name of an environment."""
    folder = venv.named(name)
    return None if folder and any(is_exact(place, name) for place in every(prefix)) else folder


def in_venv(folder: Path) -> Receipt:
    """Return the environment that a virtual environment is on top of, entered together with it.

    Raises EnvironmentMissing, EnvironmentDamaged, HostProblem.
    """
    description = venv.read(folder)
    tree, path = venv.tree_of(description), receipt.path_of(venv.tree_of(description), description.name)
    if not path.is_file():
        raise EnvironmentMissing(
            what=f"{folder} is on top of the environment {description.name}, which has gone.",
            why=f"There is no {path}.",
            fix=f"Install it again: envkit install {description.name} --prefix {quote(str(tree.root.parent))}",
        )
    return usable(tree, read(path)).within(folder)


def require_files(environment: Receipt) -> None:
    """Require of all files of an environment what ``find`` requires of those that it is entered by.

    An image is read to its end. Raises EnvironmentDamaged, HostProblem.
    """
    require_same_image(environment)
    tree = Tree(root=Path(environment.tree))
    trust.require_files(tree.root.parent, tree, environment.name, [module.name for module in environment.recipes])


def require_same_image(environment: Receipt) -> None:
    """Require that an image is the one that was installed: it is read to its end. Raises EnvironmentDamaged."""
    if environment.is_image and environment.damaged():
        raise not_as_installed(
            environment, f"its image is not the one that was installed (SHA-256 {environment.sha256})"
        )


def not_as_installed(environment: Receipt, damage: str) -> EnvironmentDamaged:
    """Say in what an environment is not as it was installed."""
    return EnvironmentDamaged(
        what=f"The environment {environment.name} is damaged: {damage}.",
        fix=f"Put it back with 'envkit repair {environment.name} --prefix {Path(environment.tree).parent}'.",
    )


def require_in_place(tree: Tree, environment: Receipt) -> None:
    """Require that an environment lies where it was installed. Raises EnvironmentDamaged."""
    if environment.copied_from:
        raise EnvironmentDamaged(
            what=f"The environment {environment.name} does not work where it lies.",
            why=f"It was installed in {environment.copied_from} and was copied or moved to {environment.tree}; "
            "the paths in its files are still those.",
            fix=f"Move it back; or remove it here, which leaves {environment.copied_from} as it is, "
            "and install it again:\n"
            f"  envkit remove {environment.name} --dependencies --prefix {tree.root.parent}\n"
            f"  envkit install {environment.name} --prefix {tree.root.parent}",
        )


def lock_of(environment: Receipt) -> Lock:
    """Return the lock of an environment. Raises EnvironmentMissing for one that an earlier envkit installed."""
    if environment.lock is None:
        raise EnvironmentMissing(
            what=f"The environment {environment.name} has no lock.",
            why=f"It was installed by envkit {environment.envkit}, before there were locks.",
            fix="Install it again: "
            f"envkit install {environment.name} --rebuild --prefix {Path(environment.tree).parent}",
        )
    return environment.lock


def placed(prefix: Prefix, name: str | None) -> tuple[Tree, Receipt]:
    """Find an environment, whether its modules are there or not: its tree and its receipt.

    A name may be shortened as long as one environment alone can be meant: pytorch, pytorch-2. Raises
    EnvironmentMissing, HostProblem while an installation is at work on it, EnvironmentDamaged where its receipt cannot
    be read, UsageProblem for a virtual environment.
    """
    places = list(every(prefix))
    if (folder := venv.named(name)) and not any(is_exact(place, name) for place in places):
        raise UsageProblem(
            what=f"{folder} is a virtual environment on top of {venv.read(folder).name}, and none of envkit's own.",
            why="It is one of your folders.",
            fix="Delete it with rm -r, or make it again with 'envkit venv'.",
        )
    fitting = meant(places, name)
    if not fitting or (name is None and len({called for _, called, _ in places}) > 1):
        raise missing(prefix, name, [called for _, called, _ in places])
    if len(names := list(dict.fromkeys(called for _, called, _ in fitting))) > 1 and not is_exact(fitting[0], name):
        raise ambiguous(prefix, str(name), names)
    tree, _, environment = fitting[0]
    if isinstance(environment, EnvironmentDamaged):
        raise environment
    return tree, environment


def meant(places: Sequence[Place], name: str | None) -> Sequence[Place]:
    """Return those that a name can mean: of exactly that name, else of that framework or beginning with it.

    The name of a stack means that one alone, be it installed or not.
    """
    if not name:
        return places if name is None else ()
    exact = [place for place in places if is_exact(place, name)]
    if exact or is_stack(name):
        return exact
    return [place for place in places if place[1].startswith(name) or framework_of(place[2]) == name]


def is_exact(place: Place, name: str | None) -> bool:
    """Say whether an environment has exactly that name."""
    return name in (*names_of(place[1], place[2]), named_apart(place[0], place[1]))


def framework_of(environment: Receipt | EnvironmentDamaged) -> str:
    """Return the framework of an environment, as 'envkit install' takes it; nothing where that is not known."""
    return "" if isinstance(environment, EnvironmentDamaged) else environment.framework


def ambiguous(prefix: Prefix, name: str, names: Sequence[str]) -> EnvironmentMissing:
    """Say that several environments can be meant."""
    return EnvironmentMissing(
        what=f"Which environment is {name!r}? There is more than one that it can mean.",
        why=f"Installed in {prefix}: {', '.join(map(shown, names))}.",
        fix="Name one of them in full, or by a beginning that no other has.",
    )


def names_of(called: str, environment: Receipt | EnvironmentDamaged) -> tuple[str, ...]:
    """Return what the user may call an environment."""
    return (called,) if isinstance(environment, EnvironmentDamaged) else environment.names


def missing(prefix: Prefix, name: str | None, there: Sequence[str]) -> EnvkitError:
    """Say that no environment fits, or that the one which is meant is being built right now."""
    names = ", ".join(map(shown, dict.fromkeys(there)))
    if name is None and there:
        return EnvironmentMissing(
            what="Which environment? There is more than one.",
            why=f"Installed in {prefix}: {names}.",
            fix="Name one of them; or in your configuration the one that is meant where you name none: environment = "
            f'"{shown(there[0])}" (envkit config --path).',
        )
    for tree in trees(prefix):
        for note in under_way(tree):
            if name is None or name == note.stack or (name and not is_stack(name) and note.stack.startswith(name)):
                return busy(tree, note.stack, note)
    if name and any(replaced.find(tree, name) for tree in trees(prefix)):
        return EnvironmentMissing(
            what=f"The environment {name} is being built again.",
            why="It is offered again when the new one has passed, or as it was before if that fails.",
            fix=f"Wait for the installation. If none is running any more: envkit install {name} --prefix {prefix.root}",
        )
    recipe = next((candidate for tree in trees(prefix) if (candidate := recipe_of(tree, name or ""))), "")
    if name and recipe:
        return EnvironmentMissing(
            what=f"There is no environment {name!r}.",
            why="Its modules are there, but not its receipt: it was not verified, or its receipt has gone.",
            fix=f"Have it verified, and mended where it is damaged: envkit install {recipe} --prefix {prefix.root}",
        )
    return EnvironmentMissing(
        what="No environment is installed." if name is None else f"There is no environment {name!r}.",
        why=f"{foreign.stack(name or '')}\nInstalled in {prefix}: {names or 'none'}.".strip(),
        fix=perhaps(name or "", there, prefix) or "See with 'envkit list' what there is and what can be installed.",
    )


def perhaps(name: str, names: Sequence[str], prefix: Prefix) -> str:
    """Return what a name that no environment has may mean: a folder, one that is installed, a stack; or nothing."""
    if name and venv.named(f"./{name}"):
        return f"The folder {shown(name)} here is a virtual environment: name it by its path, {quote(f'./{name}')}."
    can_be = [*FRAMEWORKS, *(stack.name for stack in stacks())]
    called = foreign.as_stack(name)
    if near := difflib.get_close_matches(name, list(names), 1):
        return f"Perhaps {shown(near[0])} is meant. 'envkit list' has all."
    if near := [called] if called in can_be else difflib.get_close_matches(called, can_be, 1, 0.7):
        what = "Try to install it" if near[0] == name else f"Perhaps {near[0]} is meant. Try to install that"
        return f"{what}: envkit install {near[0]} --prefix {shlex.quote(str(prefix.root))}"
    return ""
