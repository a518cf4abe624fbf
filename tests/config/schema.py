"""Write the JSON Schema of what 'envkit config --json' prints, as the structs have it: python -m tests.config.schema"""

from __future__ import annotations

from envkit.config.report import Report
from envkit.system.resources import data

from .. import schemas

PATH = data("config/report.schema.json")


def schema() -> bytes:
    """The schema, indented, ending in a newline."""
    return schemas.schema("The report of 'envkit config --json'", Report)


if __name__ == "__main__":
    PATH.write_bytes(schema())
