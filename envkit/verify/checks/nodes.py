"""The ranks by node, and whether a fault did any harm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from envkit.verify.facts import RankFacts
from envkit.verify.outcome import Ranks, Result, Status

SHOWN = 4


def by_node(ranks: Ranks) -> dict[str, list[RankFacts]]:
    """The records of each node, both in order of rank."""
    nodes: dict[str, list[RankFacts]] = {}
    for facts in ranks.facts:
        nodes.setdefault(facts.host, []).append(facts)
    return nodes


def all_went_well(ranks: Ranks) -> bool:
    """Whether the ranks were one world, reduced on the CPU, and came to their end."""
    reduced = all(facts.collectives_cpu and not facts.collectives_cpu.error for facts in ranks.facts)
    return ranks.is_world and reduced and all(facts.finished for facts in ranks.facts)


def warned(result: Result, *, harmless: bool) -> Result:
    """The same result, a warning instead of a failure where it did no harm."""
    return replace(result, status=Status.WARN) if harmless and result.status is Status.FAIL else result


def odd_ones(values: Mapping[str, str]) -> tuple[str, dict[str, list[str]]]:
    """The commonest value, and under each other value the names that have it."""
    common = Counter(values.values()).most_common(1)[0][0]
    others: dict[str, list[str]] = {}
    for name, value in values.items():
        if value != common:
            others.setdefault(value, []).append(name)
    return common, others


def listing(names: Sequence[str]) -> str:
    """A few names, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
