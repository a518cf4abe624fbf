"""The host's MPI library for an image: which files it takes, and whether they can load there."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.environments.environment import ContainerEnvironment
from envkit.environments.receipt import Mpi
from envkit.errors import HostProblem
from envkit.launch.host_mpi import Bound, bound

from .verify.compile_c import shared_object

Fake = Callable[..., Path]
MPICH = Mpi(family="MPICH", version="4.0.2")


def library(folder: Path, soname: str, *needed: Path) -> Path:
    """A shared object that calls the C library and needs others."""
    name = soname.partition(".")[0].replace("-", "_")
    source = f'#include <stdio.h>\nvoid {name}(void) {{ puts("here"); }}\n'
    options = [f"-Wl,-soname,{soname}", "-Wl,--no-as-needed", *map(str, needed)]
    return shared_object(folder / soname, source, options)


@pytest.fixture
def lib(tmp_path: Path) -> Path:
    """A host's MPI with a fabric, whose provider is a plug-in that needs one more library."""
    folder = tmp_path / "mpi" / "lib"
    cxi = library(folder, "libcxi.so.1")
    fabric = library(folder, "libfabric.so.1")
    library(folder / "libfabric", "libcxi-fi.so", cxi)
    library(folder, "libmpi.so.12", fabric)
    return folder


@pytest.fixture
def inside(fake: Fake) -> Callable[[str], ContainerEnvironment]:
    """An image that says which C library it has."""

    def make(says: str) -> ContainerEnvironment:
        runtime = fake("apptainer", f"echo {says!r}", folder="runtime")
        return ContainerEnvironment(name="toy", runtime=runtime, image=Path("/toy.sif"))

    return make


@pytest.fixture
def bind(inside: Callable[[str], ContainerEnvironment]) -> Callable[..., Bound]:
    def make(says: str = "glibc 2.99", soname: str = "libmpi.so.12", **env: str) -> Bound:
        return bound(inside(says), MPICH, soname, {"PATH": os.defpath, **env})

    return make


def test_a_library_with_all_that_it_needs(lib: Path, bind: Callable[..., Bound]) -> None:
    found = bind(LD_LIBRARY_PATH=str(lib))
    assert found.binds == (
        f"{lib}/libcxi.so.1:/.envkit/mpi/libcxi.so.1",
        f"{lib}/libfabric.so.1:/.envkit/mpi/libfabric.so.1",
        f"{lib}/libmpi.so.12:/.envkit/mpi/libmpi.so.12",
        f"{lib}/libfabric:{lib}/libfabric",
    )
    assert found.settings == (("LD_LIBRARY_PATH", "/.envkit/mpi:/.singularity.d/libs"),)


def test_cray_mpich_has_a_folder_for_programs_of_any_mpich(lib: Path, bind: Callable[..., Bound]) -> None:
    abi = lib.parent / "lib-abi-mpich"
    lib.rename(abi)
    found = bind(MPICH_DIR=str(lib.parent))
    assert f"{abi}/libmpi.so.12:/.envkit/mpi/libmpi.so.12" in found.binds


def test_beside_the_launcher(lib: Path, bind: Callable[..., Bound]) -> None:
    mpirun = lib.parent / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text("#!/bin/sh\n")
    mpirun.chmod(0o755)
    found = bind(PATH=f"{mpirun.parent}:{os.defpath}")
    assert f"{lib}/libmpi.so.12:/.envkit/mpi/libmpi.so.12" in found.binds


@pytest.mark.parametrize(
    ("says", "what", "why"),
    [
        ("glibc 2.2", "The host's MPI cannot load in toy.", "wants glibc 2.2.5; the image has 2.2."),
        ("musl", "The C library of toy is not glibc", "musl"),
    ],
)
def test_a_c_library_that_does_not_fit(says: str, what: str, why: str, lib: Path, bind: Callable[..., Bound]) -> None:
    with pytest.raises(HostProblem) as refused:
        bind(says, LD_LIBRARY_PATH=str(lib))
    assert what in refused.value.what
    assert why in refused.value.why


def test_a_library_that_is_not_here(bind: Callable[..., Bound]) -> None:
    with pytest.raises(HostProblem, match=r"cannot take the place of the image's MPICH 4\.0\.2") as refused:
        bind(soname="libmpi-of-nobody.so.9")
    assert "libmpi-of-nobody.so.9" in refused.value.why
