"""Packages of a user's own on top of a real environment, and the Python that is shared left alone."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..stacks import ENVKIT, Site
from ..wheels import wheel

STACK = "pytorch-2.13-cpu"
TRAIN = (
    "import mine, torch, horovod.torch as h; h.init(); "
    "print(f'{h.size()} {mine.__version__} {h.allreduce(torch.ones(1))}\\n', end='', flush=True)"
)

pytestmark = pytest.mark.integration


def test_own_packages_on_top_of_an_environment(
    stacks: Site, installed: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(STACK)
    own, wheels, requirements = tmp_path / "own", tmp_path / "wheels", tmp_path / "requirements.txt"
    wheel(wheels, "mine", "1.0", "numpy", "torch>=2")
    wheel(wheels, "numpy", "1.26.4")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))

    requirements.write_text("mine\n")
    done = stacks.envkit("venv", STACK, str(own), "--requirement", str(requirements))
    assert done.returncode == 0, done.stdout + done.stderr
    done = stacks.envkit("run", str(own), "-n", "2", "--", "python", "-c", TRAIN)
    assert sorted(done.stdout.splitlines()) == ["2 1.0 tensor([1.])"] * 2, done.stderr
    line = f". {own}/bin/activate && pip install numpy==1.26.4; echo $?; "
    line += 'python -c "import numpy; print(numpy.__version__)"'
    entered = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert entered.stdout.splitlines()[-2:] == ["1", "2.2.6"], entered.stderr
    assert "The user requested (constraint) numpy==2.2.6" in entered.stdout
    assert stacks.envkit("verify", str(own)).returncode == 0

    requirements.write_text("numpy==1.26.4\n")
    done = stacks.envkit("venv", STACK, str(tmp_path / "other"), "--requirement", str(requirements))
    assert done.returncode == 3 and f"fixed by {STACK}: numpy 2.2.6" in done.stderr
    assert not (tmp_path / "other").exists()

    argv = [f"{own}/bin/python", "-m", "pip", "install", "--no-index", "--no-deps", "--ignore-installed"]
    unbound = {**os.environ, "PIP_CONFIG_FILE": os.devnull}
    subprocess.run([*argv, wheels / "numpy-1.26.4-py3-none-any.whl"], env=unbound, check=True)
    done = stacks.envkit("verify", str(own))
    assert "has packages that the environment has: numpy" in " ".join(done.stdout.split())


def test_activate_enters_the_present_shell(stacks: Site, installed: Callable[[str], str]) -> None:
    installed(STACK)
    line = f'eval "$({ENVKIT} activate {STACK} --prefix {stacks.prefix})" && python -c "import horovod.torch as h; '
    line += 'print(h.mpi_built())"; envkit_deactivate; echo ${LOADEDMODULES-none}'
    done = subprocess.run(["bash", "-c", f"unset LOADEDMODULES; {line}"], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "none"], done.stderr


def test_pip_leaves_the_shared_python_alone(stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    installed(STACK)
    wheel(tmp_path, "mine")
    install = ["install", "--no-index", "--find-links", str(tmp_path), "mine"]
    for verb in (install, ["uninstall", "--yes", "pip"]):
        done = stacks.envkit("run", STACK, "--", "python", "-m", "pip", *verb)
        assert done.returncode == 1 and "For packages of your own: envkit venv NAME DIR" in done.stderr
    assert stacks.envkit("run", STACK, "--", "python", "-c", "import mine").returncode == 1
    made = stacks.envkit("run", STACK, "--", "python", "-m", "venv", str(tmp_path / "plain"))
    assert made.returncode == 0
    done = stacks.envkit("run", STACK, "--", str(tmp_path / "plain/bin/pip"), *install)
    assert done.returncode == 0, done.stderr
    assert stacks.envkit("repair", STACK, "--dry-run").returncode == 0


def test_a_kernel_starts_in_it(
    stacks: Site, installed: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(STACK)
    own, data = tmp_path / "own", {"JUPYTER_DATA_DIR": str(tmp_path / "jupyter")}
    for name in ("ipykernel", "ipykernel_launcher"):
        wheel(tmp_path / "wheels", name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    done = stacks.envkit("kernel", STACK, env=data)
    assert done.returncode == 3 and "/bin/pip install ipykernel" in done.stderr
    assert stacks.envkit("venv", STACK, str(own)).returncode == 0
    subprocess.run([own / "bin/pip", "install", "ipykernel", "ipykernel_launcher"], check=True)
    done = stacks.envkit("kernel", str(own), "--name", "mine", env=data)
    assert done.returncode == 0, done.stderr
    spec = json.loads((tmp_path / "jupyter/kernels/mine/kernel.json").read_text())
    # the module is a stand-in, which says where it was started
    [place] = own.glob("lib/*/site-packages/ipykernel_launcher.py")
    place.write_text("import sys, torch, horovod.torch as h; print(sys.prefix, h.mpi_built(), sys.argv[1:])")
    argv = [word.replace("{connection_file}", "/a b.json") for word in spec["argv"]]
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True)
    assert done.stdout == f"{own} True ['-f', '/a b.json']\n", done.stderr
