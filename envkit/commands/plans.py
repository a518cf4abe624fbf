"""How a plan is shown."""

from rich.console import Console

from envkit import install
from envkit.progress import say
from envkit.provide.work import Work


def show(work: Work, console: Console) -> int:
    """Print what an installation would do; return 0 if nothing stands in its way, otherwise 3."""
    problems = install.problems(work)
    lines = [
        *work.heading(),
        *install.differences(work),
        "",
        *work.listing(),
        *(f"Problem: {p.what}\n  -> {p.fix}" for p in problems),
    ]
    say(console, "\n".join(lines))
    return 3 if problems else 0
