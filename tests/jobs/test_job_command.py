import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.apptainer.receipt import ImageReceipt
from envkit.cli import run
from envkit.commands import json_types
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.receipt import Mpi

from .. import schemas
from .conftest import FakeSlurm, told

Output = pytest.CaptureFixture[str]
SLURM = ["job", "slurm", "toy-cpu", "--nodes", "2", "--ranks-per-node", "2"]


@pytest.fixture(autouse=True)
def toy(
    install: Callable[..., ModuleReceipt], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    install(horovod="/h")
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))


def test_it_is_printed(capsys: Output) -> None:
    assert run([*SLURM, "--", "python", "a b.py"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("#!/bin/bash\n# toy-cpu on 2 nodes with 2 ranks each.")
    assert "srun --mpi=pmix" in said.out and " run toy-cpu -- python 'a b.py'\n" in said.out
    assert not said.err


def test_the_umask_holds_and_what_a_link_leads_to_keeps_its_mode(tmp_path: Path) -> None:
    target, link, path = tmp_path / "mine", tmp_path / "link", tmp_path / "job.sh"
    target.touch(0o600)
    link.symlink_to(target)
    assert run([*SLURM, "--output", str(link), "--force", "--", "true"]) == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    before = os.umask(0o077)
    try:
        assert run([*SLURM, "--output", str(path), "--", "true"]) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_is_written_once(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "job.sh"
    assert run([*SLURM, "--output", str(path), "--", "true"]) == 0
    written = path.read_text()
    assert written.startswith("#!/bin/bash\n") and not capsys.readouterr().out
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.write_text("mine")
    assert run([*SLURM, "--output", str(path), "--", "true"]) == 2
    assert f"{path} is there already." in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert run([*SLURM, "--output", str(path), "--force", "--", "true"]) == 0
    assert path.read_text() == written


def test_it_cannot_be_written(capsys: Output) -> None:
    assert run([*SLURM, "--output", "/proc/no/job.sh", "--", "true"]) == 7
    assert "The job could not be written to /proc/no/job.sh." in capsys.readouterr().err


def test_words_that_are_no_text_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    assert run([*SLURM, "--output", str(path), "--", os.fsdecode(b"\xff")]) == 0
    assert b"-- '\xff'\n" in path.read_bytes()


def test_it_is_submitted(fake_slurm: FakeSlurm, tmp_path: Path, capsys: Output) -> None:
    assert run([*SLURM, "--submit", "--", "true"]) == 0
    assert capsys.readouterr().out == "7\n"
    assert (tmp_path / "submitted").read_text().startswith("#!/bin/bash\n")


@pytest.mark.xdist_group("schemas")
def test_scripts_get_the_number_and_the_text_as_json(tmp_path: Path, capsys: Output) -> None:
    from jsonschema import Draft202012Validator

    assert run([*SLURM, "--submit", "--json", "--", "true"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["job"], said["scheduler"], said["name"], said["file"]) == ("7", "slurm", "toy-cpu", None)
    assert said["script"] == (tmp_path / "submitted").read_text()
    assert run([*SLURM, "--json", "--output", str(tmp_path / "job.sh"), "--", "true"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert (written["job"], written["file"]) == (None, str(tmp_path / "job.sh"))
    assert written["script"] == (tmp_path / "job.sh").read_text()
    Draft202012Validator(json.loads(schemas.schema("job slurm", json_types.type_of("job slurm")))).validate(written)
    assert run([*SLURM, "--submit", "--follow", "--json", "--", "true"]) == 2


def test_it_is_submitted_and_followed(fake_slurm: FakeSlurm, capfd: Output) -> None:
    fake_slurm.log.write_text("the verdict\n")
    fake_slurm.states(told("FAILED", code="5:0", log=str(fake_slurm.log)))
    assert run([*SLURM, "--submit", "--follow", "--", "true"]) == 5
    said = capfd.readouterr()
    assert said.out == "the verdict\n"
    assert said.err.startswith("envkit: job 7 is submitted\n")


def test_a_job_that_is_lost_has_a_code_of_its_own(fake_slurm: FakeSlurm, capfd: Output) -> None:
    fake_slurm.states(told("TIMEOUT"))
    assert run([*SLURM, "--submit", "--follow", "--", "true"]) == 8
    assert "envkit: Job 7 ran into its time limit." in capfd.readouterr().err


def test_one_rank_per_gpu(capsys: Output) -> None:
    assert run(["job", "slurm", "toy-cpu", "--nodes", "1", "--gpus-per-node", "a100:4", "--", "true"]) == 0
    said = capsys.readouterr()
    assert "#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=a100:4\n" in said.out
    assert said.err == "envkit: toy-cpu is for CPUs: it uses no GPU, and --gpus-per-node asks for some\n"


def test_what_the_site_says_and_what_the_caller_says(tmp_path: Path, capsys: Output) -> None:
    site = tmp_path / "own.toml"
    site.write_text(
        'title = "Own"\nstatus = "tried"\nsource = "me"\nsrun = ["--cpu-bind=none"]\n[job]\npartition = "big"\n'
        'account = "ours"\nsbatch = ["--mem=0"]\nnotes = ["Ask Eve."]\n'
    )
    words = [*SLURM, "--cpus-per-rank", "4", "--site", str(site), "--account", "mine", "--", "true"]
    assert run(words) == 0
    said = capsys.readouterr().out
    assert "# Ask Eve.\n" in said and "#SBATCH --mem=0\n" in said
    assert "#SBATCH --account=mine\n#SBATCH --partition=big\n" in said
    assert "--cpu-bind=none" in said and "--cpu-bind=cores" not in said


def test_the_launcher_of_the_mpi_where_srun_does_not_speak_it(fake_slurm: FakeSlurm, capsys: Output) -> None:
    fake_slurm.program("srun", "echo 'MPI plugin types are... pmi2'")
    assert run([*SLURM, "--", "true"]) == 0
    said = capsys.readouterr().out
    assert "srun" not in said and " run toy-cpu -n 4 --nodes 2 -- true\n" in said


def test_where_there_is_no_srun_the_usual_type(
    fake_slurm: FakeSlurm, capsys: Output, install: Callable[..., ModuleReceipt]
) -> None:
    fake_slurm.program("srun", "exit 1")
    install("with-mpich", mpi=Mpi(family="MPICH", version="4.0"))
    assert run(["job", "slurm", "with-mpich", *SLURM[3:], "--", "true"]) == 0
    assert "srun --mpi=pmi2 " in capsys.readouterr().out


def test_an_image_brings_the_words_of_its_site(install_image: Callable[..., ImageReceipt], capsys: Output) -> None:
    install_image()
    assert run(["job", "slurm", "toy-image", *SLURM[3:], "--", "true"]) == 0
    assert " run toy-image -- true\n" in capsys.readouterr().out


def test_the_model_of_an_image_is_handed_on(install_image: Callable[..., ImageReceipt], capsys: Output) -> None:
    install_image()
    words = ["job", "slurm", "toy-image", "--nodes", "1", "--ranks-per-node", "2"]
    assert run([*words, "--mpi-model", "bind", "--", "true"]) == 0
    said = capsys.readouterr().out
    assert "srun" in said and " verify toy-image --mpi-model bind\n" in said
    assert " run toy-image --mpi-model bind -- true\n" in said
    assert run([*words, "--mpi-model", "inside", "--", "true"]) == 0
    said = capsys.readouterr().out
    assert "srun" not in said and " run toy-image -n 2 --nodes 1 --mpi-model inside -- true\n" in said


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--gpus-per-node", "x"], "--gpus-per-node 'x': write it as 4"),
        (["--gpus-per-node", "1"], "2 ranks per node do not fit 1 GPU per node."),
        (["--time", "soon"], "--time: 'soon' is no time."),
        pytest.param(["--time", "9" * 5000], "9' is no time.", id="a time without end"),
        pytest.param(["--gpus-per-node", "9" * 5000], "9': write it as 4", id="a number without end"),
        (["--follow"], "--follow goes with --submit."),
        (["--site", "nowhere"], "There is no site 'nowhere'."),
        (["--account", "a\nb"], "has a line break"),
        (["--nodes", "0"], "0 is not in the range"),
    ],
)
def test_what_makes_no_sense(words: list[str], what: str, capsys: Output) -> None:
    assert run([*SLURM, *words, "--", "true"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert what in said


def test_how_many_ranks_has_to_be_said(capsys: Output) -> None:
    assert run(["job", "slurm", "toy-cpu", "--nodes", "2", "--", "true"]) == 2
    assert "Say how many ranks each node has" in capsys.readouterr().err


def test_the_command_has_to_be_said(capsys: Output) -> None:
    assert run([*SLURM, "true"]) == 2
    assert "Put -- before the command: envkit job slurm NAME -- python train.py" in " ".join(
        capsys.readouterr().err.split()
    )
