"""A least-squares problem that each rank has for itself, and what training on it together left."""

import hashlib
import json
import random
from typing import Any, Dict, List, Optional

LEARNING_RATE = 0.1
STEPS = 3
SAMPLES, FEATURES = 4, 2


def problem(rank: int) -> Dict[str, Any]:
    """A least-squares problem that only this rank has: SAMPLES x FEATURES inputs, targets, own weights."""
    draw = random.Random(rank + 1)
    inputs = [[draw.uniform(-1, 1) for _ in range(FEATURES)] for _ in range(SAMPLES)]
    targets = [draw.uniform(-1, 1) for _ in range(SAMPLES)]
    own = [draw.uniform(-1, 1) for _ in range(FEATURES)]
    return {"inputs": inputs, "targets": targets, "own": own, "learning_rate": LEARNING_RATE, "steps": STEPS}


def trained(
    task: Dict[str, Any], started: List[Any], weights: List[Any], rate: Optional[float] = None
) -> Dict[str, Any]:
    """The problem and its weights before and after; `rate` is what an optimizer had after rank 0's was broadcast.

    Raises ValueError for weights that are no finite numbers.
    """
    if any(isinstance(weight, str) for weight in started + weights):
        raise ValueError("the weights became %s, from %s" % (weights, started))
    digest = hashlib.sha256(json.dumps(weights).encode()).hexdigest()
    return dict(task, started=started, weights=weights, digest=digest, rate=rate)
