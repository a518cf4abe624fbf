"""envkit for Python programs: what the commands do, as functions that return values.

::

    from envkit import api

    found = api.verify("pytorch", ranks=2)
    if not found.passed and found.cause:
        print(found.cause.message, found.cause.remedy)

The interface is stable: until the next major version no function, argument, field or value of a field is taken away or
changes its meaning; new ones may come. Nothing here prints or ends the process. Every failure that a user can repair is
an :exc:`EnvkitError <envkit.errors.EnvkitError>`: ``what`` happened, ``why``, how to ``fix`` it, and the ``exit_code``
that the command would end with. Ctrl-C is a ``KeyboardInterrupt``, as in any Python program; what was started has been
stopped then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from envkit.api.results import (
    Check,
    Combination,
    Compatibility,
    Diagnosis,
    Environment,
    Examination,
    Installation,
    Method,
    Problem,
    Rule,
    Verification,
)
from envkit.errors import EnvkitError

__all__ = [
    "Check",
    "Combination",
    "Compatibility",
    "Diagnosis",
    "Environment",
    "EnvkitError",
    "Examination",
    "Installation",
    "Method",
    "Problem",
    "Rule",
    "Verification",
    "compat",
    "diagnose",
    "doctor",
    "environments",
    "install",
    "verify",
]

StrPath = str | os.PathLike[str]


def install(
    stack: str | None = None,
    *,
    method: str = "auto",
    framework: Literal["pytorch", "tensorflow"] | None = None,
    accelerator: Literal["auto", "cpu", "cuda", "rocm"] = "auto",
    mpi: Literal["openmpi", "mpich", "intelmpi", "mvapich", "cray"] | None = None,
    load: Iterable[str] = (),
    extras: Iterable[str] = (),
    prefix: StrPath | None = None,
    offline: bool = False,
    bundle: StrPath | None = None,
    locked: StrPath | None = None,
    accept_eulas: Iterable[str] = (),
    jobs: int | None = None,
    rebuild: bool = False,
    force: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Installation:
    """Install a Horovod environment and prove that it works, as ``envkit install`` does.

    ``stack`` is a name from ``envkit list``, "pytorch", "tensorflow", the file name of a recipe (.eb) of EasyBuild's
    collection, or the path of one, with a / in it. ``method`` is one of those that ``envkit doctor`` judges, or "auto"
    for the first that works here. ``load`` are site modules, ``extras`` what is added to the stack (``--with``),
    ``bundle`` and ``locked`` files of ``envkit fetch --bundle`` and ``envkit show --lock``; ``jobs`` is how many
    processes build at once. ``progress`` is called with each line that the command would print.

    It takes up to an hour; called again after an interruption, it resumes. Raises EnvkitError.
    """
    from dataclasses import replace
    from pathlib import Path

    from rich.console import Console

    from envkit.api.conversion import described, verified
    from envkit.api.lines import lines_to
    from envkit.environments import lockfile
    from envkit.environments import prefix as place
    from envkit.install import install as work
    from envkit.knowledge import methods
    from envkit.knowledge.mpi import FAMILIES
    from envkit.methods import installed
    from envkit.planning.extras import in_lock
    from envkit.planning.request import Request

    methods.require(method)
    wanted = lockfile.read(Path(locked)) if locked is not None else None
    tell = progress or (lambda _text: None)
    request = Request(
        prefix=place.locate(worded(prefix)),
        wanted=stack or (wanted.name if wanted else None),
        method=wanted.method if wanted and method == "auto" else method,
        release=(wanted.release or None) if wanted else None,
        framework=framework,
        accelerator=accelerator,
        mpi=FAMILIES[mpi] if mpi else "",
        load=tuple(load),
        extras=(*in_lock(wanted), *extras),
        offline=offline or bundle is not None,
        bundle=Path(bundle) if bundle is not None else None,
        locked=wanted,
        accepted_eulas=tuple(accept_eulas),
        jobs=jobs or 0,
        rebuild=rebuild,
        force=force,
        tell=tell,
    )
    with stopped_by_ctrl_c():
        report = work.install(request, Console(file=lines_to(tell), width=100, color_system=None, force_terminal=False))
    if report is None:
        existing = work.find_installed(replace(request, rebuild=False))
        return Installation(environment=described(existing) if existing else None, verification=None)
    if report.verdict != "pass":
        return Installation(environment=None, verification=verified(report))
    tree, receipt = installed.placed(request.prefix, report.environment)
    return Installation(environment=described(receipt, tree), verification=verified(report))


def environments(*, prefix: StrPath | None = None) -> tuple[Environment, ...]:
    """Return the environments that are installed for this type of machine; of one name the first alone can be entered.

    ``prefix`` may name several, with colons between. Raises EnvkitError for one that cannot be read.
    """
    from envkit.api.conversion import described, unreadable
    from envkit.environments import prefix as place
    from envkit.errors import EnvironmentDamaged
    from envkit.methods import installed

    rows = [each for root in place.locate(worded(prefix)).every for each in installed.every(root)]
    return tuple(
        unreadable(name, tree, result) if isinstance(result, EnvironmentDamaged) else described(result, tree)
        for tree, name, result in rows
    )


def verify(
    environment: str | None = None,
    *,
    prefix: StrPath | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    hosts: str = "",
    launcher: str = "auto",
    mpi_model: Literal["hybrid", "bind", "inside"] | None = None,
    framework: Literal["pytorch", "tensorflow"] | None = None,
    require: Iterable[str] = (),
    timeout_s: float | None = None,
    shared: StrPath | None = None,
    quick: bool = False,
    bench: bool = False,
    baseline: StrPath | None = None,
    tolerance: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Verification:
    """Start ranks inside an environment and return the verdict on what they find, as ``envkit verify`` does.

    ``environment`` is a name, the beginning of one, or the folder of a virtual environment; left out, it is the one
    that this process stands in, else the default, else the only one installed. ``ranks`` are as many as the job was
    granted, else 2. ``require`` are build flags such as "nccl", ``timeout_s`` is how long any one step may take,
    ``hosts`` names hosts outside of a scheduler ("node1:4,node2:4"). A verdict that is not PASS is no exception.
    ``progress`` is called with what is tried where ranks fail.

    It starts the ranks itself: in a process that is a rank of a launcher it raises UsageProblem. Raises EnvkitError.
    """
    from pathlib import Path

    from envkit.api.conversion import verified
    from envkit.errors import UsageProblem
    from envkit.inside.probe.started import detect_unless_shell
    from envkit.launch import hosts as of_job
    from envkit.launch.launcher import LaunchRequest
    from envkit.methods import installed
    from envkit.verify import launch, options, target

    parsed_hosts = of_job.parse(hosts)
    number = ranks or sum(slots for _, slots in parsed_hosts) or of_job.ranks(os.environ, on=nodes)
    if (rank := detect_unless_shell(os.environ, number)) is not None:
        raise UsageProblem(
            what=f"This process is rank {rank.rank} of {rank.title}; envkit.api.verify starts ranks itself.",
            fix="Call it outside of a launcher, or have the launcher start 'envkit verify'.",
        )
    settings = options.asked(
        require=require,
        timeout_s=timeout_s,
        shared=Path(shared) if shared is not None else None,
        mpi_model=mpi_model,
        quick=quick,
        bench=bench,
        baseline=Path(baseline) if baseline is not None else None,
        tolerance=tolerance,
    )
    with stopped_by_ctrl_c():
        goal = target.find(environment, worded(prefix), framework)
        if goal.receipt is not None:
            installed.require_same_image(goal.receipt)
        wanted = LaunchRequest(ranks=number, nodes=nodes, hosts=parsed_hosts, launcher=launcher)
        return verified(launch.verify(goal, wanted, settings, tell=progress or (lambda _text: None)))


def doctor(*, prefix: StrPath | None = None, load: Iterable[str] = ()) -> Examination:
    """Return what this machine offers, and by which methods an environment can be had, as ``envkit doctor`` does.

    ``load`` are site modules that an installation would load. Changes nothing. Raises EnvkitError.
    """
    from envkit.doctor import gather, rules
    from envkit.environments import prefix as place

    with stopped_by_ctrl_c():
        report = rules.judge(gather.gather(place.locate(worded(prefix)), tuple(load), os.environ))
    methods = tuple(
        Method(
            name=method.method,
            state=method.state.value,
            why=method.why,
            problems=tuple(Problem(what=each.what, fix=each.fix) for each in method.problems),
        )
        for method in report.methods
    )
    notes = tuple(Problem(what=note.what, fix=note.fix) for note in report.notes)
    return Examination(works=report.works, methods=methods, notes=notes, _report=report)


def diagnose(log: StrPath | None = None, *, text: str | None = None, here: bool = False) -> Diagnosis:
    """Return the first cause of a failed build, launch or run from a log file or its text, as ``envkit diagnose``.

    A file may be compressed (gzip, bzip2, xz, zstd). ``here`` says that the log is of this machine, which is then
    looked at. Raises EnvkitError for what cannot be read as a log.
    """
    from envkit.diagnose import Certainty, judged, seen_in, source
    from envkit.diagnose.scan import Deadline
    from envkit.diagnose.surroundings import Surroundings
    from envkit.errors import UsageProblem

    if (log is None) == (text is None):
        raise UsageProblem(what="envkit.api.diagnose takes a log file or its text.", fix="Give one of log and text.")
    if text is not None:
        seen = seen_in(text.splitlines())
    else:
        with source.opened(os.fspath(log or ""), Deadline()) as blocks:
            seen = seen_in(blocks)
    diagnosis = judged(seen, Surroundings(env=os.environ) if here else None)
    if diagnosis is None:
        return Diagnosis(state="no failure", complete=seen.whole)
    return Diagnosis(
        state="unknown" if diagnosis.certainty is Certainty.UNKNOWN else "cause",
        complete=seen.whole,
        id=diagnosis.rule.id,
        certainty=diagnosis.certainty.value,
        line=diagnosis.line,
        number=diagnosis.number,
        cause=diagnosis.cause,
        remedy=diagnosis.fix,
        confirmed=diagnosis.confirmed,
        sources=diagnosis.rule.source,
    )


def compat(*versions: str, file: StrPath | None = None, here: bool = False) -> Compatibility:
    """Return whether versions go together with Horovod, and what is best on this machine, as ``envkit compat`` does.

    ``versions`` are words such as "torch=2.13", "cuda=13" or "torch>=2.1,<2.3"; ``file`` is what ``pip freeze`` or
    ``module list`` printed; ``here`` adds what is installed and loaded here. Raises EnvkitError.
    """
    from pathlib import Path

    from envkit.doctor.combination import answer

    result = answer(versions, Path(file) if file is not None else None, here=here)
    best = None
    if result.best is not None:
        best = Combination(
            parts=result.best.judgement.parts,
            how=result.best.combination.how,
            stack=result.best.combination.stack,
            measures=result.best.combination.measures,
            differs=result.best.differs,
        )
    rules = tuple(
        Rule(id=rule.id, status=rule.status.value, note=rule.note, source=rule.source, cures=rule.cure)
        for rule in result.judgement.rules
    )
    return Compatibility(
        verdict=result.judgement.verdict.value,
        parts=result.judgement.parts,
        rules=rules,
        unproven=result.judgement.unproven,
        best=best,
        _answer=result,
    )


def worded(path: StrPath | None) -> str | None:
    """Return a path as an option has it."""
    return None if path is None else os.fspath(path)


@contextmanager
def stopped_by_ctrl_c() -> Iterator[None]:
    """Turn what Ctrl-C raises in envkit into what it raises in Python."""
    from signal import SIGINT

    from envkit.errors import Interrupted

    try:
        yield
    except Interrupted as stopped:
        if stopped.exit_code == 128 + SIGINT:
            raise KeyboardInterrupt from stopped
        raise
