"""The main job with the other Pythons that this machine has: from a clone that is prepared with one, to a verdict."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..checkout import checkout, clone
from ..stacks import BUILD_S
from .site import needs

pytestmark = [pytest.mark.integration, pytest.mark.all, pytest.mark.builds]

STACK = "tensorflow-2.21-cpu"
FOLDERS = (*os.environ["PATH"].split(":"), *map(str, Path(sys.base_prefix).parent.glob("*/bin")))


def usable(python: Path) -> bool:
    """Whether it is a Python that can make virtual environments, and not just a word for one that is elsewhere."""
    words = [str(python), "-c", "import ensurepip, venv"]
    return python.is_file() and subprocess.run(words, capture_output=True, check=False).returncode == 0


def others() -> list[Path]:
    """Return a Python of each other version that envkit runs with; this one where there is none."""
    found = list[Path]()
    for minor in {11, 12, 13} - {sys.version_info.minor}:
        found += [one for folder in FOLDERS if usable(one := Path(folder, f"python3.{minor}"))][:1]
    return found or [Path(sys.executable).resolve()]


@checkout
@pytest.mark.parametrize("python", others(), ids=lambda python: python.name)
def test_a_stack_with_another_python(python: Path, tmp_path: Path) -> None:
    needs("lmod", "g++", "mpicxx")
    clone(tmp_path / "clone")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(python)
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "ENVKIT_PREFIX": str(tmp_path / "prefix")}
    envkit = ".venv/bin/envkit"

    def said(*argv: str) -> str:
        done = subprocess.run(
            argv, env=env, cwd=tmp_path / "clone", stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=BUILD_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said("scripts/prepare.sh")
    assert f"PASS  {STACK}: 2 ranks in one world" in said(envkit, "install", STACK)
    shown = json.loads(said(envkit, "show", STACK, "--json"))
    assert f"python{'.'.join(shown['python'].split('.')[:2])}" in (python.name, python.resolve().name)
    report = json.loads(said(envkit, "verify", STACK, "-n", "2", "--json"))
    assert (report["verdict"], report["facts"][0]["common"]["flags"]["gloo"]) == ("pass", 1)
