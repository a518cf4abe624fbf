"""Verifying from outside: start the probe inside an environment, once per rank, and judge what it found."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.inside.probe import node
from envkit.inside.probe.started import leftovers
from envkit.knowledge.known import known
from envkit.launch import launcher, mpi_model
from envkit.launch.launcher import Launch, Wanted
from envkit.system import process
from envkit.system.resources import data
from envkit.verify import session
from envkit.verify.options import Options
from envkit.verify.session import Session
from envkit.verify.target import Target

if TYPE_CHECKING:
    from envkit.verify.facts import Gathered
    from envkit.verify.report import Report

LIMIT_S = 120.0
SLOW_STEPS = {"import": 300.0, "load": 180.0}
FAREWELL_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One start of the ranks, and what they left."""

    launch: Launch
    status: int
    said: str
    gathered: Gathered
    shared: Path


def verify(
    target: Target,
    wanted: Wanted,
    options: Options | None = None,
    *,
    env: Mapping[str, str] = os.environ,
    watch: Callable[[Path], None] = lambda _shared: None,
) -> Report:
    """Start the ranks of the probe inside an environment and return the verdict on what they state.

    Raises the EnvkitErrors of launcher.choose, session.of_starter and baseline.read. ``watch`` is called ten times a
    second with the folder where the ranks meet.
    """
    began = time.monotonic()
    options = options or Options()
    if options.baseline:
        read_baseline(options.baseline)
    frameworks = (target.framework, *target.others)
    targets = [target, *(replace(target, framework=name) for name in target.others)]
    runs = [one_run(each, wanted, options, env, watch) for each in targets]
    others = [number for number in options.scale if number != wanted.ranks]
    smaller = [one_run(target, replace(wanted, ranks=n, nodes=None), options, env, watch) for n in others]
    from envkit.verify.judge import judged
    from envkit.verify.outcome import Expected
    from envkit.verify.report import Started

    first = runs[0]
    expected = Expected(
        size=wanted.ranks,
        nodes=wanted.nodes or len(wanted.hosts) or None,
        frameworks=frameworks,
        required=target.requires | frozenset(options.require),
        built=target.built,
        drift=target.drift,
        measures=options.measures,
        launcher_status=next((run.status for run in runs if run.status), 0),
        launcher_said="".join(run.said for run in runs),
        leftover=tuple(leftovers(env)),
        shared=str(first.shared),
        horovod=str(target.horovod) if target.receipt is not None else "",
    )
    return judged(
        target.name,
        [facts for run in runs for facts in run.gathered.facts],
        expected,
        options,
        [run.gathered.facts for run in (first, *smaller)],
        Started(
            launcher=first.launch.launcher,
            why=first.launch.why,
            command=first.launch.argv,
            nodes=tuple(first.gathered.complete),
        ),
        began,
    )


def read_baseline(path: Path) -> None:
    """Refuse a baseline that cannot be used, before anything is started."""
    from envkit.verify import baseline

    baseline.read(path)


def one_run(
    target: Target, wanted: Wanted, options: Options, env: Mapping[str, str], watch: Callable[[Path], None]
) -> Run:
    """Start so many ranks, and gather what they leave."""
    inside, launch = mpi_model.plan_launch(target.inside, target.mpi(env), wanted, env, options.mpi_model)
    target = replace(target, inside=inside)
    several = bool(wanted.hosts) or (wanted.nodes or 1) > 1 or launch.launcher == "srun"
    meeting = session.of_starter(several, options.shared)
    try:
        status, said = start(target, launch, meeting, options, env, watch)
        from envkit.verify.facts import gather

        gathered, shared = gather(meeting.shared), meeting.shared.parent
        return Run(launch=launch, status=status, said=said, gathered=gathered, shared=shared)
    finally:
        shutil.rmtree(meeting.shared, ignore_errors=True)


def start(
    target: Target,
    launch: Launch,
    meeting: Session,
    options: Options,
    env: Mapping[str, str],
    watch: Callable[[Path], None],
) -> tuple[int, str]:
    """Run the ranks to their end; the launcher's status and what it said."""
    probe = probe_command(target, meeting, options)
    inside = target.inside
    argv = inside.command(probe, launch.argv, remote=launch.remote, visible=visible(meeting))
    with tempfile.TemporaryDirectory(prefix="envkit-verify-") as folder:
        log = Path(folder) / "launcher.log"
        patience = Patience(meeting.shared, options.limit_s or LIMIT_S)

        def look() -> None:
            importlib.import_module("envkit.verify.judge").prepare()  # while the ranks start, when there is time for it
            _ = target.built, target.drift
            patience.look()
            watch(meeting.shared)

        try:
            status = process.supervise(
                argv, env=inside.variables(launcher.variables(env)), log=log, watch=look, until=patience.is_over
            )
        finally:
            node.salvage(meeting.name, str(meeting.shared))
        return status, log.read_text(errors="replace")


class Patience:
    """How long to wait for a launcher: for a first sign of its ranks, and after the last sign of any."""

    def __init__(self, shared: Path, limit_s: float) -> None:
        self.shared = shared
        self.limit_s = limit_s + FAREWELL_S
        self.sign = time.monotonic()
        self.seen = 0.0

    def look(self) -> None:
        """Look for a sign of life: a node's file that was written anew."""
        newest = max((path.stat().st_mtime for path in self.shared.glob("*.json")), default=0.0)
        if newest > self.seen:
            self.seen, self.sign = newest, time.monotonic()

    def is_over(self) -> bool:
        """Whether nothing more is to be expected."""
        return time.monotonic() - self.sign > self.limit_s


def probe_command(target: Target, meeting: Session, options: Options) -> list[str]:
    """The argv of one rank of the probe."""
    argv = [target.python, str(data("inside/probe")), "--framework", target.framework]
    argv += ["--shared", str(meeting.shared), "--session", meeting.name]
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
    each = {"*": LIMIT_S, **SLOW_STEPS} if limit_s is None else {"*": limit_s}
    return [word for step, seconds in each.items() for word in ("--limit", f"{step}={seconds:g}")]
