import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envkit.apptainer.receipt import ImageReceipt
from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.receipt import Mpi
from envkit.launch import launcher, srun_mpi
from envkit.system.resources import data

Fake = Callable[..., Path]
Output = pytest.CaptureFixture[str]


@pytest.fixture
def toy(install: Callable[..., ModuleReceipt], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An environment, and a machine that is in no job."""
    install()
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"):
        monkeypatch.delenv(name, raising=False)
    srun_mpi.listed.cache_clear()
    yield
    srun_mpi.listed.cache_clear()


def test_the_line_is_printed_and_why_on_standard_error(toy: None, capsys: Output) -> None:
    assert run(["run", "toy-cpu", "-n", "2", "--print", "--", "python", "a b.py", "$x;"]) == 0
    said = capsys.readouterr()
    assert said.out.endswith(" python 'a b.py' '$x;'\n")
    assert " -- mpirun -np 2 " in said.out
    assert said.err == "envkit: mpirun: it belongs to Open MPI, which this Horovod was built with\n"


@pytest.mark.parametrize(("text", "status"), [("", 126), ("#!/bin/sh\nexit 5\n", 5), ("exit 6\n", 6)])
def test_a_command_that_is_an_empty_file_does_not_succeed(text: str, status: int, tmp_path: Path) -> None:
    """To bash it is a script that has nothing to do."""
    program = tmp_path / "mpirun"
    program.write_text(text)
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    argv = ["bash", "--noprofile", "--norc", str(data("environments/shell/enter.sh")), "nothing.sh", "--", "--"]
    done = subprocess.run([*argv, "mpirun", "-np", "2"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert (f"envkit: exec: {program}: cannot execute: the file is empty\n" in done.stderr) is (not text)


def test_the_line_without_ranks(toy: None, capsys: Output) -> None:
    assert run(["run", "toy-cpu", "--print", "--", "true"]) == 0
    said = capsys.readouterr()
    assert shlex.split(said.out)[-3:] == ["Toy/1.0", "--", "true"]
    assert not said.err


def test_the_line_has_the_variables_that_it_needs(toy: None, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASH_ENV", "/some/where")
    run(["run", "toy-cpu", "--print", "--", "true"])
    assert capsys.readouterr().out.startswith("env -u BASH_ENV bash --noprofile")


def test_without_horovod_it_is_the_launcher_of_the_mpi_that_is_there(
    toy: None, install: Callable[..., ModuleReceipt], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("plain", horovod="", mpi=None)
    monkeypatch.setattr(launcher, "mpi_of", lambda inside, env: Mpi(family="MPICH", version="4.2"))
    assert run(["run", "plain", "-n", "3", "--print", "--", "./solver"]) == 0
    assert " -- mpiexec -n 3 ./solver" in capsys.readouterr().out


def test_in_a_slurm_job_it_is_srun(toy: None, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    program = fake("srun", "echo 'MPI plugin types are... pmix'")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_CPUS_PER_NODE": "2(x2)"}.items():
        monkeypatch.setenv(name, value)
    assert run(["run", "toy-cpu", "-n", "4", "--nodes", "2", "--print", "--", "true"]) == 0
    said = capsys.readouterr()
    assert " -- srun --mpi=pmix --kill-on-bad-exit=1 -n 4 -N 2 true\n" in said.out
    assert "both speak pmix" in said.err


def test_what_is_printed_does_what_is_run(toy: None, fake: Fake, capsys: Output) -> None:
    hostile = ["a b", "$HOME", "'", '"', ";", "\n", "é", "*", "--", ""]
    run(["run", "toy-cpu", "--print", "--", "printf", "[%s]", *hostile])
    line = capsys.readouterr().out.replace("load.sh", "nothing.sh")
    program = fake("bash", 'while [ "$1" != Toy/1.0 ]; do shift; done; shift 2; exec "$@"')
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"[{word}]" for word in hostile)


def test_a_rank_of_somebodys_launcher_joins_by_the_model(
    toy: None, install_image: Callable[..., ImageReceipt], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_image()
    assert run(["run", "toy-image", "--mpi-model", "hybrid", "--print", "--", "true"]) == 0
    assert capsys.readouterr().out.endswith("toy-image.sif true\n")
    assert run(["run", "toy-image", "--mpi-model", "inside", "--", "true"]) == 2
    assert "this process is one already" in capsys.readouterr().err
    monkeypatch.setenv("APPTAINER_CLEANENV", "1")
    assert run(["run", "toy-image", "--mpi-model", "hybrid", "--", "true"]) == 3
    assert "APPTAINER_CLEANENV is set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["toy-cpu", "--nodes", "2"], "--nodes goes with -n."),
        (["toy-cpu", "--html", "out.html"], "--html goes with --timeline."),
        (["toy-cpu", "--html", "a", "--timeline", "./a"], "--html and --timeline name the same file."),
        (["eessi", "--html", "out.html"], "--html does not go with the name 'eessi'."),
        (["toy-cpu", "-n", "2", "--nodes", "2"], "There are no 2 nodes here."),
        (["eessi", "-n", "2", "--nodes", "2"], "--nodes does not go with the name 'eessi'."),
        (["eessi", "--print"], "--print does not go with the name 'eessi'."),
    ],
)
def test_what_makes_no_sense(words: list[str], what: str, toy: None, capsys: Output) -> None:
    assert run(["run", *words, "--", "true"]) == 2
    assert what in capsys.readouterr().err


@pytest.mark.parametrize("has_own", [True, False])
def test_mpirun_has_become_that_of_mpich(
    has_own: bool, toy: None, install: Callable[..., ModuleReceipt], fake: Fake, capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    modules = Path(install().tree) / "modules" / "all"
    (modules / "OpenMPI").mkdir(parents=True)
    (modules / "OpenMPI" / "system.lua").touch()
    program = fake("mpirun", "printf 'HYDRA build details:\\n Version: 4.2.1\\n'")
    fake("mpirun.openmpi", "echo 'mpirun (Open MPI) 4.1.4'" if has_own else "exit 1")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("LOADEDMODULES", raising=False)
    assert run(["run", "toy-cpu", "-n", "2", "--print", "--", "true"]) == (0 if has_own else 3)
    said = capsys.readouterr()
    if has_own:
        assert " -- mpirun.openmpi -np 2 " in said.out
        assert said.err.endswith(f"which this Horovod was built with; {program} is of MPICH 4.2.1\n")
    else:
        assert not said.out and "There is no launcher of Open MPI 4.1.4 here" in said.err
