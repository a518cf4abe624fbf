"""The Python that all environments of a tree share: its pip refuses, that of what stands on it does not."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import manifest
from envkit.environments.prefix import Tree
from envkit.install import shared_python

from .wheels import wheel

pytestmark = pytest.mark.integration


@pytest.fixture
def python(install: Callable[..., ModuleReceipt]) -> Path:
    """The folder of a Python as EasyBuild makes it, a virtual environment with a pip, protected."""
    made = install()
    tree = Tree(root=Path(made.tree))
    folder = tree.software / "Python/system"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    manifest.write(tree, "Python/system")
    shared_python.protect(made)
    assert made.damaged() == []
    return folder


def pip(folder: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Call a pip, without an index and without the settings of whoever runs the tests."""
    argv = [str(folder / "bin/python"), "-m", "pip", *words]
    return subprocess.run(argv, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True)


def test_pip_refuses_and_leads_to_a_folder_of_ones_own(python: Path, tmp_path: Path) -> None:
    path = str(wheel(tmp_path, "mine"))
    for words in (["install", path], ["install", "--upgrade", "pip"], ["uninstall", "--yes", "pip"]):
        done = pip(python, *words)
        assert done.returncode == 1
        assert "For packages of your own: envkit venv NAME DIR" in done.stderr
    assert not list(python.glob("lib/*/site-packages/mine*")) and list(python.glob("lib/*/site-packages/pip"))
    assert pip(python, "list").returncode == 0


def test_builds_and_what_stands_on_it_are_not_disturbed(python: Path, tmp_path: Path) -> None:
    path = str(wheel(tmp_path, "mine"))
    subprocess.run([str(python / "bin/python"), "-m", "venv", str(tmp_path / "own")], check=True)
    assert pip(tmp_path / "own", "install", "--no-index", path).returncode == 0
    for isolated in [], ["--isolated"]:
        words = [
            *isolated,
            "install",
            "--no-index",
            "--no-deps",
            "--ignore-installed",
            f"--prefix={tmp_path / 'built'}",
        ]
        assert pip(python, *words, path, PIP_CONFIG_FILE="/dev/null").returncode == 0


def test_what_is_there_is_left(install: Callable[..., ModuleReceipt]) -> None:
    made = install()
    path = Path(made.tree, "software/Python/system/pip.conf")
    path.write_text("of the site")
    shared_python.protect(made)
    assert path.read_text() == "of the site"
