"""envkit doctor where people log in, and in a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..doctor import schema
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


class Asking:
    """A user with a home on what all hosts share, who asks nodes from the login host."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        folder.mkdir()
        self.cluster, self.folder = cluster, folder
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
        self.env = {"ENVKIT_PREFIX": str(folder / "prefix"), "HOME": str(folder), "NO_COLOR": "1", "PATH": path}

    def doctor(self, *words: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Ask by a job, and see that nothing of it stays behind but what trial compiles told.

        ``before`` is a program that becomes it.
        """
        argv = ["env", f"--chdir={self.folder}", *before, "envkit", "doctor", "--submit", *words]
        done = self.cluster.run(argv, env=self.env, timeout=150)
        left = [path.name for path in self.folder.glob(".cache/envkit/*") if path.name != "trials"]
        assert left == [] and not (self.folder / "prefix").exists()
        assert self.cluster.run(["squeue", "--noheader", "--states=PENDING,RUNNING"]).stdout == ""
        return done

    def site(self, *words: str) -> tuple[str, str]:
        """The option for a site with words for sbatch."""
        path = self.folder / "site.toml"
        listed = ", ".join(f"'{word}'" for word in words)
        path.write_text(f'title = "Lab"\nstatus = "tried"\nsource = "here"\n[job]\nsbatch = [{listed}]\n')
        return "--site", str(path)


@pytest.fixture
def asking(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Asking:
    return Asking(cluster, cluster.folder / tmp_path_factory.mktemp("asking").name)


def test_a_node_is_asked_by_a_job(asking: Asking) -> None:
    """Where people log in may lock less memory than jobs, which do not take that limit over here."""
    words = ("--json", "--time", "2", *asking.site("--nodelist=node3", "--propagate=NONE"))
    done = asking.doctor(*words, before=("prlimit", "--memlock=65536:65536"))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    from jsonschema import validate

    validate(report, json.loads(schema.PATH.read_bytes()))
    assert report["facts"]["node"]["hostname"] == "node3" and report["facts"]["schedulers"][0]["job"] is True
    assert (report["comparison"]["node"], report["comparison"]["here"]) == ("node3", "login")
    differences = {one["what"]: one for one in report["comparison"]["differences"]}
    assert "memlock 64 KiB" in differences["limits"]["here"] and "memlock 64 KiB" not in differences["limits"]["node"]
    assert not {"host", "CPU", "scheduler", "MPI", "builds"} & set(differences)
    assert "envkit: job " in done.stderr and done.stderr.endswith(" is done\n")


def test_a_job_that_waits_is_cancelled_by_ctrl_c(asking: Asking) -> None:
    stop = ("timeout", "--signal=INT", "--preserve-status", "3")
    stopped = asking.doctor(*asking.site("--hold"), before=stop)
    assert (stopped.returncode, stopped.stdout) == (130, "")
    assert "Slurm was asked to cancel job" in stopped.stderr


def test_where_the_package_index_is_out_of_reach(doctor: Callable[..., dict[str, Any]]) -> None:
    """As on compute nodes: the hosts of the cluster reach each other alone."""
    report = doctor()
    outside = [index for index in report["facts"]["indexes"] if "://" in index["url"]]
    assert outside and all(index["problem"] for index in outside)
