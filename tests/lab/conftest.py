"""The cluster, and what runs on it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from ..stacks import Site
from .cluster import PROGRAMS, WITHOUT_ROOT, Cluster, SharedHost, missing_programs

STACK = "pytorch-2.13-cpu"
NODES = 8


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A folder with a short path: sockets lie in it."""
    made = Path(tempfile.mkdtemp(prefix="lab-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(folder: Path) -> Iterator[Cluster]:
    """Eight hosts of eight CPUs (on paper) and four GPUs (on paper)."""
    if os.geteuid() != 0:
        pytest.skip("hosts as namespaces need root")
    if missing := missing_programs(PROGRAMS):
        pytest.skip(f"not installed: {', '.join(missing)}")
    made = Cluster(folder / "hosts", NODES)
    made.up()
    yield made
    made.down()


def free_ports(count: int) -> int:
    """Return the first of some ports in a row that nobody uses."""
    while True:
        with ExitStack() as held, suppress(OSError):
            first = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for port in range(first + 1, first + count):
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return int(first)


@pytest.fixture(scope="session")
def shared_host(folder: Path) -> Iterator[SharedHost]:
    """Slurm without root: two nodes that are one host."""
    if missing := missing_programs(WITHOUT_ROOT):
        pytest.skip(f"not installed: {', '.join(missing)}")
    made = SharedHost(folder / "one", 2, port=free_ports(3))
    made.up()
    yield made
    made.down()


@pytest.fixture(scope="session")
def env(stacks: Site, installed: Callable[[str], str]) -> dict[str, str]:
    """What a user of the cluster sets: where the environments are."""
    installed(STACK)
    return {
        "ENVKIT_PREFIX": str(stacks.prefix),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
    }


@pytest.fixture(scope="session")
def mpich(folder: Path) -> Path:
    """MPICH's mpiexec, from its wheel."""
    target = folder / "mpich"
    where = ["--ignore-installed", "--no-deps", "--prefix", str(target)]
    argv = [sys.executable, "-m", "pip", "install", "-q", *where, "mpich==5.0.2"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = [path for path in target.rglob("mpiexec.hydra") if path.parent.name == "bin"]
    return found
