import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.errors import UsageProblem
from envkit.jobs import runai
from envkit.jobs.job import Shape
from envkit.jobs.mpijob import MpiJob

from .test_slurm import HOSTILE

Output = pytest.CaptureFixture[str]
Program = Callable[[str], Path]
IMAGE = "ghcr.io/some/horovod@sha256:" + "0" * 64
JOB = MpiJob(
    name="train",
    image=IMAGE,
    shape=Shape(nodes=2, ranks_per_node=4, gpus_per_node=4, cpus_per_rank=8),
    command=("python", "train.py"),
)
ROOT = [f"{family}_ALLOW_RUN_AS_ROOT{end}=1" for family in ("OMPI", "PRTE") for end in ("", "_CONFIRM")]
VARIABLES = ["PRTE_MCA_prte_default_hostfile=/etc/mpi/hostfile", "OMP_NUM_THREADS=8", *ROOT]
ENVIRONMENT = [word for variable in VARIABLES for word in ("--master-environment", variable)]
STARTS = "mpirun -np 8 --bind-to none --map-by slot -x PATH -x LD_LIBRARY_PATH -x OMP_NUM_THREADS python train.py"
SIZE = ["-i", IMAGE, "--workers", "2", "--slots-per-worker", "4", "-g", "4"]
POLICY = ["--large-shm", "--clean-pod-policy", "Running", "--backoff-limit", "0"]
WORDS = ["job", "runai", "--image", IMAGE, "--name", "train", "--nodes", "2", "--gpus-per-node", "4"]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A stand-in for Run:ai's program, which takes what its version takes and keeps the words of the last call."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    known = {
        "1": '"submit-dist mpi"*) [ "$3" != --help ] || echo "  --workers int"',
        "2": '"training mpi submit"*) [ "$4" != --help ] || echo "  --master-command string"',
        "full": '"training mpi submit"*) echo "no quota for team-a" >&2; [ "$4" = --help ] && echo --master-command',
    }

    def make(version: str) -> Path:
        path = folder / "runai"
        said = tmp_path / "said"
        other = 'echo "unknown command $1" >&2; exit 1'
        path.write_text(
            f'#!/bin/sh\nprintf "%s\\0" "$@" >{said}\ncase "$*" in {known[version]};; *) {other};; esac || exit 1\n'
            '[ "$4" = --help ] || [ "$3" = --help ] || echo "submitted"\n'
        )
        path.chmod(0o755)
        return said

    return make


def test_the_whole_line_of_version_2() -> None:
    line = runai.argv(JOB, project="team-a")
    begin = ["runai", "training", "mpi", "submit", "train", "-p", "team-a"]
    assert line == [*begin, *SIZE, *POLICY, "--cpu-core-request", "32", *ENVIRONMENT, "--master-command", STARTS]


def test_the_whole_line_of_version_1() -> None:
    line = runai.argv(JOB, version=1)
    begin = ["runai", "submit-dist", "mpi", "--name", "train"]
    assert line == [*begin, *SIZE, *POLICY, "--cpu", "32", *ENVIRONMENT, "--command", "--", *STARTS.split()]


def test_without_gpus_and_with_those_of_amd() -> None:
    assert "-g" not in runai.argv(replace(JOB, shape=Shape(nodes=1, ranks_per_node=2)))
    line = runai.argv(replace(JOB, shape=Shape(nodes=1, ranks_per_node=8, gpus_per_node=8, gpu_type="amd")))
    assert line[line.index("--extended-resource") + 1] == "amd.com/gpu=8" and "-g" not in line


def test_a_user_and_another_mpi() -> None:
    line = runai.argv(replace(JOB, uid=1000, home="/home/me", family="MPICH"))
    assert line[line.index("--run-as-uid") + 1] == "1000" and "--master-environment" not in line
    assert line[-1] == "mpiexec -n 8 python train.py"


@pytest.mark.parametrize("version", ["1", "2"])
def test_it_is_submitted_word_by_word(version: str, program: Program, capsys: Output) -> None:
    said = program(version)
    assert run([*WORDS, "--submit", "--", "python", *HOSTILE, "$(PATH)"]) == 0
    assert capsys.readouterr().out == "submitted\n"
    words = said.read_bytes().decode().split("\0")[:-1]
    command = shlex.split(words[-1]) if version == "2" else words[words.index("--") + 1 :]
    expected = [word.replace("$", "$$") for word in [*HOSTILE, "$(PATH)"]]
    assert command[-len(expected) :] == expected and command[-len(expected) - 1] == "python"


def test_it_is_printed_as_a_shell_reads_it(program: Program, capsys: Output) -> None:
    program("1")
    assert run([*WORDS, "--", "python", *HOSTILE]) == 0
    line = shlex.split(capsys.readouterr().out)
    assert line[:3] == ["runai", "submit-dist", "mpi"]
    assert run([*WORDS, "--cli", "2", "--", "true"]) == 0
    assert capsys.readouterr().out.startswith("runai training mpi submit train -i ")


def test_without_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Output) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run([*WORDS, "--", "true"]) == 0
    assert capsys.readouterr().out.startswith("runai training mpi submit train -i ")
    assert run([*WORDS, "--submit", "--", "true"]) == 3
    assert "there is no runai on PATH" in capsys.readouterr().err


def test_what_run_ai_does_not_take(program: Program, capsys: Output) -> None:
    program("full")
    assert run([*WORDS, "--submit", "--", "true"]) == 3
    assert "runai says: no quota for team-a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "version", "what"),
    [
        (replace(JOB, time_s=60), 2, "--time: Run:ai takes no limit of time."),
        (replace(JOB, uid=1000), 1, "--uid: version 1 of runai does not take one."),
        (replace(JOB, image="horovod:latest"), 2, "does not name an image by its digest."),
        (replace(JOB, name="My Job"), 2, "The operator would reject this job."),
        (replace(JOB, shape=Shape(nodes=1, ranks_per_node=2, gpus_per_node=1)), 2, "do not fit 1 GPU"),
    ],
)
def test_what_it_cannot_be_told(job: MpiJob, version: int, what: str) -> None:
    with pytest.raises(UsageProblem, match=what.replace("(", ".").replace(")", ".")):
        runai.argv(job, version=version)
