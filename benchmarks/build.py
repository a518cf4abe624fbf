"""A whole installation against plain eb of the same recipes, and the rebuild after ``remove``; 10 to 20 minutes.

``python benchmarks/build.py [STACK]``. Both start with every source in place and an empty compiler cache, and
use ccache if it is there. The time of envkit holds its plan, its preflight and its verification on two ranks,
which eb does not do; what the verification took is printed, too.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

from timing import ENVKIT, eb, own, report, seconds

from envkit.planning.stack import stacks


def main(name: str) -> int:
    """Build with eb, with envkit, remove, and build again."""
    stack = next(one for one in stacks() if one.name == name)
    ccache = shutil.which("ccache") is not None
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "envkit"), Path(folder, "eb")
        seconds([ENVKIT, "fetch", name], own(ours))
        options = ["--robot", f"--sourcepath={ours / 'sources'}", "--optarch=GENERIC", stack.easyconfig]
        argv, env = eb(theirs, *options, *([f"--use-ccache={theirs / 'ccache'}"] if ccache else []))
        plain, _ = seconds(argv, env)
        shutil.rmtree(theirs)
        first, _ = seconds([ENVKIT, "install", name], own(ours))
        verified = json.loads(seconds([ENVKIT, "verify", name, "--json"], own(ours))[1])["seconds"]
        failed = report(f"install of {name}", first, plain, first / plain, bound=1.03)
        print(f"of which verification about {verified:.1f} s: {(first - verified) / plain:.3f} without it")
        seconds([ENVKIT, "remove", name], own(ours))
        again, _ = seconds([ENVKIT, "install", name], own(ours))
    return failed + report(f"rebuild of {name} after remove", again, first, again / first, bound=0.2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "pytorch-2.13-cpu"))
