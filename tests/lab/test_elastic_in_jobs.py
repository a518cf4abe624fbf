"""Elastic training over the nodes of a job of Slurm, where horovodrun reaches the other node by ssh."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster
from .conftest import STACK
from .verifying import Verifying

pytestmark = pytest.mark.integration

TRAINING = Path(__file__).parents[1] / "integration" / "scripts" / "elastic.py"
NODES = ["--nodes=2", "--ntasks-per-node=1"]


@pytest.fixture
def verifying(cluster: Cluster, env: dict[str, str]) -> Iterator[Verifying]:
    made = Verifying(cluster, env, cluster.folder / "v")
    yield made
    assert made.left() == []


@pytest.fixture
def elastic(verifying: Verifying) -> str:
    """The beginning of a command: two ranks on the nodes that Slurm gave, as docs/elastic.md has it."""
    discover = verifying.folder / "discover"
    discover.write_text("#!/bin/sh\nscontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed 's/$/:1/'\n")
    discover.chmod(0o755)
    words = f"-np 2 --min-np 1 --max-np 2 --host-discovery-script {discover} --network-interfaces eth0"
    return f"envkit run {STACK} -- horovodrun {words}"


def test_it_outlives_a_rank_of_another_node(verifying: Verifying, elastic: str) -> None:
    done = verifying.batch(f"{elastic} python {TRAINING} {verifying.folder}/died", options=NODES)
    assert done.status == 0, done.out + done.err
    steps = re.findall(r"step (\d+): rank (\d) of (\d)", done.out)
    assert {(rank, size) for step, rank, size in steps if int(step) <= 5} == {("0", "2"), ("1", "2")}
    assert [int(step) for step, rank, size in steps if size == "1"] == list(range(6, 21))
    assert re.findall(r"end at \d+: rank \d of \d", done.out) == ["end at 20: rank 0 of 1"]


def test_verify(verifying: Verifying, elastic: str) -> None:
    done = verifying.batch(f"{elastic} envkit verify {STACK} --json", options=NODES)
    assert done.status == 0, done.out + done.err
    report = json.loads("\n".join(re.findall(r"^\[0\]<stdout>:(.*)", done.out, re.MULTILINE)))
    assert [(rank["rank"], rank["size"]) for rank in report["ranks"]] == [(0, 2), (1, 2)]
    assert {rank["host"] for rank in report["ranks"]} == {"node0", "node1"}  # in the order in which they are discovered
    assert {result["id"] for result in report["results"] if result["status"] in ("fail", "warn")} <= {
        "vulnerabilities", "rank-late", "message-sizes"
    }  # fmt: skip
