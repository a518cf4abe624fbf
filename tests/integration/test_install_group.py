"""A prefix of a project: each of its members installs, verifies, repairs and removes what another one has made."""

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from ..people import Person, open_folder, people, recipes_of_toys
from .site import needs

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users"),
    pytest.mark.xdist_group("users"),
]
GROUP = "envkit-p8"


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        yield made


@pytest.fixture
def persons(folder: Path) -> Iterator[dict[str, Person]]:
    needs("envkit", "eb", "lmod", "gcc", "g++", "make", "patch")
    with people("cat", "dan", "eve", group=GROUP, members=("cat", "dan")) as made:
        yield made


@pytest.fixture
def recipes(folder: Path, persons: dict[str, Person]) -> Path:
    return recipes_of_toys(folder, *persons.values())


@pytest.fixture
def prefix(folder: Path) -> Path:
    """What the README says to make."""
    made = folder / "project"
    made.mkdir()
    subprocess.run(["chgrp", GROUP, made], check=True)
    made.chmod(0o2770)
    return made


def done(said: CompletedProcess[str], status: int = 0) -> str:
    assert said.returncode == status, said.stdout + said.stderr
    assert "Traceback" not in said.stderr
    return said.stdout + said.stderr


def test_a_prefix_of_a_project(folder: Path, recipes: Path, persons: dict[str, Person], prefix: Path) -> None:
    cat, dan, eve = persons["cat"], persons["dan"], persons["eve"]
    settings: dict[str, Any] = {"ENVKIT_PREFIX": prefix, "ENVKIT_TRUST": f"@{GROUP}"}
    refused = done(cat.envkit("install", recipes / "toy-top-1.0.eb", ENVKIT_PREFIX=prefix), 3)
    assert f"The group {GROUP} may write to it" in refused and f"ENVKIT_TRUST=@{GROUP}" in refused

    done(cat.envkit("install", recipes / "toy-top-1.0.eb", "--jobs", "1", **settings))
    assert done(dan.envkit("run", "toy-top-1.0", "--", "toy-top", **settings)) == "toy 0\n"
    paths = [path for path in prefix.rglob("*") if not path.is_symlink() and "logs" not in path.parts]
    gid = prefix.stat().st_gid
    assert {path.name for path in paths if path.stat().st_gid != gid} == set()
    closed = [path for path in paths if path.is_dir() and not path.stat().st_mode & stat.S_IWGRP]
    assert closed == [] and not [path for path in paths if path.stat().st_mode & stat.S_IWOTH]

    assert "installed already" in done(dan.envkit("install", recipes / "toy-top-1.0.eb", **settings))
    done(dan.envkit("install", recipes / "toy-other-1.0.eb", "--jobs", "1", **settings))
    damaged = next(prefix.glob("*/software/toy-middle/1.0/bin/*"))
    damaged.write_text("#!/bin/sh\nexit 9\n")
    assert "toy-middle/1.0" in done(dan.envkit("repair", "toy-top-1.0", **settings))
    assert done(cat.envkit("run", "toy-top-1.0", "--", "toy-top", **settings)) == "toy 0\n"
    done(dan.envkit("install", recipes / "toy-top-1.0.eb", "--rebuild", "--jobs", "1", **settings))

    for person in (cat, dan):
        done(person.envkit("data", "mnist", "--generated", **settings))
    for words in (["list"], ["run", "toy-top-1.0", "--", "true"], ["remove", "toy-top-1.0"]):
        assert f"{prefix} cannot be read.\n\n  Permission denied." in done(eve.envkit(*words, **settings), 7)
    done(dan.envkit("remove", "toy-top-1.0", "--dependencies", **settings))
    done(cat.envkit("remove", "toy-other-1.0", "--dependencies", **settings))
    assert not list(prefix.glob("*/software/toy-*/1.0")) and not list(prefix.glob("*/environments/*.json"))


def test_a_prefix_of_the_site_is_only_read(folder: Path, recipes: Path, persons: dict[str, Person]) -> None:
    """The software account installs, with whatever umask; who reads it has environments of their own beside it."""
    cat, eve = persons["cat"], persons["eve"]
    site, own = folder / "site", eve.home / "own"
    site.mkdir(mode=0o755)
    cat.owns(site)
    settings: dict[str, Any] = {"ENVKIT_PREFIX": f"{site}:{own}", "ENVKIT_TRUST": cat.name}
    done(cat.envkit("install", recipes / "toy-top-1.0.eb", "--jobs", "1", ENVKIT_PREFIX=site, umask=0o077))
    before = {path: path.lstat().st_mtime_ns for path in site.rglob("*")}
    assert done(eve.envkit("run", "toy-top-1.0", "--", "toy-top", **settings)) == "toy 0\n"
    there = done(eve.envkit("install", recipes / "toy-top-1.0.eb", **settings))
    assert f"toy-top-1.0 is installed already in {site} and" in there
    done(eve.envkit("install", recipes / "toy-other-1.0.eb", "--jobs", "1", **settings))
    assert (next(own.glob("*/environments/*.json"))).name == "toy-other-1.0.json"
    done(eve.envkit("run", "toy-other-1.0", "--", "true", **settings))
    listed = done(eve.envkit("list", **settings))
    assert f"in {site}" in listed and "toy-other-1.0" in listed
    assert "cannot be written to" in done(eve.envkit("remove", "toy-top-1.0", **settings), 7)
    locks = next(site.glob("*/locks"))
    assert locks.stat().st_mode & 0o007 == 0, "who can read a lock can hold it, and with it the next installation"
    assert {path: path.lstat().st_mtime_ns for path in site.rglob("*")} == before
