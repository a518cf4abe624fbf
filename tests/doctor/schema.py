"""Write the JSON Schema of the doctor's report, as the structs have it: python -m tests.doctor.schema"""

from __future__ import annotations

from envkit.doctor.report import Report
from envkit.system.resources import data

from .. import schemas

PATH = data("doctor/report.schema.json")


def schema() -> bytes:
    """The schema, indented, ending in a newline."""
    return schemas.schema("The report of 'envkit doctor --json'", Report)


if __name__ == "__main__":
    PATH.write_bytes(schema())
