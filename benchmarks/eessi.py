"""Entering EESSI against the barest way to do so, by a copy and by a mount; its modules against ``module spider``.

The tree is of EESSI's shape, with 600 software of three versions each, and lies on local disk. An argument is a clone
of EESSI's software-layer-scripts, whose own start files the tree then has: they take longer than those that stand in
for them.
"""

import os
import shutil
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
SPIDER = f"{START}; began=$EPOCHREALTIME; module spider Tool >/dev/null 2>&1; echo $began $EPOCHREALTIME"
MORE_S = 0.25
TIMES = 1.3  # with EESSI's own start files


def main() -> int:
    """Measure; return 1 if a claim does not hold."""
    own = Path(sys.argv[1], "init") if sys.argv[1:] else None
    load, module = (["--load", "foss/2023a"], "module load foss/2023a; ") if own else ([], "")
    hand = ["bash", "--noprofile", "--norc", "-c", f"{START}; {module}exec true"]

    def bound(by_hand: float) -> float:
        return TIMES if own else (by_hand + MORE_S) / by_hand

    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "repository")
        make = [sys.executable, "-m", "tests.eessi_tree", str(tree), str(SOFTWARE)]
        subprocess.run(make, cwd=resources.PACKAGE.parent, check=True)
        if own:
            put(own, tree)
        env = {**os.environ, "ENVKIT_EESSI_DIR": str(tree), "XDG_CACHE_HOME": folder, "HOME": folder}
        namespace = [
            sys.executable,
            "-I",
            "-S",
            str(resources.data("system/mount_namespace.py")),
            "bind",
            str(tree),
            REPOSITORY,
        ]
        bare = [*namespace, "--", *hand]
        ours = [ENVKIT, "run", "eessi", *load, "--", "true"]

        def spider() -> float:
            told = seconds([*namespace, "--", "bash", "--noprofile", "--norc", "-c", SPIDER], env)[1]
            began, ended = map(float, told.split())
            return ended - began

        listing = [ENVKIT, "eessi", "modules", "Tool"]
        seconds(listing, env)
        first, second, ratio = side_by_side(lambda: seconds(ours, env)[0], lambda: seconds(bare, env)[0], RUNS)
        failed = report("run eessi -- true", first, second, ratio, bound(second))
        # where it is mounted before either is started
        mounted = {**env, "ENVKIT_EESSI_DIR": ""}
        native, by_hand = [*namespace, "--", *ours], [*namespace, "--", *hand]
        first, second, ratio = side_by_side(
            lambda: seconds(native, mounted)[0], lambda: seconds(by_hand, mounted)[0], RUNS
        )
        failed |= report("run eessi -- true, native", first, second, ratio, bound(second))
        first, second, ratio = side_by_side(lambda: seconds(listing, env)[0], spider, RUNS)
        return failed | report("modules Tool, warm, against module spider", first, second, ratio, 0.1)


def put(own: Path, tree: Path) -> None:
    """Give a tree EESSI's own start files, as they are installed."""
    for place in (tree / "versions" / "2023.06" / "init", tree / "init"):
        shutil.rmtree(place)
        shutil.copytree(own, place)
        for path in (place / "eessi_defaults", *(place / "lmod").iterdir()):
            path.write_text(path.read_text().replace("__EESSI_VERSION_DEFAULT__", "2023.06"))


if __name__ == "__main__":
    sys.exit(main())
