"""How the example of made-up images scales from 1 rank to more on this machine, Horovod beside PyTorch's own DDP.

    python benchmarks/scaling.py [STACK [RANKS]]

Over MPI and over Gloo, with gradients as float32 and as float16 or bfloat16. Each rank has one thread, so that more
ranks are more cores; beside them stand as many worlds of one rank at the same time, which do not communicate: what
they lose, they lose by sharing the machine. No rank is bound to a core, since each of these worlds would take the
first. Last come more threads, and a shorter cycle of Horovod, over MPI. Each is started several times, in turn, and
the medians of what the example prints are shown. There is no claim.
"""

import os
import re
import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from timing import ENVKIT, seconds

RUNS = 3
EXAMPLE = str(Path(__file__).resolve().parents[1] / "examples" / "pytorch_synthetic.py")
SPEED = re.compile(r"(?:^|>:)(\w+): images/s per rank: .*; in all ([\d.]+)", re.MULTILINE)
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
SHORT_CYCLE = {"HOROVOD_CYCLE_TIME": "0.1"}  # ms, in place of 1

Measure = Callable[[], dict[str, float]]


def main() -> int:
    """Measure all in turn."""
    stack = sys.argv[1] if len(sys.argv) > 1 else "pytorch-2.13-cpu"
    many = int(sys.argv[2]) if len(sys.argv) > 2 else 2

    def world(ranks: int, library: str = "MPI", compression: str = "none", **env: str) -> Measure:
        return lambda: images_per_s(stack, ranks, library, compression, env)

    def apart() -> dict[str, float]:
        with ThreadPoolExecutor(many) as pool:
            ones = list(pool.map(lambda _: world(1)(), range(many)))
        return {name: sum(one[name] for one in ones) for name in ones[0]}

    measured: dict[str, Measure] = {"1 rank": world(1), f"{many} worlds of 1 rank": apart}
    for library in ("MPI", "Gloo"):
        for compression in ("none", "fp16", "bf16"):
            gradients = {"none": "float32"}.get(compression, compression)
            measured[f"{many} ranks, {library}, {gradients}"] = world(many, library, compression)
    measured[f"{many} ranks, MPI, float32, {many} threads each"] = world(many, OMP_NUM_THREADS=str(many))
    measured[f"{many} ranks, MPI, float32, a cycle of 0.1 ms"] = world(many, **SHORT_CYCLE)
    rounds = [{name: measure() for name, measure in measured.items()} for _ in range(RUNS)]
    medians = {
        name: {library: statistics.median(one[name][library] for one in rounds) for library in rounds[0][name]}
        for name in measured
    }
    for name, total in medians.items():
        ranks = 1 if name == "1 rank" else many
        told = [
            f"{library} {speed:.1f} images/s, efficiency {speed / ranks / medians['1 rank'][library]:.2f}"
            for library, speed in total.items()
        ]
        print(f"{name}: {'; '.join(told)}; ratio {total['Horovod'] / total['DDP']:.2f}")
    return 0


def images_per_s(stack: str, ranks: int, library: str, compression: str, env: dict[str, str]) -> dict[str, float]:
    """Run the example once; return what all ranks together did, by library."""
    over_gloo = ["--", "horovodrun", "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}"]
    words = ["-n", str(ranks), "--"] if library == "MPI" else over_gloo
    example = ["python", EXAMPLE, "--epochs", "6", "--steps", "5", "--compression", compression]
    told = seconds([ENVKIT, "run", stack, *words, *example], {**os.environ, **ONE_THREAD, **env})[1]
    return {name: float(speed) for name, speed in SPEED.findall(told)}


if __name__ == "__main__":
    sys.exit(main())
