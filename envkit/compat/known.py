"""What is known to go together, as data in compat.toml."""

import tomllib
from enum import StrEnum
from functools import cache

import msgspec

from envkit.resources import data


class Status(StrEnum):
    """What a rule says of the combinations that it is about; ``fails`` may have a cure."""

    WORKS = "works"
    FAILS = "fails"
    RISKY = "risky"
    UNTRIED = "untried"


class Evidence(StrEnum):
    """How something is known, the best first."""

    OBSERVED = "observed"
    CI = "ci"
    RECIPE = "recipe"
    DOCS = "docs"
    SOURCE = "source"
    REPORT = "report"
    INFERRED = "inferred"


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every table is."""


class Component(Struct, frozen=True, kw_only=True):
    """Something that has versions, or, in their place, ``names``; ``recipe`` is what EasyBuild's recipes call it."""

    title: str
    recipe: str = ""
    also: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


class Measure(Struct, frozen=True, kw_only=True):
    """What makes a combination work that fails as released; ``envkit``: the recipes of envkit do it.

    ``file`` is the file of Horovod that a patch has to change for it: a recipe without such a patch does not take it.
    """

    what: str
    source: str
    file: str = ""
    envkit: bool = False


class Rule(Struct, frozen=True, kw_only=True):
    """What is known of the combinations that have all of ``when`` (PEP 440, or a name), and from where.

    ``needs`` are the measures with which it works; ``cure`` are lists of measures, each of which mends what fails.
    """

    id: str
    when: dict[str, str]
    status: Status
    evidence: Evidence
    source: str
    note: str = ""
    needs: tuple[str, ...] = ()
    cure: tuple[tuple[str, ...], ...] = ()
    cases: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class Combination(Struct, frozen=True, kw_only=True):
    """A complete combination that works, the measures it takes, and how it is had.

    ``stack`` is one of envkit's; ``host`` are the parts that are the machine's own.
    """

    how: str
    evidence: Evidence
    accelerator: str
    parts: dict[str, str]
    stack: str = ""
    note: str = ""
    measures: tuple[str, ...] = ()
    host: tuple[str, ...] = ()


class Known(Struct, frozen=True, kw_only=True):
    """The tables of compat.toml."""

    component: dict[str, Component]
    measure: dict[str, Measure]
    rule: tuple[Rule, ...]
    combination: tuple[Combination, ...]


@cache
def known() -> Known:
    """Return compat.toml."""
    return msgspec.convert(tomllib.loads(data("compat.toml").read_text()), Known)
