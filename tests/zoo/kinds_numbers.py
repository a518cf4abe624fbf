"""Wrong numbers: a library that changes what MPI gives, preloaded in sight or by the system."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .kinds import Do, Kind, World

SOURCE = r"""
#define _GNU_SOURCE
#include <mpi.h>
#include <string.h>
#include <stdlib.h>
static int mine(MPI_Comm comm) {
    int rank; PMPI_Comm_rank(comm, &rank); return WHO < 0 || rank == WHO;
}
static void spoil(void *data, long count, MPI_Datatype type, MPI_Comm comm) {
    int width; PMPI_Type_size(type, &width);
    long bytes = count * width, middle = count / 2;
    unsigned char *bytes_of = data;
    if (bytes < LEAST || bytes > MOST || count < 1 || !mine(comm)) return;
    if (!strcmp(HOW, "zero-tail")) memset(bytes_of + bytes - width, 0, width);
    if (!strcmp(HOW, "zero-all")) memset(bytes_of, 0, bytes);
    if (!strcmp(HOW, "low-bit")) bytes_of[middle * width] ^= 1;
    if (!strcmp(HOW, "sign")) bytes_of[middle * width + width - 1] ^= 0x80;
    if (!strcmp(HOW, "swap") && count > 1) {
        char held[16]; memcpy(held, bytes_of, width);
        memcpy(bytes_of, bytes_of + (count - 1) * width, width); memcpy(bytes_of + (count - 1) * width, held, width);
    }
}
static long total(const int *counts, MPI_Comm comm) {
    int size; long sum = 0; PMPI_Comm_size(comm, &size);
    for (int r = 0; r < size; r++) sum += counts[r];
    return sum;
}
#if WHAT == 1
int MPI_Allreduce(const void *in, void *out, int n, MPI_Datatype t, MPI_Op op, MPI_Comm c) {
    int length, s = PMPI_Allreduce(in, out, n, t, op, c);
    char name[MPI_MAX_OBJECT_NAME] = "";
    PMPI_Type_get_name(t, name, &length);
    if (!strstr(name, "LONG")) spoil(out, n, t, c);  /* of which Horovod's own messages are */
    return s;
}
#elif WHAT == 2
int MPI_Bcast(void *data, int n, MPI_Datatype t, int root, MPI_Comm c) {
    int s = PMPI_Bcast(data, n, t, root, c); spoil(data, n, t, c); return s;
}
#elif WHAT == 3
int MPI_Allgatherv(const void *in, int n, MPI_Datatype f, void *out, const int k[], const int d[], MPI_Datatype t,
                   MPI_Comm c) {
    int s = PMPI_Allgatherv(in, n, f, out, k, d, t, c); spoil(out, total(k, c), t, c); return s;
}
#elif WHAT == 4
int MPI_Alltoallv(const void *in, const int a[], const int b[], MPI_Datatype f, void *out, const int k[], const int d[],
                  MPI_Datatype t, MPI_Comm c) {
    int s = PMPI_Alltoallv(in, a, b, f, out, k, d, t, c); spoil(out, total(k, c), t, c); return s;
}
#elif WHAT == 5
int MPI_Reduce_scatter(const void *in, void *out, const int k[], MPI_Datatype t, MPI_Op op, MPI_Comm c) {
    int r, s = PMPI_Reduce_scatter(in, out, k, t, op, c); PMPI_Comm_rank(c, &r); spoil(out, k[r], t, c); return s;
}
#endif
"""
WHAT = {"allreduce": 1, "broadcast": 2, "allgather": 3, "alltoall": 4, "reducescatter": 5}


def compiled(world: World, what: str, how: str, least: int, most: int, who: int) -> Path:
    """The library."""
    defines = [f"-DWHAT={WHAT[what]}", f'-DHOW="{how}"', f"-DLEAST={least}", f"-DMOST={most}", f"-DWHO={who}"]
    return world.library(
        "lib/libtuned.so", SOURCE, *defines, "-I/usr/lib/x86_64-linux-gnu/openmpi/include", "-ldl", "-Wl,-z,lazy"
    )


def seen(*given: object) -> Do:
    return lambda world: world.env.update(LD_PRELOAD=str(compiled(world, *given)))  # type: ignore[arg-type]


def hidden(*given: object) -> Do:
    """Have the system preload it, in every program."""

    def do(world: World) -> None:
        path = compiled(world, *given)  # type: ignore[arg-type]
        world.overlay(Path("/etc"))
        Path("/etc/ld.so.preload").write_text(f"{path}\n")

    return do


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Each collective, at some sizes, in one rank or all."""
    more = 1 << 40
    faults = [
        ("allreduce", "zero-tail", 4000, more, 1),
        ("allreduce", "low-bit", 300000, 3000000, 0),
        ("allreduce", "sign", 20, 200, -1),
        ("allreduce", "swap", 8000000, more, 1),
        ("allreduce", "low-bit", 60000000, more, -1),
        ("broadcast", "low-bit", 20000, more, 1),
        ("broadcast", "zero-all", 1000000, more, -1),
        ("broadcast", "swap", 3000000, more, 0),
        ("allgather", "sign", 200000, more, 1),
        ("allgather", "zero-tail", 12, 4000, -1),
        ("allgather", "low-bit", 3000000, more, 0),
        ("alltoall", "swap", 60000, more, 0),
        ("alltoall", "low-bit", 12, 4000, 1),
        ("alltoall", "sign", 1000000, more, -1),
        ("reducescatter", "zero-all", 60000, more, 1),
        ("reducescatter", "low-bit", 12, 4000, 0),
        ("reducescatter", "sign", 500000, more, 1),
    ]
    for number, (what, how, least, most, who) in enumerate(faults):
        which = "every rank" if who < 0 else f"rank {who}"
        size = f"{least} bytes and more" if most == more else f"{least} to {most} bytes"
        for place, do in (("preload", seen), ("system", hidden)):
            if (number % 2 == 0) == (place == "system") and number > 3:
                continue
            true = r"LD_PRELOAD|libtuned" if place == "preload" else rf"{what}|wrong (element|sum|result|value|number)"
            by = "LD_PRELOAD" if place == "preload" else "/etc/ld.so.preload"
            yield Kind(
                name=f"numbers/{place}/{what}/{how}/{least}-{'' if most == more else most}/{who}",
                group="wrong numbers",
                did=f"{what} of {size} in {which}: {how}, by a library in {by}",
                do=do(what, how, least, most, who),
                true=true,
                mended="run" if place == "preload" else "words",
                words=".",
                never=r"^$",
            )
