"""Timing two commands side by side: in turn, A B A B ..., and the ratio of the medians."""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envkit.machine import host
from envkit.system import resources

ENVKIT = str(Path(sys.executable).with_name("envkit"))


def seconds(argv: Sequence[str], env: Mapping[str, str], status: int = 0) -> tuple[float, str]:
    """Run a command; return the wall time (s) and standard output. Raises if it ends with another status."""
    began = time.monotonic()
    done = subprocess.run(argv, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    if done.returncode != status:
        raise RuntimeError(f"{argv} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return took, done.stdout


@dataclass(frozen=True)
class Cost:
    """What a command took: wall time and time of the processor, its children's as well (s)."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        """Both, in words."""
        return f"{self.wall:.1f} s, {self.cpu:.1f} s of the processor"

    def __add__(self, other: "Cost") -> "Cost":
        """Both, one after the other."""
        return Cost(self.wall + other.wall, self.cpu + other.cpu)


def cost(argv: Sequence[str], env: Mapping[str, str]) -> Cost:
    """Run a command; return what it took. Raises if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall, _ = seconds(argv, env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def side_by_side(ours: Callable[[], float], theirs: Callable[[], float], runs: int) -> tuple[float, float, float]:
    """Run both in turn; return the two medians (s) and ours / theirs."""
    pairs = [(ours(), theirs()) for _ in range(runs)]
    first, second = (statistics.median(column) for column in zip(*pairs, strict=True))
    return first, second, first / second


def eb(prefix: Path, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return the command line and settings of a plain eb that installs below ``prefix`` by the same recipes."""
    tool = host.detect().modules_tool
    assert tool is not None
    argv = [sys.executable, "-m", "easybuild.main", "--output-style=no_color", *arguments]
    env = {
        **{key: value for key, value in os.environ.items() if not key.startswith("EASYBUILD_")},
        "LMOD_CMD": str(tool.command),
        "EASYBUILD_PREFIX": str(prefix),
        "EASYBUILD_ROBOT_PATHS": f"{resources.recipes('easyconfigs')}:{resources.easybuild_collection()}",
        "EB_SCRIPT_PATH": str(resources.easybuild_collection().parents[1] / "bin" / "eb"),
        "EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES": "1",
    }
    env.pop("BASH_ENV", None)
    return argv, env


def own(prefix: Path) -> dict[str, str]:
    """Return the settings of an envkit that installs below ``prefix``."""
    return {**os.environ, "ENVKIT_PREFIX": str(prefix)}


def report(claim: str, ours: float, theirs: float, ratio: float, bound: float) -> int:
    """Print one line; return 1 if the claim does not hold."""
    holds = ratio <= bound
    times = f"{ours:.3f} s against {theirs:.3f} s, ratio {ratio:.3f}"
    print(f"{claim}: {times} (at most {bound:.3f}): {'holds' if holds else 'FAILS'}")
    return 0 if holds else 1


def report_cost(claim: str, ours: Cost, theirs: Cost, bound: float) -> int:
    """Hold a claim by the clock, and by the time of the processor, which other work beside it changes little."""
    failed = report(claim, ours.wall, theirs.wall, ours.wall / theirs.wall, bound)
    return failed + report("  of the processor", ours.cpu, theirs.cpu, ours.cpu / theirs.cpu, bound)
