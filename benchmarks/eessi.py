"""Entering EESSI against the barest way to do so, by a copy and by a mount; its modules against ``module spider``.

The tree is of EESSI's shape, with 600 software of three versions each, and lies on local disk.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import ENVKIT, report, seconds, side_by_side

from envkit.system import resources

RUNS = 15
SOFTWARE = 600
REPOSITORY = "/cvmfs/software.eessi.io"
START = f". {REPOSITORY}/versions/2023.06/init/lmod/bash >/dev/null 2>&1"
HAND = ("--noprofile", "--norc", "-c", f"{START}; exec true")
SPIDER = f"{START}; began=$EPOCHREALTIME; module spider Tool >/dev/null 2>&1; echo $began $EPOCHREALTIME"
MORE_S = 0.25


def main() -> int:
    """Measure; return 1 if a claim does not hold."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "repository")
        make = [sys.executable, "-m", "tests.eessi_tree", str(tree), str(SOFTWARE)]
        subprocess.run(make, cwd=resources.PACKAGE.parent, check=True)
        env = {**os.environ, "ENVKIT_EESSI_DIR": str(tree), "XDG_CACHE_HOME": folder, "HOME": folder}
        namespace = [
            sys.executable,
            "-I",
            "-S",
            str(resources.data("system/namespace.py")),
            "bind",
            str(tree),
            REPOSITORY,
        ]
        bare = [*namespace, "--", "bash", *HAND]
        ours = [ENVKIT, "run", "eessi", "--", "true"]

        def spider() -> float:
            told = seconds([*namespace, "--", "bash", "--noprofile", "--norc", "-c", SPIDER], env)[1]
            began, ended = map(float, told.split())
            return ended - began

        listing = [ENVKIT, "eessi", "modules", "Tool"]
        seconds(listing, env)
        first, second, ratio = side_by_side(lambda: seconds(ours, env)[0], lambda: seconds(bare, env)[0], RUNS)
        failed = report("run eessi -- true", first, second, ratio, (second + MORE_S) / second)
        # where it is mounted before either is started
        mounted = {**env, "ENVKIT_EESSI_DIR": ""}
        native, by_hand = [*namespace, "--", *ours], [*namespace, "--", "bash", *HAND]
        first, second, ratio = side_by_side(
            lambda: seconds(native, mounted)[0], lambda: seconds(by_hand, mounted)[0], RUNS
        )
        failed |= report("run eessi -- true, native", first, second, ratio, (second + MORE_S) / second)
        first, second, ratio = side_by_side(lambda: seconds(listing, env)[0], spider, RUNS)
        return failed | report("modules Tool, warm, against module spider", first, second, ratio, 0.1)


if __name__ == "__main__":
    sys.exit(main())
