"""scripts/envkit, by which a user calls the program, where its Python is not to be had."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .people import REPOSITORY, open_folder, people

USERS = [pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users"),
         pytest.mark.xdist_group("users")]  # fmt: skip


def placed(folder: Path) -> Path:
    """The program as pip puts it beside a Python."""
    program = folder / "bin" / "envkit"
    program.parent.mkdir()
    shutil.copy(REPOSITORY / "scripts" / "envkit", program)
    return program


def call(program: Path, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, "list"], env={"PATH": path}, capture_output=True, text=True, check=False)


def test_its_python_has_gone(tmp_path: Path) -> None:
    program = placed(tmp_path)
    (tmp_path / "bin" / "python3").symlink_to(tmp_path / "gone" / "python3")
    done = call(program, "/usr/bin:/bin")
    assert done.returncode == 3
    assert f"its own Python, {tmp_path}/gone/python3, cannot be reached by you" in done.stderr
    assert f"What to do: have who installed {program} open the way to that Python" in done.stderr


def test_no_python_on_path_has_it(tmp_path: Path) -> None:
    program = placed(tmp_path)
    other = tmp_path / "other" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    done = call(program, str(other.parent))
    assert done.returncode == 3
    assert "and none on PATH has the package envkit" in done.stderr


@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        (
            "uuid",
            "try:\n    a = 1\n# cut",
            "uuid.py, line 3: expected 'except' or 'finally' block. The file is damaged.",
        ),
        ("uuid", "a = b", "uuid.py, line 1: NameError: name 'b' is not defined. The file may be damaged."),
        ("tomllib", "try:\n    a = 1\n# cut", "tomllib.py, line 3: expected 'except'"),  # imported where it is needed
    ],
)
def test_a_library_of_its_python_is_damaged(module: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(text)
    start = f"import runpy, sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv[1:] = ['list']; "
    start += "runpy.run_module('envkit', run_name='__main__', alter_sys=True)"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([sys.executable, "-I", "-c", start], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert said in done.stderr
    assert "What to do: Install envkit again." in done.stderr
    assert "Traceback" not in done.stderr


class TestAnotherUser:
    pytestmark = USERS

    def test_its_python_is_closed_to_others(self) -> None:
        with people("pat") as made, open_folder() as folder:
            program = placed(folder)
            closed = folder / "closed"
            closed.mkdir(mode=0o700)
            (closed / "python3").symlink_to("/usr/bin/python3")
            (folder / "bin" / "python3").symlink_to(closed / "python3")
            done = made["pat"].run(program, "list")
        assert done.returncode == 3
        assert f"its own Python, {closed}/python3, cannot be reached by you" in done.stderr, done.stderr


@pytest.mark.parametrize("option", ["d", "v"])
def test_it_has_no_memory(option: str) -> None:
    limited = ["bash", "-c", f'ulimit -S{option} 40000; exec "$@"', "bash", sys.executable, "-m", "envkit", "list"]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "there is not enough memory for envkit itself" in done.stderr.splitlines()[0], done.stderr
    assert f"ulimit -{option} is 40000" in done.stderr and f"ulimit -S{option} hard" in done.stderr


@pytest.mark.integration
@pytest.mark.parametrize("limit", range(30_000, 50_000, 1000))
def test_wherever_the_memory_ends(limit: int) -> None:
    """At one limit Python has none left, at another the system, the loader of libraries, or a part of Python."""
    limited = ["bash", "-c", f'ulimit -Sv {limit}; exec "$@"', "bash", sys.executable, "-m", "envkit", "list"]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "there is not enough memory for envkit itself" in done.stderr.splitlines()[0], done.stderr
