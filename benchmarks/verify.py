"""Verifying, against the barest script that imports Horovod, starts it and allreduces once, under the same launcher.

    python benchmarks/verify.py [STACK [RANKS,RANKS...]]

The stack must be installed in $ENVKIT_PREFIX, with PyTorch. The script runs in the environment as it is when entered,
so that entering it counts against envkit. The comparison of larger messages is held against the rest of the same runs,
on two ranks. Ends with 1 if a claim does not hold.
"""

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from timing import ENVKIT, report, seconds, side_by_side

from envkit.environments import prefix
from envkit.environments.receipt import Receipt
from envkit.launch import launcher
from envkit.launch.launcher import LaunchRequest
from envkit.methods import installed
from envkit.system import process

BARE = """\
import torch
import horovod.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(4), name="x")
"""
MOST, MOST_COMPARING = 1.15, 1.10
RUNS = {2: 11, 8: 5, 32: 3, 64: 1}
MOST_RANKS, MOST_S, MOST_MIB = 4096, 2.0, 200
ROOT = Path(__file__).parents[1]


def main() -> int:
    """Measure each number of ranks, then a gather of 4,096."""
    stack = sys.argv[1] if len(sys.argv) > 1 else "pytorch-2.13-cpu"
    sizes = [int(word) for word in sys.argv[2].split(",")] if len(sys.argv) > 2 else list(RUNS)
    found = installed.find(prefix.locate(None), stack)
    env = entered(found)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bare.py"
        script.write_text(BARE)
        failed = [compare(found, stack, ranks, script, env) for ranks in sizes]
    return sum(failed) + gather()


def entered(found: Receipt) -> dict[str, str]:
    """Return the settings inside the environment."""
    told = process.capture(found.environment.command(["env", "-0"]), env=found.environment.variables(os.environ))
    pairs = (entry.partition("=") for entry in told.stdout.split("\0") if "=" in entry)
    return launcher.variables({name: value for name, _, value in pairs})


def compare(found: Receipt, stack: str, ranks: int, script: Path, env: dict[str, str]) -> int:
    """Time one number of ranks."""
    start = launcher.select(found.mpi, LaunchRequest(ranks=ranks)).argv
    verify = [ENVKIT, "verify", stack, "-n", str(ranks), "--timeout", "900"]
    reports = []

    def verified() -> float:
        taken, told = seconds([*verify, "--json"], os.environ)
        reports.append(json.loads(told))
        return taken

    times = side_by_side(
        verified,
        lambda: seconds([*start, "python", str(script)], env)[0],
        RUNS.get(ranks, 1),
    )
    failed = report(f"verify on {ranks} ranks against the barest script", *times, bound=MOST)
    return failed + (comparing(reports) if ranks == 2 else 0)


def comparing(reports: list[dict[str, Any]]) -> int:
    """Hold verifications, as they were, against what they took without the comparison of larger messages."""
    taken = [(told["seconds"], told["seconds"] - told["timings"]["torch.values_cpu"]) for told in reports]
    whole, rest = (statistics.median(column) for column in zip(*taken, strict=True))
    return report(
        "verify on 2 ranks, against itself without larger messages", whole, rest, whole / rest, MOST_COMPARING
    )


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
