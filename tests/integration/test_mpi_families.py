"""Other MPI libraries than the machine's, real or a stand-in over MPICH, by real eb, entered and started by envkit."""

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


@pytest.mark.parametrize(
    ("family", "toolchain", "says"),
    [
        (
            "Open MPI 5.0",
            "gompi-system",
            "Open MPI v5.0.10",
        ),  # moved from where it was installed, and by another compiler
        ("MPICH", "gmpich-system", "MPICH Version:"),
        ("Intel MPI", "gmpich-system", "Intel(R) MPI Library"),
        ("MVAPICH", "gmpich-system", "MPICH Version:"),
        ("Cray MPICH", "gmpich-system", "MPICH Version:"),
    ],
)
def test_the_toolchain_of_a_family(family: str, toolchain: str, says: str, tmp_path: Path) -> None:
    """Its modules start the machine's own compiler wrapper and launcher, with nothing of it on PATH any more."""
    env = mpis.put(family, tmp_path / "mpi")
    (tmp_path / "hello.cc").write_text(HELLO)
    site = Site(tmp_path / "prefix")
    done = site.envkit("install", f"{toolchain}.eb", *mpis.asked(family), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    kept = {name: value for name, value in env.items() if name != "PATH"}
    kept |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    compiles = ("mpicxx", str(tmp_path / "hello.cc"), "-o", str(tmp_path / "hello"))
    built = site.envkit("run", toolchain, "--", *compiles, env=kept)
    assert built.returncode == 0, built.stdout + built.stderr
    words = ["--oversubscribe"] if toolchain == "gompi-system" else []
    ran = site.envkit("run", toolchain, "--", "mpirun", "-n", "2", *words, str(tmp_path / "hello"), env=kept)
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


@pytest.mark.parametrize(
    ("family", "option", "named", "abi"),
    [
        ("MVAPICH", "mvapich", "MVAPICH 2.3.7 ({folder}/bin/mpirun)", "libmpi.so.12"),
        ("Cray MPICH", "cray", "Cray MPICH 8.1.32 ({folder}/opt/cray/pe/craype/2.7.34/bin/CC)", "libmpi_gnu_123.so.12"),
    ],
)
def test_families_that_stand_on_mpich_have_their_name_and_their_library(
    family: str, option: str, named: str, abi: str, tmp_path: Path
) -> None:
    env, site = mpis.put(family, tmp_path / "mpi"), Site(tmp_path / "prefix")
    done = site.envkit("install", "pytorch-2.13-cpu", "--mpi", option, "--dry-run", *mpis.asked(family), env=env)
    assert f"MPI:      {named.format(folder=tmp_path / 'mpi')}; ABI {abi}" in done.stdout, done.stdout + done.stderr
    assert "gmpich-system-PyTorch" in done.stdout and "--mpi would choose another: Open MPI" in done.stdout
    told = site.envkit("doctor", *mpis.asked(family), env=env).stdout
    assert family in told and abi in told


def test_a_cray_without_its_modules(tmp_path: Path) -> None:
    env = mpis.put("Cray MPICH", tmp_path / "mpi")
    done = Site(tmp_path / "prefix").envkit("install", "pytorch-2.13-cpu", "--dry-run", "--mpi", "cray", env=env)
    assert done.returncode == 3 and "--load PrgEnv-gnu --load cray-mpich" in done.stderr, done.stderr


def test_a_cray_without_a_launcher_says_so_and_takes_no_other(tmp_path: Path) -> None:
    """Not Open MPI's, which would start two worlds of one rank."""
    env, site = mpis.put("Cray MPICH", tmp_path / "mpi"), Site(tmp_path / "prefix")
    done = site.envkit("install", "gmpich-system.eb", "--load", "PrgEnv-gnu", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = site.envkit("run", "gmpich-system", "--", "mpirun", "-n", "2", "true", env=env)
    assert ran.returncode == 127 and "Cray MPICH brings no launcher" in ran.stderr, ran.stdout + ran.stderr
