"""Real launchers of one rank, in the cluster, with variables of another launch beside theirs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ..verify.test_started import LOOK, STRAY, told
from .cluster import Cluster

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("of", ["", "pmi", "horovodrun", "mpirun-5"])
@pytest.mark.parametrize("kind", ["none", "pmix", "pmi2"])
@pytest.mark.parametrize("size", [1, 2])
def test_srun(cluster: Cluster, kind: str, of: str, size: int) -> None:
    argv = ["srun", f"--mpi={kind}", f"-n{size}", "--nodes=1", sys.executable, "-I", "-c", LOOK]
    done = cluster.run(argv, env=told(STRAY.get(of, "")))
    found = sorted(json.loads(line)[0] for line in done.stdout.splitlines())
    assert [(one[0], one[2], one[3]) for one in found] == [("srun", rank, size) for rank in range(size)], done.stderr


def test_an_allocation_has_no_rank(cluster: Cluster) -> None:
    done = cluster.run(
        ["srun", "-n1", "env", "SLURM_PTY_PORT=1", "PMI_RANK=0", "PMI_SIZE=1", sys.executable, "-c", LOOK]
    )
    assert json.loads(done.stdout)[0] is None, done.stderr


@pytest.mark.parametrize("of", ["", "pmi", "horovodrun", "mpirun"])
@pytest.mark.parametrize("size", ["1", "2"])
def test_mpich(cluster: Cluster, mpich: Path, of: str, size: str) -> None:
    stray = [f"{name}={value}" for name, value in told(STRAY.get(of, "")).items()]
    argv = [str(mpich), "-n", size, "env", *(word for word in stray if not word.startswith("PMI_"))]
    done = cluster.run([*argv, sys.executable, "-I", "-c", LOOK])
    found = sorted(json.loads(line)[0] for line in done.stdout.splitlines())
    assert [(one[1], one[2], one[3]) for one in found] == [
        ("mpiexec of MPICH", rank, int(size)) for rank in range(int(size))
    ], done.stderr
