"""Did every rank run, and to the end?"""

from __future__ import annotations

import operator
import re
import signal
import statistics
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from pathlib import PurePath

from msgspec import to_builtins
from msgspec.structs import fields, replace

from envkit.diagnose import Certainty, first_cause
from envkit.knowledge.known import catalogue, known
from envkit.system.stopped import Stopped
from envkit.verify import presence
from envkit.verify.facts import RankFacts
from envkit.verify.outcome import Ranks, Result
from envkit.verify.settings import commands

UNSET = re.compile(r"'(unset [^']+)'")  # what is to be typed, in the words of a failed entering
SAID_LINES = 8
STOPPED = 124  # the status of a launcher that was not waited for any longer
SAID_LENGTH = 300


def rank_missing(ranks: Ranks) -> list[Result]:
    count, size = len(ranks.facts), ranks.expected.size
    values: dict[str, object] = {"found": count, "size": size, "shared": ranks.expected.shared}
    values["hosts"] = ", ".join(dict.fromkeys(facts.host for facts in ranks.facts))
    values["missing"] = missing(ranks)
    if count == size:
        case = "again" if ranks.expected.again else "pass"
    elif count > size:
        sizes = {facts.started.size if facts.started else None for facts in ranks.facts}
        case = "other-number" if sizes == {count} else "more"
    elif ranks.expected.unseen and any(facts.size != size for facts in ranks.facts):
        case = "left-over"
        values["names"] = " ".join(ranks.expected.unseen)
    elif not count and (entering := said_in("modules-tool", ranks)):  # ended with the launcher, it also says "killed"
        case, values["folder"] = "modules-tool", entering["folder"]
    elif entering := said_in("no-module", ranks):
        case = "no-module"
        values |= {name: text or "" for name, text in entering.groupdict().items()}
        values["said"] = last_lines(ranks.expected.launcher_said[: entering.start()])
    elif not count and ranks.expected.outside:
        case = "not-granted"
        values["hosts"] = ", ".join(ranks.expected.outside)
    elif not count:
        case = fitting("rank-missing", ranks.expected.launcher_said) or "none"
        match = re.search(catalogue()["rank-missing"][case].get("pattern", ""), ranks.expected.launcher_said)
        values |= {name: text or "" for name, text in match.groupdict().items()} if match else {}
        line = telling(ranks.expected.launcher_said)
        values["said"] = f"it said: {line}" if line else "it said nothing"
        values["status"] = ranks.expected.launcher_status
    elif said_in("unseen-folder", ranks):
        case = "unseen-folder"
    elif not all(facts.size == size for facts in ranks.facts) and "Error" in ranks.expected.launcher_said:
        case = "ended-early"
        values["said"] = telling(ranks.expected.launcher_said)
    else:
        case = "not-shared" if all(facts.size == size for facts in ranks.facts) else "fewer"
    named = [
        setting for setting in ranks.expected.settings if case == "named-interface" and setting.value == values["value"]
    ]
    typed = [*commands(named), *UNSET.findall(str(values.get("fix", "")))]
    return [replace(ranks.outcome("rank-missing", case, **values), commands=tuple(typed))]


def said_in(case: str, ranks: Ranks) -> re.Match[str] | None:
    """What the launcher's log says of a case of rank-missing."""
    return re.search(catalogue()["rank-missing"][case]["pattern"], ranks.expected.launcher_said)


def last_lines(text: str) -> str:
    """The end of what was said before, in one line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-SAID_LINES:]
    return f"It said: {' '.join(lines)[-SAID_LENGTH:]}" if lines else ""


def missing(ranks: Ranks) -> str:
    """The ranks that left no record, as far as the launcher told them."""
    seen = {facts.launcher_rank if facts.rank is None or facts.size == 1 else facts.rank for facts in ranks.facts}
    return gaps({rank for rank in seen if rank is not None}, ranks.expected.size)


def gaps(seen: AbstractSet[int], size: int) -> str:
    """The ranks below ``size`` that were not seen, in short: "0, 2-5"."""
    edges = [-1, *sorted(rank for rank in seen if 0 <= rank < size), size]
    runs = [(first + 1, last - 1) for first, last in pairwise(edges) if last - first > 1]
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def fitting(check: str, text: str) -> str:
    """The first case of a check whose pattern is found in a text, or nothing."""
    patterns = {case: words.get("pattern") for case, words in catalogue()[check].items()}
    return next((case for case, pattern in patterns.items() if pattern and re.search(pattern, text)), "")


def launcher_ended(ranks: Ranks) -> list[Result]:
    status = ranks.expected.launcher_status
    if status is None:
        return []
    text = ranks.expected.launcher_said
    if stopped := [
        process
        for process in ranks.expected.stopped
        if process.rank is None and not any(is_of(process, facts) for facts in ranks.facts)
    ]:
        return [ranks.outcome("launcher-ended", "stopped", program=stopped[0].program, pid=stopped[0].pid)]
    if killed := re.search(catalogue()["launcher-ended"]["signal"]["pattern"], text):
        program = PurePath(ranks.expected.launcher).name or "the launcher"
        return [ranks.outcome("launcher-ended", "signal", signal=killed[1], program=program)]
    if status == STOPPED and len(ranks.facts) >= ranks.expected.size and all(facts.finished for facts in ranks.facts):
        return [ranks.outcome("launcher-ended", "stays", program=PurePath(ranks.expected.launcher).name)]
    if status and (full := re.search(catalogue()["launcher-ended"]["no-room"]["pattern"], text)):
        values = {"status": status, "line": " ".join(full[0].split()), "path": temporary_folder(ranks)}
        return [ranks.outcome("launcher-ended", "no-room", **values)]
    cause = first_cause(text.splitlines()) if status else None
    if cause is not None and cause.certainty is not Certainty.UNKNOWN:
        values = {"line": cause.line, "cause": cause.cause, "remedy": cause.fix}
        return [ranks.outcome("launcher-ended", "known", status=status, **values)]
    return [ranks.outcome("launcher-ended", "fail" if status else "pass", status=status)]


def temporary_folder(ranks: Ranks) -> str:
    """The folder for temporary files, as far as the settings tell."""
    named = [setting.value for setting in ranks.expected.settings if setting.name == "TMPDIR"]
    return named[0] if named else "/tmp"  # noqa: S108


def rank_died(ranks: Ranks) -> list[Result]:
    dead = [
        facts for facts in ranks.facts if not facts.finished and not is_hung(facts) and not is_stopped(facts, ranks)
    ]
    if ranks.expected.stopped:  # then all that is left was ended with it
        dead = [facts for facts in dead if facts.ended and facts.ended.how != "terminated"]
    dead = [facts for facts in dead if facts.ended or not ranks.expected.is_at_work(facts.launcher_rank)] or dead
    if lost := unrecorded(ranks):
        return [lost]
    if killed := absentees(ranks, presence.GONE):
        labels = ", ".join(facts.label for facts in killed[:4])
        return [ranks.outcome("rank-died", "envkit", ranks=labels, phase=killed[0].phase)]
    if not dead:
        return [ranks.outcome("rank-died", "pass")] if ranks.facts else []
    first = min(dead, key=is_consequence)
    of_measuring = first.ended.pid if first.ended and first.ended.how == "signal" else None
    label = replace(first, pid=of_measuring or first.pid).label
    values: dict[str, object] = {"rank": label, "phase": first.phase, "others": len(dead) - 1}
    if first.ended is None and ranks.expected.is_at_work(first.launcher_rank):
        return [ranks.outcome("rank-died", "terminated", **values, signal=ranks.expected.told)]
    values |= {"host": first.host, "number": first.launcher_rank}
    values |= {"said": last_said(first), "launcher": ranks.expected.launcher or "the launcher"}
    if first.ended is None:
        seen = re.search(catalogue()["rank-died"]["noticed"]["pattern"], ranks.expected.launcher_said)
        case = "noticed" if seen else "killed"
        return [ranks.outcome("rank-died", case, **values, noticed=seen[0].strip() if seen else "")]
    status = first.ended.status
    values |= {"signal": first.ended.signal, "with_status": "" if status is None else f" with status {status}"}
    values |= {"started": first.started.title if first.started else values["launcher"]}
    by_words = fitting("rank-died", first.ended.said or "")
    program = first.started.launcher if first.started else ""
    if by_words in {"no-pmi", "other-launcher"}:
        by_words = {"srun": "no-pmi", "mpiexec": "other-launcher"}.get(program, by_words)
    by_signal = first.ended.signal if first.ended.signal in catalogue()["rank-died"] else ""
    case = first.ended.how if first.ended.how == "terminated" else by_words or by_signal or first.ended.how
    case = "early-message" if case == "SIGSEGV" and may_be_early_message(first, ranks) else case
    case = "aborted-at-start" if case == "aborted" and program == "srun" and first.phase == "init" else case
    healthy = len(dead) == len(ranks.facts) and not any(facts.failed for facts in ranks.facts)
    case = "outside" if case == "terminated" and healthy and told_killed(ranks) is None else case
    is_alone = bool(ranks.expected.told) and len(dead) == 1 and any(facts.ended is None for facts in ranks.facts)
    case = "alone" if case == "terminated" and is_alone else case
    case = "memory" if case == "SIGKILL" and first.ended.memory_kills else case
    return [ranks.outcome("rank-died", case, **values)]


def told_killed(ranks: Ranks) -> tuple[int, str, str] | None:
    """The rank of which the launcher says that a signal ended it: its number, its host, the signal."""
    told = re.search(catalogue()["rank-died"]["unrecorded"]["pattern"], ranks.expected.launcher_said)
    if told is None:
        return None
    number, host, signal_number = filter(None, told.groups())
    known_signals = {int(one): one.name for one in signal.Signals}
    return int(number), host, known_signals.get(int(signal_number), f"signal {signal_number}")


def unrecorded(ranks: Ranks) -> Result | None:
    """The result for a rank that left no record, and of which the launcher says that a signal ended it."""
    told = told_killed(ranks)
    if told is None or any(told[0] in (facts.launcher_rank, facts.rank) for facts in ranks.facts):
        return None
    number, host, name = told
    case = "unrecorded-killed" if name == "SIGKILL" else "unrecorded"
    launcher = ranks.expected.launcher or "the launcher"
    return ranks.outcome("rank-died", case, number=number, host=host, signal=name, launcher=launcher)


def absentees(ranks: Ranks, why: str) -> list[RankFacts]:
    """The ranks whose own envkit did not come to its end for that reason, each with its process if that is seen."""
    pids = {absent.rank: absent.pid for absent in ranks.expected.absent if absent.why == why}
    return [replace(one, pid=pids[rank] or one.pid) for one in ranks.facts if (rank := one.launcher_rank) in pids]


def may_be_early_message(dead: RankFacts, ranks: Ranks) -> bool:
    """Whether a rank crashed where Slurm's PMIx barrier can be the cause."""
    by_srun = dead.started is not None and dead.started.launcher == "srun"
    return by_srun and dead.phase == "init" and len({facts.host for facts in ranks.facts}) > 1


def is_consequence(facts: RankFacts) -> int:
    """How little the end of a rank tells: one that ended by itself, one that vanished, one that was told to stop."""
    if facts.ended is None:
        return 1
    return 2 if facts.ended.how == "terminated" else 0


def last_said(facts: RankFacts) -> str:
    """The most telling line that a rank said last, as a part of a message."""
    line = telling((facts.ended.said if facts.ended else None) or "")
    return f"; it said: {line}" if line else ""


def telling(text: str) -> str:
    """The line that a rule of diagnose knows, else the first that speaks of an error, else the last."""
    noise = re.compile("|".join(known("launch")["noise"]))
    lines = [line.strip() for line in text.splitlines() if line.strip(" -*=")]
    lines = [line for line in lines if not noise.search(line)]
    cause = first_cause(lines)
    if cause is not None and cause.certainty is not Certainty.UNKNOWN:
        return cause.line[:SAID_LENGTH]
    errors = (line for line in lines if re.search(known("launch")["error"], line))
    return next(errors, lines[-1] if lines else "")[:SAID_LENGTH]


def rank_hung(ranks: Ranks) -> list[Result]:
    hung = [facts for facts in ranks.facts if is_hung(facts)]
    if stopped := [facts for facts in ranks.facts if is_stopped(facts, ranks)]:
        labels = ", ".join(replace(facts, pid=stopped_pid(facts, ranks)).label for facts in stopped[:4])
        return [ranks.outcome("rank-hung", "stopped", ranks=labels, phase=stopped[0].phase)]
    for process in ranks.expected.stopped:
        if process.rank is not None and not any(is_of(process, facts) for facts in ranks.facts):
            values = {"rank": process.rank, "host": process.host, "pid": process.pid}
            return [ranks.outcome("rank-hung", "stopped-early", **values)]
    for why in (presence.STOPPED, presence.LATE):
        if not hung and (late := [facts for facts in absentees(ranks, why) if facts.finished]):
            labels = ", ".join(facts.label for facts in late[:4])
            pids = " ".join(str(facts.pid) for facts in late)
            return [ranks.outcome("rank-hung", f"envkit-{why}", ranks=labels, pids=pids, host=late[0].host)]
    if not hung:
        return [ranks.outcome("rank-hung", "pass")] if ranks.facts else []
    if (raised := raising_rank(ranks.facts, hung)) is not None:
        return [raised_result(ranks, *raised, hung)]
    furthest = max(len(facts.phases) for facts in ranks.facts)
    late = [facts for facts in hung if len(facts.phases) < furthest]
    culprits = late or hung
    limit = next((f.ended.limit for f in hung if f.ended and f.ended.limit), None)
    labels = ", ".join(facts.label for facts in culprits[:4]) + (", ..." if len(culprits) > 4 else "")
    dead = any(not facts.finished and not is_hung(facts) for facts in ranks.facts)
    alone = len(ranks.facts) < ranks.expected.size
    one_host = len({facts.host for facts in ranks.facts}) == 1
    waiting = "here" if one_host else "together"
    case = "bereaved" if dead else "late" if late else "lacking" if alone else waiting
    values = {"ranks": labels, "phase": culprits[0].phase, "limit": limit or "a few", "where": places(culprits)}
    values |= {"since": seconds_in_phase(culprits[0]), "missing": missing(ranks)}
    return [ranks.outcome("rank-hung", case, waiting=len(hung) - len(late), **values)]


def raising_rank(facts: Sequence[RankFacts], hung: Sequence[RankFacts]) -> tuple[RankFacts, str, str] | None:
    """The rank that failed in a step in which another was left waiting: rank, step, error."""
    names = {field.encode_name: field.name for field in fields(RankFacts)}
    for step in dict.fromkeys(record.phase for record in hung if record.phase in names):
        for record in facts:
            if error := error_in(to_builtins(getattr(record, names[step]))):
                return record, step, error
    return None


def error_in(fact: object) -> str:
    """The first error in a fact or a part of it, nothing where there is none."""
    if not isinstance(fact, dict):
        return ""
    return str(fact.get("error") or "") or next(filter(None, map(error_in, fact.values())), "")


def raised_result(ranks: Ranks, rank: RankFacts, step: str, error: str, hung: Sequence[RankFacts]) -> Result:
    """The result for a rank that failed by itself while others waited for it."""
    return ranks.outcome("rank-hung", "raised", rank=rank.label, phase=step, error=error, waiting=len(hung))


def rank_late(ranks: Ranks) -> list[Result]:
    """Who came to hvd.init() long after the others, though in time."""
    arrivals = [(at, facts) for facts in ranks.facts if (at := arrival(facts, "init")) is not None]
    if len(arrivals) < 2:
        return []
    median = statistics.median_low(at for at, _ in arrivals)
    usual = median - min(facts.phases[0].at for _, facts in arrivals)
    latest, slowest = max(arrivals, key=operator.itemgetter(0))
    behind = latest - median
    slow = behind > max(known("launch")["late_s"], usual)
    values = {"rank": slowest.label, "behind": f"{behind:.0f}", "usual": f"{usual:.0f}"}
    return [ranks.outcome("rank-late", "late" if slow else "pass", **values)]


def arrival(facts: RankFacts, phase: str) -> float | None:
    """Return when a rank came to a phase, or None where it did not."""
    return next((step.at for step in facts.phases if step.name == phase), None)


def seconds_in_phase(facts: RankFacts) -> str:
    """Return when a rank came to the step it did not leave, counted from the start of the probe."""
    return f"{facts.phases[-1].at - facts.phases[0].at:.0f}" if facts.phases else "0"


def is_stopped(facts: RankFacts, ranks: Ranks) -> bool:
    """Whether a rank, or the process of it that measures, was stopped by a signal and never went on."""
    seen = any(is_of(process, facts) for process in ranks.expected.stopped)
    return seen or facts.state == "T" or (facts.ended is not None and facts.ended.state == "T")


def stopped_pid(facts: RankFacts, ranks: Ranks) -> int:
    """The process of a rank that was stopped: the uppermost that was seen, else as its watchdog told, else that."""
    seen = [process for process in ranks.expected.stopped if is_of(process, facts)]
    if seen:
        return min(seen, key=lambda process: len(process.above)).pid
    told = facts.ended.pid if facts.ended and facts.ended.state == "T" else None
    return told or facts.pid


def is_of(stopped: Stopped, facts: RankFacts) -> bool:
    """Whether a process is a rank's watchdog, or below it."""
    return stopped.host == facts.host and facts.pid in (stopped.pid, *stopped.above)


def is_hung(facts: RankFacts) -> bool:
    """Say whether a rank did not return in time from a step."""
    return facts.ended is not None and facts.ended.how in {"timeout", "stopped"}


def places(hung: Sequence[RankFacts]) -> str:
    """Return where ranks were stuck, with a rank for each place if there are several."""
    first: dict[str, str] = {}
    for facts in hung:
        first.setdefault(innermost((facts.ended.stack if facts.ended else None) or ""), facts.label)
    if len(first) == 1:
        return next(iter(first))
    return "; ".join(f"{place} ({label})" for place, label in list(first.items())[:3])


def innermost(stack: str) -> str:
    """Return the first place that a stack names."""
    lines = [line.strip() for line in stack.splitlines() if line.strip().startswith("File")]
    return lines[0] if lines else "an unknown place"


CHECKS = (rank_missing, rank_died, launcher_ended, rank_hung, rank_late)
