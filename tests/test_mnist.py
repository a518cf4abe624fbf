import gzip
import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.errors import ChecksumMismatch, NotWritable, SourcesMissing
from envkit.system import files, umask
from envkit.training import mnist
from envkit.training.mnist import Pinned

Output = pytest.CaptureFixture[str]
CONTENT = {name: gzip.compress(name.encode()) for name in mnist.pinned().files}
DEAD = "http://127.0.0.1:9/"


def like_mnist(*urls: str) -> Pinned:
    """Four small files under the names of MNIST's."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
    return Pinned(files=digests, urls=urls)


def put(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    return folder


class Server(ThreadingHTTPServer):
    """Serves a folder, and counts what is asked for."""

    asked: list[str]


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        assert isinstance(self.server, Server)
        self.server.asked.append(self.path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    put(tmp_path / "web")
    with Server(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "web"))) as made:
        made.asked = []
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/"


def test_what_is_pinned() -> None:
    found = mnist.pinned()
    assert len(found.files) == 4 and all(len(digest) == 64 for digest in found.files.values())
    assert all(url.startswith("https://") and url.endswith("/") for url in found.urls)


GET = """
import json, sys
from pathlib import Path
from envkit.training import mnist
print(mnist.get(Path(sys.argv[1]), mnist.Pinned(files=json.loads(sys.argv[2]), urls=(sys.argv[3],)), env={}).said)
"""


@pytest.mark.integration
def test_it_is_fetched_once_by_several_at_the_same_time(server: Server, tmp_path: Path) -> None:
    wanted = like_mnist(url(server))
    argv = [sys.executable, "-c", GET, str(tmp_path / "data"), json.dumps(wanted.files), url(server)]
    running = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {one.communicate(timeout=60)[0] for one in running}
    assert said == {f"{tmp_path}/data/mnist: MNIST, checked\n"}
    assert sorted(server.asked) == sorted(f"/{name}" for name in CONTENT)
    assert mnist.holds(tmp_path / "data" / "mnist", wanted)


def test_what_is_offered_must_be_what_is_pinned(server: Server, tmp_path: Path) -> None:
    for name in CONTENT:
        (tmp_path / "web" / name).write_bytes(b"something else")
    with pytest.raises(ChecksumMismatch, match="4 of 4"):
        mnist.get(tmp_path / "data", like_mnist(url(server)), env={})
    assert not list((tmp_path / "data").rglob("*.gz"))


@pytest.mark.integration
def test_without_a_network_it_is_the_stand_in(server: Server, tmp_path: Path) -> None:
    found = mnist.get(tmp_path, like_mnist(DEAD), env={})
    assert found.generated and "generated stand-in, not MNIST" in found.said and "could not be fetched" in found.said
    assert (found.folder / "GENERATED.txt").read_text().startswith("generated stand-in, not MNIST: 6000 + 1000 ")
    again = mnist.get(tmp_path, like_mnist(url(server)), env={})
    assert again.folder == found.folder and server.asked == []
    assert mnist.get(tmp_path, like_mnist(url(server)), anew=True, env={}).folder == tmp_path / "mnist"


def test_the_stand_in_is_like_mnist_and_always_the_same(tmp_path: Path) -> None:
    one, other = (mnist.generate(tmp_path / name, train=40, test=20) for name in ("a", "b"))
    names = sorted([*CONTENT, "GENERATED.txt"])
    assert sorted(path.name for path in one.iterdir()) == names
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in names)
    images = gzip.decompress((one / "t10k-images-idx3-ubyte.gz").read_bytes())
    assert struct.unpack(">4i", images[:16]) == (2051, 20, 28, 28) and len(images) == 16 + 20 * 784
    labels = gzip.decompress((one / "train-labels-idx1-ubyte.gz").read_bytes())
    assert struct.unpack(">2i", labels[:8]) == (2049, 40) and len(labels) == 48 and max(labels[8:]) < 10


@pytest.mark.parametrize("below", ["", "mnist", "MNIST/raw"])
def test_what_a_site_has_is_used_where_it_lies(below: str, tmp_path: Path) -> None:
    folder = put(tmp_path / "site" / below)
    wanted = like_mnist(DEAD)
    env = {"ENVKIT_DATA": str(tmp_path / "site")}
    assert mnist.get(tmp_path / "data", wanted, env=env).folder == folder
    assert mnist.get(tmp_path / "data", wanted, places=[str(tmp_path / "site")], env={}).folder == folder
    assert not (tmp_path / "data").exists()


def test_what_a_site_has_is_copied_and_checked(tmp_path: Path) -> None:
    folder = put(tmp_path / "site")
    found = mnist.take(folder, tmp_path / "data", like_mnist(DEAD))
    assert found.folder == tmp_path / "data" / "mnist" and mnist.holds(found.folder, like_mnist(DEAD))
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    with pytest.raises(SourcesMissing, match="does not have MNIST"):
        mnist.take(folder, tmp_path / "other", like_mnist(DEAD))


def test_what_changes_while_it_is_copied_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, read = put(tmp_path / "site"), files.read
    monkeypatch.setattr(files, "read", lambda path: read(path) + b"changed")
    with pytest.raises(SourcesMissing, match="has changed meanwhile"):
        mnist.take(folder, tmp_path / "data", like_mnist(DEAD))
    assert not [*(tmp_path / "data" / "mnist").iterdir()]


def test_a_link_is_not_fetched_into(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/train-images-idx3-ubyte.gz").write_bytes(b"my own")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mnist").symlink_to(tmp_path / "own")
    with pytest.raises(NotWritable, match="mnist cannot be written to"):
        mnist.get(tmp_path / "data", like_mnist(DEAD), env={})
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["train-images-idx3-ubyte.gz"]


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    for name in like_mnist(DEAD).files:
        os.mkfifo(tmp_path / name)
    with pytest.raises(SourcesMissing, match="does not have MNIST"):
        mnist.take(tmp_path, tmp_path / "data", like_mnist(DEAD))


def test_nobody_else_may_write_to_the_data(tmp_path: Path) -> None:
    with umask.set_to(0), mnist.own(tmp_path) as at:
        mnist.write(at, "images", b"images")
    assert (tmp_path / "images").stat().st_mode & 0o777 == 0o644


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotWritable, match="cannot be written to"):
        mnist.made(tmp_path / "file" / "data")


def test_the_command_makes_the_stand_in(tmp_path: Path, capsys: Output) -> None:
    assert run(["data", "mnist", "--generated", "--to", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out == f"{tmp_path}/mnist-generated\n"
    assert "generated stand-in, not MNIST" in said.err


def test_the_command_refuses_what_is_not_mnist(tmp_path: Path, capsys: Output) -> None:
    assert run(["data", "mnist", "--from", str(tmp_path), "--to", str(tmp_path / "to")]) == 4
    assert "each with the SHA-256 that is published" in capsys.readouterr().err
    assert run(["data", "mnist", "--from", str(tmp_path), "--generated"]) == 2
    assert run(["data", "cifar"]) == 2


def test_nothing_is_written_through_links(tmp_path: Path) -> None:
    thesis, name = tmp_path / "thesis", "train-images-idx3-ubyte.gz"
    thesis.write_text("years of work")
    part = tmp_path / "part"
    part.mkdir()
    (part / name).symlink_to(thesis)
    with mnist.own(part) as at:
        part.rename(tmp_path / "moved")
        part.symlink_to(tmp_path)
        mnist.write(at, name, b"images")
    assert thesis.read_text() == "years of work" and not (tmp_path / name).exists()
    assert gzip.decompress((tmp_path / "moved" / name).read_bytes()) == b"images"
    with pytest.raises(NotWritable, match="part cannot be written to"), mnist.own(part):
        pass
