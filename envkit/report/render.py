"""What all pages share: templates (of verify/report/ and ticket/) are filled in, with everything escaped."""

from __future__ import annotations

from typing import Any

import jinja2

import envkit
import envkit.report.words as words
from envkit.system.resources import data


def rendered(name: str, /, **values: Any) -> str:
    """A page that needs nothing else."""
    template = _templates().get_template(name)
    return template.render(version=envkit.__version__, css=data("report/page.css").read_text(), **values)


def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([data("verify/report"), data("ticket")]),
        autoescape=True,
        finalize=lambda value: words.plain(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {
        "size": words.size,
        "rate": words.rate,
        "duration": words.duration,
        "percent": words.percent,
        "ratio": words.ratio,
        "ranges": words.ranges,
        "hosts": words.hosts,
    }
    return made
