"""Verifying from outside: start the probe inside an environment, once per rank, and judge what it found."""

from __future__ import annotations

import functools
import importlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.errors import EnvkitError
from envkit.inside.probe import node
from envkit.inside.probe.started import leftovers, told_rank
from envkit.knowledge.known import known
from envkit.launch import hosts, image_launch, launcher, leftover
from envkit.launch.launcher import Launch, LaunchRequest
from envkit.system import process, temporary
from envkit.system.resources import data
from envkit.system.stopped import Stopped, Watch, command_line, open_files, variables
from envkit.verify import session
from envkit.verify.options import Options
from envkit.verify.session import Session
from envkit.verify.target import Target

if TYPE_CHECKING:
    from envkit.verify.facts import Gathered, RankFacts
    from envkit.verify.outcome import Expected
    from envkit.verify.report import Report
    from envkit.verify.trials import Attempt

LIMIT_S = 120.0
SLOW_STEPS = {"import": 300.0, "load": 180.0, "extras": 300.0}
FAREWELL_S = 60.0
ENDING_S = 60.0  # for a launcher to end after all of its ranks
HOPELESS_S = 5.0  # for the ranks that were started all the same to say what they meet
LIMITED_S = 60.0  # for ranks that cannot work under the limits of this session
LIMITED_STEP_S = 20.0  # for each step of theirs that is not slow
MODULES_TOOL = re.compile(r"/(lmod|modulecmd|modulecmd\.tcl)(\0|$)")
LOG_READ = 1 << 16  # bytes of the launcher's log that are searched
LOG_KEPT = 8 << 20  # bytes at the beginning of it, and as many at its end, that are kept


@dataclass(frozen=True, kw_only=True)
class Run:
    """One start of the ranks, and what they left; ``again``: a rank was started that had ended before."""

    launch: Launch
    status: int
    said: str
    gathered: Gathered
    shared: Path
    stopped: tuple[Stopped, ...]
    seconds: float
    again: bool


def verify(
    target: Target,
    wanted: LaunchRequest,
    options: Options | None = None,
    *,
    env: Mapping[str, str] = os.environ,
    watch: Callable[[Path], None] = lambda _shared: None,
    tell: Callable[[str], None] = lambda _text: None,
    tests: Callable[[str, str], None] = lambda _title, _far: None,
) -> Report:
    """Start the ranks of the probe inside an environment and return the verdict on what they state.

    Where that is FAIL, what explains it is looked for, and tried.
    Raises the EnvkitErrors of launcher.select, session.of_starter, session.has_gone and baseline.read. ``watch`` is
    called ten times a second with the folder where the ranks meet, ``tell`` with what has failed before other starts
    are tried, ``tests`` with which of Horovod's own tests run, where they are asked for, and how far they are.
    """
    began = time.monotonic()
    options = options or Options()
    if options.baseline:
        read_baseline(options.baseline)
    targets = [target, *(replace(target, framework=name) for name in target.others)]
    runs = [one_run(each, wanted, options, env, watch) for each in targets]
    others = [number for number in options.scale if number != wanted.ranks]
    smaller = [one_run(target, replace(wanted, ranks=n, nodes=None), options, env, watch) for n in others]
    from envkit.verify.judge import judged
    from envkit.verify.report import StartedBy

    first = runs[0]
    launch = first.launch
    started = StartedBy(
        launcher=launch.launcher, why=launch.why, command=launch.argv, nodes=tuple(first.gathered.complete)
    )
    facts = [facts for run in runs for facts in run.gathered.facts]
    scaled = [run.gathered.facts for run in (first, *smaller)]
    expected = expected_of(target, wanted, options, env, runs)
    report = judged(target.name, facts, expected, options, scaled, started, began)
    if report.verdict == "pass":
        if not options.upstream_tests:
            return report
        from envkit.verify import upstream_run

        done = upstream_run.run(target, wanted, options, env, tests)
        return judged(target.name, facts, expected, options, scaled, started, began, done)
    from envkit.verify.explain import explained

    def passes(attempt: Attempt, seconds: float) -> bool:
        return is_passing(target, attempt, replace(options, limit_s=seconds), env, further_than(report))

    expected = explained(expected, report, target, wanted, options, env, passes, tell, sum(run.seconds for run in runs))
    return judged(target.name, facts, expected, options, scaled, started, began)


def expected_of(
    target: Target, wanted: LaunchRequest, options: Options, env: Mapping[str, str], runs: Sequence[Run]
) -> Expected:
    """Return what is expected of ranks, and how their launchers ended."""
    from envkit.verify.outcome import Expected

    return Expected(
        size=wanted.ranks,
        nodes=wanted.on,
        granted=hosts.nodes(env),
        outside=hosts.outside(wanted.hosts, env) if not any(run.gathered.facts for run in runs) else (),
        frameworks=(target.framework, *target.others),
        required=target.requires | frozenset(options.require),
        stacks=target.stacks_with(options.require),
        built=target.built,
        drift=target.drift,
        broken=target.broken,
        measures=options.measures,
        launcher_status=next((run.status for run in runs if run.status), 0),
        launcher_said="".join(run.said for run in runs),
        launcher=runs[0].launch.launcher,
        stopped=tuple(stopped for run in runs for stopped in run.stopped),
        again=any(run.again for run in runs),
        leftover=tuple(leftovers(env)),
        shared=str(runs[0].shared),
        horovod=str(target.horovod) if target.receipt is not None else "",
        environment=target.words,
        wheel_mpi=target.wheel_mpi,
        origin=target.origin,
        shadows=target.shadows,
        venv=target.venv,
        in_venv=target.in_venv,
        fixed=target.fixed,
        added=target.added,
        replaced=target.replaced,
        software=target.software,
        cores=0 if runs[0].launch.spans else len(os.sched_getaffinity(0)),
    )


def is_passing(
    target: Target,
    attempt: Attempt,
    options: Options,
    env: Mapping[str, str],
    enough: Callable[[RankFacts, int], bool] | None = None,
) -> bool:
    """Say whether ranks pass that are started in another way, for ``options.limit_s`` in all at most.

    ``enough`` says of a rank, of so many, that it has come far enough where no more is asked for.
    """
    from envkit.verify import settings
    from envkit.verify.checks import check
    from envkit.verify.outcome import Status, verdict

    plain = replace(options, bench=(), scale=(), baseline=None, mpi_model=attempt.model or options.mpi_model)
    try:
        with temporary.folder("home") as home, settings.raised(attempt.without):
            changed = {**settings.without(env, attempt.without, home), **attempt.variables}
            if attempt.mpi:
                return mpi_alone(target, attempt, plain, changed)
            run = one_run(target, attempt.wanted, plain, changed, lambda _shared: None, options.limit_s, enough)
    except (EnvkitError, OSError):
        return False
    if enough:
        return are_enough(run.gathered.facts, attempt.wanted.ranks, enough)
    expected = expected_of(replace(target, others=()), attempt.wanted, plain, changed, [run])
    return verdict(check(run.gathered.facts, expected)) is Status.PASS


def mpi_alone(target: Target, attempt: Attempt, options: Options, env: Mapping[str, str]) -> bool:
    """Say whether ranks of a plain MPI program become one world, within ``options.limit_s``."""
    from envkit.verify.trials import ISOLATED

    inside, launch = image_launch.plan_launch(target.inside, target.mpi(env), attempt.wanted, env, options.mpi_model)
    program = data("inside/mpi_alone.py")
    argv = [target.python, *ISOLATED, str(program), attempt.mpi, str(attempt.wanted.ranks)]
    until, below = time.monotonic() + (options.limit_s or LIMIT_S), Watch(os.getpid())
    with temporary.folder("mpi") as folder, leftover.removed(env) as left:

        def look() -> None:
            below.look()
            left.look(below.pids)

        status = process.supervise(
            inside.command(argv, launch.argv, remote=launch.remote, visible=[program.parent]),
            env=inside.variables(launcher.variables(env)),
            log=folder / "log",
            watch=look,
            until=lambda: time.monotonic() > until,
        )
    return status == 0


def further_than(report: Report) -> Callable[[RankFacts, int], bool] | None:
    """Return what says whether a rank has come further than those of a report; None: all must come to the end.

    Further is: to a record where there was none, to one world where no rank came to any.
    """
    if not report.ranks:
        return lambda _facts, _size: True
    if all(rank.size is None for rank in report.ranks):
        return lambda facts, size: facts.size == size
    return None


def are_enough(facts: Sequence[RankFacts], ranks: int, enough: Callable[[RankFacts, int], bool]) -> bool:
    """Say whether so many ranks have come far enough."""
    return sum(enough(rank, ranks) for rank in facts) >= ranks


def read_baseline(path: Path) -> None:
    """Refuse a baseline that cannot be used, before anything is started."""
    from envkit.verify import baseline

    baseline.read(path)


def one_run(
    target: Target,
    wanted: LaunchRequest,
    options: Options,
    env: Mapping[str, str],
    watch: Callable[[Path], None],
    most_s: float | None = None,
    enough: Callable[[RankFacts, int], bool] | None = None,
) -> Run:
    """Start so many ranks, for so long at most, or until all have come far enough; gather what they leave."""
    inside, launch = image_launch.plan_launch(target.inside, target.mpi(env), wanted, env, options.mpi_model)
    target = replace(target, inside=inside)
    several = launcher.may_leave(launch, env)
    meeting, began = session.of_starter(several, options.shared), time.monotonic()
    try:
        status, output, stopped = start(target, launch, meeting, options, env, watch, most_s, wanted.ranks, enough)
        from envkit.verify.facts import gather

        gathered, shared = gather(meeting.shared), meeting.shared.parent
        return Run(
            launch=launch,
            status=status,
            said=output,
            gathered=gathered,
            shared=shared,
            stopped=stopped,
            seconds=time.monotonic() - began,
            again=(meeting.shared / node.AGAIN).exists(),
        )
    except FileNotFoundError:
        if meeting.shared.is_dir():
            raise
        raise session.has_gone(meeting) from None
    finally:
        shutil.rmtree(meeting.shared, ignore_errors=True)


def start(
    target: Target,
    launch: Launch,
    meeting: Session,
    options: Options,
    env: Mapping[str, str],
    watch: Callable[[Path], None],
    most_s: float | None,
    ranks: int,
    enough: Callable[[RankFacts, int], bool] | None,
) -> tuple[int, str, tuple[Stopped, ...]]:
    """Run the ranks to their end; the launcher's status, what it said, and which processes never went on."""
    probe = probe_command(target, meeting, options)
    inside = target.inside
    argv = inside.command(probe, launch.argv, remote=launch.remote, visible=visible(meeting))
    log = meeting.shared / "launcher.log"
    patience = Patience(meeting.shared, log, options.limit_s or LIMIT_S, most_s, ranks, enough)
    with leftover.removed(env) as left:
        began = time.monotonic()

        def look() -> None:
            patience.look()
            left.look(patience.stopped.pids)
            if time.monotonic() - began > process.BRISK_FOR_S:  # while the ranks start, when there is time for it
                importlib.import_module("envkit.verify.judge").prepare()
                _ = target.built, target.drift, target.broken
            watch(meeting.shared)

        try:
            status = process.supervise(
                argv,
                env=inside.variables({**launcher.variables(env), **node.started_here()}),
                log=log,
                watch=look,
                until=patience.is_over,
            )
        finally:
            node.salvage(meeting.name, str(meeting.shared), env.get("TMPDIR"))
    return status, ends(log), patience.found


def rank_of(pid: int) -> int | None:
    """Return which rank a process is, by the variables of its launcher; None if it does not run the probe."""
    return told_rank(variables(pid)) if command_line(pid)[1:2] == [str(data("inside/probe"))] else None


def ends(log: Path) -> str:
    """Return what a log says; of a very long one its beginning and its end."""
    with log.open("rb") as stream:
        first = stream.read(LOG_KEPT)
        stream.seek(max(stream.tell(), os.fstat(stream.fileno()).st_size - LOG_KEPT))
        return (first + stream.read(LOG_KEPT)).decode(errors="replace")


class Patience:
    """How long to wait for a launcher: for a first sign of its ranks, after the last sign of any, and in all.

    One that has said that a rank will never start is waited for until the others have been silent for HOPELESS_S; one
    of which a process was stopped and does not go on is not waited for, nor one whose ranks have come far ``enough``.
    One whose ranks have all ended is waited for ENDING_S at most.
    """

    def __init__(
        self,
        shared: Path,
        log: Path,
        limit_s: float,
        most_s: float | None = None,
        ranks: int = 0,
        enough: Callable[[RankFacts, int], bool] | None = None,
    ) -> None:
        self.shared = shared
        self.log = log
        self.limit_s = limit_s
        self.sign = self.began = time.monotonic()
        self.most_s = most_s
        self.ranks = ranks
        self.enough = enough
        self.has_enough = False
        self.seen = self.judged = 0.0
        self.have_all_ended = False
        self.read = 0
        self.hopeless_since: float | None = None
        self.stopped = Watch(os.getpid(), node.name_of_node())
        self.found: tuple[Stopped, ...] = ()

    def look(self) -> None:
        """Look for a sign of life, a node's file that was written anew, and for what the launcher has said."""
        self.stopped.look()
        if self.stopped.found and not self.found:  # while they are there
            self.found = tuple(replace(process, rank=rank_of(process.pid)) for process in self.stopped.found)
        newest = max((path.stat().st_mtime for path in self.shared.glob("*.json")), default=0.0)
        if newest > self.seen:
            self.seen, self.sign = newest, time.monotonic()
            if self.enough:
                from envkit.verify.facts import gather

                self.has_enough = are_enough(gather(self.shared).facts, self.ranks, self.enough)
        if self.hopeless_since is None and self.log.exists() and self.log.stat().st_size not in (self.read, 0):
            with self.log.open(errors="replace") as stream:
                text = stream.read(LOG_READ)
            self.read = self.log.stat().st_size
            if re.search(known("launch")["hopeless"], text, re.MULTILINE):
                self.hopeless_since = time.monotonic()

    @functools.cached_property
    def is_limited(self) -> bool:
        """Whether the limits of this session are too low for any rank: what meets one may hang."""
        from envkit.verify import settings

        return settings.is_hopeless()

    def is_outlived(self) -> bool:
        """Whether the launcher goes on though every rank has ended, and that has been so for long."""
        if not self.seen or time.monotonic() - self.sign <= min(self.limit_s, ENDING_S):
            return False
        if self.judged != self.seen:
            from envkit.verify.facts import gather

            facts = gather(self.shared).facts
            self.judged, self.have_all_ended = self.seen, len(facts) >= self.ranks and all(rank.ended for rank in facts)
        return self.have_all_ended

    def is_over(self) -> bool:
        """Whether nothing more is to be expected."""
        now = time.monotonic()
        if self.stopped.found or self.has_enough or self.is_outlived():
            return True
        if self.hopeless_since is not None and now - max(self.sign, self.hopeless_since) > HOPELESS_S:
            return True
        if now - self.sign > LIMITED_S and self.is_limited:
            return True
        limit_s = self.limit_s + (FAREWELL_S if self.seen else 0)
        if now - self.sign <= limit_s and (self.most_s is None or now - self.began <= self.most_s):
            return False
        if not self.seen:
            self.say_what_entering_waits_for()
        return True

    def say_what_entering_waits_for(self) -> None:
        """Say in the launcher's log that the modules tool has not come back, if it still runs, and what it reads."""
        for pid in self.stopped.pids:
            if MODULES_TOOL.search("\0".join(command_line(pid)[:2])):
                reads = open_files(pid)
                own = [name for name in os.environ.get("MODULEPATH", "").split(":") if name.startswith("/")]
                named = [name for name in own if any(path.is_relative_to(name) for path in reads)]
                with self.log.open("a") as stream:
                    stream.write(f"\nenvkit: the modules tool has not come back from {(*named, 'MODULEPATH')[0]}\n")
                return


def probe_command(target: Target, meeting: Session, options: Options) -> list[str]:
    """The argv of one rank of the probe."""
    argv = [target.python, str(data("inside/probe")), "--framework", target.framework]
    argv += ["--shared", str(meeting.shared), "--session", meeting.name]
    argv += [word for name, module in target.added for word in ("--extra", f"{name}={module}")]
    argv += ["--bench", ",".join(map(str, options.bench))] if options.bench else []
    argv += ["--throughput", str(known("speed")["scaling"]["steps"])] if options.scale else []
    argv += ["--ddp"] if options.scale and options.ddp else []
    return [*argv, *limits(options.limit_s)]


def visible(meeting: Session) -> list[Path]:
    """The folders of the host that a rank of the probe must see."""
    own = [Path(word) for word in (os.environ.get("TMPDIR"),) if word and Path(word).is_dir()]
    return [data("inside/probe"), meeting.shared, *own]


def limits(limit_s: float | None) -> Sequence[str]:
    """The probe's arguments that say how long each step may take; one limit for all if it is given."""
    from envkit.verify import settings

    usual_s = LIMITED_STEP_S if settings.is_hopeless() else LIMIT_S
    each = {"*": usual_s, **SLOW_STEPS} if limit_s is None else {"*": limit_s}
    return [word for step, seconds in each.items() for word in ("--limit", f"{step}={seconds:g}")]
