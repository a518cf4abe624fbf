"""Called from a folder whose files are called as what envkit, Python and shells look for: none of them is run."""

import os
import shutil
from pathlib import Path

import pytest

from .site import Running, Site

pytestmark = pytest.mark.integration

MODULES = [
    "json",
    "site",
    "sitecustomize",
    "usercustomize",
    "numpy",
    "click",
    "rich",
    "msgspec",
    "pip",
    "os",
    "re",
    "subprocess",
    "platform",
    "pathlib",
    "filelock",
    "typing",
    "shutil",
    "tempfile",
    "argparse",
    "encodings/__init__",
    "encodings/utf_8",
    "horovod/__init__",
    "horovod/torch",
    "torch/__init__",
    "tensorflow/__init__",
    "easybuild/__init__",
    "envkit/__init__",
    "importlib/__init__",
    "ctypes/__init__",
]
PROGRAMS = [
    "lmod",
    "bash",
    "sh",
    "gcc",
    "g++",
    "python",
    "python3",
    "env",
    "mpirun",
    "mpicxx",
    "cmake",
    "nvidia-smi",
    "apptainer",
    "singularity",
    "srun",
    "sbatch",
    "pip3",
    "eb",
    "lua",
    "cvmfs2",
    "stat",
    "unshare",
    "dpkg-query",
    "rpm",
    "make",
    "ccache",
    "module",
    "ls",
    "uname",
    "getconf",
    "ompi_info",
]


@pytest.fixture
def trap(site: Site) -> Path:
    """A folder of traps: each leaves its name in ``sprung``."""
    folder, sprung = site.folder / "trap", site.folder / "sprung"
    sprung.mkdir()
    for name in MODULES:
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(sprung / name.replace('/', '.'))!r}, 'w').close()\nraise SystemExit('trapped')\n")
    for name in PROGRAMS:
        path = folder / name
        path.write_text(f"#!/bin/sh\n: >{sprung / name}\nexit 9\n")
        path.chmod(0o755)
    return folder


def sprung(site: Site) -> list[str]:
    return sorted(path.name for path in (site.folder / "sprung").iterdir())


SETTINGS = {
    "nothing": {},
    "empty": {"PYTHONPATH": ""},
    "path": {"PATH": ".:{path}"},
    "path that begins with nothing": {"PATH": ":{path}"},
    "path that ends with nothing": {"PATH": "{path}:"},
    "path without a first slash": {"PATH": "../trap:{path}"},
}
PYTHON = {
    "here": {"PYTHONPATH": "."},
    "trailing": {"PYTHONPATH": "/proc/nonexistent:"},
    "all": {"PYTHONPATH": ":.:../trap"},
}


def walk(site: Site, trap: Path, settings: dict[str, str]) -> None:
    """Go through the commands in the folder of traps."""
    given = [f"{key}={value.format(path=site.env['PATH'])}" for key, value in settings.items()]
    before = (shutil.which("env") or "env", f"--chdir={trap}", *given)

    def run(*words: str | Path, status: int | None = 0) -> Running:
        running = site.start(*words, before=before)
        assert running.wait() == status or status is None, f"{words}\n{running.out}\n{running.err}"
        assert sprung(site) == [], words
        assert "trapped" not in running.out + running.err
        return running

    assert "toy-base/1.0" in run("install", site.recipe("toy-top"), "--dry-run").out
    assert "Installed toy-top-1.0." in run("install", site.recipe("toy-top"), "--jobs", "1").out
    assert "toy-top-1.0" in run("list").out
    assert run("run", "toy-top-1.0", "--", "toy-top").out == "toy 0\n"
    run("verify", "toy-top-1.0", status=2)
    run("check-build", "toy-top-1.0", status=2)
    run("doctor", status=None)
    run("compat", status=None)
    run("fetch", site.recipe("toy-other"))
    log = site.folder / "a.log"
    log.write_text("ModuleNotFoundError: No module named 'torch'\nsh: 1: cmake: not found\n")
    run("diagnose", log, status=None)
    run("show", "toy-top-1.0")
    run("remove", "toy-top-1.0", "--dependencies")


@pytest.mark.parametrize("settings", list(SETTINGS))
def test_nothing_of_the_folder_is_run(site: Site, trap: Path, settings: str) -> None:
    walk(site, trap, SETTINGS[settings])


@pytest.mark.parametrize("settings", list(PYTHON))
def test_nor_where_python_is_told_to_look_there(site: Site, trap: Path, settings: str) -> None:
    """Python would load what is there as it starts: its own start is kept from it."""
    walk(site, trap, PYTHON[settings])


def test_verify_sees_the_horovod_of_the_environment(site: Site, trap: Path) -> None:
    """Without a name it is the Horovod that python has, and there is none but the trap."""
    before = (shutil.which("env") or "env", f"--chdir={trap}", "PATH=:" + site.env["PATH"])
    refused = site.start("verify", before=before).expect(6)
    assert sprung(site) == []
    assert "There is no Horovod here" in refused.err or os.environ.get("PYTHONPATH")
