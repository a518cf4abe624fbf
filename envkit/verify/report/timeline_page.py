"""The contents of a timeline of Horovod, as one HTML file like the report's."""

from __future__ import annotations

from envkit.report.render import rendered
from envkit.training import timeline

SHOWN = 20


def html(summary: timeline.Summary, name: str) -> str:
    """The whole page, of the timeline in a file of that name."""
    return rendered(
        "timeline.html",
        found=summary,
        name=name,
        total=timeline.total(summary),
        cut=timeline.CUT,
        named_more=timeline.NAMED_MORE,
        shown=SHOWN,
    )
