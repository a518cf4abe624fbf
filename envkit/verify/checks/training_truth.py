"""Did the ranks train together?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from envkit.verify import arithmetic
from envkit.verify.arithmetic import FLOAT32_TOLERANCE, agree
from envkit.verify.checks.collectives import short
from envkit.verify.checks.nodes import by_node
from envkit.verify.facts import RankFacts, Training
from envkit.verify.outcome import Ranks, Result, Status

CALLBACKS = {
    "broadcast_callback": "BroadcastGlobalVariablesCallback",
    "metric_callback": "MetricAverageCallback",
    "warmup_callback": "LearningRateWarmupCallback",
}


def training(ranks: Ranks) -> list[Result]:
    names = ("tensorflow", "keras") if ranks.framework == "tensorflow" else (ranks.framework,)
    return [training_result(ranks, name) for name in names]


def keras(ranks: Ranks) -> list[Result]:
    if ranks.framework != "tensorflow":
        return []
    for facts in ranks.facts:
        if facts.keras is None or facts.keras.error:
            return [ranks.not_measured("keras-3", facts)]
        if not facts.keras.version.startswith("2.") and not trains(ranks, facts):
            return [keras_result(ranks, facts, "keras-3")]
    return [keras_result(ranks, ranks.facts[0], "pass")]


def callbacks(ranks: Ranks) -> list[Result]:
    if ranks.framework != "tensorflow":
        return []
    lacking = next((facts for facts in ranks.facts if facts.warmup_callback is None), None)
    if lacking:
        return [ranks.not_measured("keras-callbacks", lacking)]
    failed = [f"{title} ({why})" for name, title in CALLBACKS.items() if (why := callback_fault(ranks, name))]
    case = "failed" if failed else "pass"
    return [ranks.outcome("keras-callbacks", case, failed="; ".join(failed))]


def training_result(ranks: Ranks, name: str) -> Result:
    """Return the result for the training of one framework."""
    check = f"training-truth-{name}"
    if ranks.expected.size == 1:
        return ranks.outcome("training-truth", "one-rank", check_id=check)
    if not ranks.is_world:
        return ranks.outcome("not-measured", "no-world", check_id=check)
    tasks: list[Training] = []
    for facts in ranks.facts:
        task: Training | None = getattr(facts, f"training_{name}")
        if task is None:
            return ranks.not_measured(check, facts)
        if task.error:
            values = {"name": name, "rank": facts.label, "error": task.error}
            return ranks.outcome("training-truth", "error", check_id=check, **values)
        tasks.append(task)
    case = training_case(tasks)
    if case in {"alone", "diverged"}:
        case = divided_case(ranks, name, tasks) or case
    return ranks.outcome("training-truth", case, check_id=check, **message_values(name, tasks))


def training_case(tasks: Sequence[Training]) -> str:
    """Return the case of a training, by the weights that its ranks came to."""
    together = arithmetic.trained_together(tasks)
    alone = [arithmetic.trained_alone(task, task.started) for task in tasks]
    if all(agree(weights, together, 10 * FLOAT32_TOLERANCE) for weights in alone):
        return "blunt"
    if not all(agree(task.started, tasks[0].own, FLOAT32_TOLERANCE) for task in tasks):
        return "not-broadcast"
    if not all(task.rate is None or agree([task.rate], [task.learning_rate], FLOAT32_TOLERANCE) for task in tasks):
        return "state-not-broadcast"
    if all(agree(task.weights, together, FLOAT32_TOLERANCE) for task in tasks):
        return "pass"
    pairs = zip(tasks, alone, strict=True)
    if all(agree(task.weights, weights, FLOAT32_TOLERANCE) for task, weights in pairs):
        return "alone"
    same = all(agree(task.weights, tasks[0].weights, FLOAT32_TOLERANCE) for task in tasks)
    return "wrong" if same else "diverged"


def divided_case(ranks: Ranks, name: str, tasks: Sequence[Training]) -> str | None:
    """A known reason for weights that differ: Keras 3, or gradients that did not leave a node."""
    if name == "keras" and any(facts.keras and facts.keras.version.startswith("3.") for facts in ranks.facts):
        return "keras-3"
    of_rank = dict(zip((facts.rank for facts in ranks.facts), tasks, strict=True))
    nodes = [[of_rank[facts.rank] for facts in node] for node in by_node(ranks).values()]
    return "within-nodes" if len(nodes) > 1 and all(one_world(node, tasks[0].own) for node in nodes) else None


def one_world(tasks: Sequence[Training], start: Sequence[float]) -> bool:
    """Whether these ranks, and no others, trained together from there."""
    wanted = arithmetic.trained_together(tasks, start)
    return len(tasks) > 1 and all(agree(task.weights, wanted, FLOAT32_TOLERANCE) for task in tasks)


def message_values(name: str, tasks: Sequence[Training]) -> dict[str, object]:
    """Return values for the messages."""
    return {
        "name": name,
        "size": len(tasks),
        "steps": tasks[0].steps,
        "right": short(arithmetic.trained_together(tasks)),
        "weights": telling([task.weights for task in tasks]),
        "started": telling([task.started for task in tasks]),
        "rates": telling([() if task.rate is None else (task.rate,) for task in tasks]),
    }


def telling(values: Sequence[Sequence[float]]) -> str:
    """Rank 0's vector and the first two that differ from it; the next two where none does."""
    differ = [rank for rank, value in enumerate(values) if not agree(value, values[0], FLOAT32_TOLERANCE)]
    shown = [0, *(differ or range(1, len(values)))[:2]]
    return ", ".join(f"rank {rank}: {short(values[rank])}" for rank in shown)


def trains(ranks: Ranks, facts: RankFacts) -> bool:
    """Whether nothing speaks against this Keras; one rank shows it by the callbacks alone."""
    measured = (getattr(facts, name) for name in CALLBACKS)
    failed = any(fact is not None and fact.error for fact in measured)
    return not failed and training_result(ranks, "keras").status is not Status.FAIL


def keras_result(ranks: Ranks, facts: RankFacts, case: str) -> Result:
    """Return the result for the Keras of a rank."""
    version = f"{facts.keras.implementation} {facts.keras.version}" if facts.keras else ""
    return ranks.outcome("keras-3", case, keras=version)


def callback_fault(ranks: Ranks, name: str) -> str:
    """Return the fault of a callback, or nothing."""
    measured = [getattr(facts, name) for facts in ranks.facts]
    error = next((fact.error for fact in measured if fact is not None and fact.error), None)
    if error or None in measured:
        return error or "not measured"
    if name == "warmup_callback":
        good = all(math.isclose(fact.asked, fact.reached, rel_tol=FLOAT32_TOLERANCE) for fact in measured)
    elif name == "broadcast_callback":
        good = all(agree(fact.weights, measured[0].own, FLOAT32_TOLERANCE) for fact in measured)
    else:
        mean = sum(arithmetic.loss(fact, fact.own) for fact in measured) / len(measured)
        good = all(math.isclose(fact.loss, mean, rel_tol=FLOAT32_TOLERANCE) for fact in measured)
    return "" if good else "wrong values"


CHECKS = (training, keras, callbacks)
