"""How long an average of 16 million elements takes in bfloat16, float16 and float32, over MPI and over Gloo.

    python benchmarks/bfloat16.py [STACK [RANKS]]

All types are measured in turn in the same ranks, and as float32 that is compressed to bfloat16, too. There is no claim.
"""

import importlib
import os
import sys
from pathlib import Path

RUNS, COUNT = 7, 1 << 24


def main() -> int:
    """Start the ranks with each library."""
    from timing import ENVKIT, seconds

    stack = sys.argv[1] if len(sys.argv) > 1 else "pytorch-2.13-cpu"
    ranks = sys.argv[2] if len(sys.argv) > 2 else "2"
    over_gloo = ["--", "horovodrun", "--gloo", "-np", ranks, "-H", f"localhost:{ranks}"]
    for library, words in (("MPI", ["-n", ranks, "--"]), ("Gloo", over_gloo)):
        argv = [ENVKIT, "run", stack, *words, "python", str(Path(__file__).resolve()), "--in-ranks"]
        told = seconds(argv, {**os.environ, "OMP_NUM_THREADS": "1"})[1]
        line = next(line for line in told.splitlines() if "float32" in line)
        print(f"average of {COUNT} elements over {library}, ranks: {ranks}: {line[line.index('float32') :]}")
    return 0


def in_ranks() -> int:
    """Measure as one of the ranks; the first one prints medians and their ratios to float32."""
    import statistics
    import time

    hvd, torch = importlib.import_module("horovod.torch"), importlib.import_module("torch")
    hvd.init()
    floats = torch.randn(COUNT)
    given = {str(kind)[6:]: floats.to(kind) for kind in (torch.float32, torch.bfloat16, torch.float16)}
    timed: dict[str, list[float]] = {}
    for _ in range(RUNS):
        for name in (*given, "Compression.bf16"):
            hvd.barrier()
            began = time.monotonic()
            if name in given:
                hvd.allreduce_(given[name], name=name)
            else:
                hvd.allreduce(floats, name=name, compression=hvd.Compression.bf16)
            timed.setdefault(name, []).append(time.monotonic() - began)
    medians = {name: statistics.median(times[1:]) for name, times in timed.items()}
    if hvd.rank() == 0:
        told = [f"{name} {1000 * took:.0f} ms ({took / medians['float32']:.2f})" for name, took in medians.items()]
        print(", ".join(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(in_ranks() if sys.argv[1:] == ["--in-ranks"] else main())
