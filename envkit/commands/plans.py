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
        *earlier.beside(work),
        *earlier.failed(work),
        *install.differences(work),
        *install.of_bundle(work),
        "",
        *work.listing(),
        *(f"Problem: {p.what}\n  -> {p.fix}" for p in problems),
    ]
    say(console, "\n".join(lines))
    return preflight.refusal(problems).exit_code if problems else 0


def show_json(work: Installation) -> int:
    """Print the same as JSON."""
    from envkit.commands import json_types

    problems, missing = install.problems(work), set(work.missing)
    absent = {one.place for one in preflight.lacking(work.sources, work.request.prefix, work.request.carried)}
    told = json_types.ReportedPlan(
        name=work.stack.name,
        method=work.stack.method,
        framework=work.stack.framework,
        accelerator=work.stack.accelerator.value,
        prefix=str(work.request.prefix.root),
        steps=tuple(json_types.ReportedStep(name=one, there=one not in missing) for one in work.steps),
        sources=tuple(
            json_types.ListedSource(name=one.place, sha256=one.sha256, there=one.place not in absent)
            for one in work.sources
        ),
        problems=tuple(Lacking(what=one.what, fix=one.fix) for one in problems),
        lock=work.lock,
        cached=tuple(work.offered),
    )
    echo_json(json_types.text(told))
    return preflight.refusal(problems).exit_code if problems else 0
