"""The common part of all pages: templates (of verify/report/ and ticket/) are filled in, with everything escaped."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2

import envkit
import envkit.report.words as words
from envkit.system.resources import data


def rendered(name: str, /, **values: Any) -> str:
    """A page that needs nothing else."""
    template = templates().get_template(name)
    return template.render(version=envkit.__version__, css=data("report/page.css").read_text(), **values)


@cache
def templates() -> jinja2.Environment:
    """Return the templates, with the filters that they use."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([data("verify/report"), data("ticket")]),
        autoescape=True,
        finalize=lambda value: words.plain(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "size": words.size,
        "rate": words.rate,
        "duration": words.duration,
        "percent": words.percent,
        "ratio": words.ratio,
        "ranges": words.ranges,
        "hosts": words.hosts,
    }
    return environment
