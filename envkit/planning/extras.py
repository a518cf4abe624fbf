"""The extras that can be added to a stack, ``envkit install STACK --with NAME``: as data in extras.toml."""

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
    return [name for name, extra in known().items() if stack in extra.recipes]


def added(stack: Stack, names: Iterable[str]) -> Stack:
    """Return a stack with extras. Raises UsageProblem for one that it does not have."""
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in of_stack(stack.name):
            raise refused(stack, name)
    return msgspec.structs.replace(stack, extras={name: known()[name].recipes[stack.name] for name in wanted})


def refused(stack: Stack, name: str) -> UsageProblem:
    """Say why a stack does not have an extra, and what to do."""
    available = of_stack(stack.name)
    owner = next((title for title, extra in known().items() if name in (title, *extra.packages)), "")
    what = f"{stack.name} has no extra named {name!r}."
    have = f"It has: {', '.join(available)}." if available else "It has none."
    if owner in available:
        return UsageProblem(what=what, why=f"{name} is part of {owner}.", fix=f"Use --with {owner}.")
    if owner and (absent := known()[owner].absent) and stack.name in absent.stacks:
        return UsageProblem(what=what, why=absent.why, fix=absent.fix.format(stack=stack.name))
    if owner and (others := list(known()[owner].recipes)):
        return UsageProblem(
            what=what,
            why=have,
            fix=f"Use {'one of these, or ' if available else ''}a stack that has it: {', '.join(others)}.",
        )
    own = "'envkit venv' makes a folder for packages of your own, on top of an environment by EasyBuild."
    return UsageProblem(what=what, why=have, fix=f"Use one of these. {own}" if available else f"Leave it out. {own}")


def lines(stack: Stack) -> Iterator[str]:
    """Yield what is added to a stack, and what else can be."""
    if stack.extras:
        yield f"With:     {', '.join(stack.extras)}"
    for name in of_stack(stack.name):
        if name not in stack.extras:
            yield f"Without:  {name}: {known()[name].what} (--with {name})"
    for name, extra in known().items():
        if extra.absent and stack.name in extra.absent.stacks:
            yield f"Absent:   {name}: {extra.what} ('--with {name}' says why, and what to do)"


def in_lock(locked: Lock | None) -> tuple[str, ...]:
    """Name the extras that are parts of a lock."""
    recipes = {part.recipe for part in locked.parts} if locked else set[str]()
    return tuple(name for name, extra in known().items() if locked and extra.recipes.get(locked.name) in recipes)
