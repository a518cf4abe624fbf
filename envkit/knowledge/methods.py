"""The methods by which environments are installed, as data in methods.toml: it alone names them. Quick to import."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from envkit.errors import UsageProblem
from envkit.system import toml
from envkit.system.resources import data

AUTO = "auto"  # what stands for the first method that works here


@dataclass(frozen=True, kw_only=True)
class MethodWords:
    """The words for a method: what it does, what to do ``otherwise``, where there is no stack of it, its own options.

    ``options`` are the words on a command line by their names in a Request, ``without`` the names of those that the
    method cannot honour.
    """

    what: str
    otherwise: str
    options: Mapping[str, str] = field(default_factory=dict)
    without: Sequence[str] = ()


@cache
def known() -> Mapping[str, MethodWords]:
    """Return the methods by name, in the order in which they are listed."""
    path = data("knowledge/methods.toml")
    _, tables = toml.parsed(path.read_bytes(), str(path))
    return {name: MethodWords(**table) for name, table in tables.items()}


def names() -> tuple[str, ...]:
    """Return the names of the methods."""
    return tuple(known())


def usual() -> str:
    """Return the method that is meant where none is named."""
    return names()[0]


def takes(method: str, option: str) -> bool:
    """Say whether a method is the one that takes an option."""
    words = known().get(method)
    return words is not None and option in words.options


def of_option(option: str) -> str:
    """Return the one method that takes an option."""
    return next(method for method in names() if takes(method, option))


def require(method: str) -> None:
    """Raise UsageProblem for what is no method."""
    if method not in (AUTO, *names()):
        raise UsageProblem(
            what=f"There is no method {method!r}.",
            fix=f"Take one of {', '.join((AUTO, *names()))}.",
        )
