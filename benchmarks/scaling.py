"""How the example of made-up images scales from 1 rank to more on this machine, Horovod beside PyTorch's own DDP.

    python benchmarks/scaling.py [STACK [RANKS]]

Each rank has one thread, so that more ranks are more cores; each world is started several times, in turn, and the
medians of what the example prints are shown. There is no claim: DDP has run in the same ranks right after Horovod.
"""

import os
import re
import statistics
import sys

from timing import ENVKIT, seconds

RUNS = 3
EXAMPLE = ("--example", "pytorch-synthetic", "--", "--epochs", "6", "--steps", "5")
SPEED = re.compile(r"^(\w+): images/s per rank: .*; in all ([\d.]+)", re.MULTILINE)


def main() -> int:
    """Measure the worlds in turn."""
    stack = sys.argv[1] if len(sys.argv) > 1 else "pytorch-2.13-cpu"
    worlds = (1, int(sys.argv[2]) if len(sys.argv) > 2 else 2)
    rounds = [[images_per_s(stack, ranks) for ranks in worlds] for _ in range(RUNS)]
    medians = [
        {name: statistics.median(one[name] for one in ones) for name in ones[0]} for ones in zip(*rounds, strict=True)
    ]
    for ranks, total in zip(worlds, medians, strict=True):
        told = [
            f"{name} {speed:.1f} images/s, efficiency {speed / ranks / medians[0][name]:.2f}"
            for name, speed in total.items()
        ]
        print(f"pytorch-synthetic, ranks: {ranks}: {'; '.join(told)}; ratio {total['Horovod'] / total['DDP']:.2f}")
    return 0


def images_per_s(stack: str, ranks: int) -> dict[str, float]:
    """Run the example once; return what all ranks together did, by library."""
    argv = [ENVKIT, "run", stack, "-n", str(ranks), *EXAMPLE]
    told = seconds(argv, {**os.environ, "OMP_NUM_THREADS": "1"})[1]
    return {name: float(speed) for name, speed in SPEED.findall(told)}


if __name__ == "__main__":
    sys.exit(main())
