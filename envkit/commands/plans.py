"""How a plan is shown."""

from rich.console import Console

from envkit import install, preflight
from envkit.progress import say
from envkit.provide.work import Work


def show(work: Work, console: Console) -> int:
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
