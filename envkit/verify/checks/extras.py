"""Can every rank use what was added to the stack, and is the rest of it as it was?"""

from __future__ import annotations

from pathlib import Path

from envkit.verify.checks.nodes import listing
from envkit.verify.facts import Imported, RankFacts
from envkit.verify.outcome import Ranks, Result


def extras(ranks: Ranks) -> list[Result]:
    """What ranks cannot import of it, import from elsewhere, or have replaced by it."""
    expected = ranks.expected
    if not expected.software:
        return []
    found = []
    if expected.replaced:
        found.append(ranks.outcome("extras", "replaces", what=listing(expected.replaced)))
    if facts := ranks.lacking("extras"):
        return found or [ranks.not_measured("extras", facts)]
    for name, module in expected.added:
        if (wrong := of_module(ranks, name, module)) is not None:
            found.append(wrong)
    names = ", ".join(expected.software)
    return found or [ranks.outcome("extras", "pass", names=names)]


def of_module(ranks: Ranks, name: str, module: str) -> Result | None:
    """What is wrong with a module of an extra in the first rank where something is."""
    for facts in ranks.facts:
        there = told(facts, module)
        values = {"extra": name, "module": module, "rank": facts.label}
        if there is None or there.error:
            why = there.error if there else (facts.extras or {}).get("error", "nothing was told of it")
            return ranks.outcome("extras", "import", **values, error=why)
        if is_elsewhere(ranks, name, there.path):
            return ranks.outcome("extras", "elsewhere", **values, path=there.path)
        if there.rank is not None and (there.rank, there.size) != (facts.rank, facts.size):
            own, horovod = f"{there.rank} of {there.size}", f"{facts.rank} of {facts.size}"
            return ranks.outcome("extras", "world", **values, own=own, horovod=horovod, library=there.library)
    return None


def told(facts: RankFacts, module: str) -> Imported | None:
    """What a rank says of a module."""
    found = (facts.extras or {}).get(module)
    return found if isinstance(found, Imported) else None


def is_elsewhere(ranks: Ranks, name: str, path: str) -> bool:
    """Whether a module lies neither in a module of the environment nor in the virtual environment that was named.

    What a stack or another extra has, too, is the same package.
    """
    software = Path(ranks.expected.software[name]).parents[1]
    places = (software, ranks.expected.venv)
    return bool(path) and not any(place and Path(path).is_relative_to(place) for place in places)


CHECKS = (extras,)
