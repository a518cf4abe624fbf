"""The stacks that the tests build for real, once for all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENVKIT = Path(sys.executable).with_name("envkit")
BUILD_S = 3000


class Site:
    """A prefix, and envkit called as a person would."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix

    def envkit(
        self, *arguments: str, timeout_s: float = 300, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run envkit with this prefix."""
        return subprocess.run(
            [ENVKIT, *arguments],
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
