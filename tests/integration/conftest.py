"""The toys and a site to install them at; the image that the tests of images share."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from filelock import FileLock

from envkit.apptainer.receipt import ImageReceipt
from envkit.environments.prefix import Prefix
from envkit.methods.installed import find

from .. import stacks as real
from .site import TOYS, Site, make_site, needs

IMAGE = "pytorch-2.13-cpu-image"


@pytest.fixture(scope="session")
def image(stacks: real.Site, installed: Callable[[str], str]) -> ImageReceipt:
    """The image of PyTorch for CPUs."""
    installed(IMAGE)
    found = find(Prefix(root=stacks.prefix), IMAGE)
    assert isinstance(found, ImageReceipt)
    return found


@pytest.fixture
def debian(image: ImageReceipt) -> Path:
    """The layer of that image which is Debian alone."""
    [layer] = [layer for layer in image.layers if layer.name == "debian"]
    return Path(image.tree) / "layers" / f"debian-{layer.key[:20]}.sif"


@pytest.fixture(scope="session")
def toys(shared: Path) -> Path:
    """The recipes of the toys, with their source where they say."""
    folder = shared / "toys" / "recipes"
    with FileLock(shared / "toys.lock"):
        if not folder.exists():
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


class Handler(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A server of the repository; yields the settings that name it."""
    for name in ("software.eessi.io", "software.example.org"):
        folder = tmp_path / "web" / "cvmfs" / name
        folder.mkdir(parents=True)
        (folder / ".cvmfspublished").write_bytes(f"Cabc\nN{name}\n--\nabc\n".encode())
    handler = partial(Handler, directory=str(tmp_path / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        Thread(target=serving.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{serving.server_address[1]}/cvmfs/@fqrn@"
        yield {"CVMFS_SERVER_URL": url, "CVMFS_HTTP_PROXY": "DIRECT", "ENVKIT_EESSI_DIR": ""}
        serving.shutdown()
