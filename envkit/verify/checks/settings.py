"""Where something failed: do the user's own settings, or the limits of the session, explain it?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from envkit.knowledge.known import known
from envkit.verify.checks.nodes import warned
from envkit.verify.facts import RankFacts
from envkit.verify.outcome import Ranks, Result, SessionLimit, Setting, Trial
from envkit.verify.settings import commands, is_harmless
from envkit.verify.trials import AGAIN, MPI_ALONE

SHOWN = 4
CASES = {
    AGAIN: "again",
    MPI_ALONE: "mpi-passes",
    "on one node": "one-node",
    "with TCP in place of the fabric": "tcp",
    "with Gloo in place of MPI": "gloo",
}


def settings(ranks: Ranks) -> list[Result]:
    """The settings without which the ranks pass, or else those that are in force."""
    for trial in ranks.expected.trials:
        if trial.is_least:
            return [_proven(ranks, trial)]
    found = [one for one in ranks.expected.settings if not is_harmless(one) and not is_python(one)]
    return [ranks.outcome("settings", "in-force", settings=_listed(found))] if found else []


def is_python(one: Setting) -> bool:
    """Whether it is a folder of PATH with a Python only, as of pyenv or conda: the environment's comes before it."""
    return one.kind == "folder" and {"python", "python3"} >= set(one.value.split(", "))


def _proven(ranks: Ranks, trial: Trial) -> Result:
    """The result for a trial that passed without some settings."""
    named = _listed(trial.without)
    files = list(dict.fromkeys(one.where for one in trial.without if one.kind in ("line", "machine")))
    where = f"; {', '.join(files)} has it" if files else ""
    case = "without" if len(trial.without) == 1 else "together"
    result = ranks.outcome("settings", case, settings=named, where=where, verb=_verb(ranks))
    return replace(result, commands=tuple(commands(trial.without)))


def _verb(ranks: Ranks) -> str:
    """What the ranks of a trial do that those before did not."""
    if not ranks.facts:
        return "start"
    return "become one world" if all(facts.size is None for facts in ranks.facts) else "pass"


def _listed(settings: Sequence[Setting]) -> str:
    """Settings in words."""
    more = f" and {len(settings) - 2 * SHOWN} more" if len(settings) > 2 * SHOWN else ""
    return ", ".join(map(str, settings[: 2 * SHOWN])) + more


def trials(ranks: Ranks) -> list[Result]:
    """What passed otherwise, though nothing of the user's settings was taken away."""
    tried = [trial for trial in ranks.expected.trials if not trial.without]
    passed = [trial for trial in tried if trial.passed]
    results = [ranks.outcome("trials", CASES[trial.name], how=trial.name, verb=_verb(ranks)) for trial in passed]
    if any(trial.name == MPI_ALONE and not trial.passed and not trial.was_cut for trial in tried):
        results.append(ranks.outcome("trials", "mpi-fails"))
    return results


def limits(ranks: Ranks) -> list[Result]:
    """The limits that are low, of this session and of ranks that have lower ones."""
    said = list(ranks.said())
    here = {limit.name: limit.value for limit in ranks.expected.limits}
    found = [_limit(ranks, limit, said) for limit in ranks.expected.limits]
    lower = {limit.name: (limit, facts) for facts in ranks.facts for limit in _low(facts) if limit.name not in here}
    return found + [_of_rank(ranks, limit, facts) for limit, facts in lower.values()]


def _low(facts: RankFacts) -> Iterator[SessionLimit]:
    """The limits of a rank that are too low."""
    for name, words in known("settings")["limits"].items():
        value = facts.limits.get(name)
        if isinstance(value, int) and value < words["enough"] * words["unit"]:
            yield SessionLimit(name=name, value=value)


def _of_rank(ranks: Ranks, limit: SessionLimit, facts: RankFacts) -> Result:
    """The result for a limit that a rank has, and not this session: another node's, or of what started it."""
    found = _limit(ranks, limit, list(replace(ranks, facts=(facts,)).said()))
    return replace(found, message=f"{facts.label}: {found.message}", commands=())


def ended_job(ranks: Ranks) -> list[Result]:
    """Variables of a job that runs no more; launchers believe them, and start no rank."""
    job = ranks.expected.ended_job
    if job is None:
        return []
    words = " ".join(job.variables)
    found = ranks.outcome("ended-job", "set", scheduler=job.scheduler, job=job.job, words=words)
    return [warned(replace(found, commands=(f"unset {words}",)), harmless=bool(ranks.facts))]


def interposed(ranks: Ranks) -> list[Result]:
    """The preloaded libraries that stand before the MPI's own functions."""
    found = ranks.expected.interposed
    return [ranks.outcome("preloaded-mpi", "found", paths=", ".join(found))] if found and ranks.facts else []


def places(ranks: Ranks) -> list[Result]:
    """The folders from which nothing may be run, and those for temporary files that cannot be written to."""
    if ranks.expected.noexec:
        return [ranks.outcome("places", "noexec", path=ranks.expected.noexec[0])]
    found = ranks.expected.places
    cases = ["shared-memory" if one.path == "/dev/shm" else "unwritable" for one in found]  # noqa: S108
    return [
        ranks.outcome("places", case, path=one.path, error=one.error) for case, one in zip(cases, found, strict=True)
    ]


def hosts(ranks: Ranks) -> list[Result]:
    """The hosts that ssh does not reach."""
    told = [f"{one.path} ({one.error})" for one in ranks.expected.mute]
    return [ranks.outcome("hosts", "mute", hosts=", ".join(told), host=ranks.expected.mute[0].path)] if told else []


def _limit(ranks: Ranks, limit: SessionLimit, said: Sequence[str]) -> Result:
    words = known("settings")["limits"][limit.name]
    value = f"{limit.value // words['unit']:,}" + {1048576: " MB", 1024: " KB"}.get(words["unit"], "")
    letter = words["option"].removeprefix("-")
    values = {"what": words["what"], "option": words["option"], "value": value, "letter": letter}
    met = next(_met(words["said"], said), None)
    if met is None:
        return ranks.outcome("limits", "few" if limit.value < words["few"] * words["unit"] else "low", **values)
    return replace(ranks.outcome("limits", "met", said=met, **values), commands=(f"ulimit -S{letter} hard",))


def _met(pattern: str, said: Sequence[str]) -> Iterator[str]:
    for line in said:
        if re.search(pattern, line):
            yield line.strip()[:200]


OF_SETTINGS = (settings,)
EXPLAINING = (limits, ended_job, interposed, places, hosts, trials)
