"""What an installed stack answers: the second run against eb's, ``check-build`` against horovodrun's.

``python benchmarks/installed.py [STACK]``, with the stack installed in $ENVKIT_PREFIX.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from timing import ENVKIT, eb, report, seconds, side_by_side

from envkit.environments.prefix import locate
from envkit.machine import host


def main(stack: str) -> int:
    """Time both claims on an installed stack."""
    env = dict(os.environ)
    receipt = json.loads(seconds([ENVKIT, "show", stack, "--json"], env)[1])
    recipe = Path(receipt["modules"][-1]["easyconfig"]).name
    tree = locate(None).tree(host.Platform.own())
    with tempfile.TemporaryDirectory() as folder:
        theirs, eb_env = eb(Path(folder), "--robot", f"--installpath={tree.root}", recipe)
        times = side_by_side(
            lambda: seconds([ENVKIT, "install", stack], env)[0], lambda: seconds(theirs, eb_env)[0], runs=7
        )
    failed = report(f"second run of {stack}", *times, bound=0.5)
    print(f"second run under 1 s: {'holds' if times[0] < 1 else 'FAILS'}")
    horovodrun = [ENVKIT, "run", stack, "--", "horovodrun", "--check-build"]
    times = side_by_side(
        lambda: seconds([ENVKIT, "check-build", stack], env)[0], lambda: seconds(horovodrun, env)[0], runs=5
    )
    return failed + report(f"check-build of {stack}", *times, bound=1 / 30)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "pytorch-2.13-cpu"))
