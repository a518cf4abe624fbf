"""The toys and a site to install them at; the image that the tests of images share."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from envkit import receipt
from envkit.prefix import Prefix
from envkit.receipt import ImageReceipt

from .. import stacks as real
from .site import TOYS, Site, make_site, needs

IMAGE = "pytorch-2.13-cpu-image"


@pytest.fixture(scope="session")
def image(stacks: real.Site, installed: Callable[[str], str]) -> ImageReceipt:
    """The image of PyTorch for CPUs."""
    installed(IMAGE)
    found = receipt.find(Prefix(root=stacks.prefix), IMAGE)
    assert isinstance(found, ImageReceipt)
    return found


@pytest.fixture
def debian(image: ImageReceipt) -> Path:
    """The layer of that image which is Debian alone."""
    [layer] = [layer for layer in image.layers if layer.name == "debian"]
    return Path(image.tree) / "layers" / f"debian-{layer.key[:20]}.sif"


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
