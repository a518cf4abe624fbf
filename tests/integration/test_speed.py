"""Bandwidth and scaling in real ranks: they are told, the raw MPI stands beside, and everything else still holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..stacks import Site

pytestmark = pytest.mark.integration
STACKS = ["pytorch-2.13-cpu", "tensorflow-2.21-cpu"]


def measured(stacks: Site, stack: str, *options: str, status: int = 0) -> dict[str, Any]:
    done = stacks.envkit("verify", stack, *options, "--json")
    assert done.returncode == status, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {result["id"]: result["status"] for result in report["results"]}


@pytest.mark.parametrize("stack", STACKS)
def test_the_allreduce_is_timed_beside_the_mpi_that_horovod_links(
    stacks: Site, installed: Callable[[str], str], stack: str
) -> None:
    installed(stack)
    sizes = [1024 * 4**step for step in range(6)]
    for _ in range(4):  # the last sizes are left out while other work slows this machine down
        report = measured(stacks, stack, "-n", "2", "--bench", "--sizes", "1K:1M")
        rows = report["bandwidth"]
        if len(rows) == 6:
            break
    assert [row["size_bytes"] for row in rows] == sizes[: max(3, len(rows))]
    for row in rows:
        assert row["bus_bytes_per_s"] == pytest.approx(row["size_bytes"] / row["seconds"])
        assert 0 < row["raw_seconds"] < 1
        assert row["ratio"] == pytest.approx(row["raw_seconds"] / row["seconds"])
    assert statuses(report)["bandwidth"] in {"pass", "warn"}
    assert statuses(report)["allreduce"] == "pass"


def test_a_slower_run_than_the_baseline_fails(stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    installed(STACKS[0])
    path = tmp_path / "baseline.json"
    options = ("-n", "2", "--bench", "--sizes", "1K:64K", "--baseline", str(path))
    assert statuses(measured(stacks, STACKS[0], *options))["bandwidth-baseline"] == "pass"
    saved = json.loads(path.read_text())
    saved["seconds"] = {size: seconds / 1000 for size, seconds in saved["seconds"].items()}
    path.write_text(json.dumps(saved))
    assert statuses(measured(stacks, STACKS[0], *options, status=1))["bandwidth-baseline"] == "fail"
    saved["seconds"] = {size: seconds * 1000000 for size, seconds in saved["seconds"].items()}
    path.write_text(json.dumps(saved))
    assert statuses(measured(stacks, STACKS[0], *options))["bandwidth-baseline"] == "pass"
    other = statuses(measured(stacks, STACKS[0], "-n", "3", *options[2:], status=1))
    assert other["bandwidth-baseline"] == "skip"


@pytest.mark.parametrize("stack", STACKS)
def test_training_is_timed_in_worlds_of_several_sizes(
    stacks: Site, installed: Callable[[str], str], stack: str
) -> None:
    installed(stack)
    report = measured(stacks, stack, "--scale", "1,2", "--compare", "ddp")
    rows = report["scaling"]
    assert {(row["model"], row["ranks"]) for row in rows} == {(m, n) for m in ("MLP", "ResNet-50") for n in (1, 2)}
    for row in rows:
        assert row["samples_per_s"] > 0
        assert row["efficiency"] == 1.0 or row["ranks"] == 2
        assert (row["ddp_samples_per_s"] is not None) == (stack == STACKS[0])
    assert statuses(report)["throughput"] == "pass"
    assert statuses(report)["scaling-efficiency"] in {"pass", "warn"}
