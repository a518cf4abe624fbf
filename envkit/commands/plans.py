"""How a plan is shown."""

from rich.console import Console

from envkit.install import install
from envkit.planning import preflight
from envkit.planning.method import Installation
from envkit.report.progress import say


def show(work: Installation, console: Console) -> int:
    """Print what an installation would do; return 0 if nothing stands in its way, otherwise how it would fail."""
    problems = install.problems(work)
    lines = [
        *work.heading(),
        *install.differences(work),
        "",
        *work.listing(),
        *(f"Problem: {p.what}\n  -> {p.fix}" for p in problems),
    ]
    say(console, "\n".join(lines))
    return preflight.refusal(problems).exit_code if problems else 0
