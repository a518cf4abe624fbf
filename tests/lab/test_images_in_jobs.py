"""envkit verify of an image in jobs: the host's launcher starts ranks, each of which enters the image on its node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .cluster import Cluster
from .test_inside_jobs import assert_passed
from .verifying import KEPT, Verifying

IMAGE = "pytorch-2.13-cpu-image"

pytestmark = [pytest.mark.integration, pytest.mark.about("image")]


@pytest.fixture
def verifying(cluster: Cluster, env: dict[str, str], installed: Callable[[str], str]) -> Iterator[Verifying]:
    installed(IMAGE)
    made = Verifying(cluster, env, cluster.folder / "v")
    yield made
    assert made.left() == []


def ranks(*words: str) -> list[str]:
    return [str(KEPT), "envkit", "verify", IMAGE, "--json", *words]


def test_srun_starts_the_ranks(verifying: Verifying) -> None:
    done = verifying.run(["srun", "--mpi=pmix", "--nodes=2", "--ntasks-per-node=2", *ranks()])
    assert_passed(done, "srun", 4, 2)
    assert done.ranks == dict.fromkeys(range(4), 0)


def test_mpirun_starts_the_ranks_over_ssh(verifying: Verifying) -> None:
    done = verifying.run([*verifying.mpirun("--host", "node0:2,node1:2"), *ranks()])
    assert_passed(done, "mpirun", 4, 2)


@pytest.mark.parametrize(
    ("model", "launcher", "nodes", "options"),
    [
        ("hybrid", "srun", 2, ["--nodes=2", "--ntasks-per-node=2"]),
        ("bind", "srun", 2, ["--nodes=2", "--ntasks-per-node=2"]),
        ("inside", "mpirun", 1, ["--nodes=1", "--ntasks-per-node=4"]),
    ],
)
def test_a_batch_script_starts_the_ranks_itself(
    model: str, launcher: str, nodes: int, options: list[str], verifying: Verifying
) -> None:
    done = verifying.batch(f"envkit verify {IMAGE} --json --mpi-model {model}", options=options)
    assert_passed(done, launcher, 4, nodes)


def test_srun_without_pmix_is_caught(verifying: Verifying) -> None:
    done = verifying.run(["srun", "--mpi=none", "--nodes=2", "--ntasks-per-node=1", *ranks("--timeout", "30")])
    assert done.report["verdict"] == "fail"
    assert "MPI found no launcher that it understands" in done.words("rank-died")
    assert "srun --mpi=pmix" in done.words("rank-died")
    assert done.ranks == {0: 1, 1: 1}


def test_what_the_image_does_is_on_the_nodes_own_disk(verifying: Verifying) -> None:
    """The nodes' folders for temporary files are seen inside the image, and nothing stays in them."""
    done = verifying.run(["srun", "--mpi=pmix", "--nodes=2", "--ntasks-per-node=1", *ranks()])
    assert_passed(done, "srun", 2, 2)
    assert not list(Path(verifying.env["TMPDIR"]).iterdir())
