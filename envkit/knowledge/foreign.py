"""The words that users of other tools type, and what does the same in envkit: foreign.toml."""

import re
from functools import cache

import msgspec

from envkit.system import toml
from envkit.system.resources import data

VERSION = re.compile(r"[=@%~!<>+\[ /].*$")
ENTERING = ("shell", "run", "modules", "prefetch", "eessi")  # commands that enter EESSI, as eessi_container.sh does


class ForeignWords(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """foreign.toml."""

    command: dict[str, str]
    option: dict[str, dict[str, str]]
    container: dict[str, str]
    access: dict[str, str]
    value: dict[str, dict[str, str]]
    stack: dict[str, str]


@cache
def words() -> ForeignWords:
    """Return foreign.toml."""
    return toml.read(data("knowledge/foreign.toml"), ForeignWords)


def command(name: str) -> str:
    """Return what to say of a command that is none of envkit's; nothing where nothing is known of it."""
    return words().command.get(name.lower(), "")


def option(name: str, of: str) -> str:
    """Return what to say of an option that a command has not; nothing where nothing is known of it."""
    container = words().container if of in ENTERING else {}
    return words().option.get(of, {}).get(name) or container.get(name) or words().option[""].get(name, "")


def access(name: str) -> str:
    """Return what to say of a way to EESSI's repository that eessi_container.sh has, and envkit has not."""
    return words().access.get(name.lower(), "")


def value(name: str, of: str) -> str:
    """Return what a value of an option is called here; nothing where nothing is known of it."""
    return words().value.get(of, {}).get(name.lower(), "")


def stack(name: str) -> str:
    """Return what to say of a stack or an environment that there is not; nothing where nothing is known of it."""
    plain = VERSION.sub("", name).lower()
    called = (name.lower().replace("+", "-"), plain, re.sub(r"(-gpu|-cpu|-cuda|-rocm|\d+)$", "", plain))
    return next((words().stack[word] for word in called if word in words().stack), "")


def as_stack(name: str) -> str:
    """Return a name with a version as pip, conda, Spack and module files write it as stacks have it: pytorch-2.13."""
    return re.sub(r"[=@%~!<>+\[\]/ -]+", "-", name).strip("-").lower()
