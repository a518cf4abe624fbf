"""Did the ranks compute what only a world of the right size computes, and did they train together?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from envkit.verify import arithmetic
from envkit.verify.arithmetic import FLOAT32_TOLERANCE, agree
from envkit.verify.facts import Collectives, RankFacts, Training
from envkit.verify.outcome import Ranks, Result

_OPERATIONS = {
    "broadcast": {"broadcast": arithmetic.expected_broadcast},
    "allreduce": {"sum": arithmetic.expected_sum, "average": arithmetic.expected_average},
    "allgather": {"gathered": arithmetic.expected_gathered},
}
_CALLBACKS = {
    "broadcast_callback": "BroadcastGlobalVariablesCallback",
    "metric_callback": "MetricAverageCallback",
    "warmup_callback": "LearningRateWarmupCallback",
}


def collectives(ranks: Ranks) -> list[Result]:
    results = [_collective(ranks, check, "cpu") for check in _OPERATIONS]
    if any(facts.collectives_gpu for facts in ranks.facts):
        return results + [_collective(ranks, check, "gpu") for check in _OPERATIONS]
    seen = max((facts.gpus.count for facts in ranks.facts if facts.gpus), default=0)
    nccl = any(facts.flags and facts.flags.get("nccl") for facts in ranks.facts)
    reason = "no GPU is visible" if not seen else "the GPU was not used" if nccl else "not built with NCCL"
    case = "required" if ranks.expected.gpus else "optional"
    return [*results, ranks.outcome("gpu-collectives", case, reason=reason)]


def training(ranks: Ranks) -> list[Result]:
    names = ("tensorflow", "keras") if ranks.framework == "tensorflow" else (ranks.framework,)
    return [_training(ranks, name) for name in names]


def keras(ranks: Ranks) -> list[Result]:
    if ranks.framework != "tensorflow":
        return []
    for facts in ranks.facts:
        if facts.keras is None or facts.keras.error:
            return [ranks.not_measured("keras-3", facts)]
        if not facts.keras.version.startswith("2."):
            return [_keras_result(ranks, facts, "keras-3")]
    return [_keras_result(ranks, ranks.facts[0], "pass")]


def callbacks(ranks: Ranks) -> list[Result]:
    if ranks.framework != "tensorflow":
        return []
    lacking = next((facts for facts in ranks.facts if facts.warmup_callback is None), None)
    if lacking:
        return [ranks.not_measured("keras-callbacks", lacking)]
    failed = [f"{title} ({why})" for name, title in _CALLBACKS.items() if (why := _callback(ranks, name))]
    case = "failed" if failed else "pass"
    return [ranks.outcome("keras-callbacks", case, failed="; ".join(failed))]


def _collective(ranks: Ranks, check: str, where: str) -> Result:
    if not ranks.is_world:
        return ranks.outcome("not-measured", "no-world", check_id=check)
    size = ranks.expected.size
    wanted = {name: expect(size) for name, expect in _OPERATIONS[check].items()}
    for facts in ranks.facts:
        found: Collectives | None = getattr(facts, f"collectives_{where}")
        if found is None:
            return ranks.not_measured(check, facts)
        values = {"check_id": check, "where": where, "rank": facts.label}
        if found.error:
            return ranks.outcome("collective", "error", check=check, error=found.error, **values)
        for name, numbers in wanted.items():
            if not agree(getattr(found, name), numbers):
                values |= {"name": name, "found": _short(getattr(found, name)), "wanted": _short(numbers)}
                return ranks.outcome("collective", "wrong", **values)
    return ranks.outcome("collective", "pass", check_id=check, where=where, size=size)


def _training(ranks: Ranks, name: str) -> Result:
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
    return ranks.outcome("training-truth", _training_case(tasks), check_id=check, **_weights(name, tasks))


def _training_case(tasks: Sequence[Training]) -> str:
    together = arithmetic.trained_together(tasks)
    alone = [arithmetic.trained_alone(task, task.started) for task in tasks]
    telling = 10 * FLOAT32_TOLERANCE
    if all(agree(weights, together, telling) for weights in alone):
        return "blunt"
    if not all(agree(task.started, tasks[0].own, FLOAT32_TOLERANCE) for task in tasks):
        return "not-broadcast"
    if all(agree(task.weights, together, FLOAT32_TOLERANCE) for task in tasks):
        return "pass"
    pairs = zip(tasks, alone, strict=True)
    if all(agree(task.weights, weights, FLOAT32_TOLERANCE) for task, weights in pairs):
        return "alone"
    same = all(agree(task.weights, tasks[0].weights, FLOAT32_TOLERANCE) for task in tasks)
    return "wrong" if same else "diverged"


def _weights(name: str, tasks: Sequence[Training]) -> dict[str, object]:
    shown = ", ".join(f"rank {rank}: {_short(task.weights)}" for rank, task in enumerate(tasks[:3]))
    wanted = _short(arithmetic.trained_together(tasks))
    return {"name": name, "size": len(tasks), "weights": shown, "wanted": wanted, "steps": tasks[0].steps}


def _keras_result(ranks: Ranks, facts: RankFacts, case: str) -> Result:
    told = f"{facts.keras.implementation} {facts.keras.version}" if facts.keras else ""
    return ranks.outcome("keras-3", case, keras=told)


def _callback(ranks: Ranks, name: str) -> str:
    """What is wrong with a callback, or nothing."""
    found = [getattr(facts, name) for facts in ranks.facts]
    error = next((fact.error for fact in found if fact is not None and fact.error), None)
    if error or None in found:
        return error or "not measured"
    if name == "warmup_callback":
        good = all(math.isclose(fact.asked, fact.reached, rel_tol=FLOAT32_TOLERANCE) for fact in found)
    elif name == "broadcast_callback":
        good = all(agree(fact.weights, found[0].own, FLOAT32_TOLERANCE) for fact in found)
    else:
        mean = sum(arithmetic.loss(fact, fact.own) for fact in found) / len(found)
        good = all(math.isclose(fact.loss, mean, rel_tol=FLOAT32_TOLERANCE) for fact in found)
    return "" if good else "wrong values"


def _short(numbers: Sequence[float] | None) -> str:
    if numbers is None:
        return "nothing"
    shown = ", ".join(f"{number:.6g}" for number in numbers[:6])
    return f"[{shown}, ...]" if len(numbers) > 6 else f"[{shown}]"
