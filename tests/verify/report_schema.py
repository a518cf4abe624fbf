"""Write the JSON Schema of the report, as the structs have it: python -m tests.verify.report_schema"""

from __future__ import annotations

import msgspec

from envkit.resources import data
from envkit.verify.report import Report

PATH = data("verify/report.schema.json")


def schema() -> bytes:
    """The schema, indented, ending in a newline."""
    made = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The report of 'envkit verify --json'",
        **msgspec.json.schema(Report),
    }
    return msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"


if __name__ == "__main__":
    PATH.write_bytes(schema())
