"""The answer of ``envkit compat``: what goes together, and what of that is best on this machine."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from envkit.compat import complete
from envkit.compat import wanted as words
from envkit.compat.complete import Complete
from envkit.compat.judge import Judgement
from envkit.compat.wanted import Query
from envkit.doctor import installed_versions
from envkit.machine import host
from envkit.planning import compatibility


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The question, the judgement of it, and the best complete combination here."""

    asked: Query
    judgement: Judgement
    best: Complete | None


def answer(versions: Iterable[str], file: Path | None = None, *, here: bool = False) -> Answer:
    """Judge versions, with those that a file tells, and those of what is installed and loaded ``here``.

    Raises UsageProblem.
    """
    query = words.parse(
        [*(words.of_file(file) if file else ()), *(installed_versions.words(os.environ) if here else ()), *versions]
    )
    judgement = words.judge_asked(query)
    wanted = {name: judgement.parts[name] for name in (*query.parts, *query.ranges)}
    best = complete.best(wanted, compatibility.here(host.detect()), query.ranges)
    return Answer(asked=query, judgement=judgement, best=best)
