"""How a plan is shown."""

from rich.console import Console

from envkit.cli import echo_json
from envkit.install import earlier, install
from envkit.install.listing import Lacking
from envkit.planning import preflight
from envkit.planning.method import Installation
from envkit.report.progress import say


def show(work: Installation, console: Console) -> int:
    """Print what an installation would do; return 0 if nothing stands in its way, otherwise how it would fail."""
    problems = install.problems(work)
    lines = [
        *work.heading(),
        *install.taken_over(work),
        *earlier.beside(work),
        *earlier.failed(work),
        *install.differences(work),
        *install.of_bundle(work),
        "",
        *work.listing(),
        *(f"No answer: {p.what}\n  -> {p.fix}" for p in work.unanswered),
        *(f"Problem: {p.what}\n  -> {p.fix}" for p in problems),
    ]
    say(console, "\n".join(lines))
    return preflight.refusal(problems).exit_code if problems else 0


def show_json(work: Installation) -> int:
    """Print the same as JSON."""
    from envkit.commands import json_types

    problems, missing = install.problems(work), set(work.missing)
    absent = {source.place for source in preflight.lacking(work.sources, work.request.prefix, work.request.carried)}
    plan = json_types.ReportedPlan(
        name=work.stack.name,
        method=work.stack.method,
        framework=work.stack.framework,
        accelerator=work.stack.accelerator.value,
        prefix=str(work.request.prefix.root),
        steps=tuple(json_types.ReportedStep(name=step, there=step not in missing) for step in work.steps),
        sources=tuple(
            json_types.ListedSource(name=source.place, sha256=source.sha256, there=source.place not in absent)
            for source in work.sources
        ),
        problems=tuple(Lacking(what=problem.what, fix=problem.fix) for problem in problems),
        unanswered=tuple(Lacking(what=note.what, fix=note.fix) for note in work.unanswered),
        lock=work.lock,
        mpi=work.mpi,
        cached=tuple(work.offered),
        cache_problems=tuple(work.cache_problems),
    )
    echo_json(json_types.text(plan))
    return preflight.refusal(problems).exit_code if problems else 0
