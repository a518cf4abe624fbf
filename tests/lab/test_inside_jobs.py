"""envkit verify under every launcher of the cluster, where all is well: one report, one status, nothing left behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from .cluster import Cluster, SharedHost
from .conftest import STACK
from .verifying import FIRST_ALONE, KEPT, SHARED_CORES, Outcome, Verifying

pytestmark = pytest.mark.integration


@pytest.fixture
def verifying(cluster: Cluster, env: dict[str, str]) -> Iterator[Verifying]:
    made = Verifying(cluster, env, cluster.folder / "v")
    yield made
    assert made.left() == []


def assert_passed(outcome: Outcome, launcher: str, ranks: int, nodes: int) -> None:
    """One report on stdout, PASS, of so many ranks on so many nodes, and the same status in all of them."""
    report = outcome.report
    assert report["verdict"] == "pass", [outcome.words(check) for check in outcome.failed]
    assert outcome.status == 0, outcome.err
    assert set(outcome.ranks.values()) <= {0}
    assert report["world_size"] == ranks
    assert report["started"]["launcher"] == launcher
    assert len(report["started"]["nodes"]) == nodes
    assert [rank["rank"] for rank in report["ranks"]] == list(range(ranks))
    assert outcome.results["training-truth-torch"]["status"] == "pass"


def test_srun_starts_the_ranks(verifying: Verifying) -> None:
    done = verifying.run(["srun", "--mpi=pmix", "--nodes=2", "--ntasks-per-node=2", *verifying.ranks()])
    assert_passed(done, "srun", 4, 2)
    assert done.ranks == dict.fromkeys(range(4), 0)
    assert "srun started" in done.report["started"]["why"]


def test_a_bare_batch_script_starts_the_ranks_itself(verifying: Verifying) -> None:
    done = verifying.batch(f"envkit verify {STACK} --json", options=["--nodes=2", "--ntasks-per-node=2"])
    assert_passed(done, "srun", 4, 2)
    assert "this is a Slurm job, and Open MPI and srun both speak pmix" in done.report["started"]["why"]


@pytest.mark.parametrize("size", [1, 3])
def test_a_batch_script_that_was_submitted_in_a_step_starts_the_ranks_itself(verifying: Verifying, size: int) -> None:
    """It has the variables of that step, by which it would be a rank of another job."""
    submitting = ["salloc", "--quiet", "--nodes=1", f"--ntasks={size}", "srun", "--mpi=pmix", str(FIRST_ALONE)]
    words = f"envkit verify {STACK} --json"
    done = verifying.batch(words, options=["--nodes=2", "--ntasks-per-node=2"], submitting=submitting)
    assert_passed(done, "srun", 4, 2)
    assert "this is a Slurm job" in done.report["started"]["why"]
    assert "SLURM_STEP_NUM_TASKS" in done.words("leftover")


def test_a_batch_script_calls_mpirun(verifying: Verifying) -> None:
    ranks = " ".join(verifying.ranks())
    done = verifying.batch(f"mpirun {ranks}", options=["--nodes=2", "--ntasks-per-node=2"])
    assert_passed(done, "mpirun", 4, 2)
    assert done.ranks == dict.fromkeys(range(4), 0)


def test_salloc(verifying: Verifying) -> None:
    asked = ["envkit", "verify", STACK, "--json", "-n", "2", "--nodes", "2"]
    done = verifying.run(["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", *asked])
    assert_passed(done, "srun", 2, 2)


def test_srun_in_a_shell_of_salloc(verifying: Verifying) -> None:
    """The shell has a terminal, of which srun tells its ranks as well."""
    ranks = ["env", "SLURM_PTY_PORT=34889", "srun", "--mpi=pmix", *verifying.ranks()]
    done = verifying.run(["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", *ranks])
    assert_passed(done, "srun", 4, 2)
    assert done.ranks == dict.fromkeys(range(4), 0)


def test_several_ranks_from_a_shell_that_srun_has_started(verifying: Verifying) -> None:
    """As a notebook in a job has."""
    asked = ["envkit", "verify", STACK, "--json", "-n", "2"]
    done = verifying.run(["salloc", "--quiet", "--nodes=1", "--ntasks-per-node=2", "srun", "--mpi=none", "-n1", *asked])
    assert_passed(done, "srun", 2, 1)


def test_mpirun_fills_the_nodes_of_a_job(verifying: Verifying) -> None:
    words = f"envkit verify {STACK} --json --launcher mpirun"
    done = verifying.batch(words, options=["--nodes=2", "--ntasks-per-node=2", "--export=PATH,HOME,ENVKIT_PREFIX"])
    assert_passed(done, "mpirun", 4, 2)


def test_mpirun_over_hosts(verifying: Verifying) -> None:
    done = verifying.run([*verifying.mpirun("--host", "node0:2,node1:2", "-np", "4"), *verifying.ranks()])
    assert_passed(done, "mpirun", 4, 2)
    assert done.ranks == dict.fromkeys(range(4), 0)


def test_hosts_from_the_login_host(verifying: Verifying) -> None:
    done = verifying.run(["envkit", "verify", STACK, "--json", "-n", "4", "--hosts", "node0:2,node1:2"])
    assert_passed(done, "mpirun", 4, 2)
    assert "it belongs to Open MPI, which this Horovod was built with" in done.report["started"]["why"]


def horovodrun(verifying: Verifying, *words: str) -> Outcome:
    """Under horovodrun, which puts marks into the ranks' output; in the file of rank 0 there is no other rank."""
    output = verifying.folder / "output"
    launcher = ["horovodrun", *words, "-np", "2", "--output-filename", str(output)]
    done = verifying.run(["envkit", "run", STACK, "--", *launcher, *verifying.ranks()])
    print(done.status, done.ranks, done.out[-1500:], done.err[-1500:], *output.rglob("*"))
    (first,) = [path for path in output.rglob("stdout") if path.parent.name in ("rank.0", "rank.00")]
    return replace(done, out=re.sub(r"\[[0-9,]+\]<stdout>:", "", first.read_text()))


def test_horovodrun_with_gloo_passes_and_warns_of_its_weakness(verifying: Verifying) -> None:
    done = horovodrun(verifying, "--gloo")
    assert_passed(done, "horovodrun", 2, 1)
    assert done.ranks == {0: 0, 1: 0}
    assert done.results["vulnerabilities"]["status"] == "warn"
    assert "CVE-2026-31234" in done.words("vulnerabilities")
    assert "mpirun or srun" in done.words("vulnerabilities")
    assert "MPI is not in use" in done.words("mpi-threads")


def test_horovodrun_with_mpi(verifying: Verifying) -> None:
    done = horovodrun(verifying, "--mpi")
    assert_passed(done, "mpirun", 2, 1)
    assert done.ranks == {0: 0, 1: 0}


def test_horovodrun_with_mpi_in_a_job_of_two_nodes(verifying: Verifying) -> None:
    """It takes all variables along, that of the first node's name as well.

    Where no interface is named, it asks the other node for them by ssh, where nobody has loaded the modules.
    """
    output, ranks = verifying.folder / "output", " ".join(verifying.ranks())
    words = f"horovodrun --mpi --network-interfaces eth0 -np 4 -H node0:2,node1:2 --output-filename {output} {ranks}"
    done = verifying.batch(f"envkit run {STACK} -- {words}", options=["--nodes=2", "--ntasks-per-node=2"])
    (first,) = [path for path in output.rglob("stdout") if path.parent.name in ("rank.0", "rank.00")]
    shown = re.sub(r"\[[0-9,]+\]<stdout>:", "", first.read_text())
    assert_passed(replace(done, out=shown), "mpirun", 4, 2)


def test_horovodrun_as_the_launcher(verifying: Verifying) -> None:
    done = verifying.run(["envkit", "verify", STACK, "--json", "--launcher", "horovodrun"])
    assert_passed(done, "horovodrun", 2, 1)
    assert done.report["started"]["why"] == "you asked for it"


def test_without_a_name_the_environment_called_in_is_verified(verifying: Verifying) -> None:
    ranks = [str(KEPT), "envkit", "verify", "--json"]
    done = verifying.run(["envkit", "run", STACK, "--", "srun", "--mpi=pmix", "-n", "2", *ranks])
    assert_passed(done, "srun", 2, 1)
    assert done.report["environment"] == STACK
    assert done.ranks == {0: 0, 1: 0}


def test_slurm_without_root(shared_host: SharedHost, env: dict[str, str], tmp_path: Path) -> None:
    """Two nodes with one host name: Horovod takes them for one host, and Open MPI's vader needs a folder for each."""
    script = shared_host.folder / "rank.sh"
    script.write_text(
        "#!/bin/sh\n"
        f"mkdir -p {shared_host.folder}/vader/$SLURMD_NODENAME\n"
        f"export OMPI_MCA_btl_vader_backing_directory={shared_host.folder}/vader/$SLURMD_NODENAME\n"
        'exec "$@"\n'
    )
    script.chmod(0o755)
    (tmp_path / "home").mkdir()
    given = {**env, **SHARED_CORES, "HOME": str(tmp_path / "home")}
    argv = ["srun", "--mpi=pmix", "--nodes=2", "--ntasks-per-node=1", str(script)]
    done = shared_host.run([*argv, "envkit", "verify", STACK, "--json"], env=given)
    outcome = Outcome(status=done.returncode, ranks={}, out=done.stdout, err=done.stderr, seconds=0)
    assert sorted(host["name"] for host in outcome.report["hosts"]) == ["node0", "node1"]
    assert outcome.failed <= {"local-ranks"}
    assert outcome.status == len(outcome.failed)
    assert outcome.results["training-truth-torch"]["status"] == "pass"
    assert not list((tmp_path / "home").glob(".cache/envkit/*"))


@pytest.mark.parametrize("ranks", [2, pytest.param(8, marks=pytest.mark.all)])
def test_8_hosts(ranks: int, verifying: Verifying) -> None:
    """64 ranks on two cores took 100 to 300 s."""
    asked = ["envkit", "verify", STACK, "--json", "--timeout", "600"]
    done = verifying.run(["salloc", "--quiet", "--nodes=8", f"--ntasks-per-node={ranks}", *asked], timeout=900)
    assert_passed(done, "srun", 8 * ranks, 8)
    assert len(done.report["hosts"]) == 8
