"""The raw NCCL, with libraries compiled to stand in for it: they show that the calls are what nccl.h declares."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from envkit.inside.probe import bench
from envkit.inside.probe.raw_nccl import RawNccl

from .compile_c import shared_object

NCCL = """
#include <stddef.h>
typedef struct { char internal[128]; } ncclUniqueId;
static char known[128];
int calls, destroyed;
int ncclGetUniqueId(ncclUniqueId *id) {
    for (int i = 0; i < 128; i++) known[i] = id->internal[i] = (char)(7 * i + 1);
    return 0;
}
int ncclCommInitRank(void **comm, int ranks, ncclUniqueId id, int rank) {
    for (int i = 0; i < 128; i++) if (id.internal[i] != (char)(7 * i + 1)) return 4;
    *comm = known;
    return ranks == 2 && rank >= 0 && rank < 2 ? 0 : 4;
}
int ncclAllReduce(const void *send, void *receive, size_t count, int type, int op, void *comm, void *stream) {
    if (send != receive || type != 7 || op != 0 || comm != known || stream) return 4;
    for (size_t i = 0; i < count; i++) ((float *)receive)[i] += 1;
    calls++;
    return 0;
}
int ncclCommDestroy(void *comm) { destroyed++; return comm == known ? 0 : 4; }
"""
RUNTIME = """
#include <stdlib.h>
#include <string.h>
int device = -1, waited;
int {p}GetDeviceCount(int *count) {{ *count = 2; return 0; }}
int {p}SetDevice(int number) {{ device = number; return 0; }}
int {p}Malloc(void **at, size_t size) {{ *at = size > 1 << 20 ? 0 : malloc(size); return *at ? 0 : 2; }}
int {p}Memset(void *at, int value, size_t size) {{ memset(at, value, size); return 0; }}
int {p}DeviceSynchronize(void) {{ waited++; return 0; }}
"""


@pytest.fixture(params=["cuda", "hip"])
def libraries(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, list[str]]:
    names = {"cuda": ("libnccl", "libcudart"), "hip": ("librccl", "libamdhip64")}[request.param]
    nccl = shared_object(tmp_path / request.param / names[0], NCCL)
    runtime = shared_object(tmp_path / request.param / names[1], RUNTIME.format(p=request.param))
    return {names[0]: [str(nccl)], names[1]: [str(runtime)]}


def test_the_calls_are_those_of_its_header(libraries: dict[str, list[str]]) -> None:
    nccl = RawNccl(libraries, 0, 2, 3, lambda numbers: numbers)
    rows = bench.sweep([16, 64], nccl.prepare, lambda value: value, 1.0)
    nccl.end()
    assert [row["size"] for row in rows] == [16, 64]
    made = sum(row["calls"] + bench.WARM_UP + 1 for row in rows)
    counted = [(nccl.nccl, "calls"), (nccl.nccl, "destroyed"), (nccl.runtime, "waited"), (nccl.runtime, "device")]
    assert [ctypes.c_int.in_dll(library, name).value for library, name in counted] == [made, 1, made, 1]


def test_rank_1_takes_the_id_of_rank_0(libraries: dict[str, list[str]]) -> None:
    first: list[int] = []

    def tell(numbers: list[int]) -> list[int]:
        first.extend(numbers)
        return numbers

    RawNccl(libraries, 0, 2, 0, tell)
    assert len(first) == 128
    RawNccl(libraries, 1, 2, 1, lambda _own: first)
    with pytest.raises(OSError, match=r"ncclCommInitRank of .* returned 4"):
        RawNccl(libraries, 1, 2, 1, lambda own: own)


def test_memory_that_is_not_to_be_had_is_told(libraries: dict[str, list[str]]) -> None:
    nccl = RawNccl(libraries, 0, 2, 0, lambda numbers: numbers)
    with pytest.raises(OSError, match=r"(cuda|hip)Malloc returned 2"):
        nccl.prepare(2 << 20)


@pytest.mark.parametrize("loaded", [{}, {"libnccl": ["/x/libnccl.so.2"]}, {"librccl": ["/x/librccl.so.1"]}])
def test_without_the_libraries_there_is_an_error(loaded: dict[str, list[str]]) -> None:
    with pytest.raises(OSError, match="is not loaded"):
        RawNccl(loaded, 0, 2, 0, lambda numbers: numbers)
