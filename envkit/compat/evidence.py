"""The evidence of what goes together, as data in compat.toml, recipes.json and images.json."""

from collections.abc import Iterator
from enum import StrEnum
from functools import cache

import msgspec

from envkit.knowledge.known import known as knowledge
from envkit.system import record, toml
from envkit.system.resources import data


class RuleStatus(StrEnum):
    """The verdict of a rule on the combinations that it is about; ``fails`` may have a cure."""

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
    """The base of every table."""


class Component(Struct, frozen=True, kw_only=True):
    """Something that has versions, or, in their place, ``names``; ``recipe`` is what EasyBuild's recipes call it.

    The first ``series`` numbers of a version tell releases apart; what comes after them is a patch level. ``releases``
    are those there have been, as "2.0-2.15", where they are told: between them there was none. ``alias`` has other
    ways to write a value, ``pattern`` (a regular expression, for ``value``) many of them.

    What no evidence names has ``silent``, which says so: it can only limit the others, of which ``limits`` has to be in
    the evidence.
    """

    title: str
    recipe: str = ""
    also: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    series: int = 2
    alias: dict[str, str] = {}
    pattern: str = ""
    value: str = ""
    releases: tuple[str, ...] = ()
    limits: str = ""
    silent: str = ""

    def series_of_releases(self) -> tuple[tuple[int, ...], ...]:
        """Return each release, the oldest first, as (2, 13)."""
        return each_release(self.releases)

    def never(self, version: tuple[int, ...]) -> bool:
        """Say whether there has been no such release, older than the newest that is known."""
        releases = self.series_of_releases()
        wanted = version[: self.series]
        return (
            bool(releases)
            and wanted < releases[-1]
            and not any(release[: len(wanted)] == wanted for release in releases)
        )


@cache
def each_release(releases: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Return ("2.0-2.1",) as ((2, 0), (2, 1))."""
    ends = [[tuple(map(int, end.split("."))) for end in span.split("-")] for span in releases]
    return tuple((*span[0][:-1], last) for span in ends for last in range(span[0][-1], span[-1][-1] + 1))


class Workaround(Struct, frozen=True, kw_only=True):
    """A measure that makes a combination work that fails as released; ``envkit``: the recipes of envkit do it.

    ``file`` is the file of Horovod that a patch has to change for it: a recipe without such a patch does not take it.
    """

    what: str
    source: str
    file: str = ""
    envkit: bool = False


class VersionRule(Struct, frozen=True, kw_only=True):
    """A rule on the combinations that have all of ``when`` (PEP 440, or a name): what is wrong, and how that is known.

    ``cure`` are lists of measures, each of which mends what fails.
    """

    id: str
    when: dict[str, str]
    status: RuleStatus
    evidence: Evidence
    source: str
    note: str = ""
    cure: tuple[tuple[str, ...], ...] = ()
    cases: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


class RuleTable(Struct, frozen=True, kw_only=True):
    """Rules in rows: a release of one component (``of``), and the versions of the other that are wrong with it.

    They hold for what has all of ``given`` besides.
    """

    id: str
    of: str
    other: str
    status: RuleStatus
    evidence: Evidence
    source: str
    note: str
    rows: dict[str, tuple[str, ...]]
    given: dict[str, str] = {}

    def rules(self) -> Iterator[VersionRule]:
        """Yield a rule for each cell."""
        for release, cells in self.rows.items():
            for cell in cells:
                yield VersionRule(
                    id=f"{self.id}-{release}{cell}",
                    when={self.of: f"=={release}.*", self.other: cell, **self.given},
                    status=self.status,
                    evidence=self.evidence,
                    source=self.source,
                    note=self.note,
                )


class Proof(Struct, frozen=True, kw_only=True):
    """Parts that somebody has had together, the measures that it took, and how that is known.

    ``besides`` are measures that it needs, too, and of which the source does not say that it takes them.
    """

    evidence: Evidence
    source: str
    parts: dict[str, str]
    note: str = ""
    measures: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()

    def taken(self) -> tuple[str, ...]:
        """Return every measure that it takes."""
        return (*self.measures, *self.besides)


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
    besides: tuple[str, ...] = ()
    host: tuple[str, ...] = ()

    def proof(self) -> Proof:
        """Return what it shows."""
        return Proof(
            evidence=self.evidence,
            source=self.how,
            parts=self.parts,
            note=self.note,
            measures=self.measures,
            besides=self.besides,
        )


class Recipe(Struct, frozen=True, kw_only=True):
    """Parts that a recipe or a run of upstream's CI has together, the measures it takes, and whose it is (``of``)."""

    of: str
    evidence: Evidence
    source: str
    parts: dict[str, str]
    measures: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()

    def proof(self) -> Proof:
        """Return what it shows."""
        return Proof(
            evidence=self.evidence,
            source=self.source,
            parts=self.parts,
            note={"easybuild": EASYBUILD, "easybuild-earlier": EARLIER}.get(self.of, ""),
            measures=self.measures,
            besides=self.besides,
        )

    def combination(self) -> Combination:
        """Return it as what can be installed here."""
        return Combination(
            how=self.source,
            evidence=self.evidence,
            accelerator="cuda" if "cuda" in self.parts else "cpu",
            parts=self.parts,
            note=EASYBUILD,
            measures=self.measures,
            besides=self.besides,
        )


EASYBUILD = "EasyBuild's own recipe"
EARLIER = "EasyBuild's own recipe, of an earlier release"


class Recipes(Struct, frozen=True, kw_only=True):
    """The recipes of a file, and in recipes.json what EasyBuild's toolchains bring, by names such as foss-2023a."""

    recipe: tuple[Recipe, ...]
    toolchain: dict[str, dict[str, str]] = {}


class EvidenceTables(Struct, frozen=True, kw_only=True):
    """The tables of compat.toml."""

    component: dict[str, Component]
    measure: dict[str, Workaround]
    rule: tuple[VersionRule, ...]
    table: tuple[RuleTable, ...]
    evidence: tuple[Proof, ...]
    combination: tuple[Combination, ...]


@cache
def known() -> EvidenceTables:
    """Return compat.toml."""
    return toml.read(data("compat/compat.toml"), EvidenceTables)


@cache
def rules() -> tuple[VersionRule, ...]:
    """Return every rule, those in tables and those of drivers among them."""
    return (*known().rule, *(rule for table in known().table for rule in table.rules()), *of_drivers())


def of_drivers() -> Iterator[VersionRule]:
    """Yield a rule for the lowest driver of each major release of CUDA, as knowledge/gpu.toml has it."""
    for major, least in knowledge("gpu")["minor_compatible"].items():
        yield VersionRule(
            id=f"cuda-{major}-driver",
            when={"cuda": f"=={major}.*", "driver": f"<{least}"},
            status=RuleStatus.FAILS,
            evidence=Evidence.DOCS,
            note=f"CUDA {major} needs a driver of {least} at least, but for cuda-compat on data centre GPUs",
            source="https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
        )


@cache
def limiting() -> frozenset[str]:
    """Return the components that no evidence names, and that can only limit the others."""
    return frozenset(name for name, component in known().component.items() if component.silent)


@cache
def recipes() -> Recipes:
    """Return recipes.json."""
    return record.decode(data("compat/recipes.json").read_bytes(), Recipes)


@cache
def images() -> Recipes:
    """Return images.json."""
    return record.decode(data("compat/images.json").read_bytes(), Recipes)


@cache
def combinations() -> tuple[Combination, ...]:
    """Return every complete combination, EasyBuild's own recipes among them."""
    return (*known().combination, *(recipe.combination() for recipe in recipes().recipe if recipe.of == "easybuild"))


@cache
def proofs() -> tuple[Proof, ...]:
    """Return everything that shows that something works, the best first."""
    shown = (
        *(combination.proof() for combination in known().combination),
        *known().evidence,
        *(recipe.proof() for recipe in (*recipes().recipe, *images().recipe)),
    )
    return tuple(sorted(shown, key=lambda one: list(Evidence).index(one.evidence)))
