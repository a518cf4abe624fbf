"""envkit doctor where people log in, and in a job."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .cluster import Cluster

pytestmark = pytest.mark.integration


@pytest.fixture
def doctor(cluster: Cluster, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run it on the login host, after the words of a launcher; return its report."""
    env = {"ENVKIT_PREFIX": str(tmp_path / "prefix"), "HOME": str(tmp_path)}
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"

    def run(*launcher: str) -> dict[str, Any]:
        done = cluster.run([*launcher, "envkit", "doctor", "--json"], env=env)
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    return run


def test_where_people_log_in(doctor: Callable[..., dict[str, Any]]) -> None:
    report = doctor()
    [slurm] = report["facts"]["schedulers"]
    assert (slurm["name"], slurm["job"]) == ("Slurm", False)
    assert {"pmix", "pmi2"} <= set(slurm["mpi"])
    assert report["facts"]["node"]["hostname"] == "login"
    [note] = [note for note in report["notes"] if note["id"] == "login-node"]
    assert "srun -N 1 -n 1 envkit doctor" in note["fix"]


def test_in_a_job(doctor: Callable[..., dict[str, Any]]) -> None:
    report = doctor("srun", "--nodes=1", "--ntasks=1", "--nodelist=node1")
    [slurm] = report["facts"]["schedulers"]
    assert slurm["job"] is True
    assert report["facts"]["node"]["hostname"] == "node1"
    assert [mpi["srun"] for mpi in report["facts"]["mpi"] if mpi["family"] == "Open MPI"] == ["pmix"]
    assert "login-node" not in [note["id"] for note in report["notes"]]
    assert not report["facts"]["missing"]


def test_where_the_package_index_is_out_of_reach(doctor: Callable[..., dict[str, Any]]) -> None:
    """As on compute nodes: the hosts of the cluster reach each other alone."""
    report = doctor()
    outside = [index for index in report["facts"]["indexes"] if "://" in index["url"]]
    assert outside and all(index["problem"] for index in outside)
