"""A synthetic training step, timed: how many samples a second the ranks train together.

Two networks of the kinds that differ most: an MLP, all weights and little arithmetic, and ResNet-50, the other way
round; on CPUs with fewer channels and smaller images, so that a step takes milliseconds.
"""

import os
import time
from typing import Any, Callable, Dict

BUDGET_S = 4.0
WARM_UP = 3
LEAST = 5
LEARNING_RATE = 0.001
MODELS = {
    "cpu": {
        "MLP": {"batch": 32, "width": 512, "layers": 4, "classes": 10},
        "ResNet-50": {"batch": 8, "width": 16, "image": 64, "classes": 10, "blocks": [3, 4, 6, 3]},
    },
    "gpu": {
        "MLP": {"batch": 256, "width": 4096, "layers": 4, "classes": 1000},
        "ResNet-50": {"batch": 64, "width": 64, "image": 224, "classes": 1000, "blocks": [3, 4, 6, 3]},
    },
}  # type: Dict[str, Dict[str, Dict[str, Any]]]


def one_thread() -> None:
    """One core for each rank, however many ranks there are, unless the user has said otherwise; before the import."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")


def samples_per_s(
    step: Callable[[], Any],
    share: Callable[[float], float],
    model: Dict[str, Any],
    size: int,
    most: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Dict[str, Any]:
    """Samples per second of all ranks together, over steps whose number all ranks agree on, at most `most`.

    `step` returns when the step is done, `share(value)` gives the largest value of all ranks, after waiting for them.
    """
    began = clock()
    for _ in range(WARM_UP):
        began = clock()
        step()
    once = share(clock() - began)
    steps = max(LEAST, min(most, int(BUDGET_S / max(once, 1e-9))))
    began = clock()
    for _ in range(steps):
        step()
    seconds = share(clock() - began)
    return {"samples_per_s": size * model["batch"] * steps / seconds, "steps": steps, "batch": model["batch"]}
