import base64
import errno
import hashlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from envkit.doctor import questions
from envkit.errors import ChecksumMismatch, DiskFull, EnvkitError, HostProblem, NotWritable, SourcesMissing
from envkit.sources import connection, pipconfig
from envkit.sources.fetch import Answers, FetchEvent, FetchState, Source, ask, fetch, missing
from envkit.sources.source_cache import recheck
from envkit.system.files import identity

from .integration.site import until

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).parents[1]
HOROVOD = b"sdist of horovod" * 1000
TORCH = b"wheel of torch" * 300_000
TORCH_NAME = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Serves ``site.files``; ``site.answers`` holds behaviours that are used up before."""

    protocol_version = "HTTP/1.1"
    server: "Site"

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.password and not self._is_welcome():
            self.reply(401)
            return
        answers = self.server.answers.get(self.path, [])
        content = self.server.files.get(self.path.partition("#")[0])
        if answers:
            answers.pop(0)(self)
        elif content is None:
            self.reply(404)
        else:
            self.reply(200, content)

    do_HEAD = do_GET

    def _is_welcome(self) -> bool:
        token = base64.b64encode(self.server.password.encode()).decode()
        return self.headers.get("Authorization") == f"Basic {token}"

    def reply(self, status: int, content: bytes = b"", length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        kind = "text/html" if self.path.endswith("/") else "application/octet-stream"
        for name, value in ({"Content_Type": kind} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Site(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # of the usual 5, a busy machine drops connections, which then wait for seconds

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[str] = []
        self.password = ""
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        pass

    def publish(self, project: str, filename: str, content: bytes, stated: str = "") -> None:
        link = f"/files/{filename.replace('+', '%2B')}"
        self.files[link] = content
        fragment = f"#sha256={stated}" if stated else ""
        page = self.files.get(f"/simple/{project}/", b"<!DOCTYPE html>")
        self.files[f"/simple/{project}/"] = page + f"<a href='{link}{fragment}'>{filename}</a>".encode()


def drop(handler: Handler) -> None:
    handler.reply(200, b"beginning", length=100_000)
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def status(code: int) -> Answer:
    return lambda handler: handler.reply(code)


def hang(handler: Handler) -> None:
    handler.reply(200, b"beginning", length=100_000)
    handler.server.released.wait(20)


def hang_before(handler: Handler) -> None:
    handler.server.released.wait(20)


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.released.set()
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def pip(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url}/simple")
    monkeypatch.setenv("PIP_TIMEOUT", "1")
    monkeypatch.setenv("NETRC", os.devnull)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def source(
    filename: str = "horovod-0.28.1.tar.gz",
    content: bytes = HOROVOD,
    project: str | None = "horovod",
    urls: tuple[str, ...] = (),
) -> Source:
    return Source(filename=filename, sha256=sha(content), urls=urls, project=project, needed_by="Horovod-0.28.1.eb")


def torch(*urls: str) -> Source:
    return source(TORCH_NAME, TORCH, "torch", urls)


def get(cache: Path, *sources: Source, offline: bool = False) -> list[FetchEvent]:
    events: list[FetchEvent] = []
    fetch(sources, cache, offline=offline, progress=events.append)
    return events


def refusal(cache: Path, *sources: Source, offline: bool = False) -> SourcesMissing:
    with pytest.raises(SourcesMissing) as caught:
        get(cache, *sources, offline=offline)
    assert caught.value.fix
    return caught.value


def states(events: list[FetchEvent]) -> list[FetchState]:
    return [event.state for event in events]


def files(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir() if path.name != ".verified.json"}


# The index


def test_sdist_and_wheel_of_another_machine_come_from_the_index(site: Site, cache: Path) -> None:
    wheel = source("horovod-0.28.1-cp39-cp39-win_arm64.whl", b"wheel")
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD, stated=sha(HOROVOD))
    site.publish("horovod", wheel.filename, b"wheel")
    events = get(cache, source(), wheel)
    assert files(cache) == {"horovod-0.28.1.tar.gz", wheel.filename}
    assert missing([source(), wheel], cache) == []
    assert sorted(states(events)) == sorted([FetchState.STARTED, FetchState.DONE] * 2)
    assert {(event.number, event.count) for event in events} == {(1, 2), (2, 2)}


def test_progress_says_how_much_of_how_much(site: Site, cache: Path) -> None:
    site.publish("torch", TORCH_NAME, TORCH)
    events = get(cache, torch())
    assert states(events)[0] == FetchState.STARTED
    assert {event.bytes_total for event in events[1:]} == {len(TORCH)}
    assert [event.bytes_done for event in events] == sorted(event.bytes_done for event in events)
    assert states(events)[-1] == FetchState.DONE
    assert FetchState.PROGRESS in states(events)


def test_where_a_source_is_known_to_be_no_page_is_read_again(site: Site, cache: Path) -> None:
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    wanted = source()
    told = ask([wanted], patience_s=10)
    assert {one: place.url for one, place in told.places.items()} == {wanted: f"{site.url}/files/{wanted.filename}"}
    site.asked.clear()
    fetch([wanted], cache, offline=False, progress=lambda _: None, known=told.places)
    assert site.asked == [f"/files/{wanted.filename}"]
    assert (cache / wanted.place).read_bytes() == HOROVOD


def test_a_place_that_has_gone_since_is_named_once_and_the_others_are_asked(site: Site, cache: Path) -> None:
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    wanted = source()
    places = ask([wanted], patience_s=10).places
    page = site.files.pop("/simple/horovod/")
    site.files["/simple/horovod/"] = page + page.replace(b"/files/", b"/moved/")
    site.files[f"/moved/{wanted.filename}"] = site.files.pop(f"/files/{wanted.filename}")
    fetch([wanted], cache, offline=False, progress=lambda _: None, known=places)
    assert (cache / wanted.place).read_bytes() == HOROVOD
    assert site.asked.count(f"/files/{wanted.filename}") == 2  # once to find it, once in vain


def test_complete_cache_asks_nobody(site: Site, cache: Path) -> None:
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    get(cache, source())
    site.asked.clear()
    assert get(cache, source()) == []
    assert site.asked == []


def test_plain_build_never_stands_in_for_the_cpu_build(site: Site, cache: Path) -> None:
    site.publish("torch", TORCH_NAME.replace("+cpu", ""), TORCH)
    assert TORCH_NAME in refusal(cache, torch()).why
    assert files(cache) == set()


def test_cpu_build_comes_from_find_links_without_asking_the_index(
    site: Site, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / TORCH_NAME).write_bytes(TORCH)
    monkeypatch.setenv("PIP_FIND_LINKS", f"/proc/nonexistent {links}")
    get(cache, torch(f"{site.url}/whl/cpu"))
    assert files(cache) == {TORCH_NAME}
    assert site.asked == []


def test_cpu_build_comes_from_the_index_page_below_its_url(site: Site, cache: Path) -> None:
    site.publish("torch", TORCH_NAME.replace("+cpu", ""), b"plain")
    site.files["/whl/cpu/torch/"] = (
        f"<a href='/blob/{TORCH_NAME.replace('+', '%2B')}#sha256={sha(TORCH)}'>x</a>".encode()
    )
    site.files[f"/blob/{TORCH_NAME.replace('+', '%2B')}"] = TORCH
    get(cache, torch(f"{site.url}/whl/cpu"))
    assert (cache / TORCH_NAME).read_bytes() == TORCH


def test_index_as_a_folder_and_find_links_as_a_page(
    site: Site, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "simple" / "horovod").mkdir(parents=True)
    (tmp_path / "horovod-0.28.1.tar.gz").write_bytes(HOROVOD)
    (tmp_path / "simple" / "horovod" / "index.html").write_text("<a href='../../horovod-0.28.1.tar.gz'>x</a>")
    site.files["/links/"] = f"<a href='/blob/{TORCH_NAME.replace('+', '%2B')}'>x</a>".encode()
    site.files[f"/blob/{TORCH_NAME.replace('+', '%2B')}"] = TORCH
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    monkeypatch.setenv("PIP_FIND_LINKS", f"{site.url}/links/")
    get(cache, source(), torch())
    assert files(cache) == {"horovod-0.28.1.tar.gz", TORCH_NAME}


def test_wrong_file_at_one_index_is_passed_over(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.publish("horovod", "horovod-0.28.1.tar.gz", b"other", stated=sha(b"other"))
    site.files["/more/horovod/"] = b"<a href='/more/horovod-0.28.1.tar.gz'>x</a>"
    site.files["/more/horovod-0.28.1.tar.gz"] = HOROVOD
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{site.url}/more")
    get(cache, source())
    assert "/files/horovod-0.28.1.tar.gz" not in site.asked


def test_json_index(site: Site, cache: Path) -> None:
    site.files["/files/horovod-0.28.1.tar.gz"] = HOROVOD
    listing = {"files": [{"url": "/files/horovod-0.28.1.tar.gz", "hashes": {"sha256": sha(HOROVOD)}}]}
    site.answers["/simple/horovod/"] = [
        lambda handler: handler.reply(
            200, json.dumps(listing).encode(), Content_Type="application/vnd.pypi.simple.v1+json"
        )
    ]
    get(cache, source())


def test_busy_index_is_asked_again(site: Site, cache: Path) -> None:
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    site.answers["/simple/horovod/"] = [status(503)]
    get(cache, source())


def test_index_that_pip_would_not_trust_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.invalid/simple")
    assert "trusted-host" in refusal(cache, source()).why


def test_no_index_asks_only_the_recipes_own_urls(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    refusal(cache, source())
    get(cache, source(urls=(f"{site.url}/files",)))
    assert "/simple/horovod/" not in site.asked


# The recipe's own URLs


def test_urls_are_tried_in_turn(site: Site, cache: Path) -> None:
    site.files["/good/a-1.tar.gz"] = b"a"
    site.files["/bad/a-1.tar.gz"] = b"an error page"
    wanted = source("a-1.tar.gz", b"a", None, tuple(f"{site.url}/{name}" for name in ("gone", "bad", "good")))
    events = get(cache, wanted)
    assert site.asked == ["/gone/a-1.tar.gz", "/bad/a-1.tar.gz", "/good/a-1.tar.gz"]
    assert events[-1].bytes_total == 1


def test_redirect_and_whole_url_under_another_name(site: Site, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    site.answers["/archive/v1.tar.gz"] = [lambda handler: handler.reply(302, Location="/blob?token=s3cret")]
    site.files["/blob?token=s3cret"] = b"a"
    told = str(get(cache, source("a-1.tar.gz", b"a", None, (f"{site.url}/archive/v1.tar.gz",))))
    assert "s3cret" not in told + caplog.text
    assert (cache / "a-1.tar.gz").read_bytes() == b"a"


@pytest.mark.parametrize("target", ["file://{}", "ftp://example.org/a-1.tar.gz", "file:{}"])
def test_no_server_leads_to_a_file_of_this_machine(site: Site, cache: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "own").write_bytes(b"a")
    where = target.format(tmp_path / "own")
    site.answers["/a-1.tar.gz"] = [lambda handler: handler.reply(302, Location=where)]
    with pytest.raises(SourcesMissing) as caught:
        get(cache, source("a-1.tar.gz", b"a", None, (f"{site.url}/a-1.tar.gz",)))
    assert "which no server may" in caught.value.why


def test_declared_compression_is_left_alone(site: Site, cache: Path) -> None:
    site.answers["/a-1.tar.gz"] = [lambda handler: handler.reply(200, b"not gzip at all", Content_Encoding="gzip")]
    get(cache, source("a-1.tar.gz", b"not gzip at all", None, (site.url,)))


def test_dropped_connection_is_tried_again(site: Site, cache: Path) -> None:
    site.files["/a-1.tar.gz"] = b"a"
    site.answers["/a-1.tar.gz"] = [drop]
    events = get(cache, source("a-1.tar.gz", b"a", None, (site.url,)))
    assert states(events) == ["started", "retrying", "started", "done"]
    assert files(cache) == {"a-1.tar.gz"}


def test_silent_server_is_given_up(site: Site, cache: Path) -> None:
    site.answers["/a-1.tar.gz"] = [hang] * 3
    began = time.monotonic()
    why = refusal(cache, source("a-1.tar.gz", b"a", None, (site.url,))).why
    assert "timed out" in why or "ReadTimeout" in why
    assert time.monotonic() - began < 15
    assert files(cache) == set()


def endless(handler: "Handler") -> None:
    """Answer without an end, until who asks has enough."""
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.send_header("Content-Type", "text/html")
    handler.end_headers()
    with suppress(OSError):
        while True:
            handler.wfile.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")


def test_an_endless_file_is_given_up(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LIMIT_BYTES", 1 << 20)
    site.answers["/a.tar.gz"] = [endless]
    with pytest.raises(SourcesMissing) as caught:
        get(cache, source("a.tar.gz", b"a", None, (site.url,)))
    assert "more comes than 1048576 bytes, which is the limit" in caught.value.why
    assert files(cache) == set()
    assert site.asked.count("/a.tar.gz") == 1


def test_a_file_that_is_said_to_be_too_large(site: Site, cache: Path) -> None:
    site.answers["/a.tar.gz"] = [lambda handler: handler.reply(200, b"a", length=1 << 40)]
    with pytest.raises(SourcesMissing) as caught:
        get(cache, source("a.tar.gz", b"a", None, (site.url,)))
    assert "it has 1099511627776 bytes, as the server says" in caught.value.why


def test_no_more_is_taken_than_the_server_said(site: Site, cache: Path) -> None:
    site.answers["/a.tar.gz"] = [lambda handler: handler.reply(200, b"aaa" + bytes(1 << 20), length=3)]
    get(cache, source("a.tar.gz", b"aaa", None, (site.url,)))
    assert (cache / "a.tar.gz").read_bytes() == b"aaa"


def test_an_endless_page_is_given_up(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PAGE_LIMIT_BYTES", 1 << 20)
    site.answers["/simple/horovod/"] = [endless]
    with pytest.raises(SourcesMissing) as caught:
        get(cache, source())
    assert "more comes than 1048576 bytes" in caught.value.why


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/tty"])
def test_a_device_is_no_source(device: str, cache: Path) -> None:
    with pytest.raises(SourcesMissing) as caught:
        get(cache, source("zero.tar.gz", b"a", None, (f"file://{device}",)))
    assert files(cache) == set() and "file:///dev" in caught.value.why


def test_dead_host_is_found_dead_once(cache: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{probe.getsockname()[1]}"
    began = time.monotonic()
    wanted = [source(f"a-{number}.tar.gz", b"a", None, (dead,)) for number in range(30)]
    assert refusal(cache, *wanted).why.count("refused") == 30
    assert time.monotonic() - began < 8


def test_one_error_names_everything_that_is_wrong(site: Site, cache: Path) -> None:
    site.files["/wrong.tar.gz"] = b"other"
    site.files["/good.tar.gz"] = b"good"
    unpinned = Source(filename="old.tar.gz", sha256=None, urls=(site.url,), needed_by="Old-1.eb")
    error = refusal(
        cache,
        source("gone.tar.gz", b"a", None, (site.url,)),
        source("wrong.tar.gz", b"a", None, (site.url,)),
        unpinned,
        source("good.tar.gz", b"good", None, (site.url,)),
    )
    assert "3 of 4" in error.what
    assert "404" in error.why
    assert sha(b"other") in error.why
    assert sha(b"a") in error.why
    assert "Old-1.eb" in error.why
    assert "Old-1.eb" in error.fix
    assert "/old.tar.gz" not in site.asked
    assert files(cache) == {"good.tar.gz"}


def test_unpinned_source_in_the_cache_is_used(cache: Path) -> None:
    cache.mkdir()
    (cache / "old.tar.gz").write_bytes(b"old")
    unpinned = Source(filename="old.tar.gz", sha256=None, needed_by="Old-1.eb")
    assert get(cache, unpinned) == []
    assert missing([unpinned], cache) == []


def test_wrong_content_everywhere(site: Site, cache: Path) -> None:
    site.files["/a.tar.gz"] = b"other"
    with pytest.raises(ChecksumMismatch) as caught:
        get(cache, source("a.tar.gz", b"a", None, (site.url,)))
    assert sha(b"other") in caught.value.why
    assert files(cache) == set()


# The cache


def test_damaged_file_is_set_aside_and_fetched_again(site: Site, cache: Path) -> None:
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    get(cache, source())
    (cache / "horovod-0.28.1.tar.gz").write_bytes(b"damaged")
    assert missing([source()], cache) == [source()]
    events = get(cache, source())
    bad = f"horovod-0.28.1.tar.gz.bad-{sha(b'damaged')[:8]}"
    assert states(events) == ["set aside", "started", "done"]
    assert sha(b"damaged") in events[0].note
    assert sha(HOROVOD) in events[0].note
    assert files(cache) == {"horovod-0.28.1.tar.gz", bad}


def test_unchanged_file_is_not_read_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    path = cache / "a.tar.gz"
    path.write_bytes(b"aaa")
    wanted, read = source("a.tar.gz", b"aaa"), list[str]()
    real = hashlib.file_digest

    def digest(stream: Any, name: str) -> Any:
        read.append(name)
        return real(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", digest)
    assert (missing([wanted], cache), len(read)) == ([], 1)
    assert not (cache / ".verified.json").exists()  # looking changes nothing
    assert (get(cache, wanted), len(read)) == ([], 2)
    assert (missing([wanted], cache), len(read)) == ([], 2)
    os.utime(path)
    assert (missing([wanted], cache), len(read)) == ([], 3)


def test_a_change_that_hides_behind_the_old_time_is_seen(cache: Path) -> None:
    cache.mkdir()
    path = cache / "a.tar.gz"
    path.write_bytes(b"aaa")
    wanted = source("a.tar.gz", b"aaa")
    assert missing([wanted], cache) == []
    before = path.stat()
    path.write_bytes(b"bbb")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert missing([wanted], cache) == [wanted]


def planted(cache: Path, content: bytes, claimed: bytes) -> Path:
    """Put a file into a cache, and a record that says that it has another content."""
    cache.mkdir(exist_ok=True)
    path = cache / "a.tar.gz"
    path.write_bytes(content)
    stamps = cache / ".verified.json"
    stamps.write_text(json.dumps({"version": 2, "files": {"a.tar.gz": [identity(path.stat()), sha(claimed)]}}))
    stamps.chmod(0o600)
    return stamps


def test_a_record_of_ones_own_is_believed(cache: Path) -> None:
    """Or nothing would be shown by what follows."""
    planted(cache, b"bbb", b"aaa")
    assert missing([source("a.tar.gz", b"aaa")], cache) == []


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_record_is_not_believed_where_others_may_write(cache: Path, mode: int) -> None:
    stamps = planted(cache, b"bbb", b"aaa")
    cache.chmod(mode)
    wanted = source("a.tar.gz", b"aaa")
    assert missing([wanted], cache) == [wanted]
    cache.chmod(0o755)
    stamps.chmod(0o666)
    assert missing([wanted], cache) == [wanted]


def test_a_record_behind_a_link_is_not_believed(cache: Path, tmp_path: Path) -> None:
    stamps = planted(cache, b"bbb", b"aaa")
    stamps.rename(tmp_path / "stamps")
    stamps.symlink_to(tmp_path / "stamps")
    wanted = source("a.tar.gz", b"aaa")
    assert missing([wanted], cache) == [wanted]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_the_record_of_another_user_is_not_believed(cache: Path) -> None:
    wanted = source("a.tar.gz", b"aaa")
    os.chown(planted(cache, b"bbb", b"aaa"), 12345, -1)
    assert missing([wanted], cache) == [wanted]
    planted(cache, b"bbb", b"aaa")
    os.chown(cache, 12345, -1)
    assert missing([wanted], cache) == [wanted]


def test_a_cache_that_others_may_write_to_keeps_no_record(cache: Path) -> None:
    cache.mkdir(mode=0o700)
    (cache / "a.tar.gz").write_bytes(b"aaa")
    cache.chmod(0o775)
    assert missing([source("a.tar.gz", b"aaa")], cache) == []
    assert files(cache) == {"a.tar.gz"} and not (cache / ".verified.json").exists()


def test_all_is_hashed_anew(cache: Path) -> None:
    """Rot on the disk changes no time: what the record says is right is read all the same."""
    (cache / "f/Flat").mkdir(parents=True)
    for name in ("a.tar.gz", "f/Flat/b.tar.gz"):
        (cache / name).write_bytes(b"aaa")
    both = [source("a.tar.gz", b"aaa"), Source(filename="b.tar.gz", folder="f/Flat", sha256=sha(b"aaa"), needed_by="x")]
    assert get(cache, *both) == []
    assert recheck(cache) == []
    (cache / "a.tar.gz").write_bytes(b"abb")
    record = json.loads((cache / ".verified.json").read_text())
    record["files"]["a.tar.gz"][0] = identity((cache / "a.tar.gz").stat())
    (cache / ".verified.json").write_text(json.dumps(record))
    assert missing(both, cache) == []
    [told] = recheck(cache)
    assert told == f"a.tar.gz: its SHA-256 was {sha(b'aaa')} and is {sha(b'abb')}; now a.tar.gz.bad-{sha(b'abb')[:8]}"
    assert missing(both, cache) == both[:1]
    assert (cache / f"a.tar.gz.bad-{sha(b'abb')[:8]}").read_bytes() == b"abb"


@pytest.mark.parametrize("stamps", [b"", b"[]", b'{"files": {"a.tar.gz": 1}}'])
def test_broken_record_of_checks_is_replaced(cache: Path, stamps: bytes) -> None:
    cache.mkdir()
    (cache / "a.tar.gz").write_bytes(b"a")
    (cache / ".verified.json").write_bytes(stamps)
    assert get(cache, source("a.tar.gz", b"a")) == []
    assert "a.tar.gz" in json.loads((cache / ".verified.json").read_text())["files"]


def test_missing_without_a_cache_creates_nothing(cache: Path) -> None:
    assert missing([source(), source()], cache) == [source()]
    assert not cache.exists()


def test_two_contents_for_one_name_are_refused(cache: Path) -> None:
    with pytest.raises(ChecksumMismatch) as caught:
        missing([source(), source(content=b"other")], cache)
    assert sha(b"other") in caught.value.why


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/a", "a\\b", "a\nb", ".hidden"])
def test_names_with_directories_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="plain file name"):
        source(name)


@pytest.mark.parametrize("folder", ["a", "/a/b", "a/..", "../a", "a/b/c", "A/b", "a/"])
def test_only_folders_of_software_are_taken(folder: str) -> None:
    with pytest.raises(ValueError, match="not a folder of sources"):
        Source(filename="x", folder=folder, sha256=None, needed_by="x.eb")


def test_two_files_of_one_name_lie_by_software(site: Site, cache: Path) -> None:
    both = []
    for software, content in (("f/FlexiBLAS", b"1"), ("d/double-conversion", b"2")):
        site.files[f"/{software}/v3.2.0.tar.gz"] = content
        both.append(
            Source(
                filename="v3.2.0.tar.gz",
                folder=software,
                sha256=sha(content),
                urls=(f"{site.url}/{software}",),
                needed_by="x.eb",
            )
        )
    get(cache, *both)
    assert (cache / "f/FlexiBLAS/v3.2.0.tar.gz").read_bytes() == b"1"
    assert (cache / "d/double-conversion/v3.2.0.tar.gz").read_bytes() == b"2"
    assert missing(both, cache) == []


def test_checksum_must_be_one() -> None:
    with pytest.raises(ValueError, match="not a SHA-256"):
        Source(filename="a", sha256="d41d8cd98f00b204e9800998ecf8427e", needed_by="x.eb")
    assert Source(filename="a", sha256="AB" * 32, needed_by="x.eb").sha256 == "ab" * 32


# Offline


def test_offline_asks_nobody_and_says_what_to_do(site: Site, cache: Path) -> None:
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    error = refusal(cache, source(), torch(), offline=True)
    assert "2 of 2" in error.what
    assert "horovod-0.28.1.tar.gz (for Horovod-0.28.1.eb)" in error.why
    assert "envkit fetch STACK --bundle FILE.tar" in error.fix
    assert "envkit install STACK --bundle FILE.tar" in error.fix
    assert site.asked == []
    assert not cache.exists()


def test_offline_names_a_damaged_file_and_changes_nothing(cache: Path) -> None:
    cache.mkdir()
    (cache / "horovod-0.28.1.tar.gz").write_bytes(b"damaged")
    with pytest.raises(ChecksumMismatch) as caught:
        get(cache, source(), offline=True)
    assert [path.name for path in cache.iterdir()] == ["horovod-0.28.1.tar.gz"]
    assert sha(b"damaged") in caught.value.why
    assert sha(HOROVOD) in caught.value.why
    assert "--bundle" in caught.value.fix


# Passwords, proxies, certificates


def test_password_of_the_index_is_used_and_never_shown(
    site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    site.password = "me:s3cret"
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url.replace('//', '//me:s3cret@')}/simple")
    told = str(get(cache, source()))
    site.password = "other:password"
    error = refusal(cache, torch(site.url.replace("//", "//me:s3cret@") + "/whl"))
    assert "401" in error.why
    assert "~/.netrc" in error.why
    assert "s3cret" not in told + str(error) + error.what + error.why + error.fix + caplog.text


@pytest.mark.parametrize("password", ["it's3cret", 'a"s3cret', "my s3cret"])
def test_an_odd_password_of_an_index_is_not_shown(cache: Path, monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://ada:{password}@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    error = refusal(cache, source())
    asked = repr(questions.indexes(time.monotonic() + 5))
    assert "***@127.0.0.1" in asked and "cret" not in str(error) + error.what + error.why + error.fix + asked


def test_password_from_netrc(site: Site, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.password = "me:s3cret"
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password s3cret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    get(cache, source())


def test_password_is_not_carried_to_another_host(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str | None] = []

    def listen(handler: Handler) -> None:
        heard.append(handler.headers.get("Authorization"))
        handler.reply(200, b"a")

    def redirect(handler: Handler) -> None:
        heard.append(handler.headers.get("Authorization"))
        handler.reply(302, Location=f"{site.url.replace('127.0.0.1', 'localhost')}/target")

    site.answers = {"/a.tar.gz": [redirect], "/target": [listen]}
    get(cache, source("a.tar.gz", b"a", None, (site.url.replace("//", "//me:s3cret@"),)))
    assert heard[0] is not None
    assert heard[1] is None


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_proxy_of_pip(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setenv("PIP_PROXY", f"{scheme}127.0.0.1:{site.server_port}")
    site.files["http://files.invalid/a.tar.gz"] = b"a"
    get(cache, source("a.tar.gz", b"a", None, ("http://files.invalid",)))


def test_proxy_also_for_trusted_hosts(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_PROXY", site.url)
    monkeypatch.setenv("PIP_TRUSTED_HOST", "index.invalid")
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.invalid/simple")
    site.files["http://index.invalid/simple/horovod/"] = b"<a href='horovod-0.28.1.tar.gz'>x</a>"
    site.files["http://index.invalid/simple/horovod/horovod-0.28.1.tar.gz"] = HOROVOD
    get(cache, source())


@pytest.fixture
def certificate(site: Site, tmp_path: Path) -> Path:
    """Make the site speak TLS with a certificate of its own."""
    import ssl

    path = tmp_path / "site.pem"
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=127.0.0.1",
            ),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path, "-out", tmp_path / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    path.write_bytes(path.read_bytes() + (tmp_path / "cert.pem").read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    site.socket = context.wrap_socket(site.socket, server_side=True)
    return path


@pytest.mark.parametrize("variable", ["PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "PIP_TRUSTED_HOST"])
def test_certificates_as_pip_has_them(
    site: Site, cache: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    url = site.url.replace("http:", "https:")
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
    assert "certificate" in refusal(cache, source()).why
    monkeypatch.setenv(variable, "127.0.0.1" if variable == "PIP_TRUSTED_HOST" else str(certificate))
    get(cache, source())


def test_certificates_that_cannot_be_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CERT", "/proc/nonexistent.pem")
    with pytest.raises(HostProblem) as caught:
        get(cache, source())
    assert "/proc/nonexistent.pem" in caught.value.why


def test_a_pip_that_does_not_say_how_it_is_configured(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "pip"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr("envkit.sources.pipconfig.pip_command", lambda: [str(slow)])
    monkeypatch.setattr("envkit.sources.pipconfig.PIP_S", 0.2)
    with pytest.raises(HostProblem, match="pip has not said") as caught:
        get(cache, source())
    assert f"'{slow} config list' was stopped" in caught.value.why


@pytest.mark.parametrize("says", [True, False])
def test_pip_is_asked_meanwhile_and_ends_with_that(
    says: bool, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip, begun = tmp_path / "pip", tmp_path / "begun"
    pip.write_text(f"#!/bin/sh\necho $$ >>{begun}\n{'' if says else 'exec sleep 60'}\n")
    pip.chmod(0o755)
    monkeypatch.setattr("envkit.sources.pipconfig.pip_command", lambda: [str(pip)])
    with pipconfig.meanwhile():
        until(lambda: begun.exists() and begun.read_text(), "pip to begin")
        if says:
            pipconfig.pip_settings()
    if says:
        pipconfig.pip_settings()
    asked = begun.read_text().split()
    assert len(asked) == 1
    until(lambda: not Path(f"/proc/{asked[0]}/cmdline").exists(), "pip to end", 5)


# Disks, permissions, other processes

SCRIPT = textwrap.dedent("""
    import resource, sys
    from pathlib import Path
    from envkit.sources.fetch import Source, fetch
    name, sha256, url, cache, limit = sys.argv[1:]
    if int(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    wanted = Source(filename=name, sha256=sha256, urls=(url,), needed_by="x.eb")
    fetch([wanted], Path(cache), offline=False, progress=lambda event: None)
""")


def fetching(site: Site, cache: Path, content: bytes, limit: int = 0) -> "subprocess.Popen[str]":
    arguments = ["a.whl", sha(content), site.url, str(cache), str(limit)]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SCRIPT, *arguments],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_full_disk_stops_the_fetch_with_one_message(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    site.files["/a.whl"] = TORCH
    monkeypatch.setattr("envkit.sources.source_cache.os.fsync", full)
    with pytest.raises(DiskFull) as caught:
        get(cache, source("a.whl", TORCH, None, (site.url,)))
    assert "a.whl" in caught.value.what
    assert str(cache) in caught.value.what
    assert "inodes free" in caught.value.why
    assert files(cache) == set()


def test_what_is_fetched_is_written_through_no_link(site: Site, cache: Path, tmp_path: Path) -> None:
    site.files["/a.whl"] = TORCH
    cache.mkdir()
    (tmp_path / "thesis").write_text("years of work")
    (cache / f"a.whl.part-{os.getpid()}@{socket.gethostname()}").symlink_to(tmp_path / "thesis")
    get(cache, source("a.whl", TORCH, None, (site.url,)))
    assert (tmp_path / "thesis").read_text() == "years of work"
    assert (cache / "a.whl").read_bytes() == TORCH and not (cache / "a.whl").is_symlink()


def test_limit_on_file_sizes_is_a_full_disk(site: Site, cache: Path) -> None:
    site.files["/a.whl"] = TORCH
    with fetching(site, cache, TORCH, limit=1_000_000) as process:
        _, errors = process.communicate()
    assert "DiskFull: There is no space for a.whl" in errors
    assert files(cache) == set()


def test_cache_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for cache in (tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.raises(NotWritable) as caught:
            get(cache, source())
        assert caught.value.exit_code == 7


def named(*wanted: Source, patience_s: float = 20) -> dict[str, str]:
    """What is said of the sources that are refused, by file."""
    return {one.source.filename: "\n".join(one.reasons) for one in ask(wanted, patience_s).refused}


def test_asking_names_what_no_place_has_and_fetches_nothing(site: Site, cache: Path) -> None:
    """An index that answers, with other files, is no reason to begin."""
    site.publish("horovod", "horovod-0.28.1.tar.gz", b"a long file" * 100_000)
    site.publish("torch", "torch-2.1.0-cp311-cp311-linux_x86_64.whl", TORCH)
    site.publish("gone", "gone-1.0.tar.gz", b"")
    del site.files["/files/gone-1.0.tar.gz"]
    gone = source("gone-1.0.tar.gz", b"gone", "gone")
    said = named(source(), torch(f"{site.url}/whl/cpu", "http://127.0.0.1:9/cpu"), gone)
    assert said.keys() == {TORCH_NAME, "gone-1.0.tar.gz"}
    assert f"{site.url}/whl/cpu/{TORCH_NAME.replace('+', '%2B')}: 404" in said[TORCH_NAME]
    assert "http://127.0.0.1:9/cpu/torch" in said[TORCH_NAME] and "Connection refused" in said[TORCH_NAME]
    assert f"{site.url}/files/gone-1.0.tar.gz: 404" in said["gone-1.0.tar.gz"]
    assert not cache.exists()


def test_asking_finds_what_any_place_has(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    site.files["/second/toy.c"] = b"toy"
    (tmp_path / TORCH_NAME).write_bytes(TORCH)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    toy = source("toy.c", b"toy", None, ("http://127.0.0.1:9", f"{site.url}/second"))
    assert named(source(), torch(), toy) == {}


def test_a_host_is_looked_up_once(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many lookups at once some are lost, and then take five seconds."""
    looked_up, look_up = list[object](), socket.getaddrinfo

    def told(host: Any, *words: Any, **more: Any) -> Any:
        looked_up.append(host)
        return look_up(host, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", told)
    url = f"http://localhost:{site.server_port}/files"
    wanted = [source(f"{number}.txt", b"x", None, (url,)) for number in range(20)]
    site.files |= {f"/files/{one.filename}": b"x" for one in wanted}
    assert named(*wanted) == {}
    assert looked_up.count("localhost") == 1
    [reasons] = named(source("gone.txt", b"x", None, ("http://nowhere.invalid",))).values()
    assert "nowhere.invalid" in reasons
    assert not cache.exists()


def test_asking_takes_the_password_and_does_not_show_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    site.password = "ada:secret"
    with_password = site.url.replace("://", "://ada:secret@")
    monkeypatch.setenv("PIP_INDEX_URL", f"{with_password}/simple")
    said = named(source(), torch(f"{with_password}/whl"))
    assert list(said) == [TORCH_NAME]
    assert "404" in said[TORCH_NAME] and "secret" not in said[TORCH_NAME]


def test_asking_does_not_wait_for_what_is_silent(
    site: Site, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Who has not answered may have the file: the download, which is patient, finds out."""
    monkeypatch.setenv("PIP_TIMEOUT", "30")
    site.answers["/simple/horovod/"] = [hang_before]
    began = time.monotonic()
    monkeypatch.setenv("PIP_INDEX_URL", f"{site.url.replace('://', '://ada:secret@')}/simple")
    answers = ask([source(), torch(f"{site.url}/whl")], 2.0)
    assert time.monotonic() - began < 15
    assert [one.filename for one in answers.unanswered] == [source().filename]
    assert answers.silent == (site.url.partition("//")[2],)
    assert [one.source.filename for one in answers.refused] == [TORCH_NAME]
    assert "/simple/horovod/" in site.asked
    assert not capfd.readouterr().err


def test_where_a_server_has_led_is_what_is_silent(site: Site) -> None:
    def elsewhere(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", f"http://localhost:{site.server_port}/there")
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    site.answers["/whl/a.whl"] = [elsewhere]
    site.answers["/there"] = [hang_before]
    answers = ask([source("a.whl", TORCH, None, (f"{site.url}/whl/a.whl",))], 0.5)
    assert answers.silent == (f"localhost:{site.server_port}",)


def test_what_is_not_asked_about_is_told_apart_from_who_is_silent(site: Site) -> None:
    many = [source(f"a{number}.whl", TORCH, None, (f"{site.url}/whl",)) for number in range(20)]
    site.answers.update({f"/whl/a{number}.whl": [hang_before] for number in range(20)})
    answers = ask(many, 1.0)
    assert (len(answers.unanswered), len(answers.unasked), answers.number) == (16, 4, 20)
    assert answers.silent == (site.url.partition("//")[2],)


def test_a_server_that_answers_slowly_is_not_silent(site: Site) -> None:
    """It has answered each question, and the time was not enough for all."""

    def slow(handler: Handler) -> None:
        handler.server.released.wait(0.4)
        handler.reply(404)

    many = [source(f"a{number}.whl", TORCH, None, (f"{site.url}/whl",)) for number in range(600)]
    site.answers.update({f"/whl/a{number}.whl": [slow] for number in range(600)})
    answers = ask(many, 10.0)  # so long that a pause of a busy machine is no silence
    assert answers.refused and answers.unasked and answers.silent == ()


def test_a_cache_that_is_silent_is_named(site: Site) -> None:
    class Slow:
        shown = "cache of /shared"

        @contextmanager
        def source(self, sha256: str) -> Iterator[Iterable[bytes]]:
            site.released.wait(20)
            yield ()

    assert ask([source()], 0.5, [Slow()]).silent == ("cache of /shared",)


def test_without_threads_nothing_is_asked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a user may have no more processes."""

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    answers = ask([source()], 5)
    assert (answers.unasked, answers.refused, site.asked) == ((source(),), (), [])


def test_nothing_is_left_of_asking(site: Site) -> None:
    """The connection is closed once the last thread has its answer, and others may log again."""
    site.answers["/simple/horovod/"] = [hang_before]
    filters = logging.getLogger("httpx2").filters
    before = list(filters)  # of other tests' threads, which may end meanwhile
    assert ask([source()], 0.3).unanswered
    [added] = [one for one in filters if one not in before]
    site.released.set()
    deadline = time.monotonic() + 20
    while added in filters and time.monotonic() < deadline:
        time.sleep(0.02)
    assert added not in filters


def test_answers_that_come_at_once_are_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each thread has ended before anybody listens."""

    class Kept:
        shown = "cache"

        @contextmanager
        def source(self, sha256: str) -> Iterator[Iterable[bytes]]:
            yield ()

    start = threading.Thread.start

    def start_and_wait(thread: threading.Thread) -> None:
        start(thread)
        thread.join()

    monkeypatch.setattr(threading.Thread, "start", start_and_wait)
    many = [source(f"a{number}.whl") for number in range(3)]
    assert ask(many, 20, [Kept()]) == Answers(number=3)


def test_asking_tries_a_busy_place_again(site: Site) -> None:
    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    site.answers["/simple/horovod/"] = [status(503)]
    assert named(source()) == {}


def test_many_are_asked_for_at_the_same_time(site: Site) -> None:
    many = [source(f"p{number}-1.0.tar.gz", b"p", f"p{number}", ("http://127.0.0.1:9",)) for number in range(60)]
    began = time.monotonic()
    assert len(named(*many)) == 60
    assert time.monotonic() - began < 15


def test_two_fetches_at_once(site: Site, cache: Path) -> None:
    site.files["/a.whl"] = TORCH * 5
    with fetching(site, cache, TORCH * 5) as one, fetching(site, cache, TORCH * 5) as other:
        assert one.communicate()[1] == ""
        assert other.communicate()[1] == ""
    assert files(cache) == {"a.whl"}
    assert missing([source("a.whl", TORCH * 5)], cache) == []


def test_killed_fetch_leaves_nothing_behind_the_next(site: Site, cache: Path) -> None:
    site.files["/a.whl"] = TORCH
    site.answers["/a.whl"] = [hang]
    foreign = cache / "b.whl.part-1@another-host"
    with fetching(site, cache, TORCH) as process:
        while not list(cache.glob("a.whl.part-*")):
            time.sleep(0.02)
        foreign.write_bytes(b"in use")
        process.kill()
    assert len(files(cache)) == 2
    get(cache, source("a.whl", TORCH, None, (site.url,)))
    assert files(cache) == {"a.whl", foreign.name}
    os.utime(foreign, (1, 1))
    get(cache, source("a.whl", TORCH, None, (site.url,)))
    assert files(cache) == {"a.whl"}


def test_ctrl_c_does_not_wait_for_a_silent_server(site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_TIMEOUT", "60")
    site.answers["/a.whl"] = [hang]
    with fetching(site, cache, TORCH) as process:
        while not list(cache.glob("a.whl.part-*")) and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, errors = process.communicate()
    assert time.monotonic() - began < 6
    assert "KeyboardInterrupt" in errors


def test_failure_of_the_listener_is_not_swallowed(site: Site, cache: Path) -> None:
    def listen(event: FetchEvent) -> None:
        raise RuntimeError("terminal gone")

    site.publish("horovod", "horovod-0.28.1.tar.gz", HOROVOD)
    with pytest.raises(RuntimeError, match="terminal gone"):
        fetch([source()], cache, offline=False, progress=listen)


def test_import_is_light() -> None:
    code = "import envkit.sources.fetch, sys; print({'unearth', 'httpx2', 'ssl', 'packaging'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "set()\n"


def test_every_refusal_is_one_that_a_user_can_repair(cache: Path) -> None:
    with pytest.raises(EnvkitError) as caught:
        get(cache, source(), offline=True)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("started", range(3))
def test_a_signal_before_all_downloads_are_started_is_no_traceback(
    started: int, site: Site, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.publish("torch", TORCH_NAME, TORCH)
    begin, begun = threading.Thread.start, list[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if "_work" in thread.name:  # the server has threads of its own
            if len(begun) == started:
                raise KeyboardInterrupt
            begun.append(thread)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        get(cache, torch())
    assert not any(thread.is_alive() for thread in begun)
