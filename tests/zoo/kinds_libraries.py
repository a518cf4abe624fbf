"""Libraries that the loader finds in place of the right ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from .kinds import Do, Kind, World

MPICH = "usr/lib/x86_64-linux-gnu/libmpich.so.12"
STUB = "int zoo_nothing(void) { return 0; }\n"


def search(name: str, source: str = STUB, *options: str) -> Do:
    """Put a stub of a library first in LD_LIBRARY_PATH."""

    def do(world: World) -> None:
        path = world.library(f"lib/{name}", source, f"-Wl,-soname,{name}", *options)
        world.env["LD_LIBRARY_PATH"] = str(path.parent)

    return do


def setting(name: str, value: str) -> Do:
    return lambda world: world.env.update({name: value})


def text(name: str) -> Do:
    """Put a file that is no library first in LD_LIBRARY_PATH."""

    def do(world: World) -> None:
        world.env["LD_LIBRARY_PATH"] = str(
            world.write(f"lib/{name}", "version https://git-lfs.github.com/spec/v1\n").parent
        )

    return do


def mpich_as(name: str) -> Do:
    """Have MPICH's library stand for Open MPI's."""

    def do(world: World) -> None:
        folder = world.folder / "lib"
        folder.mkdir(exist_ok=True)
        (folder / name).symlink_to(mpich(world) / "libmpich.so.12")
        world.env["LD_LIBRARY_PATH"] = f"{folder}:{mpich(world)}"

    return do


def mpich(world: World) -> Path:
    """The folder of MPICH's libraries."""
    return world.extras / "usr" / "lib" / "x86_64-linux-gnu"


def preload(source: str) -> Do:
    """Preload a library that does something."""

    def do(world: World) -> None:
        world.env["LD_PRELOAD"] = str(world.library("lib/libtuned.so", source))

    return do


CRASHING = "#include <stdlib.h>\nint MPI_Init_thread(void *a, void *b, int c, int *d) { abort(); }\n"
FAILING = "int MPI_Init_thread(void *a, void *b, int c, int *d) { return 16; }\n"
SINGLE = "int MPI_Query_thread(int *p) { *p = 0; return 0; }\n"
ALONE = (
    "int MPI_Comm_size(void *c, int *n) { *n = 1; return 0; }\nint MPI_Comm_rank(void *c, int *n) { return *n = 0; }\n"
)
NO_SOCKETS = (
    "#include <errno.h>\n#include <stdlib.h>\n#include <sys/socket.h>\n"
    "int socket(int a, int b, int c) { errno = EACCES; return -1; }\n"
)


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """LD_LIBRARY_PATH, LD_PRELOAD, libraries of the host."""
    for name in (
        "libmpi.so.40",
        "libmpi_cxx.so.40",
        "libstdc++.so.6",
        "libopen-pal.so.40",
        "libopen-rte.so.40",
        "libgcc_s.so.1",
        "libm.so.6",
        "libhwloc.so.15",
        "libevent_core-2.1.so.7",
    ):
        yield Kind(
            name=f"libraries/search/stub-{name}",
            group="libraries, preload",
            did=f"LD_LIBRARY_PATH has an empty {name}",
            do=search(name),
            true=rf"LD_LIBRARY_PATH|/lib/{name}",
        )
    for name in ("libmpi.so.40", "libstdc++.so.6", "libc10.so", "libpmix.so.2"):
        if name == "libc10.so":
            continue  # the extension and torch have their own folders in RUNPATH or RPATH: unclear
        yield Kind(
            name=f"libraries/search/text-{name}",
            group="libraries, preload",
            did=f"LD_LIBRARY_PATH has a {name} that is a text of Git LFS",
            do=text(name),
            true=rf"LD_LIBRARY_PATH|/lib/{name}",
        )
    yield Kind(
        name="libraries/search/mpich-as-libmpi.so.40",
        needs=MPICH,
        group="libraries, preload",
        did="LD_LIBRARY_PATH has MPICH's library under the name libmpi.so.40",
        do=mpich_as("libmpi.so.40"),
        true=r"LD_LIBRARY_PATH|libmpich|/lib/libmpi\.so\.40",
    )
    for name, source in (("crashing", CRASHING), ("failing", FAILING), ("alone", ALONE), ("no-sockets", NO_SOCKETS)):
        yield Kind(
            name=f"libraries/preload/{name}",
            group="libraries, preload",
            did=f"LD_PRELOAD has a library that defines: {source!r}",
            do=preload(source),
            true=r"LD_PRELOAD|libtuned",
        )

    def preload_mpich(world: World) -> None:
        world.env["LD_PRELOAD"] = str(mpich(world) / "libmpich.so.12")
        world.env["LD_LIBRARY_PATH"] = str(mpich(world))

    yield Kind(
        name="libraries/preload/mpich",
        needs=MPICH,
        group="libraries, preload",
        did="LD_PRELOAD has MPICH's library",
        do=preload_mpich,
        true=r"LD_PRELOAD|libmpich",
    )
    for name, file in (
        ("libmpi.so.40", "libmpi.so.40.30.4"),
        ("mca_btl_vader.so", "openmpi/lib/openmpi3/mca_btl_vader.so"),
    ):
        yield from host_library(name, file)
    for name, variable, value in (
        ("preload-missing", "LD_PRELOAD", "/nonexistent/libtuned.so"),
        ("library-path-missing", "LD_LIBRARY_PATH", "/nonexistent:"),
        ("library-path-usr", "LD_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu"),
        ("preload-libm", "LD_PRELOAD", "libm.so.6"),
        ("bind-now", "LD_BIND_NOW", "1"),
    ):
        yield Kind(
            name=f"harmless/{name}",
            group="harmless",
            did=f"export {variable}={value}",
            do=setting(variable, value),
        )
    yield Kind(
        name="harmless/mpich-in-library-path",
        needs=MPICH,
        group="harmless",
        did="LD_LIBRARY_PATH has MPICH's folder, with libraries of other names",
        do=lambda world: world.env.update(LD_LIBRARY_PATH=str(mpich(world))),
    )


def host_library(name: str, file: str) -> Iterator[Kind]:
    """A library of the host's own that is gone or damaged."""
    folder = Path("/usr/lib/x86_64-linux-gnu")
    if not (folder / file).exists():
        return

    def cut(world: World) -> None:
        world.overlay((folder / file).parent)
        (folder / file).write_bytes((folder / file).read_bytes()[:3000])

    yield Kind(
        name=f"libraries/host/{name}/truncated",
        group="libraries, preload",
        did=f"the host's {folder / file} is cut short",
        do=cut,
        true=name.replace(".", r"\."),
        mended="words",
        words=r"reinstall|install|package|administrator|host|MPI",
        never=r"^$",
    )
