"""One bit of one element changed in what MPI gives Horovod, in real ranks: the verdict is FAIL, and says where."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from ..stacks import Site
from ..verify.compile_c import shared_object

pytestmark = pytest.mark.integration
STACKS = ["pytorch-2.13-cpu", "tensorflow-2.21-cpu"]
SOURCE = Path(__file__).parents[1] / "verify" / "flip.c"
KB, MB = 1024, 1024 * 1024
MORE = 1 << 40


@pytest.fixture(scope="session")
def flip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("mpicc") is None:
        pytest.skip("no mpicc")
    told = subprocess.run(["mpicc", "--showme:compile"], capture_output=True, text=True, check=True)
    options = [*told.stdout.split(), "-ldl"]
    return shared_object(tmp_path_factory.mktemp("flip") / "libflip.so", SOURCE.read_text(), options)


def verified(
    stacks: Site, stack: str, flip: Path, faults: Iterable[str], *options: str
) -> tuple[dict[str, Any], list[str], int]:
    """The report on two ranks with some faults, what these did, and the exit status.

    On a busy machine the largest sizes may be left out, which the report says: then it is tried again.
    """
    says = flip.with_suffix(".says")
    env = {"LD_PRELOAD": str(flip), "FLIP": ",".join(faults), "FLIP_SAYS": str(says)}
    for _ in range(4):
        says.unlink(missing_ok=True)
        done = stacks.envkit("verify", stack, "-n", "2", "--json", "--quick", *options, env=env, timeout_s=900)
        assert done.stdout, done.stderr
        told = {result["id"]: result["status"] for result in json.loads(done.stdout)["results"]}
        flips = says.read_text().splitlines() if says.exists() else []
        if {*map(function, flips)} == {*map(function, faults)} or told["message-sizes"] != "warn":
            break
    return json.loads(done.stdout), flips, done.returncode


def function(line: str) -> str:
    """The function of MPI that a fault, or what is said of one, is about."""
    return line.split()[0]


def failures(report: dict[str, Any]) -> dict[str, str]:
    return {result["id"]: result["message"] for result in report["results"] if result["status"] == "fail"}


@pytest.mark.parametrize(
    ("stack", "faults"),
    [
        (
            STACKS[0],
            {
                "allreduce": f"Allreduce {48 * MB} {MORE} 654321 0 1 any",
                "broadcast": f"Bcast {5 * KB} {MORE} 123456 7 0 any",
                "allgather": f"Allgatherv {2 * MB} {MORE} 1000000 31 -1 any",
                "alltoall": f"Alltoallv {2 * MB} {MORE} 500001 16 1 any",
                "reducescatter": f"Reduce_scatter {512 * KB} {MB} 0 0 0 MPI_DOUBLE",
            },
        ),
        (STACKS[0], {"allreduce": f"Allreduce {MB} {2 * MB} 999999 0 0 half"}),
        (
            STACKS[1],
            {
                "allreduce": f"Allreduce {48 * MB} {MORE} 654321 0 1 any",
                "alltoall": f"Alltoallv {100 * KB} {300 * KB} 333333 5 0 any",
            },
        ),
    ],
)
def test_one_flipped_bit_is_found(
    stacks: Site, installed: Callable[[str], str], flip: Path, stack: str, faults: dict[str, str]
) -> None:
    """In each collective by its own check, and by no other."""
    installed(stack)
    report, flips, status = verified(stacks, stack, flip, faults.values())
    assert (report["verdict"], status) == ("fail", 1)
    messages = failures(report)
    assert messages.keys() == {*faults, "preloaded-mpi"}  # what flips it is told, too
    for check, fault in faults.items():
        rank, index = re.findall(r"rank (\d+) \(.*at index (\d+):", messages[check])[0]
        assert any(line.startswith(f"{function(fault)} rank {rank} element {index} of ") for line in flips)
        found, right = re.findall(r": (\S+)(?: \(\S+\))?; right is (\S+)", messages[check])[0]
        assert found != right


def test_a_flipped_bit_in_a_timed_size_is_found(stacks: Site, installed: Callable[[str], str], flip: Path) -> None:
    """128 KB is no size that is compared without --bench."""
    installed(STACKS[0])
    fault = f"Allreduce {128 * KB} {128 * KB} 777777 0 1 any"
    report, flips, status = verified(stacks, STACKS[0], flip, [fault], "--bench", "--sizes", "128K:128K")
    assert flips
    assert (report["verdict"], status) == ("fail", 1)
    assert set(failures(report)) == {"bandwidth", "preloaded-mpi"}
    assert re.search(r"rank 1 .* of 128 KiB that was timed gave 1 wrong element", failures(report)["bandwidth"])
