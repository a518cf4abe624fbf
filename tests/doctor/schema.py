"""Write the JSON Schema of the doctor's report, as the structs have it: python -m tests.doctor.schema"""

from __future__ import annotations

import msgspec

from envkit.doctor.report import Report
from envkit.resources import data

PATH = data("doctor/report.schema.json")


def schema() -> bytes:
    """The schema, indented, ending in a newline."""
    made = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The report of 'envkit doctor --json'",
        **msgspec.json.schema(Report),
    }
    return msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"


if __name__ == "__main__":
    PATH.write_bytes(schema())
