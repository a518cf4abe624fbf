import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("envkit", "scripts", "containers", "eessi", "benchmarks", "tests", ".ci")


def is_shell(path: Path) -> bool:
    if path.suffix in (".sh", ".bash"):
        return True
    if path.suffix or not path.is_file():
        return False
    with path.open("rb") as stream:
        first = stream.readline(100)
    return first.startswith(b"#!") and b"sh" in first.split(b"/")[-1]


FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if is_shell(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_shellcheck(path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is missing")
    argv = ["shellcheck", "--external-sources", f"--source-path={ROOT}"]
    if not path.read_bytes().startswith(b"#!"):
        argv.append("--shell=bash")
    done = subprocess.run([*argv, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_files_that_envkit_ships_are_among_them() -> None:
    assert {path.name for path in FILES if path.is_relative_to(ROOT / "envkit")} >= {"enter.sh", "load.sh", "rc.bash"}
