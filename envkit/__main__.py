"""The program: ``envkit`` and ``python -m envkit``."""

import gc
import os

gc.set_threshold(100_000)  # most commands end before that

from envkit.cli import run  # noqa: E402


def main() -> None:
    """Run the command line and end with its exit code, at once: taking modules apart takes as long as some commands."""
    os._exit(run())


if __name__ == "__main__":
    main()
