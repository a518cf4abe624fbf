"""Remedies as commands for the one who reads them: the name of the environment, and the words of the scheduler."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from envkit.knowledge.known import known
from envkit.system import process

NAMED = re.compile(r"\b(envkit (?:run|shell|verify|repair|report|check-build|export|kernel|venv)) NAME\b")
ASKED = ("ask_time", "ask_gpus", "ask_memory", "job_states")


@dataclass(frozen=True, kw_only=True)
class Reader:
    """The reader of a remedy, as far as known; without a scheduler's name all are told, without a name stands NAME."""

    environment: str = ""
    scheduler: str = ""

    @property
    def words(self) -> Mapping[str, str]:
        """The words that take the place of {ask_time}, {ask_gpus}, {ask_memory} and {job_states} in a remedy."""
        known_ones = known("schedulers")
        names = [self.scheduler] if self.scheduler in known_ones else [*known_ones]
        return {word: ", ".join(known_ones[name][word] for name in names) for word in ASKED}

    def told(self, text: str) -> str:
        """Return a remedy with the name of the environment in its commands."""
        name = shlex.quote(self.environment)
        return NAMED.sub(lambda match: f"{match[1]} {name}", text) if self.environment else text


def scheduler(env: Mapping[str, str]) -> str:
    """Return the scheduler of the job that this is, else the one whose program is on PATH; "" where that is not one."""
    schedulers = known("schedulers")
    jobs = [name for name, entry in schedulers.items() if env.get(entry["job"])]
    candidates = jobs or [
        name for name, entry in schedulers.items() if process.which(entry["submit"], path=env.get("PATH", ""))
    ]
    return candidates[0] if len(candidates) == 1 else ""
