"""Faults on purpose under the launchers of the cluster: the verdict, whom and what it names, and that all comes to an
end. faults/sitecustomize.py has a rank hang or die."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster
from .conftest import STACK
from .verifying import KEPT, Outcome, Verifying

pytestmark = pytest.mark.integration

SRUN = ["srun", "--mpi=pmix", "--nodes=2", "--ntasks-per-node=1"]
ON_TWO_HOSTS = ("--host", "node0:1,node1:1", "-np", "2")
SOON = ("--timeout", "15", "--quick")


@pytest.fixture
def verifying(cluster: Cluster, env: dict[str, str]) -> Iterator[Verifying]:
    made = Verifying(cluster, env, cluster.folder / "v")
    yield made
    assert made.left() == []


def assert_failed(outcome: Outcome, check: str, *words: str, ranks: int = 2, within: float = 60) -> None:
    """One report on stdout, FAIL by one check with these words, and status 1 in every rank."""
    assert outcome.report["verdict"] == "fail"
    assert check in outcome.failed, (outcome.failed, outcome.err)
    for word in words:
        assert word in outcome.words(check)
    assert outcome.results[check]["cause"] and outcome.results[check]["remedy"]
    assert outcome.status == 1, outcome.err
    assert outcome.ranks == dict.fromkeys(range(ranks), 1)
    assert outcome.seconds < within


@pytest.mark.parametrize(
    ("placed", "count", "nodes"), [(["-n", "2"], 2, 1), (["-hosts", "node0,node1", "-ppn", "2", "-n", "4"], 4, 2)]
)
def test_mpiexec_of_mpich_with_open_mpi_inside(
    verifying: Verifying, mpich: Path, placed: list[str], count: int, nodes: int
) -> None:
    done = verifying.run([str(mpich), *placed, *verifying.ranks(*SOON)])
    words = (f"{count} processes each ran alone, as rank 0 of 1", "mpiexec of MPICH started them", "is Open MPI (/")
    assert_failed(done, "world-size", *words, "Start with Open MPI's own mpirun", ranks=count)
    assert len(done.report["started"]["nodes"]) == nodes


def test_srun_without_pmix(verifying: Verifying) -> None:
    done = verifying.run(["srun", "--mpi=none", *SRUN[2:], *verifying.ranks(*SOON)])
    assert_failed(done, "rank-died", "MPI found no launcher that it understands", "For Open MPI: srun --mpi=pmix")


def test_gloo_as_controller_under_srun(verifying: Verifying) -> None:
    done = verifying.run([*SRUN, *verifying.ranks(*SOON)], changes={"HOROVOD_CONTROLLER": "gloo"})
    assert_failed(done, "rank-died", "HOROVOD_CONTROLLER=gloo is set", "Unset HOROVOD_CONTROLLER", within=30)


def test_all_of_gloo_under_srun(verifying: Verifying) -> None:
    settings = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    done = verifying.run([*SRUN, *verifying.ranks(*SOON)], changes=settings)
    assert_failed(done, "world-size", "2 processes each ran alone", "srun does not", "Unset HOROVOD_CONTROLLER")


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_a_rank_that_hangs_before_init(verifying: Verifying, launcher: str) -> None:
    argv = SRUN if launcher == "srun" else verifying.mpirun(*ON_TWO_HOSTS)
    done = verifying.run([*argv, *verifying.ranks(*SOON)], fault="1:import:hang")
    words = ("rank 1 (node1", "hung in 'load'", "with 1 waiting for it", "sitecustomize.py")
    assert_failed(done, "rank-hung", *words, "Look at that rank's host")
    assert done.failed == {"rank-hung"}


def test_a_rank_that_hangs_in_a_collective(verifying: Verifying) -> None:
    done = verifying.run([*SRUN, *verifying.ranks(*SOON)], fault="1:allreduce:hang")
    words = ("collectives_cpu", "in synchronize (rank 0 (node0", "sitecustomize.py", "(rank 1 (node1")
    assert_failed(done, "rank-hung", *words, "OMPI_MCA_btl_tcp_if_include")


def test_a_rank_that_is_late_is_told_of_and_passes(verifying: Verifying) -> None:
    done = verifying.run([*SRUN, *verifying.ranks("--timeout", "60")], fault="1:import:late")
    assert done.report["verdict"] == "pass"
    assert done.status == 0
    assert done.ranks == {0: 0, 1: 0}
    assert done.results["rank-late"]["status"] == "warn"
    assert "rank 1 (node1" in done.words("rank-late")


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_while_it_measures(verifying: Verifying, launcher: str, rank: int) -> None:
    argv = SRUN if launcher == "srun" else verifying.mpirun(*ON_TWO_HOSTS)
    done = verifying.run([*argv, *verifying.ranks("--timeout", "40")], fault=f"{rank}:allreduce:kill")
    words = (f"rank {rank} (node{rank}", "was killed (SIGKILL) during 'collectives_cpu'", "memory")
    assert_failed(done, "rank-died", *words, within=35)


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_a_rank_that_aborts(verifying: Verifying, launcher: str) -> None:
    argv = SRUN if launcher == "srun" else verifying.mpirun(*ON_TWO_HOSTS)
    done = verifying.run([*argv, *verifying.ranks("--timeout", "40")], fault="1:allreduce:abort")
    words = ("rank 1 (node1", "aborted through MPI during 'collectives_cpu'", "Read the last words of that rank")
    assert_failed(done, "rank-died", *words, within=35)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_with_all_that_belongs_to_it(verifying: Verifying, rank: int) -> None:
    """Open MPI gives the others one second: where the machine is busy that may be too short, so it is tried again."""
    argv = [word for word in verifying.ranks("--timeout", "40") if word != "--json"]
    for _ in range(3):
        done = verifying.run([*verifying.mpirun(*ON_TWO_HOSTS), *argv], fault=f"{rank}:allreduce:kill-rank")
        remove_what_the_killed_rank_left(verifying, rank)
        if "vanished" in done.out:
            break
        remove_what_the_killed_rank_left(verifying, 1 - rank)  # Open MPI has killed that one, too
        remove_where_they_meet(verifying)
    assert done.out.count("FAIL  pytorch-2.13-cpu") == 1, done.out + done.err
    assert f"rank {rank} (node{rank}" in done.out
    assert "vanished" in done.out
    assert done.status == 137
    assert done.seconds < 30


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_of_srun_that_is_killed_with_all_that_belongs_to_it(verifying: Verifying, rank: int) -> None:
    done = verifying.run([*SRUN, *verifying.ranks(*SOON)], fault=f"{rank}:allreduce:kill-rank")
    assert done.report["verdict"] == "fail"
    assert "vanished" in done.words("rank-died")
    assert f"rank {rank} (node{rank}" in done.words("rank-died")
    assert done.ranks == {1 - rank: 1}
    assert done.status == 137
    remove_what_the_killed_rank_left(verifying, rank)


def test_a_rank_of_a_batch_script_that_is_killed_with_all_that_belongs_to_it(verifying: Verifying) -> None:
    """Slurm ends the whole step at once; the one who started it reports."""
    asked = ["envkit", "verify", STACK, "--json", *SOON]
    salloc = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1"]
    done = verifying.run([*salloc, *asked], fault="1:allreduce:kill-rank")
    assert_failed(done, "rank-died", "vanished", "sacct", ranks=0)
    assert "launcher-ended" in done.failed
    for rank in (0, 1):
        remove_what_the_killed_rank_left(verifying, rank)


def remove_what_the_killed_rank_left(verifying: Verifying, rank: int) -> None:
    """What SIGKILL leaves on the node where it struck; nobody is there to remove it."""
    for path in (verifying.folder / "tmp").glob(f"envkit-*-node{rank}"):
        shutil.rmtree(path)


def remove_where_they_meet(verifying: Verifying) -> None:
    """Where SIGKILL has struck all ranks; what keeps a connection to the launcher ends as this folder does."""
    for path in (verifying.folder / "home" / ".cache" / "envkit").glob("envkit-verify-*"):
        shutil.rmtree(path)


def test_a_folder_that_is_not_shared(verifying: Verifying, cluster: Cluster) -> None:
    def own() -> list[Path]:
        return sorted(path for host in ("node0", "node1") for path in (cluster.folder / "own" / host).iterdir())

    before = own()
    done = verifying.run([*SRUN, *verifying.ranks("--shared", str(cluster.unshared))])
    words = ("only 1 of 2 ranks left a record", "missing are ranks 1", f"The folder {cluster.unshared} is not shared")
    assert_failed(done, "rank-missing", *words, "--shared DIR")
    assert "rank 1 on node1 sees nothing of rank 0" in done.err
    assert own() == before


def test_a_node_whose_slurmd_dies_meanwhile(verifying: Verifying, cluster: Cluster) -> None:
    """Through it Open MPI asks where the other rank is; some seconds later Slurm tells the ranks to stop."""

    def deed() -> None:
        verifying.await_rank("node7", "collectives_cpu")
        cluster.kill_slurmd("node7")

    argv = ["srun", "--mpi=pmix", "--nodelist=node6,node7", "--ntasks-per-node=1", *verifying.ranks()]
    try:
        done = verifying.run(argv, fault="0:allreduce:wait", meanwhile=deed)
        assert done.report["verdict"] == "fail"
        assert "rank-died" in done.failed
        assert done.ranks.get(0) == 143
        assert done.status != 0
        assert done.seconds < 60
    finally:
        cluster.restore_slurmd("node7")


def test_a_node_that_dies_meanwhile(verifying: Verifying, cluster: Cluster) -> None:
    def deed() -> None:
        verifying.await_rank("node7", "init")
        kill_node(cluster, "node7")

    asked = ["envkit", "verify", STACK, "--json", *SOON]
    argv = ["salloc", "--quiet", "--nodelist=node6,node7", "--ntasks-per-node=1", *asked]
    try:
        done = verifying.run(argv, fault="0:import:late", meanwhile=deed)
        assert done.report["verdict"] == "fail"
        assert done.failed & {"rank-died", "rank-missing"}
        assert done.seconds < 90
    finally:
        cluster.restore_slurmd("node7")
        remove_what_the_killed_rank_left(verifying, 7)


def kill_node(cluster: Cluster, host: str) -> None:
    """Kill every process of a host but for its ssh server, and the one that holds its namespaces."""
    first = (cluster.folder / "pids" / host).read_text().strip()
    others = (
        'own=$(readlink /proc/$0/ns/net); cd /proc; for pid in [0-9]*; do [ "$pid" = "$0" ] || [ "$pid" = $$ ] || '
        '[ "$(readlink $pid/ns/net)" != "$own" ] || [ "$(cat $pid/comm)" = sshd ] || kill -9 $pid; done'
    )
    cluster.run(["sh", "-c", others, first])


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["-n", "0"], 2, "0 is not in the range"),
        (["-n", "4", "--hosts", "node0:1,node1:1"], 2, "4 ranks do not fit into 2 slots."),
        (["--launcher", "aprun"], 2, "'aprun' is not one of"),
        (["--launcher", "srun"], 3, "This is no Slurm job."),
        (["--nodes", "2"], 2, "There are no 2 nodes here."),
        (["--shared", "/proc"], 7, "There is no folder in which the ranks could leave what they find."),
    ],
)
def test_what_cannot_be_is_said_at_once(verifying: Verifying, words: list[str], status: int, said: str) -> None:
    done = verifying.run(["envkit", "verify", STACK, *words])
    assert (done.status, done.out) == (status, "")
    assert said in done.err
    assert done.seconds < 10


def test_no_folder_can_be_written(verifying: Verifying) -> None:
    argv = ["env", "-C", "/proc", "XDG_CACHE_HOME=/proc", "envkit", "verify", STACK, "--hosts", "node0:2"]
    done = verifying.run(argv)
    assert (done.status, done.out) == (7, "")
    assert "There is no folder in which the ranks could leave what they find." in done.err
    assert "--shared DIR" in done.err


def test_more_ranks_than_the_job_has_room_for(verifying: Verifying) -> None:
    done = verifying.run(["salloc", "--quiet", "-n", "2", "envkit", "verify", STACK, "-n", "64"])
    assert (done.status, done.out) == (2, "")
    assert "64 ranks do not fit this Slurm job." in done.err


def test_an_environment_that_is_not_there(verifying: Verifying) -> None:
    done = verifying.run([*SRUN, str(KEPT), "envkit", "verify", "nothing"])
    assert done.ranks == {0: 6, 1: 6}
    assert "There is no environment 'nothing'." in done.err


def test_no_horovod_anywhere(verifying: Verifying, tmp_path: Path) -> None:
    settings = {"ENVKIT_PREFIX": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin"}
    done = verifying.run([*SRUN, str(KEPT), "envkit", "verify"], changes=settings)
    assert done.ranks == {0: 6, 1: 6}
    assert "There is no Horovod here" in done.err


@pytest.mark.parametrize("host", ["10.77.0.200", "nowhere"])
def test_a_host_that_does_not_answer(verifying: Verifying, host: str) -> None:
    asked = ["--json", "-n", "2", "--hosts", f"node0:1,{host}:1", *SOON]
    done = verifying.run(["envkit", "verify", STACK, *asked])
    assert_failed(done, "rank-missing", "a host does not answer", "ssh HOST true", ranks=0, within=40)


@pytest.fixture
def overlay(cluster: Cluster, verifying: Verifying) -> Path:
    """A folder before the environment's own packages, with a copy of Horovod."""
    made = cluster.folder / "overlay"
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(package(verifying, "horovod"), made / "horovod", symlinks=True)
    return made


def package(verifying: Verifying, name: str) -> Path:
    """Where a package lies in the environment."""
    find = f"import importlib.util as u; print(u.find_spec('{name}').submodule_search_locations[0])"
    told = verifying.cluster.run(["envkit", "run", STACK, "--", "python", "-c", find], env=verifying.env)
    return Path(told.stdout.strip())


def within(verifying: Verifying, changed: str) -> Outcome:
    """Verify what is called in, after a change to its variables (shell text), with two ranks of srun."""
    ranks = f"srun --mpi=pmix -n 2 {KEPT} envkit verify --json --timeout 30"
    return verifying.run(["envkit", "run", STACK, "--", "sh", "-c", f"{changed}; exec {ranks}"])


def test_an_extension_that_was_cut_off(verifying: Verifying, overlay: Path) -> None:
    (extension,) = (overlay / "horovod" / "torch").glob("mpi_lib_v2*.so")
    os.truncate(extension, extension.stat().st_size // 2)
    done = within(verifying, f"export PYTHONPATH={overlay}:$PYTHONPATH")
    assert_failed(done, "extension-present", f"{extension} is cut", "Install the environment again", within=40)


def test_an_extension_that_was_removed(verifying: Verifying, overlay: Path) -> None:
    for extension in (overlay / "horovod" / "torch").glob("mpi_lib_v2*.so"):
        extension.unlink()
    done = within(verifying, f"export PYTHONPATH={overlay}:$PYTHONPATH")
    assert_failed(done, "extension-present", "HOROVOD_WITH_PYTORCH=1", within=40)


def test_another_version_of_the_framework(verifying: Verifying, overlay: Path) -> None:
    torch = package(verifying, "torch")
    (overlay / "torch").mkdir()
    for path in torch.iterdir():
        (overlay / "torch" / path.name).symlink_to(path)
    (overlay / "torch" / "version.py").unlink()
    version = (torch / "version.py").read_text().replace("2.13.0", "2.12.0")
    (overlay / "torch" / "version.py").write_text(version)
    done = within(verifying, f"export PYTHONPATH={overlay}:$PYTHONPATH")
    assert done.results["framework-drift"]["status"] == "warn"  # this one does load, and works
    assert "built for torch 2.13.0+cpu, but 2.12.0+cpu is installed" in done.words("framework-drift")
    assert done.report["verdict"] == "pass"


def test_the_library_of_another_mpi(verifying: Verifying, cluster: Cluster, mpich: Path) -> None:
    (library,) = mpich.parents[1].rglob("libmpi.so.12")
    folder = empty(cluster.folder / "other-mpi")
    (folder / "libmpi.so.40").symlink_to(library)
    done = within(verifying, f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH")
    assert_failed(done, "extension-loads", f"required by {folder}", "Remove from LD_LIBRARY_PATH", within=40)


def test_a_library_that_is_called_like_mpi(verifying: Verifying, cluster: Cluster) -> None:
    folder = empty(cluster.folder / "no-mpi")
    source = folder / "empty.c"
    source.write_text("int nothing;\n")
    subprocess.run(["cc", "-shared", "-o", str(folder / "libmpi.so.40"), str(source)], check=True)
    done = within(verifying, f"export LD_LIBRARY_PATH={folder}:$LD_LIBRARY_PATH")
    assert_failed(done, "extension-loads", f"LD_LIBRARY_PATH leads to {folder}/libmpi.so.40", within=40)


def empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
