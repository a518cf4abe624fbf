"""Horovod that is compiled with MPICH or Intel MPI, under every launcher of the cluster that speaks with it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.environments.receipt import Mpi
from envkit.launch import srun_mpi

from .. import built
from ..stacks import Site
from .cluster import Cluster
from .conftest import STACK
from .test_inside_jobs import assert_passed
from .verifying import Verifying

pytestmark = [pytest.mark.integration, pytest.mark.all, pytest.mark.xdist_group("mpi-families")]

INTEL = Mpi(family="Intel MPI", version="2021.18")
BOTH = ["--nodes=2", "--ntasks-per-node=2"]


@pytest.fixture(scope="module", params=["MPICH", "Intel MPI"])
def prefix(request: pytest.FixtureRequest, stacks: Site) -> Path:
    """Where that Horovod is; it takes minutes to build, and what it is made of rarely changes."""
    return built.installed(f"{STACK} with {request.param}", stacks).prefix


@pytest.fixture
def verifying(prefix: Path, cluster: Cluster) -> Iterator[Verifying]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    made = Verifying(cluster, {"ENVKIT_PREFIX": str(prefix), "PATH": path}, cluster.folder / "v")
    yield made
    assert made.left() == []


def test_in_a_job_envkit_starts_them(verifying: Verifying) -> None:
    """With srun and PMI2; Intel MPI with PMIx where Slurm has no library of PMI2."""
    done = verifying.batch(f"envkit verify {STACK} --json", options=BOTH)
    assert_passed(done, "srun", 4, 2)


@pytest.mark.parametrize("prefix", ["Intel MPI"], indirect=True)
def test_intel_mpi_by_pmix(verifying: Verifying) -> None:
    """As its settings name Slurm's library of it, whatever else Slurm has."""
    library = srun_mpi.library(INTEL, "pmix", {"PATH": os.environ["PATH"]})
    assert library.endswith("/libpmix.so.2")
    done = verifying.batch(f"export I_MPI_PMI_LIBRARY={library}\nenvkit verify {STACK} --json", options=BOTH)
    assert_passed(done, "srun", 4, 2)


def test_a_job_starts_them_with_their_own_launcher(verifying: Verifying) -> None:
    ranks = " ".join(verifying.ranks())
    done = verifying.batch(f"envkit run {STACK} -- mpiexec -n 4 -ppn 2 {ranks}", options=BOTH)
    assert_passed(done, "mpiexec", 4, 2)


def test_a_launcher_of_another_mpi_is_told(verifying: Verifying) -> None:
    """Each process would be a world of its own."""
    done = verifying.run([*verifying.mpirun("-n", "2", "--oversubscribe"), *verifying.ranks()], timeout=200)
    assert done.status == 1 and done.report["verdict"] == "fail"
    assert done.report["cause"]["id"] in ("world-size", "rank-died"), done.report["cause"]
    assert "Open MPI" in json.dumps(done.report["cause"]), done.report["cause"]
