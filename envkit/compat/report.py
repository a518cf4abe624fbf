"""The answer about a combination: an object that people and machines both get."""

import msgspec

from envkit.compat.complete import Complete
from envkit.compat.evidence import Evidence, Proof, RuleStatus, Struct, VersionRule
from envkit.compat.judge import Judgement, Verdict

VERSION = 1
CODES = {Verdict.WORKS: 0, Verdict.FAILS: 1, Verdict.RISKY: 9, Verdict.UNKNOWN: 9}


class Cited(Struct, frozen=True, kw_only=True):
    """A rule, as known.Rule has it."""

    id: str
    when: dict[str, str]
    status: RuleStatus
    evidence: Evidence
    source: str
    note: str
    cure: tuple[tuple[str, ...], ...]


class Best(Struct, frozen=True, kw_only=True):
    """The best complete combination, or, where parts of it differ from what was asked, the nearest.

    ``replaced`` are those of its parts that its evidence does not have, but others, or none.
    """

    how: str
    stack: str
    evidence: Evidence
    note: str
    parts: dict[str, str]
    measures: tuple[str, ...]
    besides: tuple[str, ...]
    verdict: Verdict
    differs: tuple[str, ...]
    replaced: tuple[str, ...]


class Report(Struct, frozen=True, kw_only=True):
    """The verdict on what was asked, what it rests on, the measures it takes (one list of each), the best one here.

    ``proof`` is what somebody has had together: all parts but those that are ``unproven`` or ``silent``: no evidence
    names these, and no rule is against them with the proof; ``against`` are the rules that are. ``ranges`` are those
    that were asked for, of which ``parts`` has the version that is judged: the newest of the best verdict.
    """

    version: int
    verdict: Verdict
    parts: dict[str, str]
    ranges: dict[str, str]
    rules: tuple[Cited, ...]
    cures: tuple[tuple[tuple[str, ...], ...], ...]
    unproven: tuple[str, ...]
    silent: tuple[str, ...]
    against: tuple[Cited, ...]
    proof: Proof | None
    best: Best | None


def report(asked: Judgement, best: Complete | None, ranges: dict[str, str]) -> Report:
    """Return what is said."""
    return Report(
        version=VERSION,
        verdict=asked.verdict,
        parts=asked.parts,
        ranges=ranges,
        rules=tuple(cited(rule) for rule in asked.rules),
        cures=asked.cures,
        unproven=asked.unproven,
        silent=asked.silent,
        against=tuple(cited(rule) for rule in asked.against),
        proof=asked.proof,
        best=described(best) if best else None,
    )


def cited(rule: VersionRule) -> Cited:
    """Return a rule without its examples."""
    return Cited(**{name: getattr(rule, name) for name in Cited.__struct_fields__})


def described(best: Complete) -> Best:
    """Return the best combination."""
    combination = best.combination
    return Best(
        how=combination.how,
        stack=combination.stack,
        evidence=combination.evidence,
        note=combination.note,
        parts=best.judgement.parts,
        measures=combination.measures,
        besides=combination.besides,
        verdict=best.judgement.verdict,
        differs=best.differs,
        replaced=best.replaced,
    )


def to_json(asked: Judgement, best: Complete | None, ranges: dict[str, str]) -> str:
    """Return it as JSON."""
    return msgspec.json.format(msgspec.json.encode(report(asked, best, ranges))).decode()
