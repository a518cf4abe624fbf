"""File systems mounted noexec, folders that are not there, homes that cannot be written to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from .kinds import Do, Kind, World
from .kinds_limits import full, setting
from .world import MS_BIND, MS_NOEXEC, MS_RDONLY, MS_REC, MS_REMOUNT, mount


def noexec(world: World) -> None:
    """Have nothing of the prefix be executed."""
    mount(str(world.prefix), world.prefix, flags=MS_BIND)
    mount("none", world.prefix, flags=MS_BIND | MS_REMOUNT | MS_NOEXEC)


def no_shared_memory(world: World) -> None:
    """Have a /dev like the machine's, but without /dev/shm."""
    own = world.folder / "dev"
    own.mkdir()
    mount("zoo", own, "tmpfs", 0, "mode=755")
    for path in Path("/dev").iterdir():
        place = own / path.name
        if path.is_symlink():
            place.symlink_to(path.readlink())
        elif path.name != "shm":
            place.mkdir() if path.is_dir() else place.touch()
            mount(str(path), place, flags=MS_BIND | MS_REC)
    mount(str(own), "/dev", flags=MS_BIND | MS_REC)


def temporary(how: str) -> Do:
    """Have TMPDIR name a folder that is no good."""

    def do(world: World) -> None:
        folder = world.folder / "scratch"
        folder.mkdir()
        world.env["TMPDIR"] = str(folder)
        if how == "full":
            full(str(folder))(world)
        elif how == "noexec":
            mount("zoo", folder, "tmpfs", MS_NOEXEC, "mode=1777")
        else:
            mount("zoo", folder, "tmpfs", MS_RDONLY, "mode=1777")

    return do


def read_only_home(world: World) -> None:
    mount("zoo", world.home, "tmpfs", MS_RDONLY, "mode=755")


def full_home(world: World) -> None:
    full(str(world.home))(world)


def no_home(world: World) -> None:
    del world.env["HOME"]


def strangers_home(world: World) -> None:
    """A home that this user may not even look into."""
    world.home.chmod(0)
    world.shell = [
        "setpriv",
        "--bounding-set=-dac_override,-dac_read_search",
        "--inh-caps=-dac_override,-dac_read_search",
    ]
    os.chown(world.home, 54321, 54321)


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Places."""
    group = "places"
    yield Kind(
        name="places/prefix-noexec",
        group=group,
        did="the prefix lies on a file system that is mounted noexec",
        do=noexec,
        true=r"noexec",
        mended="words",
        words=r"remount|exec|another|--prefix",
        never=r"--rebuild|envkit repair",
    )
    yield Kind(
        name="places/no-shared-memory",
        group=group,
        did="there is no /dev/shm",
        do=no_shared_memory,
        true=r"/dev/shm",
        either=True,
        mended="words",
        words=r"mount|/dev/shm",
    )
    for how in ("full", "noexec", "read-only"):
        yield Kind(
            name=f"places/TMPDIR-{how}",
            group=group,
            did=f"TMPDIR is {how}",
            do=temporary(how),
            true=r"TMPDIR|/scratch\b",
            either=True,
        )
    for name, do, did in (
        ("read-only", read_only_home, "the home can only be read"),
        ("full", full_home, "the home is full"),
        ("unset", no_home, "HOME is not set"),
        ("closed", strangers_home, "the home is another's and closed"),
        ("file", setting("HOME", "/etc/hostname"), "HOME names a file"),
        ("empty", setting("HOME", ""), "HOME is empty"),
    ):
        yield Kind(name=f"places/home-{name}", group=group, did=did, do=do, true=r"HOME|home", either=True)
