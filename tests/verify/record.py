"""Turn what the probe left into a recorded case of tests/facts, without the names of machines and folders.

    python -m tests.verify.record DIRECTORY CASE.json --about TEXT --size N --framework NAME [--hide PATH=PATH]...

The verdict and the checks that did not pass are put beside the facts as envkit finds them now: read them before
the case is kept.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from envkit.verify.checks import Expected, check, verdict
from envkit.verify.facts import RankFacts, ordered


def anonymous(records: list[dict[str, Any]], hidden: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """The same records with hosts node1, node2, ..., processes 1, 2, ... and the hidden paths replaced."""
    hosts = list(dict.fromkeys(record["host"] for record in records))
    for number, record in enumerate(records, 1):
        host, node = record["host"], f"node{hosts.index(record['host']) + 1}"
        environment = {name: node if value == host else value for name, value in record["environment"].items()}
        record |= {"host": node, "pid": number, "environment": environment}
        if "machine" in record:
            record["machine"] |= {"hostname": node, "kernel": "6.1.0"}
        if record.get("started"):
            record["started"]["job"] = "1"
    text = json.dumps(records)
    for path, instead in hidden:
        text = text.replace(path, instead)
    text = re.sub(r"Thread 0x[0-9a-f]+|thread 0x[0-9a-f]+", "thread 0x1", text)
    read: list[dict[str, Any]] = json.loads(text)
    return read


def main() -> None:
    """Write the case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("case", type=Path)
    parser.add_argument("--about", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--framework", required=True)
    parser.add_argument("--required", default="mpi,gloo")
    parser.add_argument("--hide", action="append", default=[])
    given = parser.parse_args()
    nodes = [json.loads(path.read_text()) for path in sorted(given.directory.glob("*.json"))]
    records = [{**node["common"], **record} for node in nodes for record in node["ranks"]]
    hidden = [tuple(pair.split("=", 1)) for pair in given.hide]
    records = anonymous(records, hidden)
    facts = ordered(msgspec.convert(records, tuple[RankFacts, ...]))
    wanted = {"size": given.size, "frameworks": [given.framework], "required": given.required.split(",")}
    results = check(facts, msgspec.convert(wanted, Expected))
    not_passed = {r.id: str(r.status) for r in results if r.status != "pass"}
    case = {"about": given.about, "expected": wanted, "verdict": str(verdict(results)), "not_passed": not_passed}
    given.case.write_text(json.dumps({**case, "facts": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
