"""The stacks that the tests build for real, once for all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from envkit.resources import data

ENVKIT = Path(sys.executable).with_name("envkit")
BUILD_S = 3000


class Site:
    """A prefix, and envkit called as a person would."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix

    def envkit(
        self,
        *arguments: str,
        timeout_s: float = 300,
        env: dict[str, str] | None = None,
        instead: Mapping[Path, Path] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run envkit with this prefix, which other tests use at the same time.

        ``instead`` has what envkit is to see in the place of a file or folder of the prefix.
        """
        binds = [word for place, shown in (instead or {}).items() for word in ("bind", str(shown), str(place))]
        before = [sys.executable, "-I", "-S", str(data("namespace.py")), *binds, "--"] if binds else []
        return subprocess.run(
            [*before, ENVKIT, *arguments],
            env={**os.environ, "ENVKIT_PREFIX": str(self.prefix), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def install(self, stack: str) -> str:
        """Install a stack unless it is there; return what was printed."""
        done = self.envkit("install", stack, timeout_s=BUILD_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
