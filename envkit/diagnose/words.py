"""A diagnosis as text and as JSON."""

import json
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from envkit.diagnose.judge import Certainty, Diagnosis
from envkit.diagnose.rule import Rule
from envkit.diagnose.scan import ScannedLog
from envkit.diagnose.source import is_packed

VERSION = 1
NOTHING = "no sign of a failure is in this log"


def text(log: str, diagnosis: Diagnosis | None, width: int, below: Sequence[str] = ()) -> str:
    """Return a few lines for people; ``below`` are the lines of the log behind the one found."""
    if diagnosis is None:
        return f"{log}: {NOTHING}"
    lines = [f"{diagnosis.rule.id} ({diagnosis.certainty})  {log}:{diagnosis.number}"]
    lines += [*(f"    {line}" for line in (diagnosis.line, *below)), ""]
    parts = [("cause", diagnosis.cause), *(("confirmed", proof) for proof in diagnosis.confirmed)]
    if diagnosis.certainty is Certainty.LIKELY:
        looks = "; where it was written, --here looks at the machine" if diagnosis.rule.machine else ""
        parts += [("likely", f"the log alone does not prove it{looks}")]
    parts += [("remedy", diagnosis.fix), ("source", ", ".join(diagnosis.rule.source))]
    return "\n".join([*lines, *(line for name, words in parts if words for line in paragraph(name, words, width))])


def paragraph(name: str, words: str, width: int) -> Iterator[str]:
    """Yield the lines of one part, its name in front of the first."""
    for number, line in enumerate(
        textwrap.wrap(words, max(width - 13, 20), break_long_words=False, break_on_hyphens=False) or [""]
    ):
        yield f"{name if not number else '':>10}   {line}"


def cut(log: str, seen: ScannedLog) -> str:
    """Say how much of a log was read, and how to read on in one that is not compressed."""
    path = Path(log)
    goes_on = path.is_file() and path.stat().st_size > seen.size and not is_packed(path)
    on = f" To go on: tail -c +{seen.size + 1} {shlex.quote(log)} | envkit diagnose -" if goes_on else ""
    lines = f"{seen.lines:,} lines ({seen.size / 1e6:,.1f} MB)"
    return f"envkit: the first {lines} of {log} were read, no more: to look at all of it takes too long.{on}"


def to_json(log: str, diagnosis: Diagnosis | None, *, whole: bool) -> str:
    """Return one object, with ``cause`` null if nothing was found; ``complete`` says whether all was read."""
    answer = {
        "version": VERSION,
        "log": log,
        "complete": whole,
        "state": state(diagnosis),
        "cause": diagnosis and as_object(diagnosis),
    }
    return json.dumps(answer, indent=2)


def state(diagnosis: Diagnosis | None) -> str:
    """Say whether a log shows no failure, one without a known cause, or a cause."""
    if diagnosis is None:
        return "no failure"
    return "unknown" if diagnosis.certainty is Certainty.UNKNOWN else "cause"


def as_object(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as JSON has it."""
    return {
        "id": diagnosis.rule.id,
        "certainty": str(diagnosis.certainty),
        "line": diagnosis.number,
        "text": diagnosis.line,
        "cause": diagnosis.cause,
        "confirmed": list(diagnosis.confirmed),
        "remedy": diagnosis.fix,
        "source": list(diagnosis.rule.source),
    }


def explained(rule: Rule, width: int) -> str:
    """Return all that is known of a rule."""
    asks = [f"a line with {' or '.join(map(repr, rule.find))}"]
    for sign, where in ((rule.preceded_by, "shortly below"), (rule.also, "with"), (rule.unless, "without")):
        asks += [f"{where} one with {' or '.join(map(repr, sign.find))}"] if sign else []
    proofs = [f"a line with {' or '.join(map(repr, rule.proof.find))}"] if rule.proof else []
    proofs += ["the machine (--here)"] if rule.machine else []
    alone = "nothing in a log" if rule.bare or rule.unknown else "that alone"
    parts = [("seen by", ", ".join(asks)), ("proved by", " or ".join(proofs) or alone)]
    parts += [("cause", rule.cause), ("remedy", rule.fix), ("source", ", ".join(rule.source))]
    lines = [line for name, words in parts if words for line in paragraph(name, words, width)]
    return "\n".join([f"{rule.id} ({rule.about})", *lines, "   example", textwrap.indent(rule.example, " " * 13)])


def listed(rules: tuple[Rule, ...]) -> str:
    """Return each rule and the beginning of its cause, by what it is about."""
    wide = max(len(rule.id) for rule in rules)
    return "\n".join(
        f"{rule.about:<9} {rule.id:<{wide}}  {rule.cause.partition('. ')[0].rstrip('.')}" for rule in rules
    )


def list_json(rules: tuple[Rule, ...]) -> str:
    """Return the rules with their words."""
    keys = ("id", "about", "cause", "fix", "source", "example")
    return json.dumps({"version": VERSION, "rules": [{key: getattr(r, key) for key in keys} for r in rules]}, indent=2)
