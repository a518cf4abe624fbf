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


class Operation(msgspec.Struct, frozen=True, kw_only=True):
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


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that a rank got from an operation, and those that are right."""

    facts: RankFacts
    what: str
    found: tuple[float | str, ...] | Fact
    wanted: Sequence[float]

    @property
    def right(self) -> bool:
        """Whether these are the right numbers."""
        numbers = None if isinstance(self.found, Fact) else self.found
        return arithmetic.agree(numbers, self.wanted, arithmetic.tolerance(self.what))

    @property
    def absent(self) -> bool:
        """Whether this Horovod has no such operation."""
        return isinstance(self.found, Fact) and is_absence(self.found.error or "")


def is_absence(error: str) -> bool:
    """Say whether an error means that this Horovod has no such operation."""
    return bool(re.search(catalogue()["collective"]["absent"]["pattern"], error))


def for_all(results: Callable[[int], arithmetic.Results]) -> Callable[[int, int], arithmetic.Results]:
    """Return results that are the same for every rank as a function of the size and a rank."""
    return lambda size, _: results(size)


def shared(check: str, results: Callable[[int], arithmetic.Results], *larger: str) -> Operation:
    """Return the check of an operation that gives every rank the same."""
    wanted = for_all(results)
    return Operation(check=check, fact="collectives_{}", field=check, wanted=wanted, needed=True, larger=larger)


def exchanged(check: str, results: Callable[[int, int], arithmetic.Results]) -> Operation:
    """Return the check of an operation that gives each rank its own."""
    return Operation(check=check, fact="exchanges_{}", field=check, wanted=results, larger=(check,))


OPERATIONS = (
    shared("broadcast", arithmetic.broadcast, "broadcast"),
    shared("allreduce", arithmetic.allreduce, "sum", "average", "grouped"),
    shared("allgather", arithmetic.allgather, "allgather"),
    exchanged("alltoall", arithmetic.alltoall),
    exchanged("reducescatter", arithmetic.reducescatter),
)
PROCESS_SETS = Operation(check="process-sets", fact="process_sets", field="results", wanted=arithmetic.process_sets)


def collectives(ranks: Ranks) -> list[Result]:
    results = on(ranks, "cpu")
    if any(facts.collectives_gpu for facts in ranks.facts):
        return results + on(ranks, "gpu")
    seen = max((facts.gpus.count for facts in ranks.facts if facts.gpus), default=0)
    nccl = any(facts.flags and facts.flags.get("nccl") for facts in ranks.facts)
    reason = "no GPU is visible" if not seen else "the GPU was not used" if nccl else "not built with NCCL"
    case = "required" if ranks.expected.gpus else "optional"
    return [*results, ranks.outcome("gpu-collectives", case, reason=reason)]


def on(ranks: Ranks, where: str) -> list[Result]:
    """Return the results of all operations on one kind of device."""
    return [*(collective(ranks, operation, where) for operation in OPERATIONS), larger_messages(ranks, where)]


def process_sets(ranks: Ranks) -> list[Result]:
    if ranks.expected.size == 1:
        return [ranks.outcome("collective", "one-rank", check_id="process-sets")]
    return [collective(ranks, PROCESS_SETS, "cpu")]


def barrier(ranks: Ranks) -> list[Result]:
    if ranks.expected.size == 1:
        return [ranks.outcome("collective", "one-rank", check_id="barrier")]
    if not ranks.is_world:
        return [ranks.outcome("not-measured", "no-world", check_id="barrier")]
    for facts in ranks.facts:
        if facts.barrier is None:
            return [ranks.not_measured("barrier", facts, required=not facts.finished)]
        if facts.barrier.error:
            answer = Answer(facts=facts, what="", found=facts.barrier, wanted=())
            return [failed(ranks, "barrier", answer, "cpu", needed=False)]
    early = [node for node, of in by_node(ranks).items() if left_early(of)]
    case = "early" if early else "pass"
    return [ranks.outcome("barrier", case, nodes=", ".join(early), size=ranks.expected.size)]


def left_early(node: Sequence[RankFacts]) -> bool:
    """Whether one rank of a node had left the barrier when another came to it."""
    times = [facts.barrier for facts in node if facts.barrier]
    return min(each.left for each in times) < max(each.entered for each in times)


def collective(ranks: Ranks, operation: Operation, where: str) -> Result:
    """Return the result for one operation: wrong numbers first, then what is absent."""
    check = operation.check
    if not ranks.is_world:
        return ranks.outcome("not-measured", "no-world", check_id=check)
    silent = next((facts for facts in ranks.facts if not statements(facts, operation, where)), None)
    if silent:
        older = silent.finished and getattr(silent, operation.fact.format(where)) is None
        return ranks.not_measured(check, silent, required=operation.needed or not older)
    answers = list(all_answers(ranks, operation, where))
    bad = next((answer for answer in answers if not answer.right and not answer.absent), None)
    if bad:
        return wrong_answer(ranks, operation, bad, where)
    wrong = wrong_larger(ranks, operation, where)
    if wrong:
        return wrong
    absent = list(dict.fromkeys(answer.what for answer in answers if answer.absent))
    if all(answer.absent for answer in answers):
        return failed(ranks, check, answers[0], where, needed=operation.needed)
    values = {"check_id": check, "size": ranks.expected.size, "where": where, "absent": ", ".join(absent)}
    values["setting"] = next((setting for facts in ranks.facts if (setting := facts.environment.get(SETTING))), "")
    case = "pass" if not absent else "partly-set" if values["setting"] else "partly"
    return ranks.outcome("collective", case, **values)


def larger_messages(ranks: Ranks, where: str) -> Result:
    """Up to which size each element was compared."""
    check = "message-sizes"
    if not ranks.is_world:
        return ranks.outcome("not-measured", "no-world", check_id=check)
    lacking = ranks.lacking(f"values_{where}")
    if lacking:
        return ranks.not_measured(check, lacking, required=not lacking.finished)
    for facts in ranks.facts:
        for values in larger_values(facts, where):
            if values.error or not values.messages:
                return ranks.outcome(
                    check, "error", rank=facts.label, where=where, error=values.error or "none was sent"
                )
    series = larger_values(ranks.facts[0], where)
    absent = [row for values in series for row in values.bad if is_absence(row.error or "")]
    largest, messages = size(max(each.largest for each in series)), sum(each.messages for each in series) - len(absent)
    types = ", ".join(dict.fromkeys(row.kind for row in absent if row.operation == "sum"))
    words = {
        "largest": largest,
        "messages": messages,
        "where": where,
        "absent": f"; not there: {types}" if types else "",
    }
    left_out = ", ".join(size(each) for each in sorted({each for values in series for each in values.left_out}))
    return ranks.outcome(check, "cut" if left_out else "pass", **words, left_out=left_out)


def larger_values(facts: RankFacts, where: str) -> list[Values]:
    """How larger messages arrived: always compared, and those that are compared where the speed is measured."""
    measured: list[Values | None] = [getattr(facts, f"values_{where}"), facts.values_bench]
    return [values for values in measured if values and values.where in {where, ""}]


def wrong_larger(ranks: Ranks, operation: Operation, where: str) -> Result | None:
    """The result for the first rank to which a larger message came wrong, or not at all."""
    measured = [(facts, values) for facts in ranks.facts for values in larger_values(facts, where)]
    bad = [(facts, row) for facts, values in measured for row in bad_rows(values, operation.larger)]
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


def bad_rows(values: Values, operations: Sequence[str]) -> Iterator[Compared]:
    """Return the larger messages of some operations that came wrong, or failed though they should be there."""
    for row in values.bad:
        if row.operation in operations and not is_absence(row.error or ""):
            yield row


def statements(facts: RankFacts, operation: Operation, where: str) -> Mapping[str, tuple[float | str, ...] | Fact]:
    """Return the statements of a rank on an operation: none, or one failure, or results by description."""
    fact: Fact | None = getattr(facts, operation.fact.format(where))
    if fact is None:
        return {}
    stated: Mapping[str, tuple[float | str, ...] | Fact] = {"": fact} if fact.error else getattr(fact, operation.field)
    return stated


def all_answers(ranks: Ranks, operation: Operation, where: str) -> Iterator[Answer]:
    """Return the answers that the ranks got; once where they have one object."""
    previous = None
    for rank, facts in enumerate(ranks.facts):
        stated = statements(facts, operation, where)
        if operation.needed and stated is previous:
            continue
        previous, wanted = stated, operation.wanted(ranks.expected.size, rank)
        for what, value in stated.items():
            yield Answer(facts=facts, what=what, found=value, wanted=wanted.get(what, ()))


def wrong_answer(ranks: Ranks, operation: Operation, answer: Answer, where: str) -> Result:
    """Return the result for a rank that got wrong numbers, or an error in place of them."""
    if isinstance(answer.found, Fact):
        return failed(ranks, operation.check, answer, where, needed=operation.needed)
    values = {"rank": answer.facts.label, "what": f"{operation.check} {answer.what}", "where": where}
    values |= {"found": exact(answer.found, answer.wanted), "right": exact(answer.wanted, answer.found)}
    return ranks.outcome("collective", wrong_case(ranks, answer.facts, where), check_id=operation.check, **values)


def failed(ranks: Ranks, check: str, answer: Answer, where: str, *, needed: bool) -> Result:
    """Return the result for a rank in which an operation failed, or is absent."""
    case = "error" if needed else "absent" if answer.absent else "optional-error"
    error = answer.found.error if isinstance(answer.found, Fact) else None
    values = {"rank": answer.facts.label, "what": f"{check} {answer.what}".strip(), "where": where, "error": error}
    return ranks.outcome("collective", case, check_id=check, framework=ranks.framework, **values)


def wrong_case(ranks: Ranks, facts: RankFacts, where: str) -> str:
    """Whose numbers this rank's sum is made of: its own, its node's, or neither."""
    fact = getattr(facts, f"collectives_{where}")
    numbers = fact.allreduce.get("sum float64") if fact else None
    if numbers is None or isinstance(numbers, Fact):
        return "wrong"
    sent = arithmetic.sent(ranks.expected.size, "float64")
    node = [sent[each.rank][0] for each in by_node(ranks)[facts.host] if each.rank is not None]
    alone = facts.rank is not None and numbers[:1] == (sent[facts.rank][0],)
    within = len(node) < ranks.expected.size and numbers[:1] == (sum(node),)
    return "alone" if alone else "within-node" if within else "wrong"


def short(numbers: Sequence[float]) -> str:
    """A vector as a person reads it: its first six elements."""
    shown = ", ".join(f"{number:.6g}" for number in numbers[:6])
    return f"[{shown}, ...]" if len(numbers) > 6 else f"[{shown}]"


CHECKS = (collectives, process_sets, barrier)
