"""The checkout that the tests are part of, for those that need another one."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")


def git(*words: str, cwd: Path = ROOT) -> str:
    """Run git; return what it prints."""
    return subprocess.run(["git", *words], cwd=cwd, check=True, capture_output=True, text=True).stdout


def clone(target: Path) -> None:
    """Clone the checkout, with what has changed in it and is not committed."""
    git("clone", "-q", str(ROOT), str(target))
    changes = git("diff", "--name-only", "HEAD") + git("ls-files", "--others", "--exclude-standard")
    for changed in changes.splitlines():
        if (ROOT / changed).is_file():
            (target / changed).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / changed, target / changed)
