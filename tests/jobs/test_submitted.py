import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envkit.apptainer.receipt import ImageReceipt
from envkit.cli import run
from envkit.doctor import rules
from envkit.doctor.gather import gather
from envkit.doctor.report import to_json
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.prefix import Prefix

from .conftest import FakeSlurm, told

Output = pytest.CaptureFixture[str]
VERIFY = ["verify", "toy-cpu", "--submit", "--nodes", "2", "-n", "4"]


@pytest.fixture(autouse=True)
def toy(
    install: Callable[..., ModuleReceipt], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake_slurm: FakeSlurm
) -> None:
    install(horovod="/h")
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    fake_slurm.states(told("FAILED", code="9:0"))


def submitted(tmp_path: Path) -> str:
    """The script that Slurm was given."""
    return (tmp_path / "submitted").read_text()


def left(tmp_path: Path) -> list[str]:
    """What is left of the folder for the report; what trial compiles told is kept."""
    return [path.name for path in tmp_path.glob("cache/envkit/*") if path.name != "trials"]


def line(script: str) -> list[str]:
    """The words of the last line of a script."""
    return shlex.split(script.splitlines()[-1])


def test_the_job_verifies_and_does_nothing_else(tmp_path: Path, capsys: Output) -> None:
    words = ["--require", "mpi", "--bench", "--sizes", "1K:2K", "--json", "--prefix", str(tmp_path / "prefix")]
    assert run([*VERIFY, *words, "--github", "--account", "a b", "--partition", "gpu", "--cpus-per-rank", "3"]) == 9
    script = submitted(tmp_path)
    *command, report = line(script)
    asked = ["--require", "mpi", "--bench", "--sizes", "1K:2K", "--json"]
    assert command[:6] == [
        "srun", "--mpi=pmix", "--export=ALL", "--cpus-per-task=3", "--cpu-bind=cores", "--kill-on-bad-exit=0",
    ]  # fmt: skip
    assert command[7:] == ["verify", "toy-cpu", *asked]
    assert report.startswith(f">{tmp_path}/cache/envkit/envkit-verify-")
    for directive in ("nodes=2", "ntasks-per-node=2", "time=00:15:00", 'account="a b"', "partition=gpu"):
        assert f"#SBATCH --{directive}\n" in script
    assert re.search(r"^#SBATCH --output=\S+/log$", script, re.MULTILINE)
    said = capsys.readouterr()
    assert said.out == "" and "envkit: job 7 is submitted\n" in said.err


def test_its_log_is_told_and_not_mixed_with_the_report(fake_slurm: FakeSlurm, tmp_path: Path, capfd: Output) -> None:
    fake_slurm.log.write_text("a module is missing\n")
    fake_slurm.states(told("FAILED", code="92:0", log=str(fake_slurm.log)))
    assert run(VERIFY) == 92
    said = capfd.readouterr()
    assert said.out == "" and "a module is missing\n" in said.err
    assert left(tmp_path) == []


def test_no_report_is_no_verdict(fake_slurm: FakeSlurm, tmp_path: Path, capsys: Output) -> None:
    fake_slurm.states(told("COMPLETED"))
    assert run([*VERIFY, "--json"]) == 8
    said = capsys.readouterr()
    assert said.out == "" and "Job 7 ended with status 0 and left no report." in said.err
    assert len(left(tmp_path)) == 1


def test_what_slurm_does_not_take_leaves_nothing(fake_slurm: FakeSlurm, tmp_path: Path, capsys: Output) -> None:
    fake_slurm.program("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    assert run([*VERIFY, "--partition", "x"]) == 3
    assert "Name one of the partitions that 'sinfo -s' lists" in capsys.readouterr().err
    assert left(tmp_path) == []


def test_pbs_is_refused(fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Output) -> None:
    (fake_slurm.bin / "sbatch").unlink()
    fake_slurm.program("qsub", "echo 1")
    monkeypatch.setenv("PATH", str(fake_slurm.bin))
    assert run(VERIFY) == 3
    assert "envkit job pbs toy-cpu --nodes 2 --ranks-per-node 2 --submit -- true" in capsys.readouterr().err
    assert left(tmp_path) == [] and not fake_slurm.said("qsub")


@pytest.mark.parametrize("words", [["--launcher", "mpirun"], ["--scale", "1,2"]])
def test_ranks_that_are_started_from_inside(words: list[str], tmp_path: Path) -> None:
    assert run([*VERIFY, *words]) == 9
    command = line(submitted(tmp_path))[:-1]
    assert command[1:] == ["verify", "toy-cpu", "-n", "4", "--nodes", "2", *words, "--json"]


def test_the_model_of_an_image(install_image: Callable[..., ImageReceipt], tmp_path: Path) -> None:
    install_image()
    assert run(["verify", "toy-image", "--submit", "--gpus-per-node", "2", "--mpi-model", "inside"]) == 9
    command = line(submitted(tmp_path))[:-1]
    assert command[1:] == ["verify", "toy-image", "-n", "2", "--nodes", "1", "--mpi-model", "inside", "--json"]
    assert "#SBATCH --gpus-per-node=2\n" in submitted(tmp_path)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--submit"], "Say how many ranks each node has"),
        (["--submit", "-n", "3", "--nodes", "2"], "3 ranks are not as many on each of 2 nodes."),
        (["--submit", "-n", "2", "--ranks-per-node", "2"], "Give one of -n and --ranks-per-node."),
        (["--submit", "-n", "2", "--hosts", "a"], "--hosts does not go with --submit"),
        (["--submit", "-n", "2", "--time", "soon"], "--time: 'soon' is no time."),
        (["--time", "5"], "--time goes with --submit."),
        (["--ranks-per-node", "5"], "--ranks-per-node goes with --submit."),
    ],
)
def test_what_makes_no_sense(words: list[str], what: str, tmp_path: Path, capsys: Output) -> None:
    assert run(["verify", "toy-cpu", *words]) == 2
    assert what in " ".join(capsys.readouterr().err.split())
    assert left(tmp_path) == []


def test_an_environment_without_horovod(install: Callable[..., ModuleReceipt], capsys: Output) -> None:
    install("plain", horovod="")
    assert run(["verify", "plain", "--submit", "-n", "2"]) == 2
    assert "plain has no Horovod" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--time", "5"], "--time goes with --submit."),
        (["--submit", "--dry-run"], "Give one of --dry-run and --submit."),
    ],
)
def test_what_an_installation_does_not_take(words: list[str], what: str, capsys: Output) -> None:
    assert run(["install", *words]) == 2
    assert what in " ".join(capsys.readouterr().err.split())


def test_an_installation_is_not_submitted_to_pbs(
    fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    (fake_slurm.bin / "sbatch").unlink()
    fake_slurm.program("qsub", "echo 1")
    monkeypatch.setenv("PATH", str(fake_slurm.bin))
    assert run(["install", "pytorch-2.13-cpu", "--submit"]) == 3
    said = capsys.readouterr().err
    assert "With PBS: envkit fetch pytorch-2.13-cpu; and in an interactive job: envkit install" in said


def test_without_a_scheduler_nothing_is_fetched_before_that_is_said(
    fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    (fake_slurm.bin / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(fake_slurm.bin))
    assert run(["install", "pytorch-2.13-cpu", "--submit", "--job-per-module"]) == 3
    said = capsys.readouterr()
    assert "there is no sbatch on PATH" in said.err and "login node of the cluster" in said.err
    assert said.out == ""


@pytest.mark.integration
def test_the_job_of_an_installation(fake_slurm: FakeSlurm, tmp_path: Path, capfd: Output) -> None:
    recipe = tmp_path / "my toys" / "toy-1.0.eb"
    recipe.parent.mkdir()
    recipe.write_text(
        "easyblock = 'Toolchain'\nname = 'toy'\nversion = '1.0'\nhomepage = ''\ndescription = ''\ntoolchain = SYSTEM\n"
    )
    words = ["--submit", "--jobs", "3", "--rebuild", "--gpus-per-node", "a100:1", "--account", "a b", "--offline"]
    assert run(["install", str(recipe), *words]) == 9, capfd.readouterr()
    script = submitted(tmp_path)
    command = line(script)
    assert command[0] == "exec"
    method = ["--method", "easybuild"]  # it is chosen once, where the job is submitted
    assert command[2:] == ["install", str(recipe), "--rebuild", *method, "--offline", "--jobs", "3"]
    for directive in ("nodes=1", "cpus-per-task=3", "gpus-per-node=a100:1", "time=01:00:00", 'account="a b"'):
        assert f"#SBATCH --{directive}\n" in script
    assert re.search(rf"^#SBATCH --output={tmp_path}/prefix/logs/job-%x-%j.log$", script, re.MULTILINE)
    assert f"export ENVKIT_PREFIX={tmp_path}/prefix\n" in script


ASK = ["doctor", "--submit", "--time", "3"]


def answer(fake_slurm: FakeSlurm, tmp_path: Path, status: int) -> None:
    """Let the job say what this host would, as a node called n7."""
    found = rules.judge(gather(Prefix(root=tmp_path / "prefix"), (), os.environ))
    assert found.facts.node is not None
    node = msgspec.structs.replace(found.facts.node, hostname="n7", kernel="9.9.9")
    (tmp_path / "report").write_text(to_json(rules.judge(msgspec.structs.replace(found.facts, node=node))))
    copy = f'into=$(sed -n "s/^exec.* >//p" "$last"); cp {tmp_path}/report "$into"'
    fake_slurm.program("sbatch", f'for last; do :; done; cp "$last" {tmp_path}/submitted; {copy}; echo 7')
    fake_slurm.states(told("FAILED" if status else "COMPLETED", code=f"{status}:0"))


@pytest.mark.integration
def test_a_node_is_asked_beside_this_host(fake_slurm: FakeSlurm, tmp_path: Path, capsys: Output) -> None:
    """Where no method works there, the job has ended with 3, and there is a report."""
    answer(fake_slurm, tmp_path, 3)
    assert run([*ASK, "--json", "--gpus-per-node", "a100:1", "--account", "a b", "--partition", "gpu"]) in (0, 3)
    script, said = submitted(tmp_path), capsys.readouterr()
    assert line(script)[2:4] == ["doctor", "--json"]
    for directive in ("nodes=1", "gpus-per-node=a100:1", "time=00:03:00", 'account="a b"', "partition=gpu"):
        assert f"#SBATCH --{directive}\n" in script
    report = json.loads(said.out)
    assert (report["comparison"]["node"], report["facts"]["node"]["hostname"]) == ("n7", "n7")
    assert report["comparison"]["here"] == os.uname().nodename
    assert "host" in [one["what"] for one in report["comparison"]["differences"]]
    assert "envkit: job 7 is submitted\n" in said.err and left(tmp_path) == []


def test_a_node_that_does_not_answer(fake_slurm: FakeSlurm, tmp_path: Path, capsys: Output) -> None:
    fake_slurm.states(told("COMPLETED"))
    assert run(ASK) == 8
    assert "Job 7 ended with status 0 and left no report." in capsys.readouterr().err
    fake_slurm.states(told("TIMEOUT", code="0:0"))
    assert run(ASK) == 8
    assert capsys.readouterr().out == ""
    fake_slurm.states(told("FAILED", code="127:0"))
    assert run(ASK) == 127


def test_a_job_that_is_not_taken_leaves_nothing(fake_slurm: FakeSlurm, tmp_path: Path, capsys: Output) -> None:
    fake_slurm.program("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    assert run([*ASK, "--partition", "x"]) == 3
    assert "Name one of the partitions that 'sinfo -s' lists" in capsys.readouterr().err
    assert left(tmp_path) == []


@pytest.mark.parametrize("option", ["--time", "--account", "--partition", "--site", "--gpus-per-node", "--shared"])
def test_options_of_a_job_without_one(option: str, capsys: Output) -> None:
    assert run(["doctor", option, "5"]) == 2
    assert f"{option} goes with --submit." in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--account", "a\nb"], ["--time", "soon"], ["--site", "no such"]])
def test_words_that_no_job_can_have(words: list[str], tmp_path: Path, capsys: Output) -> None:
    assert run(["doctor", "--submit", *words]) == 2
    assert not (tmp_path / "submitted").exists() and left(tmp_path) == []
    assert capsys.readouterr().out == ""
