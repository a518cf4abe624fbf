"""No server holds envkit for ever or fills its memory, whatever it is asked for."""

import io
import itertools
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from envkit.cache import bucket, server
from envkit.cache.place import Place
from envkit.errors import CacheInvalid
from envkit.sources import answers
from envkit.sources.answers import RefusedError, SlowError, begun, in_time
from envkit.sources.connection import Connection
from envkit.sources.pipconfig import PipSettings

from . import s3
from .harmful import ANSWERS, harmful
from .test_cache import serving

OBJECT = f"objects/{'0' * 64}.tar.zst"
SETTINGS = {
    "AWS_ACCESS_KEY_ID": "somebody",
    "AWS_SECRET_ACCESS_KEY": "something",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}


def names(named: str) -> Callable[[str], object]:
    """What asks a cache for the names in it."""
    return lambda netloc: Place(named=named.replace("HOST", netloc)).names()


def content(named: str) -> Callable[[str], object]:
    """What reads an object of a cache."""

    def read(netloc: str) -> None:
        with Place(named=named.replace("HOST", netloc)).opened(OBJECT, 50_000_000) as chunks:
            for _ in chunks:
                pass

    return read


@contextmanager
def connected() -> Iterator[Connection]:
    """A connection that gives up soon."""
    connection = Connection(PipSettings(timeout_s=1.0), connect_s=1.0, backoff_s=())
    try:
        yield connection
    finally:
        connection.close()


def page(netloc: str) -> None:
    """Read a page of an index."""
    with connected() as connection:
        connection.get(f"http://{netloc}/simple/horovod/")


def head(netloc: str) -> None:
    """Ask for a file without its content."""
    with connected() as connection:
        connection.head(f"http://{netloc}/horovod-0.28.1.tar.gz")


def source(netloc: str) -> None:
    """Read a source, of which most have less than this."""
    done = 0
    with connected() as connection, connection.opened(f"http://{netloc}/horovod-0.28.1.tar.gz") as (_, chunks):
        for chunk in chunks:
            done += len(chunk)
            if done > 50_000_000:
                raise RefusedError("enough")


def upload(netloc: str) -> None:
    """Write a file to a bucket."""
    bucket.put("s3://builds/cache", OBJECT, io.BytesIO(bytes(100_000)))


ASKING = {
    "page": page,
    "source": source,
    "server": names("http://HOST/cache"),
    "object of a server": content("http://HOST/cache"),
    "bucket": names("s3://builds/cache"),
    "object of a bucket": content("s3://builds/cache"),
    "upload to a bucket": upload,
    "registry": names("oci://HOST/site/builds"),
}


AS_IT_COMES = {"source", "object of a server", "object of a bucket", "upload to a bucket"}  # it is not unpacked


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a thread that is left has a socket
@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (kind, asked)
        for kind in ANSWERS
        for asked in ASKING
        if not (kind == "it is packed twice" and asked in AS_IT_COMES)
    ],
)
def test_a_server_that_means_harm(kind: str, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up within seconds, and little of what it sends is taken."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(answers, "PATIENCE_S", 1.0)
    monkeypatch.setattr(server, "asked", lambda: PipSettings(timeout_s=1.0))
    for module in ("server", "bucket", "oci"):
        monkeypatch.setattr(f"envkit.cache.{module}.CONNECT_S", 1.0)
    with harmful(kind) as harm:
        s3.use(monkeypatch, {**SETTINGS, "AWS_ENDPOINT_URL": f"http://{harm.netloc}"})
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises((RefusedError, CacheInvalid)):
            ASKING[asked](harm.netloc)
        assert time.monotonic() - began < 20
        assert harm.sent < 120_000_000
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


@pytest.mark.integration
def test_headers_that_drip_without_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(answers, "PATIENCE_S", 0.5)
    with harmful("its headers drip") as server, pytest.raises(answers.SlowError, match="no whole answer came in"):
        head(server.netloc)


def test_what_a_question_raises_is_raised() -> None:
    with pytest.raises(KeyError, match="x"):
        begun(lambda: dict[str, int]()["x"], 10)
    assert begun(lambda: 3, 10) == 3


def test_what_is_done_with_a_piece_is_not_the_servers_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PATIENCE_S", 0.2)
    for _ in in_time([b"x"] * 3):
        time.sleep(0.3)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("coding", "is_read"),
    [("aws-chunked", True), ("none", True), ("", True), ("gzip", False), ("br", False), ("deflate", False)],
)
def test_a_page_whose_coding_is_none(coding: str, is_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read as it comes; a coding that was not asked for, and what is not of that coding, are refused."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    class Page(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Encoding", coding)
            self.end_headers()
            self.wfile.write(b"a page")

    connection = Connection(PipSettings(timeout_s=1.0), backoff_s=())
    with serving(Path("/proc/nonexistent"), Page) as url:
        if is_read:
            assert connection.get(url).content == b"a page"
        else:
            with pytest.raises(RefusedError):
                connection.get(url)
    connection.close()


def test_what_is_sent_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PATIENCE_S", 0.2)
    ended, sent = threading.Event(), itertools.count()

    def send() -> int:
        ended.wait(10)
        return 3

    threading.Timer(1.0, ended.set).start()
    assert begun(send, 0.0, lambda: next(sent)) == 3
    ended.clear()
    with pytest.raises(SlowError, match="no whole answer came"):
        begun(send, 0.0, lambda: 100)
    ended.set()


def test_a_server_that_is_slow_once_is_not_asked_for_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(answers, "PATIENCE_S", 0.2)
    connection = Connection(PipSettings(timeout_s=0.2), connect_s=0.2, backoff_s=(0.0, 0.0))
    with harmful("its headers drip") as server:
        url = f"http://{server.netloc}/horovod-0.28.1.tar.gz"
        with pytest.raises(SlowError, match="no whole answer came"):
            connection.with_retries(url, lambda: connection.head(url), print)
        with pytest.raises(RefusedError, match="it is too slow: for another file no whole answer came"):
            connection.head(f"{url}.asc")
    connection.close()
