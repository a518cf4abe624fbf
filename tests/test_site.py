from dataclasses import replace
from pathlib import Path

import msgspec
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


NEEDED = 'title = "a"\nstatus = "b"\nsource = "c"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (NEEDED.replace('"a"', "5"), ":1: 'title': expected a text in quotes, found 5."),
        ('title = "a"\nstatus = "b"', ": the key 'source' is missing: expected a text in quotes."),
        ("[", ": this is not TOML: "),
        (f"{NEEDED}bind = ['/x']", ":4: there is no key 'bind'. Did you mean 'binds'?"),
        (f"{NEEDED}sbatch = ['--mem=0']", ":4: there is no key 'sbatch'. Did you mean 'sbatch' in [job]?"),
        (f"{NEEDED}xyzzy = 1", ":4: there is no key 'xyzzy'."),
        (f"{NEEDED}binds = '/x'", ":4: 'binds': expected a list of texts, such as [\"one\", \"two\"], found '/x'."),
        (f"{NEEDED}[settings]\nA = 3", ":4: 'settings': expected a table of variables"),
        (f"{NEEDED}[job]\npartition = 3", ":5: 'job.partition': expected a text in quotes, found 3."),
        (f"{NEEDED}[job]\npartitoin = 'x'", ":5: there is no key 'job.partitoin'. Did you mean 'partition' in [job]?"),
        (f"{NEEDED}job = 3", ":4: 'job': expected a table: [job], and its keys below, found 3."),
    ],
)
def test_what_describes_no_site(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageProblem, match="does not describe a site") as problem:
        site.find(str(path))
    [mistake] = problem.value.why.splitlines()
    assert mistake.startswith(f"{path}{said}")
    assert "docs/sites.md" in problem.value.fix and problem.value.exit_code == 2


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("bind = []\nsrun = 3\n")
    with pytest.raises(UsageProblem) as problem:
        site.find(str(path))
    assert len(problem.value.why.splitlines()) == 5


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(b"title = '\xff'")
    with pytest.raises(UsageProblem) as problem:
        site.find(str(path))
    assert problem.value.why == f"{path}:1: this is no text in UTF-8."


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "folder.toml"
    path.mkdir()
    with pytest.raises(UsageProblem, match="cannot be read"):
        site.find(str(path))


def test_the_page_on_sites_has_every_key_and_a_file_that_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs/sites.md").read_text().partition("<!-- /sites -->")[2]
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    keys = {one.name for one in msgspec.structs.fields(site.Site)} - {"job"}
    assert rows == keys | {f"job.{one.name}" for one in msgspec.structs.fields(site.JobWords)}
    path = tmp_path / "whole.toml"
    path.write_text(page.partition("```toml\n")[2].partition("```")[0])
    found = site.find(str(path))
    assert all(getattr(found, one.name) for one in msgspec.structs.fields(site.Site))
    assert all(getattr(found.job, one.name) for one in msgspec.structs.fields(site.JobWords))
