"""The stacks that the tests build for real, once for all of them, and what of them is kept for the next run.

PyTorch and all that it needs is built from nothing in every run. TensorFlow's modules and the layers of images are
kept in the user's cache folder until what they are made of changes, at most for some weeks; that they work, every run
verifies.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from itertools import count
from pathlib import Path

import platformdirs
import pytest
from filelock import FileLock, Timeout

from envkit.system.files import discard
from envkit.system.resources import data, recipes

ENVKIT = Path(sys.executable).with_name("envkit")
BUILD_S = 3000
BUILDING = (
    "binary/compile_python.py", "easybuild/config_guess.py", "easybuild/eb_command.py", "easybuild/hooks.py",
    "easybuild/run_eb.py",
)  # fmt: skip
KEPT_S = 30 * 24 * 3600  # nothing is kept for longer


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
        before = [sys.executable, "-I", "-S", str(data("system/mount_namespace.py")), *binds, "--"] if binds else []
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


def own_folder(named: str | None = None) -> tuple[Path, FileLock]:
    """Return a folder for the stacks, and its lock, held: the first that no other session on this machine uses.

    Raises UsageError where one is named, and another session uses that.
    """
    if named:
        folder = Path(named).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise pytest.UsageError(f"another session uses ENVKIT_TEST_PREFIX={named}") from error
        return folder, lock
    for number in count():
        folder = platformdirs.user_cache_path("envkit-tests") / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        return folder, lock
    raise AssertionError


def unverify(prefix: Path) -> None:
    """Keep all that was built in a prefix, but not that it was verified: it is again, and nothing is built for that."""
    for path in prefix.glob("*/environments/*.json"):
        path.unlink()


def begin(prefix: Path) -> None:
    """Leave of an earlier run only the sources, the layers of images, and TensorFlow's modules if they are as new."""
    mark, now = prefix / "fingerprint", made_of()
    is_same = is_young(mark) and mark.read_text() == now
    for path in there(prefix):
        is_layer = path.parent.name == "layers" and is_young(path)
        is_tensorflow = is_same and "TensorFlow" in str(path.relative_to(prefix))
        if path != mark and not is_layer and not is_tensorflow:
            discard(path)
    if not is_same:
        prefix.mkdir(parents=True, exist_ok=True)
        mark.write_text(now)


def there(prefix: Path) -> list[Path]:
    """Return all that lies in a prefix but for its sources, in parts that are left or discarded as a whole."""
    parts = {"software": "*/*", "modules": "*/*/*", "built": "*", "layers": "*"}
    trees = list(prefix.glob("*-*"))
    found = [path for path in prefix.glob("*") if path.name != "sources" and path not in trees]
    for entry in (entry for tree in trees for entry in tree.iterdir()):
        found += entry.glob(parts[entry.name]) if entry.name in parts else [entry]
    return found


def is_young(path: Path) -> bool:
    """Say whether a file is there that was made not too long ago."""
    return path.exists() and time.time() - path.stat().st_mtime < KEPT_S


def made_of() -> str:
    """A SHA-256 of all that stacks are made of: recipes, what builds them, and what they are built with."""
    files = [*Path(recipes("easyconfigs")).rglob("*"), *map(data, BUILDING)]
    read = {str(path.name): path.read_bytes() for path in sorted(files) if path.is_file()}
    tools = [subprocess.run([tool, "--version"], capture_output=True).stdout for tool in ("g++", "mpirun", "cmake")]
    versions = [platform.machine(), sys.version, metadata.version("easybuild-framework"), sys.base_prefix]
    return hashlib.sha256(repr((read, tools, versions)).encode()).hexdigest()
