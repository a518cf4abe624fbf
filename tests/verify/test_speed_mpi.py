"""The raw MPI in real ranks: every MPI that is here is called through the handles of its binary interface."""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from envkit.inside.probe import raw_mpi

from .. import mpis
from .compile_c import shared_object

pytestmark = pytest.mark.integration

INSIDE = Path(raw_mpi.__file__).parents[1]
RANK = """
import ctypes, importlib, json, os, sys
sys.path.insert(0, sys.argv[1])
raw_mpi, bench, mpi_gpu = (importlib.import_module("probe." + name) for name in ("raw_mpi", "bench", "mpi_gpu"))
ctypes.CDLL(sys.argv[2])
asleep = [mpi_gpu.mpi_gpu({"libmpi": [sys.argv[2]]})]
mpi = raw_mpi.RawMpi(sys.argv[2])
began = [mpi.initialise(), mpi.initialise()]
number = ctypes.c_int()
mpi.call("MPI_Comm_rank", mpi.world, ctypes.byref(number))
values = (ctypes.c_float * 3)(1.0 + number.value, 2.0, 0.5)
kind, sum_, count = mpi.handle("float"), mpi.handle("sum"), ctypes.c_int(3)
mpi.call("MPI_Allreduce", mpi.in_place, values, count, kind, sum_, mpi.world)
rows = bench.sweep([1024, 65536], mpi.prepare, mpi.share, 60.0)
found = {"abi": mpi.abi, "size": mpi.size(), "sum": list(values), "largest": mpi.share(number.value), "began": began}
found["gpu"] = [*asleep, mpi_gpu.mpi_gpu({"libmpi": [sys.argv[2]]})]
os.write(1, (json.dumps(dict(found, rows=rows)) + "\\n").encode())
mpi.finalise()
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_open_mpi_sums_what_the_ranks_give(ranks: int) -> None:
    library = ctypes.util.find_library("mpi")
    if library is None or shutil.which("mpirun") is None:
        pytest.skip("no Open MPI")
    env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    argv = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), sys.executable, "-c", RANK, str(INSIDE)]
    require_sums([*argv, library], env, "Open MPI", ranks, {"cuda": False})


@pytest.mark.parametrize(
    ("family", "gpu"),
    [("MPICH", {"cuda": False, "rocm": False}), ("MPICH 3.4", {}), ("Intel MPI", {"cuda": False})],
    ids=["mpich", "mpich-3.4", "intel"],
)
def test_mpich_and_intel_mpi_sum_it_too(family: str, gpu: dict[str, bool], tmp_path: Path) -> None:
    env = {**os.environ, **mpis.put(family, tmp_path)}
    argv = [str(tmp_path / "bin" / "mpirun"), "-n", "2", sys.executable, "-c", RANK, str(INSIDE)]
    require_sums([*argv, str(tmp_path / "lib" / "libmpi.so.12")], env, "MPICH", 2, gpu)


def require_sums(argv: Sequence[str], env: Mapping[str, str], abi: str, ranks: int, gpu: dict[str, bool]) -> None:
    """Require that each rank has the sum of what all give, the same times, and hears whether MPI takes GPU memory."""
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == ranks
    for one in told:
        assert (one["abi"], one["size"], one["began"]) == (abi, ranks, [True, False])
        assert one["sum"] == [ranks * (ranks + 1) / 2, 2.0 * ranks, 0.5 * ranks]
        assert one["largest"] == ranks - 1
        assert one["gpu"] == [{}, {"running": True, **gpu}]
        assert one["rows"] == told[0]["rows"]
        assert [row["size"] for row in one["rows"]] == [1024, 65536]


@pytest.mark.parametrize(
    ("needed", "found"),
    [
        (["libmpi.so.40"], "libmpi.so.40"),
        (["libmpi_cxx.so.40", "libmpi.so.40"], "libmpi.so.40"),
        (["libmpi_gnu_123.so.12"], "libmpi_gnu_123.so.12"),
        (["libmpi.so.12", "libmpifort.so.12"], "libmpi.so.12"),
        (["libmpich.so.10"], "libmpich.so.10"),
        (["libmpi_abi.so.1", "libmpi_mpifh.so.40"], None),
        ([], None),
    ],
)
def test_the_library_is_the_one_that_the_extension_links(tmp_path: Path, needed: list[str], found: str | None) -> None:
    libraries = [shared_object(tmp_path / name, "", [f"-Wl,-soname,{name}"]) for name in needed]
    extension = shared_object(tmp_path / "mpi_lib_v2.so", "", ["-Wl,--no-as-needed", *map(str, libraries)])
    assert raw_mpi.linked(str(extension)) == found


def test_a_library_that_is_not_loaded_is_not_loaded_for_this(tmp_path: Path) -> None:
    library = shared_object(tmp_path / "libmpi.so.99", "int MPI_Init(void) { return 0; }")
    with pytest.raises(OSError, match=r"libmpi\.so\.99 is not loaded"):
        raw_mpi.RawMpi(str(library))


def test_mpich_has_its_handles_as_numbers(tmp_path: Path) -> None:
    """Its library stands in here with the one function that shows what it was given."""
    source = """
    #include <stdint.h>
    int MPI_Comm_size(int comm, int *size) { *size = comm; return 0; }
    int MPI_Allreduce(const void *send, void *receive, int count, int type, int op, int comm) {
        *(double *)receive = (uintptr_t)send == UINTPTR_MAX && type == 0x4c00080b && op == 0x58000001 ? 7.0 : -1.0;
        return comm == 0x44000000 && count == 1 ? 0 : 5;
    }
    int MPI_Finalize(void) { return 16; }
    """
    library = shared_object(tmp_path / "libmpi.so.12", source)
    loaded = ctypes.CDLL(str(library))
    assert loaded.MPI_Finalize() == 16
    mpi = raw_mpi.RawMpi(str(library))
    assert mpi.abi == "MPICH"
    assert mpi.size() == 0x44000000
    assert mpi.share(3.0) == 7.0
    with pytest.raises(OSError, match=r"MPI_Finalize of .*libmpi\.so\.12 returned 16"):
        mpi.finalise()
