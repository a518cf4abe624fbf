import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envkit import __version__
from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.receipt import Mpi
from envkit.errors import UsageProblem
from envkit.jobs import pbs
from envkit.jobs.job import Shape
from envkit.machine import site

from .conftest import FakeSlurm
from .test_slurm import GOLDEN, GPUS, HOSTILE, PLAIN

Fake = Callable[..., Path]
Output = pytest.CaptureFixture[str]
POLARIS = site.find("polaris").job
POLARIS_JOB = replace(
    GPUS,
    shape=Shape(nodes=2, ranks_per_node=4, gpus_per_node=4),
    account="project1",
    partition=POLARIS.partition,
    words=POLARIS.qsub,
    notes=POLARIS.notes,
)
OPEN = replace(GPUS, account="project1", words=())
SCRIPTS = {
    "pbs-own-launcher": pbs.script(PLAIN),
    "pbs-followed": pbs.script(PLAIN, is_followed=True),
    "pbs-gpus": pbs.script(OPEN, select=["cluster=a"]),
    "pbs-polaris": pbs.script(POLARIS_JOB, pals=POLARIS.mpiexec, select=POLARIS.select),
    "pbs-pals-plain": pbs.script(replace(PLAIN, shape=replace(PLAIN.shape, cpus_per_rank=8)), pals=()),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_whole_script(name: str) -> None:
    assert SCRIPTS[name] == (GOLDEN / f"{name}.sh").read_text().replace("VERSION", __version__)


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_and_shellcheck_accept_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(SCRIPTS[name])
    subprocess.run(["bash", "-n", str(path)], check=True)
    subprocess.run(["shellcheck", str(path)], check=True)


def test_hostile_words_reach_the_command_as_they_are(fake: Fake, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    mpiexec = fake("mpiexec", f"printf '%s\\0' \"$@\" >> {kept}; printf '\\1' >> {kept}")
    (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
    path = tmp_path / "job.sh"
    path.write_text(pbs.script(replace(PLAIN, command=tuple(HOSTILE)), pals=["--cpu-bind", "depth"]))
    env = {"PATH": f"{mpiexec.parent}:{os.environ['PATH']}", "PBS_JOBID": "1.pbs", "PBS_O_WORKDIR": str(tmp_path)}
    env["PBS_NODEFILE"] = str(tmp_path / "nodes")
    done = subprocess.run(["bash", str(path)], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "Job 1.pbs on n1 n2\n"
    verify, words = (call.split("\0")[:-1] for call in kept.read_bytes().decode().split("\1")[:-1])
    assert verify[:6] == ["-n", "4", "--ppn", "2", "--cpu-bind", "depth"] and verify[-2:] == ["verify", "pytorch-cpu"]
    assert words[-len(HOSTILE) - 1 :] == ["--", *HOSTILE]


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"account": "a b"}, "-A: 'a b' cannot be written on a line of #PBS."),
        ({"account": "a\nb"}, "-A: 'a\\nb' has a line break"),
        ({"partition": "q;x"}, "-q: 'q;x' cannot be written"),
        ({"environment": "é"}, "-N: 'é' cannot be written"),
        ({"words": ("-l x=$y",)}, "--site (-l x=$y): 'x=$y' cannot be written"),
        ({"shape": Shape(nodes=1, ranks_per_node=2, gpus_per_node=1)}, "2 ranks per node do not fit 1 GPU per node."),
    ],
)
def test_what_cannot_be_written_is_refused(changed: dict[str, object], what: str) -> None:
    with pytest.raises(UsageProblem) as refused:
        pbs.script(replace(PLAIN, **changed))  # type: ignore[arg-type]
    assert refused.value.what.startswith(what)


@pytest.fixture
def toy(install: Callable[..., ModuleReceipt], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(horovod="/h")
    install("cray-cpu", horovod="/h", mpi=Mpi(family="MPICH", version="3.4a2"))
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))


@pytest.mark.parametrize(("name", "starts"), [("cray-cpu", "mpiexec -n 8 --ppn 4 "), ("toy-cpu", "")])
def test_pals_starts_what_speaks_as_it_does(name: str, starts: str, toy: None, capsys: Output) -> None:
    words = ["--nodes", "2", "--gpus-per-node", "4", "--site", "polaris", "--", "true"]
    assert run(["job", "pbs", name, *words]) == 0
    said = capsys.readouterr().out
    assert ("mpiexec" in said) == bool(starts) and starts in said
    assert "#PBS -l filesystems=home:eagle\n" in said and ":system=polaris" in said


def test_it_is_submitted(toy: None, fake_slurm: FakeSlurm, capsys: Output) -> None:
    fake_slurm.program("qsub", f"cp $1 {fake_slurm.folder}/submitted; echo '41[].pbs-1.site'")
    assert run(["job", "pbs", "toy-cpu", "--nodes", "1", "--ranks-per-node", "2", "--submit", "--", "true"]) == 0
    assert capsys.readouterr().out == "41[].pbs-1.site\n"
    assert (fake_slurm.folder / "submitted").read_text().startswith("#!/bin/bash\n")


def test_it_is_not_taken(toy: None, fake_slurm: FakeSlurm, capsys: Output) -> None:
    fake_slurm.program("qsub", "echo 'qsub: Unknown queue' >&2; exit 170")
    words = ["--ranks-per-node", "2", "--queue", "none", "--submit", "--", "true"]
    assert run(["job", "pbs", "toy-cpu", "--nodes", "1", *words]) == 3
    assert "qsub says: qsub: Unknown queue" in capsys.readouterr().err
