"""Verifying as one of the ranks that somebody's launcher started: one report, and one status for all of them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from envkit.diagnose import judge as diagnose
from envkit.errors import EnvkitError, HostProblem, Interrupted, ModuleNotLoaded
from envkit.inside.probe.node import (
    ALARM,
    PAUSED,
    NodeView,
    file_name,
    local_folder,
    name_of_node,
    tell_end,
    touch,
)
from envkit.inside.probe.process import memory_kills
from envkit.inside.probe.started import Started, is_unseen, leftovers, variables_of
from envkit.launch import hosts, image_launch
from envkit.system import files, process, record
from envkit.verify import judge, presence, session, settings
from envkit.verify.facts import Gathered, gather
from envkit.verify.launch import FAREWELL_S, LIMIT_S, probe_command, read_baseline, visible
from envkit.verify.options import Options
from envkit.verify.outcome import Expected
from envkit.verify.report import Report
from envkit.verify.report import StartedBy as StartedRow
from envkit.verify.session import Session
from envkit.verify.target import Target

PATIENCE_S = 20.0
OUTSIDE = 1 << 20  # bytes of what was said to a rank
STOPPED_S = 8.0  # as long as what a rank has started is given to go on
FRESH_S = 15.0
BEAT_S = 2.0
PARTING_S = 5.0
CLOCKS_S = 0.5
HASTE_S = 0.4
HURRIED_S = 0.25  # of that, for the probe to say how far it was
FAILED = (1, 2, 126, 127)  # how a Python ends that cannot start the probe
REPORTER = "reporter"  # the file of the rank that reports
READY = (0, 1)  # which ranks of a node are ready to report in haste: the rules about failures take long to read
LONGEST_S = 0.9  # until Open MPI ends for good what it has told to stop
HELD = "held"
OVER = "over"  # on a node: the verdict has been told, though the folder where the ranks met has gone
UNSEEN_S = 30.0  # for hvd.init(), which waits long for a launcher that has gone


@dataclass(frozen=True, kw_only=True)
class Attendance:
    """This rank's part in a verification. ``size`` is how many ranks there should be, ``local`` is this node's folder.

    ``unseen`` are the variables that name it, where nothing is to be seen of the launcher that they tell of.
    """

    target: Target
    started: Started
    size: int
    options: Options
    meeting: Session
    local: Path
    unseen: tuple[str, ...] = ()
    began: float = field(default_factory=time.time)
    began_monotonic: float = field(default_factory=time.monotonic)

    @property
    def is_first(self) -> bool:
        """Whether this rank makes the report, if nothing happens to it."""
        return self.started.rank == 0


def verify_as_rank(
    target: Target,
    started: Started,
    size: int,
    options: Options,
    show: Callable[[Report], int],
    env: Mapping[str, str] = os.environ,
) -> int:
    """Run this rank of the probe; the first rank has ``show`` print the report and say the status for all.

    Returns that status in every rank. Raises the EnvkitErrors of baseline.read and
    session.of_ranks, and Interrupted.
    """
    if options.baseline:
        read_baseline(options.baseline)
    meeting = session.of_ranks(started, size, options.shared)
    unseen = tuple(variables_of(started, env)) if is_unseen(started, env) else ()
    own = Attendance(
        target=target,
        started=started,
        size=size,
        options=options,
        meeting=meeting,
        local=local_of(meeting),
        unseen=unseen,
    )
    with process.interruptible(), attending(own):
        try:
            work(own, env)
            presence.arrive(own.meeting.shared, own.started.rank)
            return report(own, show) if own.is_first else await_verdict(own, show)
        except Interrupted as stop:
            report_in_haste(own, show, stop)
            raise


def local_of(meeting: Session) -> Path:
    """Return this node's folder, made if need be; where it cannot be, one that is not there."""
    try:
        return Path(local_folder(meeting.name, str(meeting.shared)))
    except OSError:
        return meeting.shared / "none"


@contextmanager
def attending(own: Attendance) -> Iterator[None]:
    """Hold this node's folder as one of those who are there; the first clears away what is left of others, killed ones.

    They have met under the same name: in the same step of a job, or by variables that are left over.
    """
    lock, local = None, own.local
    with suppress(OSError):
        lock = os.open(local / HELD, os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(OSError):  # somebody is there; or what cannot be removed, for which nobody is to wait
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in local.iterdir():
                if path.name != HELD:
                    files.discard(path)
            is_alone = own.started.local_size == own.size
            for name in (file_name(), presence.file_name(), *((ALARM,) if is_alone else ())):
                (own.meeting.shared / name).unlink(missing_ok=True)
        fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        with presence.held(local, own.started.rank):
            yield
    finally:
        if lock is not None:
            os.close(lock)
            with suppress(OSError):  # NFS keeps a folder in which a file is open
                if (local / OVER).exists() and not presence.are_others(local):
                    shutil.rmtree(local)
                local.rmdir()


def work(own: Attendance, env: Mapping[str, str]) -> None:
    """Run the probe as this rank; leave what was said where the environment could not be entered."""
    if (own.started.local_rank or 0) in READY:
        threading.Thread(target=prepare, args=(own.target,), daemon=True).start()
    probe = [*probe_command(own.target, own.meeting, own.options), "--attended"]
    if own.unseen and own.options.limit_s is None:
        probe += ["--limit", f"init={UNSEEN_S:g}"]
    limit = 10 * (own.options.limit_s or LIMIT_S) + FAREWELL_S
    inside = image_launch.enter_as_rank(own.target.inside, own.target.known_mpi, env, own.options.mpi_model)
    argv = inside.command(probe, visible=visible(own.meeting))
    kills = memory_kills()
    try:
        status, output = process.run_as_rank(
            argv, env=inside.variables(env), timeout_s=limit, watch=lambda: beat(own), grace_s=HURRIED_S
        )
    except Interrupted as stop:
        tell_end_of_probe(own, {"how": "terminated", "signal": stop.signal_name}, quick=True)
        raise
    if status == ModuleNotLoaded.exit_code or (status in FAILED and not is_recorded(own)):
        with suppress(OSError):
            (own.meeting.shared / f"outside-{own.started.rank}").write_text(output)
        touch(str(own.meeting.shared / ALARM))
    elif status:
        tell_end_of_probe(own, {**ending(status), "said": output, "memory_kills": memory_kills() - kills})


def prepare(target: Target) -> None:
    """Read what a report needs and no rank tells, while the probe runs: when told to stop there is no time for it."""
    with suppress(EnvkitError, OSError):  # the report meets it again
        judge.prepare()
        _ = target.built, target.drift, target.broken, target.shadows
        diagnose.search()


def ending(status: int) -> dict[str, object]:
    """Return how the probe has ended, where it could not say so itself, by its status."""
    if status == 128 + signal.SIGSTOP:
        return {"how": "timeout", "limit": float(PAUSED), "state": "T"}
    if status - 128 in set(signal.Signals):
        return {"how": "signal", "signal": signal.Signals(status - 128).name}
    return {"how": "exit", "status": status}


def view(own: Attendance) -> NodeView:
    """Return what is seen of this node's records."""
    size = own.started.local_size or 0
    return NodeView(own.meeting.name, str(own.meeting.shared), size, leave=True, local=str(own.local))


def tell_end_of_probe(own: Attendance, ended: dict[str, object], *, quick: bool = False) -> None:
    """State how this rank's probe has ended, unless it has done so."""
    begin = {"framework": own.target.framework, "host": name_of_node(), "pid": os.getpid(), "phase": "start"}
    with suppress(OSError):
        tell_end(view(own), own.started.rank, {**begin, "started": own.started._asdict()}, ended, quick)


@contextmanager
def beating(own: Attendance) -> Iterator[None]:
    """Leave signs for the others while the report is made, which takes long where something failed."""
    over = threading.Event()

    def beat_on() -> None:
        while not over.wait(BEAT_S):
            with suppress(OSError):
                (own.meeting.shared / "heartbeat").touch()

    thread = threading.Thread(target=beat_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def is_recorded(own: Attendance) -> bool:
    """Whether this rank has left a record on its node."""
    with suppress(OSError):
        return any(own.local.glob(f"*-{own.started.rank}-*.jsonl"))
    return False


def outside(own: Attendance) -> list[str]:
    """Return what was said to the ranks that could not enter the environment."""
    texts = []
    for path in sorted(own.meeting.shared.glob("outside-*")):
        with suppress(OSError):
            if path.stat().st_mtime > own.began - PATIENCE_S:
                texts.append(files.read(path, OUTSIDE).decode(errors="replace"))
    return texts


def beat(own: Attendance) -> None:
    """Leave a sign that the first rank is there, every other second."""
    path = own.meeting.shared / "heartbeat"
    with suppress(OSError):
        if own.is_first and not (path.exists() and time.time() - path.stat().st_mtime < BEAT_S):
            path.touch()


def report(own: Attendance, show: Callable[[Report], int], patience_s: float = PATIENCE_S) -> int:
    """Wait for the others' facts, show the report, announce the status, clear away.

    Where another rank reports, which has taken this one for gone, return what it announces.
    """
    records = gathered(own, patience_s)
    if not is_reporter(own):
        require_folder(own)
        time.sleep(PARTING_S)
        status = announced(own)
        return 1 if status is None else status
    with beating(own):
        status = show(build_report(own, records))
    announce(own, status)
    part(own)
    deadline = time.time() + PARTING_S
    while any(own.meeting.shared.glob("*.json")) and time.time() < deadline:
        time.sleep(0.02)
    if absentees(own, records):  # which will not clear away here
        shutil.rmtree(own.local, ignore_errors=True)
    clear_away(own)
    return status


def clear_away(own: Attendance) -> None:
    """Remove the folder where the ranks met; those of this node know why it has gone."""
    with suppress(OSError):
        (own.local / OVER).touch()
    shutil.rmtree(own.meeting.shared, ignore_errors=True)


def report_in_haste(own: Attendance, show: Callable[[Report], int], stop: Interrupted) -> None:
    """Show the report when told to stop, as rank 0, or in its stead if it has gone or is late; clear away.

    Open MPI ends a rank for good one second after it has told it to stop. So the others' facts are awaited for a part
    of that only.
    """
    until = stop.at + HASTE_S
    is_due = own.is_first or presence.has_gone(own.local, 0)
    while not (is_due or (own.meeting.shared / REPORTER).exists()) and time.time() < until:
        time.sleep(0.02)
    if is_reporter(own):
        records = gathered_now(own)
        while not (len(records.facts) >= own.size and all(records.complete.values())) and time.time() < until:
            time.sleep(0.02)
            records = gathered_now(own)
        try:
            show(build_report(own, records, told=stop.signal_name))
        finally:
            if all(facts.ended for facts in records.facts):  # nobody here goes on who would ask why all has gone
                shutil.rmtree(own.local, ignore_errors=True)
            clear_away(own)
    else:
        await_clearing(own, until=stop.at + LONGEST_S)
    part(own)


def is_reporter(own: Attendance) -> bool:
    """Whether this rank is the first that sets out to report; earlier ranks of the same job step do not count."""
    path = own.meeting.shared / REPORTER
    with suppress(OSError):
        if path.stat().st_mtime < own.began - PATIENCE_S:
            path.unlink()
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    except OSError:  # no room is left for it
        return own.is_first and own.meeting.shared.is_dir()
    return True


def require_folder(own: Attendance) -> None:
    """Refuse to go on where the folder in which the ranks met has gone before a verdict. Raises HostProblem."""
    if not own.meeting.shared.is_dir() and not (own.local / OVER).exists():
        raise session.has_gone(own.meeting)


def gathered_now(own: Attendance) -> Gathered:
    """What all ranks have left so far, those of this node to the last line."""
    with suppress(OSError):
        node = view(own)
        node.write(node.records())
    return gather(own.meeting.shared)


def gathered(own: Attendance, patience_s: float) -> Gathered:
    """The facts of all ranks, once each has come to its end; or of those that left any, when no more are expected."""
    ended = time.time()
    pause, waited_s = 0.02, 0.0  # counted, since a job that was suspended as a whole goes on as a whole
    while own.meeting.shared.is_dir():
        records = gather(own.meeting.shared, since=own.began - PATIENCE_S)
        if len(records.facts) >= own.size and all(records.complete.values()):
            why = {rank.why for rank in absentees(own, records)}
            enough_s = patience_s if presence.LATE in why else min(patience_s, STOPPED_S)
            if why <= {presence.GONE} or waited_s >= enough_s:
                return records
            waited_s += pause
        absent = len(outside(own))
        if absent and len(records.facts) + absent >= own.size and all(facts.ended for facts in records.facts):
            return records
        alive = any(
            time.time() - written < FRESH_S for node, written in records.written.items() if not records.complete[node]
        )
        if time.time() - ended > patience_s and not alive:
            return records
        beat(own)
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
    return Gathered(facts=(), complete={}, written={})


def absentees(own: Attendance, found: Gathered) -> tuple[presence.Absent, ...]:
    """The ranks whose envkit has not come to its end, though they have left a record."""
    ranks = {facts.launcher_rank for facts in found.facts if facts.launcher_rank is not None}
    return presence.absent(own.meeting.shared, own.local, ranks - {own.started.rank})


def build_report(own: Attendance, found: Gathered, *, told: str = "") -> Report:
    """The report on what was found; where this rank was ``told`` to stop, without looking for what explains it."""
    target, started, options = own.target, own.started, own.options
    expected = Expected(
        size=own.size,
        granted=hosts.nodes(os.environ),
        frameworks=(target.framework,),
        left_out=target.others,
        required=target.requires | frozenset(options.require),
        stacks=target.stacks_with(options.require),
        built=target.built,
        drift=target.drift,
        broken=target.broken,
        measures=options.measures,
        shared=str(own.meeting.shared.parent),
        launcher_said="".join(outside(own)),
        leftover=tuple(leftovers(os.environ)),
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
        unseen=own.unseen,
        told=told,
        absent=absentees(own, found),
    )
    row = StartedRow(
        launcher=started.launcher,
        why=f"{started.title} started this process",
        command=(),
        job=started.job if started.launcher == "srun" else None,
        nodes=tuple(found.complete),
    )
    first_report = judge.judged(target.name, found.facts, expected, options, [], row, own.began_monotonic)
    if first_report.verdict == "pass" or told:
        return first_report
    from envkit.verify.explain import seen

    return judge.judged(
        target.name, found.facts, seen(expected, target, os.environ), options, [], row, own.began_monotonic
    )


def announce(own: Attendance, status: int) -> None:
    """Leave the status where every rank looks for it."""
    with suppress(OSError):  # a full one: who hears of none fails
        path = own.meeting.shared / "verdict"
        files.write(path, json.dumps({"status": status, "at": time.time()}).encode())


def await_verdict(own: Attendance, show: Callable[[Report], int]) -> int:
    """Wait for the status; where the first rank has gone, one of the others makes the report."""
    sign, last = time.time(), 0.0
    pause = 0.02
    patience_s = PARTING_S if own.unseen and not heartbeat(own) else PATIENCE_S
    while time.time() - sign < patience_s:
        status = announced(own)
        if status is not None:
            part(own)
            await_clearing(own, until=time.time() + PARTING_S)
            return status
        if (newest := heartbeat(own)) != last:
            sign, last = time.time(), newest
        if not own.meeting.shared.is_dir():
            if own.started.local_size != own.size:  # else rank 0 says it
                require_folder(own)
            return 1 if (own.local / OVER).exists() else HostProblem.exit_code
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
    return take_over(own, show)


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """The announcement of the first rank: the status, and when (s since 1970)."""

    status: int
    at: float


def announced(own: Attendance) -> int | None:
    """The status, if it has been announced for these ranks and not for earlier ones of the same job step."""
    with suppress(OSError, record.RecordInvalid):
        announcement: Announcement = record.read(own.meeting.shared / "verdict", Announcement)
        if announcement.at >= own.began - CLOCKS_S:
            return announcement.status
    return None


def heartbeat(own: Attendance) -> float:
    """When the first rank gave its last sign, by the clock of the file system."""
    with suppress(OSError):
        return (own.meeting.shared / "heartbeat").stat().st_mtime
    return 0.0


def take_over(own: Attendance, show: Callable[[Report], int]) -> int:
    """Make the report in the first rank's stead, if this rank is the first to try and sees what others left."""
    records = gather(own.meeting.shared, since=own.began - PATIENCE_S)
    if not any(facts.launcher_rank == 0 for facts in records.facts):
        with suppress(OSError):
            shutil.rmtree(own.local, ignore_errors=True)
            for name in (file_name(), presence.file_name(), f"outside-{own.started.rank}"):
                (own.meeting.shared / name).unlink(missing_ok=True)
        with suppress(OSError):
            if [path.name for path in own.meeting.shared.iterdir()] == [ALARM]:  # no other rank is there to hear it
                (own.meeting.shared / ALARM).unlink()
            own.meeting.shared.rmdir()
        print(nothing_of_the_first(own), file=sys.stderr)
        return 1
    return report(own, show, patience_s=0)


def nothing_of_the_first(own: Attendance) -> str:
    """Return what to say where rank 0 has left nothing."""
    seen = f"envkit: rank {own.started.rank} on {os.uname().nodename} sees nothing of rank 0"
    job = settings.ended_job(os.environ)
    names = dict.fromkeys(
        (*variables_of(own.started, os.environ), *leftovers(os.environ), *(job.variables if job else ()))
    )
    unset = f"'unset {' '.join(names)}'"
    if own.unseen:
        reason = f"The variables that name this rank are left over from one: {', '.join(names)}"
        return f"{seen}, nor of {own.started.title}. {reason}.\n\nWhat to do: {unset}"
    return (
        f"{seen} in {own.meeting.shared.parent}. If rank 0 runs, that folder is not shared between the nodes: name one "
        "that is, with --shared DIR. If no launcher has started this process, its variables are left over from one: "
        f"{unset}"
    )


def part(own: Attendance) -> None:
    """Clear away what lies on this node, if this is the last of its ranks to have seen the verdict."""
    with suppress(OSError):
        (own.local / f"parted-{own.started.rank}").touch()
        if len(list(own.local.glob("parted-*"))) >= (own.started.local_size or own.size):
            shutil.rmtree(own.local, ignore_errors=True)
            (own.meeting.shared / file_name()).unlink(missing_ok=True)


def await_clearing(own: Attendance, until: float) -> None:
    """Stay until who reports has cleared away: some launchers end the other ranks when one ends with a failure."""
    while own.meeting.shared.exists() and time.time() < until:
        time.sleep(0.02)
