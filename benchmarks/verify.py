"""Verifying, against the barest script that imports Horovod, starts it and allreduces once, under the same launcher.

    python benchmarks/verify.py [STACK [RANKS,RANKS...]]

The stack must be installed in $ENVKIT_PREFIX, with PyTorch. The script runs in the environment as it is when entered,
so that entering it counts against envkit. Ends with 1 if a claim does not hold.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from timing import ENVKIT, report, seconds, side_by_side

from envkit import launcher, prefix, process, receipt
from envkit.launcher import Wanted

BARE = """\
import torch
import horovod.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(4), name="x")
"""
MOST = 1.15
RUNS = {2: 11, 8: 5, 32: 3, 64: 1}
MOST_RANKS, MOST_S, MOST_MIB = 4096, 2.0, 200
ROOT = Path(__file__).parents[1]


def main() -> int:
    """Measure each number of ranks, then a gather of 4,096."""
    stack = sys.argv[1] if len(sys.argv) > 1 else "pytorch-2.13-cpu"
    sizes = [int(word) for word in sys.argv[2].split(",")] if len(sys.argv) > 2 else list(RUNS)
    found = receipt.find(prefix.locate(None), stack)
    env = entered(found)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(BARE)
        failed = [compare(found, stack, ranks, script, env) for ranks in sizes]
    return sum(failed) + gather()


def entered(found: receipt.Installed) -> dict[str, str]:
    """Return the settings inside the environment."""
    told = process.capture(found.environment.command(["env", "-0"]), env=found.environment.variables(os.environ))
    pairs = (entry.partition("=") for entry in told.stdout.split("\0") if "=" in entry)
    return launcher.variables({name: value for name, _, value in pairs})


def compare(found: receipt.Installed, stack: str, ranks: int, script: Path, env: dict[str, str]) -> int:
    """Time one number of ranks."""
    start = launcher.choose(found.mpi, Wanted(ranks=ranks)).argv
    verify = [ENVKIT, "verify", stack, "-n", str(ranks), "--timeout", "900"]
    times = side_by_side(
        lambda: seconds(verify, os.environ)[0],
        lambda: seconds([*start, "python", str(script)], env)[0],
        RUNS.get(ranks, 1),
    )
    return report(f"verify on {ranks} ranks against the barest script", *times, bound=MOST)


def gather() -> int:
    """Measure the report on what 4,096 ranks would leave, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "tests.verify.simulated", folder, str(MOST_RANKS), "8"]
        told = json.loads(process.capture(argv, cwd=ROOT).stdout)
    good = told["seconds"] <= MOST_S and told["peak_mib"] <= MOST_MIB
    print(
        f"report on {MOST_RANKS} ranks: {told['seconds']:.2f} s (at most {MOST_S:.0f}), {told['peak_mib']:.0f} MiB "
        f"(at most {MOST_MIB}): {'holds' if good else 'FAILS'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
