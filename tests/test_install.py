"""The words of an installation."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import envkit
from envkit.install.install import own_command


@pytest.mark.parametrize(
    ("called", "on_path", "shown"),
    [
        ("venv/bin/envkit", None, "venv/bin/envkit"),
        ("venv/bin/envkit", "venv/bin/envkit", "envkit"),
        ("venv/bin/envkit", "other/bin/envkit", "venv/bin/envkit"),
        ("gone/bin/envkit", None, "envkit"),
    ],
)
def test_how_this_envkit_is_called_again(
    called: str, on_path: str | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After scripts/quickstart.sh it is not on PATH."""
    for program in {called, *([on_path] if on_path else [])} - {"gone/bin/envkit"}:
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str((tmp_path / called).with_name("python3")))
    monkeypatch.setenv("PATH", str((tmp_path / on_path).parent) if on_path else "/nowhere")
    assert own_command() == (shown if shown == "envkit" else str(tmp_path / shown))


def test_no_setting_of_python_keeps_the_program_from_starting(tmp_path: Path) -> None:
    (tmp_path / "encodings.py").write_text("raise SystemExit(9)")
    (tmp_path / "link").symlink_to(Path(sys.executable).with_name("envkit"))
    settings = {"PYTHONHOME": str(tmp_path), "PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}
    for program in (Path(sys.executable).with_name("envkit"), tmp_path / "link"):
        told = subprocess.run([program, "--version"], env=settings, cwd=tmp_path, capture_output=True, text=True)
        assert (told.returncode, told.stderr) == (0, "")
        assert told.stdout.startswith("envkit, version")


def test_a_limit_on_files_leaves_no_cut_bytecode(tmp_path: Path) -> None:
    shutil.copytree(Path(envkit.__file__).parent, tmp_path / "envkit", ignore=shutil.ignore_patterns("__pycache__"))
    argv = ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", sys.executable, "-m", "envkit", "verify", "toy"]
    settings = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    told = subprocess.run(argv, cwd=tmp_path, env=settings, capture_output=True, text=True)
    assert "There is no" in told.stderr, told
    written = {path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert written <= {"__init__", "__main__"}  # what runs before; both are shorter


def test_no_program_of_the_folder_is_run_to_start_it(tmp_path: Path) -> None:
    for name in ("readlink", "python3", "sh"):
        (tmp_path / name).write_text("#!/bin/sh\ntouch sprung\n")
        (tmp_path / name).chmod(0o755)
    program = Path(sys.executable).with_name("envkit")
    shutil.copy(program, tmp_path / "moved")  # without a Python beside it
    for path, argv in ((f".:{program.parent}:/usr/bin:/bin", ["envkit"]), (".::", ["./moved"])):
        subprocess.run(["/bin/sh", "-c", '"$@" --version', "sh", *argv], env={"PATH": path}, cwd=tmp_path, check=False)
    (tmp_path / "python3").unlink()
    told = subprocess.run(["./moved"], env={"PATH": "."}, cwd=tmp_path, capture_output=True, text=True)
    assert (told.returncode, "no Python beside" in told.stderr) == (3, True)
    assert not (tmp_path / "sprung").exists()


def test_a_folder_that_has_gone(tmp_path: Path) -> None:
    argv = [
        "/bin/sh",
        "-c",
        'mkdir x; cd x; rmdir ../x; exec "$@" list',
        "sh",
        str(Path(sys.executable).with_name("envkit")),
    ]
    told = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True)
    assert (told.returncode, "envkit: the folder that you are in has gone" in told.stderr) == (3, True)
