"""The warm plan of the reference recipe (108 easyconfigs) against ``eb --dry-run --robot``: same list, less time."""

import re
import sys
import tempfile
from pathlib import Path

from timing import ENVKIT, eb, own, report, seconds, side_by_side

RECIPE = "Horovod-0.28.1-foss-2022a-CUDA-11.7.0-TensorFlow-2.11.0.eb"
LISTED = re.compile(r"^ \* \[.\] \S+\.eb \(module: (.+)\)$", re.MULTILINE)


def main() -> int:
    """Compare the lists, then the times."""
    with tempfile.TemporaryDirectory() as folder:
        ours = [ENVKIT, "install", RECIPE, "--dry-run"]
        theirs, env = eb(Path(folder), "--dry-run", "--robot", RECIPE)
        lists = [LISTED.findall(seconds(ours, own(Path(folder)), 3)[1]), LISTED.findall(seconds(theirs, env)[1])]
        if lists[0] != lists[1]:
            print(f"the lists differ: {len(lists[0])} and {len(lists[1])} modules")
            return 1
        print(f"same {len(lists[0])} modules in the same order")
        times = side_by_side(lambda: seconds(ours, own(Path(folder)), 3)[0], lambda: seconds(theirs, env)[0], runs=9)
    return report("warm plan", *times, bound=1 / 3)


if __name__ == "__main__":
    sys.exit(main())
