"""README's first command on a fresh Debian 12 whose only MPI is another than Open MPI, and on Debian sid."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .. import mpis
from ..checkout import checkout
from .test_debian_13 import STACK, Machine, bare

pytestmark = [pytest.mark.integration, pytest.mark.all]


@pytest.fixture
def debian_12(tmp_path: Path) -> Iterator[Machine]:
    """A minimal Debian 12."""
    with bare(tmp_path, "bookworm") as machine:
        yield machine


@pytest.fixture
def debian_sid(tmp_path: Path) -> Iterator[Machine]:
    """A minimal Debian sid: the newest compiler that there is, and a Python for which TensorFlow has wheels."""
    with bare(tmp_path, "sid") as machine:
        yield machine


def put_mpich(machine: Machine) -> None:
    """Install Debian's MPICH."""
    machine.said("apt-get", "-q", "update")
    machine.said("apt-get", "-qy", "--no-install-recommends", "install", "mpich", "libmpich-dev")


def put_intel_mpi(machine: Machine) -> None:
    """Put Intel MPI into a folder of PATH, as its wheels have it."""
    mpis.put("Intel MPI", machine.root / "opt/impi")
    machine.env["PATH"] = f"/opt/impi/bin:{machine.env['PATH']}"


@checkout
@pytest.mark.builds
@pytest.mark.parametrize(
    ("put", "family", "version"),
    [
        pytest.param(put_mpich, "MPICH", "4.0.2", id="MPICH"),
        pytest.param(put_intel_mpi, "Intel MPI", "2021.18", id="Intel-MPI"),
    ],
)
def test_the_first_command_of_readme_takes_the_mpi_that_is_there(
    put: Callable[[Machine], None], family: str, version: str, debian_12: Machine
) -> None:
    put(debian_12)
    done = debian_12.run("scripts/quickstart.sh", "tensorflow")
    print(done.stdout, done.stderr)  # pytest shows it where the test fails
    assert done.returncode == 0
    assert f"PASS  {STACK}: 2 ranks" in done.stdout
    receipt = json.loads(debian_12.said(".venv/bin/envkit", "show", STACK, "--json"))
    assert receipt["mpi"]["family"] == family and receipt["mpi"]["version"].startswith(version)
    assert "openmpi" not in debian_12.said("dpkg-query", "--show", "--showformat=${Package}\n")


@checkout
@pytest.mark.builds
@pytest.mark.parametrize(
    ("put", "family"),
    [
        pytest.param(lambda _: None, "Open MPI", id="its-own"),  # that of Debian, which the command installs
        pytest.param(put_intel_mpi, "Intel MPI", id="Intel-MPI"),
    ],
)
def test_the_first_command_of_readme_on_debian_sid(
    put: Callable[[Machine], None], family: str, debian_sid: Machine
) -> None:
    put(debian_sid)
    done = debian_sid.run("scripts/quickstart.sh", "tensorflow")
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert f"PASS  {STACK}: 2 ranks" in done.stdout
    receipt = json.loads(debian_sid.said(".venv/bin/envkit", "show", STACK, "--json"))
    assert receipt["mpi"]["family"] == family and receipt["python"].startswith("3.13.")
    assert int(debian_sid.said("gcc", "-dumpversion")) >= 15  # GCC of Debian 13 is 14
