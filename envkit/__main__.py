"""The program: ``envkit`` and ``python -m envkit``."""

import gc
import os
import sys

gc.set_threshold(100_000)  # most commands end before that

if not sys.flags.ignore_environment:
    for _folder in os.environ.get("PYTHONPATH", "/").split(os.pathsep):  # a relative one is whatever the caller is in
        if not _folder.startswith("/") and (_here := os.path.abspath(_folder)) in sys.path:  # noqa: PTH100
            sys.path.remove(_here)

from envkit.cli import run  # noqa: E402


def main() -> None:
    """Run the command line and end with its exit code, at once: taking modules apart takes as long as some commands."""
    os._exit(run())


if __name__ == "__main__":
    main()
