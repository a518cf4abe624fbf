"""What can be added to a stack, ``envkit install STACK --with NAME``: as data in extras.toml."""

from collections.abc import Iterable, Iterator
from functools import cache

import msgspec

from envkit.environments.lockfile import Lock
from envkit.errors import UsageProblem
from envkit.planning.stack import Stack
from envkit.system import toml
from envkit.system.resources import data


class Absent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why an extra cannot be had for some stacks, and what to do; ``fix`` may name the ``{stack}``."""

    stacks: tuple[str, ...]
    why: str
    fix: str


class Extra(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing to add: its recipe for each stack, what ranks import of it, and the packages that are part of it."""

    what: str
    recipes: dict[str, str] = {}
    imports: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    absent: Absent | None = None


@cache
def known() -> dict[str, Extra]:
    """Return every extra by name."""
    return toml.read(data("planning/extras.toml"), dict[str, Extra])


def of_stack(stack: str) -> list[str]:
    """Name the extras that a stack has."""
    return [name for name, one in known().items() if stack in one.recipes]


def added(stack: Stack, names: Iterable[str]) -> Stack:
    """Return a stack with extras. Raises UsageProblem for one that it does not have."""
    asked = list(dict.fromkeys(names))
    for name in asked:
        if name not in of_stack(stack.name):
            raise refused(stack, name)
    return msgspec.structs.replace(stack, extras={name: known()[name].recipes[stack.name] for name in asked})


def refused(stack: Stack, name: str) -> UsageProblem:
    """Say why a stack does not have an extra, and what to do."""
    there = of_stack(stack.name)
    found = next((one for one, extra in known().items() if name in (one, *extra.packages)), "")
    what = f"{stack.name} has no extra named {name!r}."
    have = f"It has: {', '.join(there)}." if there else "It has none."
    if found in there:
        return UsageProblem(what=what, why=f"{name} is part of {found}.", fix=f"Use --with {found}.")
    if found and (absent := known()[found].absent) and stack.name in absent.stacks:
        return UsageProblem(what=what, why=absent.why, fix=absent.fix.format(stack=stack.name))
    own = "'envkit venv' makes a folder for packages of your own, on top of an environment by EasyBuild."
    return UsageProblem(what=what, why=have, fix=f"Use one of these. {own}" if there else f"Leave it out. {own}")


def lines(stack: Stack) -> Iterator[str]:
    """Yield what is added to a stack, and what else can be."""
    if stack.extras:
        yield f"With:     {', '.join(stack.extras)}"
    for name in of_stack(stack.name):
        if name not in stack.extras:
            yield f"Without:  {name}: {known()[name].what} (--with {name})"
    for name, one in known().items():
        if one.absent and stack.name in one.absent.stacks:
            yield f"Absent:   {name}: {one.what} ('--with {name}' says why, and what to do)"


def in_lock(locked: Lock | None) -> tuple[str, ...]:
    """Name the extras that are parts of a lock."""
    recipes = {part.recipe for part in locked.parts} if locked else set[str]()
    return tuple(name for name, one in known().items() if locked and one.recipes.get(locked.name) in recipes)
