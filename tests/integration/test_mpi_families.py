"""MPICH and Intel MPI in the place of the machine's Open MPI: real ones, by real eb, entered and started by envkit."""

from __future__ import annotations

from pathlib import Path

import pytest

from .. import mpis
from ..stacks import Site

pytestmark = pytest.mark.integration

HELLO = """\
#include <cstdio>
#include <mpi.h>
int main(int count, char **words) {
  int rank, size, length;
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Get_library_version(version, &length);
  if (rank == 0) std::printf("%d ranks of %.40s\\n", size, version);
  return MPI_Finalize();
}
"""


@pytest.mark.parametrize(("family", "says"), [("MPICH", "MPICH Version:"), ("Intel MPI", "Intel(R) MPI Library")])
def test_the_toolchain_of_a_family(family: str, says: str, tmp_path: Path) -> None:
    """Its modules start the machine's own compiler wrapper and launcher, with nothing of it on PATH any more."""
    env = mpis.put(family, tmp_path / "mpi")
    (tmp_path / "hello.cc").write_text(HELLO)
    site = Site(tmp_path / "prefix")
    done = site.envkit("install", "gmpich-system.eb", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    built = site.envkit(
        "run", "gmpich-system", "--", "mpicxx", str(tmp_path / "hello.cc"), "-o", str(tmp_path / "hello")
    )
    assert built.returncode == 0, built.stdout + built.stderr
    ran = site.envkit("run", "gmpich-system", "--", "mpirun", "-n", "2", str(tmp_path / "hello"))
    assert ran.returncode == 0 and ran.stdout.startswith(f"2 ranks of {says}"), ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("asked", "first", "told"),
    [
        ((), "MPICH 4.3.2", "--mpi would choose another: Open MPI"),
        (("--mpi", "mpich"), "MPICH 4.3.2", "gmpich-system-PyTorch-2.13.0.eb"),
    ],
)
def test_the_plan_says_which_and_what_else_there_is(
    asked: tuple[str, ...], first: str, told: str, tmp_path: Path
) -> None:
    env = mpis.put("MPICH", tmp_path / "mpi")
    done = Site(tmp_path / "prefix").envkit("install", "pytorch-2.13-cpu", "--dry-run", *asked, env=env)
    assert f"MPI:      {first} ({tmp_path}/mpi/bin/mpirun)" in done.stdout and told in done.stdout, done.stderr


def test_a_family_that_is_not_here(tmp_path: Path) -> None:
    done = Site(tmp_path / "prefix").envkit("install", "pytorch-2.13-cpu", "--dry-run", "--mpi", "intelmpi")
    assert done.returncode == 3 and done.stderr.startswith("envkit: There is no Intel MPI here"), done.stderr
