"""Limits of memory, files and time, and file systems that are full, read-only or absent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from .kinds import Do, Kind, World
from .world import LIBC, MS_RDONLY, NEW_NETWORK, mount

MEMORY = Path("/sys/fs/cgroup/memory")


def limit(letter: str, value: int) -> Do:
    return lambda world: world.prelude.append(f"ulimit -S{letter} {value}")


def full(place: str) -> Do:
    """Have nothing left on a file system."""

    def do(world: World) -> None:
        mount("zoo", place, "tmpfs", 0, "size=256k,mode=1777")
        with Path(place, "results.dat").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass

    return do


def read_only(place: str) -> Do:
    return lambda world: mount("zoo", place, "tmpfs", MS_RDONLY, "mode=1777")


def closed(place: str) -> Do:
    """A folder that only another may write to."""

    def do(world: World) -> None:
        mount("zoo", place, "tmpfs", 0, "mode=0555")
        world.shell = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]

    return do


def no_inodes(place: str) -> Do:
    return lambda world: mount("zoo", place, "tmpfs", 0, "nr_inodes=1,mode=1777")


def setting(name: str, value: str) -> Do:
    return lambda world: world.env.update({name: value})


def little_memory(megabytes: int) -> Do:
    """Have the kernel kill what needs more, as in a job."""

    def do(world: World) -> None:
        group = MEMORY / f"zoo-{world.folder.name}"
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(f"{megabytes}M")
        (group / "cgroup.procs").write_text("0")

        def undo() -> None:
            (MEMORY / "cgroup.procs").write_text("0")
            group.rmdir()

        world.undo.append(undo)

    return do


def no_loopback(world: World) -> None:
    """Have a network of one's own, with its loopback down."""
    if LIBC.unshare(NEW_NETWORK):
        raise OSError("unshare")


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Limits of the shell, of the kernel, of file systems."""
    memory = r"memory|ulimit|address space|RLIMIT_AS"
    for letter, value, true, words in (
        ("v", 600000, rf"{memory}", r"ulimit|memory"),
        ("v", 1500000, rf"{memory}", r"ulimit|memory"),
        ("d", 60000, rf"{memory}|data seg", r"ulimit|memory"),
        ("n", 24, r"open files|descriptor|ulimit -n|RLIMIT_NOFILE", r"ulimit|open files|descriptor"),
        ("n", 12, r"open files|descriptor|ulimit -n|RLIMIT_NOFILE", r"ulimit|open files|descriptor"),
        ("f", 1, r"file size|File too large|SIGXFSZ|ulimit -f", r"ulimit|file size"),
        ("t", 1, r"CPU time|SIGXCPU|ulimit -t|RLIMIT_CPU", r"ulimit|CPU time"),
        ("s", 100, r"stack|ulimit -s", r"ulimit|stack"),
    ):
        yield Kind(
            name=f"limits/ulimit-{letter}-{value}",
            group="limits and memory",
            did=f"ulimit -S{letter} {value}",
            do=limit(letter, value),
            true=true,
            mended="words",
            options=("-n", "2", "--timeout", "25"),
            words=words,
        )
    for megabytes in (120, 350):
        yield Kind(
            name=f"limits/cgroup-{megabytes}M",
            group="limits and memory",
            did=f"a control group with {megabytes} MB of memory",
            do=little_memory(megabytes),
            true=r"memory|OOM",
            mended="words",
            options=("-n", "2", "--timeout", "25"),
            words="memory",
        )
    for place in ("/tmp", "/dev/shm"):
        name = place.strip("/").replace("/", "-")
        true = rf"(?<![\w/.]){place}\b|TMPDIR" if place == "/tmp" else r"/dev/shm"
        told = r"/tmp|TMPDIR|space|disk" if place == "/tmp" else r"/dev/shm|space"
        for how, do in (
            ("full", full(place)),
            ("read-only", read_only(place)),
            ("no-inodes", no_inodes(place)),
            ("closed", closed(place)),
        ):
            if place == "/dev/shm" and how in ("no-inodes", "read-only", "closed"):
                continue  # Open MPI and the probe keep nothing there
            yield Kind(
                name=f"file-systems/{name}-{how}",
                group="file systems",
                did=f"{place} is {how}",
                do=do,
                true=true + r"[^\n]*|No space left|Read-only file system",
                mended="words",
                options=("-n", "2", "--timeout", "25"),
                words=told,
            )
    yield Kind(
        name="file-systems/TMPDIR-missing",
        group="file systems",
        did="TMPDIR names a folder that is not there",
        do=setting("TMPDIR", "/scratch/nobody/job-1"),
        true=r"TMPDIR|/scratch/nobody",
    )
    yield Kind(
        name="file-systems/TMPDIR-file",
        group="file systems",
        did="TMPDIR names a file",
        do=setting("TMPDIR", "/etc/hostname"),
        true=r"TMPDIR|/etc/hostname",
    )
    yield Kind(
        name="network/no-loopback",
        group="network",
        did="a network of its own with the loopback down and no other interface",
        do=no_loopback,
        true=r"loopback|\blo\b|127\.0\.0\.1|network interface|no (usable )?(network|interface)",
        mended="words",
        options=("-n", "2", "--timeout", "25"),
        words=r"\blo\b|loopback|interface",
    )

    def long_tmp(world: World) -> None:
        path = world.folder / ("a-very-long-name-for-a-folder-" * 7)[:200] / ("x" * 100)
        path.mkdir(parents=True)
        world.env["TMPDIR"] = str(path)

    yield Kind(
        name="file-systems/TMPDIR-long",
        group="file systems",
        did="TMPDIR is a path of more than 300 characters",
        do=long_tmp,
        true=r"TMPDIR|too long|path of",
    )
    for letter, most in (("c", 0), ("n", 256), ("s", 1024), ("l", 64), ("u", 100000), ("n", 1048576)):
        yield Kind(
            name=f"harmless/ulimit-{letter}-{most}",
            group="harmless",
            did=f"ulimit -S{letter} {most}",
            do=limit(letter, most),
        )
    for name, place in (
        ("TMPDIR", "/tmp/"),
        ("TMPDIR", "/var/tmp"),
        ("XDG_CACHE_HOME", "/nonexistent"),
        ("HOME", "/nonexistent"),
    ):
        yield Kind(
            name=f"harmless/{name}={place.replace('/', ':')}",
            group="harmless",
            did=f"export {name}={place}",
            do=setting(name, place),
        )

    def odd_folder(world: World) -> None:
        folder = world.folder / "with space and 'quote'"
        folder.mkdir()
        world.env["TMPDIR"] = str(folder)

    yield Kind(name="harmless/TMPDIR-odd", group="harmless", did="TMPDIR has a space and a quote", do=odd_folder)

    def future(world: World) -> None:
        for folder in (world.horovod, world.tree / "environments"):
            for path in folder.rglob("*"):
                if path.is_file():
                    os.utime(path, (4000000000, 4000000000))

    yield Kind(
        name="harmless/files-from-2096", group="harmless", did="the files of Horovod have times of 2096", do=future
    )
