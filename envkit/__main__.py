"""The program: ``envkit`` and ``python -m envkit``."""

import sys

from envkit.cli import run


def main() -> None:
    """Run the command line and end with its exit code."""
    sys.exit(run())


if __name__ == "__main__":
    main()
