"""Write the JSON Schema of the report, as the structs have it: python -m tests.verify.report_schema"""

from __future__ import annotations

from envkit.system.resources import data
from envkit.verify.report import Report

from .. import schemas

PATH = data("verify/report.schema.json")


def schema() -> bytes:
    """The schema, indented, ending in a newline."""
    return schemas.schema("The report of 'envkit verify --json'", Report)


if __name__ == "__main__":
    PATH.write_bytes(schema())
