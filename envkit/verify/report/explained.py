"""A check explained: what it says where it does not pass, why, and what to do."""

import difflib
from collections.abc import Mapping
from typing import Any, TextIO

from envkit.errors import UsageProblem
from envkit.knowledge.known import catalogue
from envkit.report.paper import Paper
from envkit.verify.outcome import Status
from envkit.verify.report.terminal import COLOURS

NAMES = "{names} stand for what the check has found."
UNMEASURED = "Where an earlier step has failed, it says only that it was not measured."
SHARED = {  # checks that find the same things, and so have words in common
    "collective": ("allgather", "allreduce", "alltoall", "barrier", "broadcast", "process-sets", "reducescatter"),
    "not-measured": (),  # what any check says
    "training-truth": ("training-truth-keras", "training-truth-tensorflow", "training-truth-torch"),
}


def explainable() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return the cases of each check in which it does not pass, with status, message, cause and remedy."""
    told = dict[str, dict[str, Mapping[str, Any]]]()
    for name, cases in catalogue().items():
        if bad := {case: words for case, words in cases.items() if words["status"] != Status.PASS}:
            for check in SHARED.get(name, (name,)):
                told.setdefault(check, {}).update(bad)
    return told


def explained(check: str, stream: TextIO) -> str:
    """Return all that a check may say, for a stream: as wide as its terminal. Raises UsageProblem if there is none."""
    checks = explainable()
    if check not in checks:
        near = difflib.get_close_matches(check, checks, 1)
        raise UsageProblem(
            what=f"--explain: there is no check {check!r}.",
            fix=f"Did you mean '{near[0]}'?" if near else f"Name one of these: {', '.join(sorted(checks))}.",
        )
    paper = Paper.of(stream)
    blocks = [[paper.styled(check, "bold"), *paper.paragraph("           ", "dim", f"{NAMES} {UNMEASURED}")]]
    for case, words in checks[check].items():
        status = Status(words["status"])
        block = paper.paragraph(f"{status.upper():>11}", COLOURS[status], f"{case}: {words['message']}")
        for part in ("cause", "remedy"):
            block += paper.paragraph(f"{part:>11}", "bold", words.get(part, ""))
        blocks.append([*block, *(paper.command(13, command) for command in words.get("commands", ()))])
    return "\n\n".join("\n".join(block) for block in blocks)
