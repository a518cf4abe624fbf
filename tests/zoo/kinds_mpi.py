"""An Open MPI of somebody's own, a copy of the machine's that OPAL_PREFIX names, of which parts are gone or cut."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from .kinds import Do, Kind, World

HOST = Path("/usr/lib/x86_64-linux-gnu")
COMPONENTS = "openmpi/lib/openmpi3"


def copied(world: World) -> Path:
    """Copy the machine's Open MPI, and have it be found first; the folder of its libraries."""
    root = world.folder / "ompi"
    lib = root / HOST.relative_to("/usr")
    shutil.copytree(HOST / "openmpi", lib / "openmpi", symlinks=True)
    for pattern in ("libmpi*.so*", "libopen-*.so*", "libmca_common*.so*"):
        for path in HOST.glob(pattern):
            shutil.copy(path, lib, follow_symlinks=False)
    shutil.copytree("/usr/share/openmpi", root / "share" / "openmpi")
    (root / "bin").mkdir()
    for name in ("mpirun", "orterun", "orted"):
        shutil.copy(f"/usr/bin/{name}", root / "bin" / name)
    world.env |= {"OPAL_PREFIX": str(root), "LD_LIBRARY_PATH": str(lib)}
    world.first(root / "bin")
    return lib


def whole(world: World) -> None:
    copied(world)


def without(*patterns: str) -> Do:
    def do(world: World) -> None:
        lib = copied(world)
        for pattern in patterns:
            for path in lib.glob(pattern):
                path.unlink()

    return do


def cut(name: str) -> Do:
    def do(world: World) -> None:
        path = (copied(world) / name).resolve()
        os.truncate(path, path.stat().st_size // 2)

    return do


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Copies that are damaged, and a whole one."""
    if not (HOST / COMPONENTS).is_dir():
        return
    for name, do, did in (
        ("no-components", without(f"{COMPONENTS}/*.so"), "all its components are gone"),
        ("no-pml", without(f"{COMPONENTS}/mca_pml_*.so"), "its mca_pml_*.so are gone"),
        ("no-rte", without("libopen-rte.so*"), "its libopen-rte is gone"),
        ("cut-libmpi", cut("libmpi.so.40"), "its libmpi is cut in half"),
        ("cut-rte", cut("libopen-rte.so.40"), "its libopen-rte is cut in half"),
        ("cut-component", cut(f"{COMPONENTS}/mca_btl_vader.so"), "its mca_btl_vader.so is cut in half"),
        ("whole", whole, "it is whole"),
    ):
        yield Kind(
            name=f"mpi-copy/{name}",
            group="a copy of Open MPI",
            did=f"OPAL_PREFIX and LD_LIBRARY_PATH name a copy of the machine's Open MPI: {did}",
            do=do,
            true=r"OPAL_PREFIX|LD_LIBRARY_PATH|ompi/(lib|bin)",
            either=True,
            options=("-n", "2", "--timeout", "30"),
        )
