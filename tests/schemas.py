"""The JSON Schema of a report, the same under every Python."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec


def schema(title: str, report: type[msgspec.Struct]) -> bytes:
    """Return the schema of a report, indented, ending in a newline."""
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    made |= dedented(msgspec.json.schema(report))
    return msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"


def dedented(made: Any) -> Any:
    """Return a schema whose descriptions are docstrings as Python 3.13 and later keep them: not indented."""
    if isinstance(made, list):
        return [dedented(one) for one in made]
    if not isinstance(made, dict):
        return made
    return {
        key: inspect.cleandoc(value) if key == "description" and isinstance(value, str) else dedented(value)
        for key, value in made.items()
    }
