"""Did the collectives give what only one world of the right size gives?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from envkit.knowledge.known import catalogue
from envkit.report.words import size
from envkit.verify import arithmetic
from envkit.verify.checks.elements import exact, others, wrong_elements
from envkit.verify.checks.nodes import by_node
from envkit.verify.facts import Compared, Fact, RankFacts, Values
from envkit.verify.outcome import Ranks, Result

SETTING = "HOROVOD_CPU_OPERATIONS"


class _Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A check: where its results are in the facts, and what a rank must get.

    Training needs those, and only those, that give every rank the same; equal facts of several ranks are one object.
    `larger` are the operations of larger messages that belong here.
    """

    check: str
    fact: str
    field: str
    wanted: Callable[[int, int], arithmetic.Results]
    needed: bool = False
    larger: tuple[str, ...] = ()


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank got from an operation, and what is right."""

    facts: RankFacts
    what: str
    found: tuple[float | str, ...] | Fact
    wanted: Sequence[float]

    @property
    def right(self) -> bool:
        """Whether these are the right numbers."""
        found = None if isinstance(self.found, Fact) else self.found
        return arithmetic.agree(found, self.wanted, arithmetic.tolerance(self.what))

    @property
    def absent(self) -> bool:
        """Whether this Horovod has no such operation."""
        return isinstance(self.found, Fact) and _is_absence(self.found.error or "")


def _is_absence(error: str) -> bool:
    return bool(re.search(catalogue()["collective"]["absent"]["pattern"], error))


def _for_all(results: Callable[[int], arithmetic.Results]) -> Callable[[int, int], arithmetic.Results]:
    return lambda size, _: results(size)


def _shared(check: str, results: Callable[[int], arithmetic.Results], *larger: str) -> _Operation:
    wanted = _for_all(results)
    return _Operation(check=check, fact="collectives_{}", field=check, wanted=wanted, needed=True, larger=larger)


def _exchanged(check: str, results: Callable[[int, int], arithmetic.Results]) -> _Operation:
    return _Operation(check=check, fact="exchanges_{}", field=check, wanted=results, larger=(check,))


_OPERATIONS = (
    _shared("broadcast", arithmetic.broadcast, "broadcast"),
    _shared("allreduce", arithmetic.allreduce, "sum", "average", "grouped"),
    _shared("allgather", arithmetic.allgather, "allgather"),
    _exchanged("alltoall", arithmetic.alltoall),
    _exchanged("reducescatter", arithmetic.reducescatter),
)
_PROCESS_SETS = _Operation(check="process-sets", fact="process_sets", field="results", wanted=arithmetic.process_sets)


def collectives(ranks: Ranks) -> list[Result]:
    results = _on(ranks, "cpu")
    if any(facts.collectives_gpu for facts in ranks.facts):
        return results + _on(ranks, "gpu")
    seen = max((facts.gpus.count for facts in ranks.facts if facts.gpus), default=0)
    nccl = any(facts.flags and facts.flags.get("nccl") for facts in ranks.facts)
    reason = "no GPU is visible" if not seen else "the GPU was not used" if nccl else "not built with NCCL"
    case = "required" if ranks.expected.gpus else "optional"
    return [*results, ranks.outcome("gpu-collectives", case, reason=reason)]


def _on(ranks: Ranks, where: str) -> list[Result]:
    return [*(_collective(ranks, operation, where) for operation in _OPERATIONS), _larger(ranks, where)]


def process_sets(ranks: Ranks) -> list[Result]:
    if ranks.expected.size == 1:
        return [ranks.outcome("collective", "one-rank", check_id="process-sets")]
    return [_collective(ranks, _PROCESS_SETS, "cpu")]


def barrier(ranks: Ranks) -> list[Result]:
    if ranks.expected.size == 1:
        return [ranks.outcome("collective", "one-rank", check_id="barrier")]
    if not ranks.is_world:
        return [ranks.outcome("not-measured", "no-world", check_id="barrier")]
    for facts in ranks.facts:
        if facts.barrier is None:
            return [ranks.not_measured("barrier", facts, required=not facts.finished)]
        if facts.barrier.error:
            answer = _Answer(facts=facts, what="", found=facts.barrier, wanted=())
            return [_failed(ranks, "barrier", answer, "cpu", needed=False)]
    early = [node for node, of in by_node(ranks).items() if _left_early(of)]
    case = "early" if early else "pass"
    return [ranks.outcome("barrier", case, nodes=", ".join(early), size=ranks.expected.size)]


def _left_early(node: Sequence[RankFacts]) -> bool:
    """Whether one rank of a node had left the barrier when another came to it."""
    times = [facts.barrier for facts in node if facts.barrier]
    return min(each.left for each in times) < max(each.entered for each in times)


def _collective(ranks: Ranks, operation: _Operation, where: str) -> Result:
    check = operation.check
    if not ranks.is_world:
        return ranks.outcome("not-measured", "no-world", check_id=check)
    silent = next((facts for facts in ranks.facts if not _stated(facts, operation, where)), None)
    if silent:
        older = silent.finished and getattr(silent, operation.fact.format(where)) is None
        return ranks.not_measured(check, silent, required=operation.needed or not older)
    answers = list(_answers(ranks, operation, where))
    bad = next((answer for answer in answers if not answer.right and not answer.absent), None)
    if bad:
        return _bad(ranks, operation, bad, where)
    wrong = _wrong_larger(ranks, operation, where)
    if wrong:
        return wrong
    absent = list(dict.fromkeys(answer.what for answer in answers if answer.absent))
    if all(answer.absent for answer in answers):
        return _failed(ranks, check, answers[0], where, needed=operation.needed)
    values = {"check_id": check, "size": ranks.expected.size, "where": where, "absent": ", ".join(absent)}
    values["setting"] = next((one for facts in ranks.facts if (one := facts.environment.get(SETTING))), "")
    case = "pass" if not absent else "partly-set" if values["setting"] else "partly"
    return ranks.outcome("collective", case, **values)


def _larger(ranks: Ranks, where: str) -> Result:
    """Up to which size each element was compared."""
    check = "message-sizes"
    if not ranks.is_world:
        return ranks.outcome("not-measured", "no-world", check_id=check)
    lacking = ranks.lacking(f"values_{where}")
    if lacking:
        return ranks.not_measured(check, lacking, required=not lacking.finished)
    for facts in ranks.facts:
        for values in _values(facts, where):
            if values.error or not values.messages:
                return ranks.outcome(
                    check, "error", rank=facts.label, where=where, error=values.error or "none was sent"
                )
    told = _values(ranks.facts[0], where)
    absent = [row for values in told for row in values.bad if _is_absence(row.error or "")]
    largest, messages = size(max(each.largest for each in told)), sum(each.messages for each in told) - len(absent)
    types = ", ".join(dict.fromkeys(row.kind for row in absent if row.operation == "sum"))
    words = {
        "largest": largest,
        "messages": messages,
        "where": where,
        "absent": f"; not there: {types}" if types else "",
    }
    left_out = ", ".join(size(each) for each in sorted({each for values in told for each in values.left_out}))
    return ranks.outcome(check, "cut" if left_out else "pass", **words, left_out=left_out)


def _values(facts: RankFacts, where: str) -> list[Values]:
    """How larger messages arrived: always compared, and those that are compared where the speed is measured."""
    found: list[Values | None] = [getattr(facts, f"values_{where}"), facts.values_bench]
    return [values for values in found if values and values.where in {where, ""}]


def _wrong_larger(ranks: Ranks, operation: _Operation, where: str) -> Result | None:
    """The result for the first rank to which a larger message came wrong, or not at all."""
    told = [(facts, values) for facts in ranks.facts for values in _values(facts, where)]
    bad = [(facts, row) for facts, values in told for row in _bad_rows(values, operation.larger)]
    if not bad:
        return None
    facts, row = bad[0]
    named = [operation.check, *([row.operation] if len(operation.larger) > 1 else []), row.kind]
    what = f"{' '.join(named)} of {size(row.size)}"
    if row.error:
        values = {"rank": facts.label, "what": what, "where": where, "error": row.error}
        case = "error" if operation.needed else "optional-error"
        return ranks.outcome("collective", case, check_id=operation.check, **values)
    values = {"rank": facts.label, "what": what, "where": where, **wrong_elements(row)}
    values["others"] = others([facts.label for facts, _ in bad])
    return ranks.outcome("collective", "wrong-elements", check_id=operation.check, **values)


def _bad_rows(values: Values, operations: Sequence[str]) -> Iterator[Compared]:
    for row in values.bad:
        if row.operation in operations and not _is_absence(row.error or ""):
            yield row


def _stated(facts: RankFacts, operation: _Operation, where: str) -> Mapping[str, tuple[float | str, ...] | Fact]:
    """What a rank stated of an operation: nothing, or one failure, or results by description."""
    fact: Fact | None = getattr(facts, operation.fact.format(where))
    if fact is None:
        return {}
    stated: Mapping[str, tuple[float | str, ...] | Fact] = {"": fact} if fact.error else getattr(fact, operation.field)
    return stated


def _answers(ranks: Ranks, operation: _Operation, where: str) -> Iterator[_Answer]:
    """What the ranks got; once where they have one object."""
    previous = None
    for rank, facts in enumerate(ranks.facts):
        stated = _stated(facts, operation, where)
        if operation.needed and stated is previous:
            continue
        previous, wanted = stated, operation.wanted(ranks.expected.size, rank)
        for what, found in stated.items():
            yield _Answer(facts=facts, what=what, found=found, wanted=wanted.get(what, ()))


def _bad(ranks: Ranks, operation: _Operation, answer: _Answer, where: str) -> Result:
    if isinstance(answer.found, Fact):
        return _failed(ranks, operation.check, answer, where, needed=operation.needed)
    values = {"rank": answer.facts.label, "what": f"{operation.check} {answer.what}", "where": where}
    values |= {"found": exact(answer.found, answer.wanted), "right": exact(answer.wanted, answer.found)}
    return ranks.outcome("collective", _wrong_case(ranks, answer.facts, where), check_id=operation.check, **values)


def _failed(ranks: Ranks, check: str, answer: _Answer, where: str, *, needed: bool) -> Result:
    case = "error" if needed else "absent" if answer.absent else "optional-error"
    error = answer.found.error if isinstance(answer.found, Fact) else None
    values = {"rank": answer.facts.label, "what": f"{check} {answer.what}".strip(), "where": where, "error": error}
    return ranks.outcome("collective", case, check_id=check, framework=ranks.framework, **values)


def _wrong_case(ranks: Ranks, facts: RankFacts, where: str) -> str:
    """Whose numbers this rank's sum is made of: its own, its node's, or neither."""
    fact = getattr(facts, f"collectives_{where}")
    found = fact.allreduce.get("sum float64") if fact else None
    if found is None or isinstance(found, Fact):
        return "wrong"
    sent = arithmetic.sent(ranks.expected.size, "float64")
    node = [sent[each.rank][0] for each in by_node(ranks)[facts.host] if each.rank is not None]
    alone = facts.rank is not None and found[:1] == (sent[facts.rank][0],)
    within = len(node) < ranks.expected.size and found[:1] == (sum(node),)
    return "alone" if alone else "within-node" if within else "wrong"


def short(numbers: Sequence[float]) -> str:
    """A vector as a person reads it: its first six elements."""
    shown = ", ".join(f"{number:.6g}" for number in numbers[:6])
    return f"[{shown}, ...]" if len(numbers) > 6 else f"[{shown}]"


CHECKS = (collectives, process_sets, barrier)
