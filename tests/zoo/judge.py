"""What a verification says: its first cause, the commands of its remedy, and whether both are right."""

from __future__ import annotations

import json
import re
from typing import Any

COMMAND = re.compile(r"'((?:envkit|unset|export|mv|rm|ulimit|chmod)\b[^']*)'")
OURS = re.compile(r'File "[^"]*/envkit/(?:(?!inside/)[\w/]+)\.py"')
NOTHING = {"id": "", "message": "", "cause": "", "remedy": "", "commands": []}


def said(run: dict[str, Any]) -> dict[str, Any]:
    """What one run says: verdict ("pass", "fail", "error"), and the first cause."""
    try:
        report = json.loads(run["report"])
    except ValueError:
        return {"verdict": "error", **NOTHING, **spoken(run["stderr"])}
    if report["verdict"] == "pass" and run["status"] == 0:
        return {"verdict": "pass", **NOTHING}
    found = report.get("cause") or first(report["results"])
    commands = found.get("commands")
    return {
        "verdict": "fail",
        "id": found.get("id", ""),
        "message": found.get("message", ""),
        "cause": found.get("cause", ""),
        "remedy": found.get("remedy", ""),
        "commands": COMMAND.findall(found.get("remedy", "")) if commands is None else commands,
    }


def first(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The first failure, or the first required check that could not be done."""
    failed = [one for one in results if one["status"] == "fail"]
    skipped = [one for one in results if one["status"] == "skip" and one.get("required", True)]
    return next(iter([*failed, *skipped]), NOTHING)


def spoken(stderr: str) -> dict[str, Any]:
    """The cause and remedy in what an error of envkit says."""
    before, _, after = stderr.partition("What to do:")
    return {"id": "stderr", "message": before[-4000:], "remedy": after, "commands": COMMAND.findall(after)}


def is_traceback(run: dict[str, Any]) -> bool:
    """Whether envkit itself ended with a traceback."""
    place = run["stderr"].rfind("Traceback (most recent call last)")
    return place >= 0 and bool(OURS.search(run["stderr"][place:]))


def names(pattern: str, found: dict[str, Any]) -> bool:
    """Whether a cause says what is true."""
    return bool(re.search(pattern, f"{found['message']}\n{found['cause']}", re.IGNORECASE | re.DOTALL))
