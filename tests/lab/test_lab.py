"""The cluster itself: that it is one, and that nothing of it is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from .cluster import Cluster, SharedHost, missing_programs

pytestmark = pytest.mark.integration


def test_every_node_takes_jobs(cluster: Cluster) -> None:
    done = cluster.run(["srun", "--nodes=8", "--ntasks-per-node=1", "hostname"])
    assert sorted(done.stdout.split()) == cluster.hosts


def test_slurm_speaks_what_clusters_speak(cluster: Cluster) -> None:
    told = cluster.run(["srun", "--mpi=list"])
    assert {"pmix", "pmi2", "none"} <= set((told.stdout + told.stderr).split())


def test_hosts_reach_each_other_by_ssh(cluster: Cluster) -> None:
    done = cluster.run(["ssh", "node1", "ssh", "node2", "hostname"])
    assert done.stdout == "node2\n", done.stderr


def test_open_mpi_reaches_two_hosts(cluster: Cluster) -> None:
    done = cluster.run(["mpirun", "--host", "node0:1,node1:1", "-np", "2", "hostname"])
    assert sorted(done.stdout.split()) == ["node0", "node1"], done.stderr


def test_gpus_are_given_out(cluster: Cluster) -> None:
    show = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    assert cluster.run(["srun", "-n1", "--gpus-per-node=4", *show]).stdout == "0,1,2,3\n"


def test_one_folder_is_each_hosts_own_and_the_others_are_shared(cluster: Cluster) -> None:
    for path, seen in ((cluster.unshared / "x", False), (cluster.folder / "x", True)):
        assert cluster.run(["touch", str(path)], on="node0").returncode == 0
        assert (cluster.run(["test", "-e", str(path)], on="node1").returncode == 0) is seen


def test_a_node_whose_slurmd_dies_comes_back(cluster: Cluster) -> None:
    cluster.kill_slurmd("node7")
    assert cluster.run(["srun", "--nodelist=node6", "true"]).returncode == 0
    cluster.restore_slurmd("node7")
    assert cluster.run(["srun", "--nodelist=node7", "hostname"]).stdout == "node7\n"


def test_slurm_without_root(shared_host: SharedHost) -> None:
    done = shared_host.run(["srun", "--nodes=2", "--ntasks-per-node=2", "sh", "-c", "echo $SLURMD_NODENAME"])
    assert sorted(done.stdout.split()) == ["node0", "node0", "node1", "node1"], done.stderr


def test_nothing_is_left(tmp_path: Path) -> None:
    if os.geteuid() != 0 or missing_programs(["unshare", "slurmctld"]):
        pytest.skip("hosts as namespaces need root")
    made = Cluster(tmp_path / "c", 2)
    made.up()
    inside = made.first_process()
    made.down()
    end = time.monotonic() + 5
    while Path(f"/proc/{inside}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in contents(path)]
    assert left == []


def contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
