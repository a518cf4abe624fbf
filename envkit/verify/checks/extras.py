"""Can every rank use what was added to the stack, and is the rest of it as it was?"""

from __future__ import annotations

from pathlib import Path

from envkit.verify.checks.nodes import listing
from envkit.verify.facts import Imported, RankFacts
from envkit.verify.outcome import Ranks, Result


def extras(ranks: Ranks) -> list[Result]:
    """The modules of it that ranks cannot import, import from elsewhere, or have replaced by it."""
    expected = ranks.expected
    if not expected.software:
        return []
    results = []
    if expected.replaced:
        results.append(ranks.outcome("extras", "replaces", what=listing(expected.replaced)))
    if facts := ranks.lacking("extras"):
        return results or [ranks.not_measured("extras", facts)]
    for name, module in expected.added:
        if (wrong := of_module(ranks, name, module)) is not None:
            results.append(wrong)
    names = ", ".join(expected.software)
    return results or [ranks.outcome("extras", "pass", names=names)]


def of_module(ranks: Ranks, name: str, module: str) -> Result | None:
    """The result for a module of an extra in the first rank where something is wrong with it."""
    for facts in ranks.facts:
        answer = told(facts, module)
        values = {"extra": name, "module": module, "rank": facts.label}
        if answer is None or answer.error:
            why = answer.error if answer else (facts.extras or {}).get("error", "nothing was told of it")
            return ranks.outcome("extras", "import", **values, error=why)
        if is_elsewhere(ranks, name, answer.path):
            return ranks.outcome("extras", "elsewhere", **values, path=answer.path)
        if answer.rank is not None and (answer.rank, answer.size) != (facts.rank, facts.size):
            own, horovod = f"{answer.rank} of {answer.size}", f"{facts.rank} of {facts.size}"
            return ranks.outcome("extras", "world", **values, own=own, horovod=horovod, library=answer.library)
    return None


def told(facts: RankFacts, module: str) -> Imported | None:
    """The answer of a rank on a module."""
    answer = (facts.extras or {}).get(module)
    return answer if isinstance(answer, Imported) else None


def is_elsewhere(ranks: Ranks, name: str, path: str) -> bool:
    """Whether a module lies neither in a module of the environment nor in the virtual environment that was named.

    What a stack or another extra has, too, is the same package.
    """
    software = Path(ranks.expected.software[name]).parents[1]
    places = (software, ranks.expected.venv)
    return bool(path) and not any(place and Path(path).is_relative_to(place) for place in places)


CHECKS = (extras,)
