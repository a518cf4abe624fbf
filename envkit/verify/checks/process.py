"""Did every rank run, and to the end?"""

from __future__ import annotations

import operator
import re
import statistics
from collections.abc import Sequence

from envkit.diagnose import Certainty, first_cause
from envkit.knowledge.known import catalogue, known
from envkit.verify.facts import RankFacts
from envkit.verify.outcome import Ranks, Result

SAID_LINES = 8
SAID_LENGTH = 600


def rank_missing(ranks: Ranks) -> list[Result]:
    found, size = len(ranks.facts), ranks.expected.size
    values: dict[str, object] = {"found": found, "size": size, "shared": ranks.expected.shared}
    values["hosts"] = ", ".join(dict.fromkeys(facts.host for facts in ranks.facts))
    values["missing"] = missing(ranks)
    if found == size:
        case = "pass"
    elif found > size:
        case = "more"
    elif entering := re.search(catalogue()["rank-missing"]["no-module"]["pattern"], ranks.expected.launcher_said):
        case = "no-module"
        values |= {name: text or "" for name, text in entering.groupdict().items()}
        values["said"] = last_lines(ranks.expected.launcher_said[: entering.start()])
    elif not found:
        case = fitting("rank-missing", ranks.expected.launcher_said) or "none"
    else:
        case = "not-shared" if all(facts.size == size for facts in ranks.facts) else "fewer"
    return [ranks.outcome("rank-missing", case, **values)]


def last_lines(text: str) -> str:
    """The end of what was said before, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-SAID_LINES:]
    return f"It said: {' '.join(lines)[-SAID_LENGTH:]}" if lines else ""


def missing(ranks: Ranks) -> str:
    """The ranks that left no record, as far as the launcher told them."""
    seen = {facts.launcher_rank if facts.rank is None or facts.size == 1 else facts.rank for facts in ranks.facts}
    return numbers([rank for rank in range(ranks.expected.size) if rank not in seen])


def numbers(ranks: Sequence[int]) -> str:
    """Ranks in short: "0, 2-5"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def fitting(check: str, text: str) -> str:
    """The first case of a check whose pattern is found in a text, or nothing."""
    patterns = {case: words.get("pattern") for case, words in catalogue()[check].items()}
    return next((case for case, pattern in patterns.items() if pattern and re.search(pattern, text)), "")


def launcher_ended(ranks: Ranks) -> list[Result]:
    status = ranks.expected.launcher_status
    if status is None:
        return []
    found = first_cause(ranks.expected.launcher_said.splitlines()) if status else None
    if found is not None and found.certainty is not Certainty.UNKNOWN:
        values = {"line": found.line, "cause": found.cause, "remedy": found.fix}
        return [ranks.outcome("launcher-ended", "known", status=status, **values)]
    return [ranks.outcome("launcher-ended", "fail" if status else "pass", status=status)]


def rank_died(ranks: Ranks) -> list[Result]:
    dead = [facts for facts in ranks.facts if not facts.finished and not _hung(facts)]
    if not dead:
        return [ranks.outcome("rank-died", "pass")] if ranks.facts else []
    first = min(dead, key=_is_consequence)
    values = {"rank": first.label, "phase": first.phase, "others": len(dead) - 1, "said": _said(first)}
    if first.ended is None:
        return [ranks.outcome("rank-died", "killed", **values)]
    values |= {"signal": first.ended.signal, "code": first.ended.status}
    known = fitting("rank-died", first.ended.said or "")
    by_signal = first.ended.signal if first.ended.signal in catalogue()["rank-died"] else ""
    case = first.ended.how if first.ended.how == "terminated" else known or by_signal or first.ended.how
    case = "early-message" if case == "SIGSEGV" and _may_be_early_message(first, ranks) else case
    return [ranks.outcome("rank-died", case, **values)]


def _may_be_early_message(dead: RankFacts, ranks: Ranks) -> bool:
    """Whether a rank crashed where Slurm's PMIx barrier can be the cause."""
    by_srun = dead.started is not None and dead.started.launcher == "srun"
    return by_srun and dead.phase == "init" and len({facts.host for facts in ranks.facts}) > 1


def _is_consequence(facts: RankFacts) -> int:
    """How little the end of a rank tells: one that ended by itself, one that vanished, one that was told to stop."""
    if facts.ended is None:
        return 1
    return 2 if facts.ended.how == "terminated" else 0


def _said(facts: RankFacts) -> str:
    """The last line that a rank said, in a parenthesis that fits a message."""
    said = (facts.ended.said if facts.ended else None) or ""
    lines = [line.strip() for line in said.splitlines() if line.strip(" -*=")]
    return f"; it said: {lines[-1][:200]}" if lines else ""


def rank_hung(ranks: Ranks) -> list[Result]:
    hung = [facts for facts in ranks.facts if _hung(facts)]
    if not hung:
        return [ranks.outcome("rank-hung", "pass")] if ranks.facts else []
    furthest = max(len(facts.phases) for facts in ranks.facts)
    late = [facts for facts in hung if len(facts.phases) < furthest]
    culprits = late or hung
    limit = next((f.ended.limit for f in hung if f.ended and f.ended.limit), None)
    labels = ", ".join(facts.label for facts in culprits[:4]) + (", ..." if len(culprits) > 4 else "")
    dead = any(not facts.finished and not _hung(facts) for facts in ranks.facts)
    alone = len(ranks.facts) < ranks.expected.size
    case = "bereaved" if dead else "late" if late else "lacking" if alone else "together"
    values = {"ranks": labels, "phase": culprits[0].phase, "limit": limit or "a few", "where": _places(culprits)}
    values |= {"since": _seconds_in_phase(culprits[0]), "missing": missing(ranks)}
    return [ranks.outcome("rank-hung", case, waiting=len(hung) - len(late), **values)]


def rank_late(ranks: Ranks) -> list[Result]:
    """Who came to hvd.init() long after the others, though in time."""
    arrivals = [(at, facts) for facts in ranks.facts if (at := _arrival(facts, "init")) is not None]
    if len(arrivals) < 2:
        return []
    median = statistics.median_low(at for at, _ in arrivals)
    usual = median - min(facts.phases[0].at for _, facts in arrivals)
    latest, slowest = max(arrivals, key=operator.itemgetter(0))
    behind = latest - median
    slow = behind > max(known("launch")["late_s"], usual)
    values = {"rank": slowest.label, "behind": f"{behind:.0f}", "usual": f"{usual:.0f}"}
    return [ranks.outcome("rank-late", "late" if slow else "pass", **values)]


def _arrival(facts: RankFacts, phase: str) -> float | None:
    return next((one.at for one in facts.phases if one.name == phase), None)


def _seconds_in_phase(facts: RankFacts) -> str:
    """When a rank came to the step it did not leave, counted from the start of the probe."""
    return f"{facts.phases[-1].at - facts.phases[0].at:.0f}" if facts.phases else "0"


def _hung(facts: RankFacts) -> bool:
    return facts.ended is not None and facts.ended.how in {"timeout", "stopped"}


def _places(hung: Sequence[RankFacts]) -> str:
    """Where ranks were stuck, with a rank for each place if there are several."""
    first: dict[str, str] = {}
    for facts in hung:
        first.setdefault(_innermost((facts.ended.stack if facts.ended else None) or ""), facts.label)
    if len(first) == 1:
        return next(iter(first))
    return "; ".join(f"{place} ({label})" for place, label in list(first.items())[:3])


def _innermost(stack: str) -> str:
    lines = [line.strip() for line in stack.splitlines() if line.strip().startswith("File")]
    return lines[0] if lines else "an unknown place"
