"""A test in ranks of an environment: starting them, and what their outcomes come to."""

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from envkit.errors import EnvkitError, UsageProblem
from envkit.inside.probe.started import detect_unless_shell
from envkit.launch import image_launch, launcher
from envkit.launch.launcher import LaunchRequest
from envkit.report.words import plain
from envkit.system import files, process, record
from envkit.system.resources import data
from envkit.verify import session
from envkit.verify.target import Target

JOB = "job.json"
PATIENCE_S = 10.0  # for ranks to say where they stand when the time is over, and for the others where one has failed
LINE = 200  # characters of a summary
SAID = 4000  # characters of the launcher's output that are shown
OWN = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of one rank: passed, failed or skipped, in which step (setup, call, teardown, or before), and why."""

    rank: int
    host: str
    outcome: str
    when: str
    text: str
    ended: float
    sections: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankResults:
    """The outcomes that all ranks left, in their order; ``stacks`` is where those were that had not ended in time.

    ``stopped`` are those that a signal has ended (SIGTERM, as launchers send it where another rank has gone).
    """

    size: int
    environment: str
    launcher: str
    outcomes: tuple[Outcome, ...]
    stacks: Mapping[int, str]
    status: int
    is_late: bool
    limit_s: float
    said: str
    stopped: frozenset[int] = frozenset()


def require_none(wanted: int) -> None:
    """Require that this process, which is to start so many ranks, is none itself. Raises UsageProblem."""
    if (rank := detect_unless_shell(os.environ, wanted)) is not None:
        raise UsageProblem(
            what=f"This pytest is rank {rank.rank} of {rank.title}; tests marked horovod start ranks themselves.",
            fix="Start pytest once, outside of a launcher.",
        )


def run(target: Target, wanted: LaunchRequest, job: dict[str, Any]) -> RankResults:
    """Run a test in ranks to its end, or until its time is over. Nothing of it is left running. Raises EnvkitError."""
    inside, launch = image_launch.plan_launch(target.inside, target.mpi(os.environ), wanted)
    several = launcher.may_leave(launch, os.environ)
    meeting = session.of_starter(several, None)
    folder = meeting.shared
    try:
        files.write(folder / JOB, json.dumps(job).encode())
        program = data("inside/pytest_rank.py")
        seen = [program.parent, folder, *(Path(path) for path in (*job["folders"], job["borrowed"]))]
        argv = [target.python, str(program), str(folder / JOB)]
        patience = RankDeadline(folder, job["limit_s"], wanted.ranks)
        env = {name: value for name, value in os.environ.items() if name not in OWN}
        status = process.supervise(
            inside.command(argv, launch.argv, remote=launch.remote, visible=list(dict.fromkeys(seen))),
            env=inside.variables(launcher.variables(env)),
            log=folder / "log",
            until=patience.is_over,
        )
        return RankResults(
            size=wanted.ranks,
            environment=target.name,
            launcher=launch.launcher,
            outcomes=tuple(sorted(outcomes(folder), key=lambda outcome: outcome.rank)),
            stacks=stacks(folder),
            stopped=frozenset(stacks(folder, "stopped")),
            status=status,
            is_late=patience.is_late,
            limit_s=job["limit_s"],
            said=(folder / "log").read_text(errors="replace"),
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def outcomes(folder: Path) -> Iterator[Outcome]:
    """Yield what ranks have left so far. Raises EnvkitError for what is none of it."""
    for path in folder.glob("outcome-*.json"):
        try:
            yield record.read(path, Outcome)
        except (OSError, msgspec.DecodeError) as error:
            raise EnvkitError(what=f"{path.name}, which a rank has left, cannot be read.", why=str(error)) from error


def stacks(folder: Path, kind: str = "stack") -> dict[int, str]:
    """Return where each rank was when its time was over, or when it was ``stopped``; pytest's own part is left out."""
    texts = {}
    for path in folder.glob(f"{kind}-*"):
        lines = path.read_text(errors="replace").splitlines()
        own = next((number for number, line in enumerate(lines) if "/_pytest/" in line), len(lines))
        if own:
            texts[int(path.name.partition("-")[2])] = "\n".join(lines[:own])
    return texts


class RankDeadline:
    """How long ranks are waited for: their limit, and not much longer than the first of them that has failed."""

    def __init__(self, folder: Path, limit_s: float, size: int) -> None:
        self.folder, self.size = folder, size
        self.limit = time.monotonic() + limit_s
        self.failed = 0.0
        self.is_late = False

    def is_over(self) -> bool:
        """Say whether ranks that still run are to be ended."""
        now = time.monotonic()
        ended = list(outcomes(self.folder))
        if not self.failed and any(outcome.outcome == "failed" for outcome in ended):
            self.failed = now
        if now > self.limit:
            ranks = {outcome.rank for outcome in ended} | stacks(self.folder).keys()
            self.is_late = len(ranks) >= self.size or now > self.limit + PATIENCE_S
        return self.is_late or bool(self.failed and now - self.failed > PATIENCE_S)


def failure(results: RankResults) -> str:
    """Return what to show of a test that has not passed in every rank; nothing of one that has, or was left out."""
    failed = sorted(
        (outcome for outcome in results.outcomes if outcome.outcome == "failed"), key=lambda outcome: outcome.ended
    )
    present = {outcome.rank for outcome in results.outcomes}
    absent = [rank for rank in range(results.size) if rank not in present]
    kinds = {outcome.outcome for outcome in results.outcomes}
    if not failed and not absent and len(kinds) == 1:
        return ""
    lines = [
        f"{summary(results, failed, absent)} ({results.environment}, {results.size} ranks by {results.launcher})",
        "",
    ]
    for result in failed:
        lines += [f"rank {result.rank} on {result.host} failed ({result.when}):", "", plain(result.text), ""]
    for rank in sorted(absent, key=lambda number: number in results.stopped):
        lines += gone(results, rank, has_cause=bool(failed))
    for kind in sorted(kinds - {"failed"}):
        of_kind = [str(outcome.rank) for outcome in results.outcomes if outcome.outcome == kind]
        lines.append(f"{kind} in rank {', '.join(of_kind)}")
    if kinds >= {"passed", "skipped"} and not failed:
        lines.append("Skip a test in every rank or in none: what some leave out, others wait for.")
    if not failed and absent and results.said.strip():
        lines += ["", "The launcher and its ranks said:", plain(results.said[-SAID:].strip())]
    return "\n".join(lines)


def summary(results: RankResults, failed: list[Outcome], absent: list[int]) -> str:
    """Return the first failure in a line, which pytest shows in its summary."""
    if failed:
        lines = [line for line in plain(failed[0].text).splitlines() if line.strip()]
        errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
        return f"rank {failed[0].rank} failed: {(errors or lines[-1:] or [failed[0].when])[0].strip()[:LINE]}"
    if absent:
        first = next((rank for rank in absent if rank not in results.stopped), absent[0])
        return gone(results, first, has_cause=False)[0].removesuffix(":").partition(", and was")[0]
    return "passed in some ranks and skipped in others"


def gone(results: RankResults, rank: int, *, has_cause: bool) -> list[str]:
    """Say what became of a rank that left no outcome."""
    if rank in results.stacks:
        return [
            f"rank {rank} had not ended after {results.limit_s:g} s, and was here when it was stopped:",
            "",
            results.stacks[rank],
            "",
        ]
    if results.is_late:
        return [f"rank {rank} had not ended after {results.limit_s:g} s, and was stopped"]
    if has_cause or rank in results.stopped:
        return [f"rank {rank} was ended with it" if has_cause else f"rank {rank} was ended by SIGTERM"]
    how = f"{results.launcher} ended with status {results.status}"
    return [f"rank {rank} ended without an outcome, as by os._exit or a signal ({how})"]


def skipped(results: RankResults) -> str:
    """Return why every rank has left the test out; nothing where one has not."""
    reasons = [outcome.text for outcome in results.outcomes if outcome.outcome == "skipped"]
    return reasons[0] or "skipped" if len(reasons) == results.size else ""
