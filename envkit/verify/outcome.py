"""What a check is asked and what it answers. The words of the answers are in checks/*.toml."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from envkit.binary.build_flags import BuildFlags
from envkit.knowledge.known import catalogue
from envkit.verify.facts import RankFacts


class Status(StrEnum):
    """What a check found."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A file not as it was installed; `kind`: horovod, packages, modules or mpi; `how`: changed, added or gone."""

    kind: str
    path: str
    how: str


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for.

    `size` is the number of ranks, `left_out` names frameworks that Horovod is for and that are not verified,
    `required` names flags, `built` is what the files say, `measures` names the facts about speed that were asked for.
    `gpus` demands that the collectives ran on GPUs too, `nodes` is on how many nodes the ranks should be (None: no
    matter), `shared` is the folder where they met. `launcher_status` is how the launcher ended (None: somebody
    else's) and `launcher_said` what it said. `drift` is what has changed since the installation (None: unknown).
    `leftover` are variables of another launch in the environment of this one, `horovod` is the folder of the package
    that is to be verified ("": whichever is there).
    """

    size: int
    frameworks: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    built: BuildFlags | None = None
    gpus: bool = False
    nodes: int | None = None
    shared: str = ""
    launcher_status: int | None = None
    launcher_said: str = ""
    measures: frozenset[str] = frozenset()
    drift: tuple[Change, ...] | None = None
    leftover: tuple[str, ...] = ()
    horovod: str = ""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One check of one framework; `required` tells whether a skip keeps the verdict from PASS."""

    id: str
    status: Status
    framework: str
    message: str
    cause: str = ""
    remedy: str = ""
    required: bool = True


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The records of one framework, in rank order, and what is expected of them."""

    framework: str
    facts: tuple[RankFacts, ...]
    expected: Expected

    @property
    def is_world(self) -> bool:
        """Whether Horovod told every rank once, in a world of the size that was asked for."""
        size = self.expected.size
        ranks = [facts.rank for facts in self.facts]
        return ranks == list(range(size)) and all(facts.size == size for facts in self.facts)

    @property
    def are_singletons(self) -> bool:
        """Whether every process was alone, as rank 0 of 1, where more ranks were asked for."""
        return self.expected.size > 1 and all((facts.size, facts.rank) == (1, 0) for facts in self.facts)

    def outcome(self, check: str, case: str, /, **values: object) -> Result:
        """The result that the catalogue words as `case` of `check`, under the id `check_id` if given."""
        words = catalogue()[check][case]
        texts = {key: words.get(key, "").format(**values) for key in ("message", "cause", "remedy")}
        return Result(
            id=str(values.get("check_id", check)),
            status=Status(words["status"]),
            framework=self.framework,
            required=words.get("required", True),
            **texts,
        )

    def not_measured(self, check: str, facts: RankFacts, *, required: bool = True) -> Result:
        """The result for a check whose facts one rank does not have."""
        case = "required" if required else "optional"
        reason = "after an error there" if facts.finished else f"it got as far as '{facts.phase}'"
        return self.outcome("not-measured", case, check_id=check, rank=facts.label, reason=reason)

    def lacking(self, fact: str) -> RankFacts | None:
        """The first rank that has no such fact at all."""
        return next((facts for facts in self.facts if getattr(facts, fact) is None), None)


def verdict(results: Sequence[Result]) -> Status:
    """PASS where nothing failed, nothing required was skipped, and something was checked; else FAIL."""
    bad = any(r.status is Status.FAIL or (r.status is Status.SKIP and r.required) for r in results)
    return Status.FAIL if bad or not results else Status.PASS
