from dataclasses import replace
from pathlib import Path

import pytest

from envkit.errors import UsageProblem
from envkit.jobs import pbs, slurm
from envkit.jobs.job import Job, Shape
from envkit.machine import site
from envkit.system.resources import data

NAMES = sorted(path.stem for path in data("machine/sites").glob("*.toml"))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_known_of_a_site_says_what_was_tried(name: str) -> None:
    found = site.find(name)
    assert found.title and found.source.startswith("https://")
    assert found.status.startswith(("untested", "tried"))


def test_a_site_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('title = "Own"\nstatus = "tried"\nsource = "me"\nbinds = ["/data:/mnt"]\n[settings]\nA = "b"\n')
    found = site.find(str(path))
    assert (found.binds, found.settings, found.srun) == (("/data:/mnt",), {"A": "b"}, ())
    assert found.job == site.JobWords()


def test_what_a_job_needs_at_a_site(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'title = "Own"\nstatus = "tried"\nsource = "me"\n[job]\npartition = "gpu"\nsbatch = ["--mem=0"]\nmpiexec = []\n'
    )
    assert site.find(str(path)).job == site.JobWords(partition="gpu", sbatch=("--mem=0",), mpiexec=())


def test_an_unknown_site() -> None:
    with pytest.raises(UsageProblem, match=r"There is no site 'nowhere'\.") as problem:
        site.find("nowhere")
    assert "lumi" in problem.value.why


@pytest.mark.parametrize("name", NAMES)
def test_jobs_can_be_written_for_each_site(name: str) -> None:
    needs = site.find(name).job
    job = Job(
        environment="toy", prefix="/p", envkit=("envkit",), shape=Shape(nodes=2, ranks_per_node=4, gpus_per_node=4),
        command=("true",), partition=needs.partition, notes=needs.notes,
    )  # fmt: skip
    assert "#SBATCH" in slurm.script(replace(job, words=needs.sbatch), speaks="pmix", srun=site.find(name).srun)
    assert "#PBS" in pbs.script(replace(job, words=needs.qsub), pals=needs.mpiexec, select=needs.select)


@pytest.mark.parametrize("text", ["title = 5", "[", 'title = "a"\nstatus = "b"\nsource = "c"\nbind = ["/x"]'])
def test_what_describes_no_site(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageProblem, match="does not describe a site"):
        site.find(str(path))
