"""The toys and a site to install them at."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .site import TOYS, Site, make_site, needs


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipes of the toys, with their source where they say."""
    folder = tmp_path_factory.mktemp("toys") / "recipes"
    shutil.copytree(TOYS, folder)
    for recipe in folder.glob("*.eb"):
        recipe.write_text(recipe.read_text().replace("/toy-sources", str(folder)))
    return folder


@pytest.fixture
def site(tmp_path: Path, toys: Path) -> Iterator[Site]:
    """A site, all of whose processes are ended after the test."""
    needs("envkit", "eb", "lmod", "gcc", "g++", "make", "patch")
    made = make_site(tmp_path, toys)
    yield made
    for pid in made.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
