"""Do the user's own settings, or the limits of the session, explain why something failed?"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from envkit.knowledge.known import known
from envkit.verify.checks.nodes import warned
from envkit.verify.facts import RankFacts
from envkit.verify.outcome import Ranks, Result, SessionLimit, Setting, Trial, UnusablePlace
from envkit.verify.settings import commands, is_harmless, own_place
from envkit.verify.trials import AGAIN, INSIDE, MPI_ALONE, NAMED

SHOWN = 4
CASES = {
    AGAIN: "again",
    MPI_ALONE: "mpi-passes",
    INSIDE: "inside",
    "on one node": "one-node",
    "with TCP in place of the fabric": "tcp",
    "with Gloo in place of MPI": "gloo",
}


def settings(ranks: Ranks) -> list[Result]:
    """The settings without which the ranks pass, or else those that are in force."""
    for trial in ranks.expected.trials:
        if trial.is_least:
            return [proven(ranks, trial)]
    if ranks.expected.unknown and not any(trial.name == NAMED for trial in ranks.expected.trials):
        unknown = ranks.expected.unknown
        result = ranks.outcome("settings", "unknown", settings=listed(unknown), where=places_of(unknown))
        return [replace(result, commands=tuple(commands(unknown)))]
    in_force = [setting for setting in ranks.expected.settings if not is_harmless(setting) and not is_python(setting)]
    return [ranks.outcome("settings", "in-force", settings=listed(in_force))] if in_force else []


def is_python(setting: Setting) -> bool:
    """Whether it is a folder of PATH with a Python only, as of pyenv or conda: the environment's comes before it."""
    return setting.kind == "folder" and {"python", "python3"} >= set(setting.value.split(", "))


def proven(ranks: Ranks, trial: Trial) -> Result:
    """The result for a trial that passed without some settings."""
    named = listed(trial.without)
    case = "without" if len(trial.without) == 1 or trial.name == NAMED else "together"
    result = ranks.outcome("settings", case, settings=named, where=places_of(trial.without), verb=verb(ranks))
    return replace(result, commands=tuple(commands(trial.without)))


def places_of(settings: Sequence[Setting]) -> str:
    """Say which files have the settings, and who can take them out where the user cannot."""
    files = list(dict.fromkeys(setting.where for setting in settings if setting.kind in ("line", "machine")))
    is_ours = all(setting.kind != "machine" for setting in settings)
    who = "" if is_ours else ", and whoever may write to it can take it out for all"
    return f"; {', '.join(files)} has it{who}" if files else ""


def verb(ranks: Ranks) -> str:
    """Return the verb for what the ranks of a trial do and those before did not."""
    if not ranks.facts:
        return "start"
    return "become one world" if all(facts.size is None for facts in ranks.facts) else "pass"


def listed(settings: Sequence[Setting]) -> str:
    """Settings in words."""
    more = f" and {len(settings) - 2 * SHOWN} more" if len(settings) > 2 * SHOWN else ""
    return ", ".join(map(str, settings[: 2 * SHOWN])) + more


def trials(ranks: Ranks) -> list[Result]:
    """The trials that passed, though nothing of the user's settings was taken away."""
    tried = [trial for trial in ranks.expected.trials if not trial.without]
    passed = [trial for trial in tried if trial.passed]
    results = [ranks.outcome("trials", CASES[trial.name], how=trial.name, verb=verb(ranks)) for trial in passed]
    if any(trial.name == MPI_ALONE and not trial.passed and not trial.was_cut for trial in tried):
        results.append(ranks.outcome("trials", "mpi-fails"))
    return results


def limits(ranks: Ranks) -> list[Result]:
    """The limits that are low, of this session and of ranks that have lower ones."""
    lines = list(ranks.said())
    here = {limit.name: limit.value for limit in ranks.expected.limits}
    of_session = [low_limit(ranks, limit, lines) for limit in ranks.expected.limits]
    lower = {limit.name: (limit, facts) for facts in ranks.facts for limit in low(facts) if limit.name not in here}
    return of_session + [of_rank(ranks, limit, facts) for limit, facts in lower.values()]


def low(facts: RankFacts) -> Iterator[SessionLimit]:
    """The limits of a rank that are too low."""
    for name, words in known("settings")["limits"].items():
        value = facts.limits.get(name)
        if isinstance(value, int) and value < words["enough"] * words["unit"]:
            yield SessionLimit(name=name, value=value)


def of_rank(ranks: Ranks, limit: SessionLimit, facts: RankFacts) -> Result:
    """The result for a limit that a rank has, and not this session: another node's, or of what started it."""
    result = low_limit(ranks, limit, list(replace(ranks, facts=(facts,)).said()))
    return replace(result, message=f"{facts.label}: {result.message}", commands=())


def ended_job(ranks: Ranks) -> list[Result]:
    """Variables of a job that runs no more; launchers believe them, and start no rank."""
    job = ranks.expected.ended_job
    if job is None:
        return []
    words = " ".join(job.variables)
    result = ranks.outcome("ended-job", "set", scheduler=job.scheduler, job=job.job, words=words)
    return [warned(replace(result, commands=(f"unset {words}",)), harmless=bool(ranks.facts))]


def interposed(ranks: Ranks) -> list[Result]:
    """The preloaded libraries that stand before the MPI's own functions."""
    libraries = ranks.expected.interposed
    return [ranks.outcome("preloaded-mpi", "found", paths=", ".join(libraries))] if libraries and ranks.facts else []


def places(ranks: Ranks) -> list[Result]:
    """The folders from which nothing may be run, and those for temporary files that cannot be written to."""
    if ranks.expected.noexec:
        return [ranks.outcome("places", "noexec", path=ranks.expected.noexec[0])]
    folders = ranks.expected.places
    own = own_place(ranks.expected)
    return [of_own_place(ranks, folder) if folder is own else of_place(ranks, folder) for folder in folders]


def of_place(ranks: Ranks, folder: UnusablePlace) -> Result:
    """The result for a folder that everybody has."""
    case = "shared-memory" if folder.path == "/dev/shm" else "unwritable"  # noqa: S108
    return ranks.outcome("places", case, path=folder.path, error=folder.error)


def of_own_place(ranks: Ranks, folder: UnusablePlace) -> Result:
    """The result for the folder that TMPDIR names, where /tmp would do."""
    case = "missing" if folder.error == os.strerror(errno.ENOENT) else "of-user"
    result = ranks.outcome("places", case, path=folder.path, error=folder.error)
    return replace(result, commands=("unset TMPDIR",))


def hosts(ranks: Ranks) -> list[Result]:
    """The hosts that ssh does not reach."""
    if listed := next((host for host in ranks.expected.mute if host.where), None):
        command = f"export {listed.variable}=none"
        values = {"host": listed.path, "error": listed.error, "path": listed.where, "command": command}
        return [replace(ranks.outcome("hosts", "default-hostfile", **values), commands=(command,))]
    mute = [f"{host.path} ({host.error})" for host in ranks.expected.mute]
    return [ranks.outcome("hosts", "mute", hosts=", ".join(mute), host=ranks.expected.mute[0].path)] if mute else []


def low_limit(ranks: Ranks, limit: SessionLimit, said: Sequence[str]) -> Result:
    """Return the result for a limit that is low; it tells the line where a rank met that limit."""
    words = known("settings")["limits"][limit.name]
    value = f"{limit.value // words['unit']:,}" + {1048576: " MB", 1024: " KB"}.get(words["unit"], "")
    letter = words["option"].removeprefix("-")
    values = {"what": words["what"], "option": words["option"], "value": value, "letter": letter}
    met = next(matching_lines(words["said"], said), None)
    if met is None:
        return ranks.outcome("limits", "few" if limit.value < words["few"] * words["unit"] else "low", **values)
    return replace(ranks.outcome("limits", "met", said=met, **values), commands=(f"ulimit -S{letter} hard",))


def matching_lines(pattern: str, said: Sequence[str]) -> Iterator[str]:
    """Return the lines in which a pattern is found, each cut to what a message can hold."""
    for line in said:
        if re.search(pattern, line):
            yield line.strip()[:200]


OF_SETTINGS = (settings,)
EXPLAINING = (limits, ended_job, interposed, places, hosts, trials)
