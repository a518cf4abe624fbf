"""What is known to go together, as data in compat.toml."""

from collections.abc import Iterator
from enum import StrEnum
from functools import cache

import msgspec

from envkit.system import toml
from envkit.system.resources import data


class Status(StrEnum):
    """What a rule says of the combinations that it is about; ``fails`` may have a cure."""

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
    """Something that has versions, or, in their place, ``names``; ``recipe`` is what EasyBuild's recipes call it.

    The first ``series`` numbers of a version tell releases apart; what comes after them is a patch level. ``alias`` has
    other ways to write a value, ``pattern`` (a regular expression, for ``value``) many of them.
    """

    title: str
    recipe: str = ""
    also: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    series: int = 2
    alias: dict[str, str] = {}
    pattern: str = ""
    value: str = ""


class Workaround(Struct, frozen=True, kw_only=True):
    """What makes a combination work that fails as released; ``envkit``: the recipes of envkit do it.

    ``file`` is the file of Horovod that a patch has to change for it: a recipe without such a patch does not take it.
    """

    what: str
    source: str
    file: str = ""
    envkit: bool = False


class Rule(Struct, frozen=True, kw_only=True):
    """What is wrong with the combinations that have all of ``when`` (PEP 440, or a name), and how that is known.

    ``cure`` are lists of measures, each of which mends what fails.
    """

    id: str
    when: dict[str, str]
    status: Status
    evidence: Evidence
    source: str
    note: str = ""
    cure: tuple[tuple[str, ...], ...] = ()
    cases: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class Table(Struct, frozen=True, kw_only=True):
    """Rules in rows: a release of one component (``of``), and the versions of the other that are wrong with it."""

    id: str
    of: str
    other: str
    status: Status
    evidence: Evidence
    source: str
    note: str
    rows: dict[str, tuple[str, ...]]

    def rules(self) -> Iterator[Rule]:
        """Yield a rule for each cell."""
        for release, cells in self.rows.items():
            for cell in cells:
                yield Rule(
                    id=f"{self.id}-{release}{cell}",
                    when={self.of: f"=={release}.*", self.other: cell},
                    status=self.status,
                    evidence=self.evidence,
                    source=self.source,
                    note=self.note,
                )


class Proof(Struct, frozen=True, kw_only=True):
    """Parts that somebody has had together, the measures that it took, and how that is known."""

    evidence: Evidence
    source: str
    parts: dict[str, str]
    note: str = ""
    measures: tuple[str, ...] = ()


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

    def proof(self) -> Proof:
        """Return what it shows."""
        return Proof(evidence=self.evidence, source=self.how, parts=self.parts, note=self.note, measures=self.measures)


class Known(Struct, frozen=True, kw_only=True):
    """The tables of compat.toml."""

    component: dict[str, Component]
    measure: dict[str, Workaround]
    rule: tuple[Rule, ...]
    table: tuple[Table, ...]
    evidence: tuple[Proof, ...]
    combination: tuple[Combination, ...]


@cache
def known() -> Known:
    """Return compat.toml."""
    return toml.read(data("compat/compat.toml"), Known)


@cache
def rules() -> tuple[Rule, ...]:
    """Return every rule, those in tables among them."""
    return (*known().rule, *(rule for table in known().table for rule in table.rules()))


@cache
def proofs() -> tuple[Proof, ...]:
    """Return everything that shows that something works, the best first."""
    found = (*(one.proof() for one in known().combination), *known().evidence)
    return tuple(sorted(found, key=lambda one: list(Evidence).index(one.evidence)))
