"""The cache of builds in a bucket of S3, on a real server."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from envkit.cache import bucket, contents, layout, place, publishing
from envkit.cache.manifest import Manifest
from envkit.cache.place import Place, SignedManifest
from envkit.environments.prefix import Tree
from envkit.errors import CacheInvalid, HostProblem, NotWritable
from envkit.install import cache_push
from envkit.sources.fetch import fetch

from . import s3
from .test_cache import MODULE, OTHER, below, described, module_in, packed, put, serving
from .test_cache_pull import states, take
from .test_cache_sources import TEXTS, files_in, sources

pytestmark = pytest.mark.integration
HERE = Place(named=f"s3://{s3.BUCKET}/site/cache")


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """A server that asks who one is, and the settings with which one may."""
    with s3.serving() as settings:
        yield settings


@pytest.fixture
def settings(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The settings, set; the bucket is empty."""
    s3.use(monkeypatch, server)
    yield server
    s3.use(monkeypatch, server)
    made = s3.client("s3", server["AWS_ENDPOINT_URL"], server["AWS_ACCESS_KEY_ID"], server["AWS_SECRET_ACCESS_KEY"])
    for one in made.list_objects_v2(Bucket=s3.BUCKET).get("Contents", ()):
        made.delete_object(Bucket=s3.BUCKET, Key=one["Key"])


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A prefix with a module in it."""
    return module_in(tmp_path / "a-prefix-of-some-length")


def publish(made: Manifest, at: Path, to: Place = HERE) -> publishing.Sent:
    """Push a build."""
    with at.open("rb") as stream:
        return publishing.publish(to, made, stream, b"")


def pushed(tree: Tree, folder: Path) -> SignedManifest:
    """Push the module; return what is there then."""
    made = described(packed(tree, folder / "packed"))
    assert publish(made, folder / "packed")
    return HERE.entry(f"Horovod--1.0-toy/{made.key}.json")


@pytest.mark.usefixtures("settings")
class TestBucket:
    """What a folder does, a bucket does."""

    def test_a_build_by_a_bucket(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path)
        assert HERE.names() == [f"Horovod--1.0-toy/{entry.id}.json"]
        assert (put(entry, tmp_path / OTHER).software / MODULE / "bin/horovodrun").is_file()
        assert not publish(entry.manifest, tmp_path / "packed")
        assert publishing.indexed(HERE) == (f"Horovod--1.0-toy/{entry.id}.json",)
        assert [one.state for one in contents.verified([HERE], ()).builds] == ["unsigned"]

    def test_the_root_of_a_bucket(self, tree: Tree, tmp_path: Path) -> None:
        root, made = Place(named=f"s3://{s3.BUCKET}/"), described(packed(tree, tmp_path / "packed"))
        assert publish(made, tmp_path / "packed", root)
        assert root.names() == [f"Horovod--1.0-toy/{made.key}.json"]
        assert HERE.names() == []

    def test_more_than_a_page_of_them(self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bucket, "PAGE", 2)
        of = packed(tree, tmp_path / "packed")
        builds = [described(of, cpu=(f"feature{number}",)) for number in range(3)]
        for one in builds:
            publish(one, tmp_path / "packed")
        names = sorted(f"Horovod--1.0-toy/{one.key}.json" for one in builds)
        assert HERE.names() == names

    def test_pushes_at_the_same_time(self, tree: Tree, tmp_path: Path) -> None:
        of, errors = packed(tree, tmp_path / "packed"), list[Exception]()
        builds = [described(of, cpu=(f"feature{number}",)) for number in range(4)]

        def push(one: Manifest) -> None:
            try:
                publish(one, tmp_path / "packed")
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=push, args=(one,)) for one in builds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert sorted(publishing.indexed(HERE)) == sorted(f"Horovod--1.0-toy/{one.key}.json" for one in builds)

    def test_what_is_removed(self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        entry, content = pushed(tree, tmp_path), b"of no manifest"
        damaged, nobodys = (
            layout.object_of(one) for one in (entry.manifest.sha256, hashlib.sha256(content).hexdigest())
        )
        HERE.writable.put(HERE.named, nobodys, io.BytesIO(content))
        assert contents.prune(HERE, 0, dry_run=False).removed == ()  # somebody may be pushing it
        monkeypatch.setattr(contents, "LEFT_S", -60.0)
        assert contents.prune(HERE, 0, dry_run=True).removed == (nobodys,)
        assert contents.prune(HERE, 0, dry_run=False).size == len(content)
        (tmp_path / "damaged").write_text("damaged")
        with (tmp_path / "damaged").open("rb") as stream:
            HERE.writable.put(HERE.named, damaged, stream)
        assert [one.state for one in contents.verified([HERE], ()).builds] == ["bad"]
        gone = contents.prune(HERE, 0, dry_run=False).removed
        assert set(gone) == {f"manifests/Horovod--1.0-toy/{entry.id}.json", damaged}
        assert publishing.indexed(HERE) == ()

    def test_what_is_not_of_a_cache_is_left_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contents, "LEFT_S", -60.0)
        (tmp_path / "results").write_text("dear")
        theirs = ("objects/raw-results.h5", f"objects/{'0' * 64}", "manifests/x/notes.txt", "sources/a.tar.gz")
        for name in theirs:
            with (tmp_path / "results").open("rb") as stream:
                HERE.writable.put(HERE.named, name, stream)
        assert contents.prune(HERE, 0, dry_run=False).removed == ()
        for name in theirs:
            assert HERE.read(name, 100) == b"dear"

    def test_copied_out_of_a_bucket_and_into_one(self, tree: Tree, tmp_path: Path) -> None:
        entry, new = pushed(tree, tmp_path), tmp_path / "mirror"
        new.mkdir()
        out = [states(take(HERE, Place(named=str(new)))) for _ in range(2)]
        assert out == [["copied"], ["there"]]
        assert (new / layout.object_of(entry.manifest.sha256)).read_bytes() == (tmp_path / "packed").read_bytes()
        other = Place(named=f"s3://{s3.BUCKET}/another")
        assert [states(take(str(new), other)) for _ in range(2)] == [["copied"], ["there"]]
        assert [one.state for one in contents.verified([other], ()).builds] == ["unsigned"]

    def test_sources(self, tmp_path: Path) -> None:
        (tmp_path / "own").mkdir()
        for name, text in TEXTS.items():
            (tmp_path / "own" / name).write_bytes(text)
        assert [cache_push.push_sources(HERE, sources(), tmp_path / "own") for _ in range(2)] == [2, 0]
        assert HERE.names() == []
        fetch(sources(), tmp_path / "new", offline=False, progress=lambda _: None, kept=[HERE])
        assert files_in(tmp_path / "new") == TEXTS
        assert [one.wrong for one in contents.verified([HERE], []).sources] == ["", ""]
        bad = layout.source_of(sources()[0].sha256 or "")
        HERE.writable.put(HERE.named, bad, io.BytesIO(b"damaged"))
        assert contents.prune(HERE, 0, dry_run=False).removed == (bad,)
        assert len(contents.verified([HERE], []).sources) == 1

    def test_credentials_in_a_file(
        self, tree: Tree, tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        s3.use(monkeypatch, s3.credentials(tmp_path, settings))
        assert pushed(tree, tmp_path).id

    def test_commands_on_a_bucket(self, tree: Tree, tmp_path: Path) -> None:
        entry = pushed(tree, tmp_path)

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            env = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
            return subprocess.run(
                [shutil.which("envkit") or "envkit", "cache", *words], env=env, capture_output=True, text=True
            )

        [listed] = json.loads(run("list", HERE.named, "--json").stdout)["builds"]
        assert (listed["id"], listed["place"]) == (entry.id, HERE.named)
        assert f"Cache:    {HERE.named}" in run("show", entry.id[:8], HERE.named).stdout
        assert run("verify", HERE.named).stdout.endswith("1 build, none bad.\n")
        assert run("prune", HERE.named, "--dry-run").stdout == "Would remove 0 files, 0 B.\n"
        refused = run("verify", "s3://Not_A_Bucket")
        assert refused.returncode == 2
        assert "s3://BUCKET/FOLDER" in refused.stderr

    def test_a_damaged_object_is_sent_again_once_it_is_tidied_up(self, tree: Tree, tmp_path: Path) -> None:
        """A bucket does not tell what is in an object, so until then a push finds it there."""
        entry, of_others = pushed(tree, tmp_path), HERE.writable
        content = (tmp_path / "packed").read_bytes()
        of_others.put(HERE.named, entry.manifest.object_name, io.BytesIO(bytes([content[0] ^ 1]) + content[1:]))
        assert not publish(entry.manifest, tmp_path / "packed")
        assert [one.state for one in contents.verified([HERE], ()).builds] == ["bad"]
        contents.prune(HERE, 0, dry_run=False)
        assert publish(entry.manifest, tmp_path / "packed") == {"object", "manifest"}
        assert [one.state for one in contents.verified([HERE], ()).builds] == ["unsigned"]


class TestRefused:
    """Who may not, and what is not there: said in words, and never with a secret."""

    def refused(self, of: Place = HERE) -> str:
        """Ask what there is, which is refused; return why."""
        return self.refusal(of).why

    def refusal(self, of: Place = HERE) -> CacheInvalid:
        """Ask what there is, which is refused."""
        with pytest.raises(CacheInvalid) as caught:
            of.names()
        assert caught.value.exit_code == 4
        return caught.value

    @pytest.mark.usefixtures("settings")
    def test_without_credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Closed(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(403)
                self.end_headers()
                self.wfile.write(b"<Error><Code>AccessDenied</Code></Error>")

        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        with serving(Path("/proc/nonexistent"), Closed) as url:
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            refusal = self.refusal()
            with pytest.raises(NotWritable) as told, publishing.writing(HERE, "It"):
                HERE.writable.require(HERE.named)
        anonymous = "there are no credentials, so it was asked as anybody may"
        assert refusal.why == f"ListObjectsV2: AccessDenied ({anonymous})."
        assert refusal.fix.startswith("Set the credentials of somebody who may: AWS_ACCESS_KEY_ID")
        assert told.value.fix == refusal.fix

    def test_a_secret_that_is_wrong(self, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
        why = self.refused()
        assert "SignatureDoesNotMatch" in why and "no credentials" not in why
        assert "a-wrong-secret" not in why
        assert settings["AWS_ACCESS_KEY_ID"] not in why

    def test_a_bucket_that_is_not_there(self, settings: dict[str, str]) -> None:
        assert "NoSuchBucket" in self.refused(Place(named="s3://another"))

    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("AWS_ENDPOINT_URL", "127.0.0.1:9", "does not begin with http:// or https://"),
            ("AWS_DEFAULT_REGION", "not a region", "region_name"),
        ],
    )
    def test_a_setting_that_is_none(
        self, name: str, value: str, says: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(name, value)
        assert settings and says in self.refused()

    def test_no_server(self, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:secret@127.0.0.1:9")
        began = time.monotonic()
        why = self.refused()
        assert "Could not connect" in why
        assert "secret" not in why
        assert time.monotonic() - began < 30

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("AWS_SESSION_TOKEN", "hunter2\n"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2\n"),
            ("AWS_ACCESS_KEY_ID", "hunter2\n"),
            ("AWS_ENDPOINT_URL", "me:hunter2@127.0.0.1:9"),
            ("AWS_ENDPOINT_URL", "127.0.0.1:9"),
            ("AWS_ENDPOINT_URL", "http://me:top/hunter2@127.0.0.1:9"),
            ("AWS_ENDPOINT_URL", "http://me:1/hunter2@127.0.0.1:9"),
            ("AWS_ENDPOINT_URL", "http://me:top#hunter2@127.0.0.1:9"),
            ("AWS_ENDPOINT_URL", "http://me:top?hunter2@127.0.0.1:9"),
            ("http_proxy", "http://me:hunter2#x@127.0.0.1:9"),
            ("http_proxy", "http://me:x/hunter2@127.0.0.1:9"),
            ("http_proxy", "http://me:hunter2@127.0.0.1:9"),
            ("AWS_PROFILE", "hunter3"),
        ],
    )
    def test_a_setting_that_is_wrong(
        self, name: str, value: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as changed:
            changed.delenv("no_proxy", raising=False)
            changed.delenv("NO_PROXY", raising=False)
            changed.setenv(name, value)
            assert "hunter2" not in self.refused()

    @pytest.mark.parametrize("says", ["/bin/echo hunter2", "/bin/false hunter2", "/nonexistent hunter2"])
    def test_a_program_for_credentials(
        self, says: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "config").write_text(f"[default]\ncredential_process = {says}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(key)
        assert "hunter2" not in self.refused()

    @pytest.mark.parametrize(
        ("header", "value"),
        [
            ("Last-Modified", "garbage"),
            ("Last-Modified", "1e300"),
            ("Content-Length", "abc"),
            ("Content-Length", "-5"),
            ("x-amz-missing-meta", "abc"),
            ("Expires", "\xff" * 50),
            ("x-amz-restore", "\x01"),
        ],
    )
    def test_headers_that_botocore_cannot_read(
        self, header: str, value: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Odd(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header(header, value)
                self.end_headers()
                self.wfile.write(b"hello")

        with serving(Path("/proc/nonexistent"), Odd) as url:
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            with suppress(CacheInvalid):
                assert HERE.read("index.json", 1000) == b"hello"
            self.refused()

    def test_a_server_that_repeats_what_it_got(self, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        class Echo(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(403)
                self.end_headers()
                got = self.headers["Authorization"]
                self.wfile.write(f"<Error><Code>{got}</Code><Message>{got}</Message></Error>".encode())

        with serving(Path("/proc/nonexistent"), Echo) as url:
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            why = self.refused()
        assert settings["AWS_ACCESS_KEY_ID"] not in why and "Signature" not in why

    def test_what_is_larger_than_the_server_takes(
        self, tree: Tree, tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Small(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                is_list = "list-type" in self.path
                self.send_response(200 if is_list else 404)
                self.end_headers()
                self.wfile.write(b"<ListBucketResult></ListBucketResult>" * is_list)

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(400)
                self.end_headers()
                self.wfile.write(b"<Error><Code>EntityTooLarge</Code></Error>")

        made = described(packed(tree, tmp_path / "packed"))
        with serving(Path("/proc/nonexistent"), Small) as url:
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            with pytest.raises(HostProblem, match="is too large for") as refused, publishing.writing(HERE, "It"):
                publish(made, tmp_path / "packed")
        assert refused.value.fix == "Push it into a folder or a registry."

    def test_without_boto3(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
        assert "pip install 'envkit[s3]'" in self.refused()

    def test_a_bucket_that_anybody_may_read(self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with s3.serving(is_checked=False) as settings:
            s3.use(monkeypatch, settings)
            entry = pushed(tree, tmp_path)
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                monkeypatch.delenv(name)
            assert HERE.names() == [f"Horovod--1.0-toy/{entry.id}.json"]

    def test_a_server_that_ends_in_the_middle(
        self, tree: Tree, tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Cut(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(entry.manifest.size))
                self.end_headers()
                self.wfile.write(b"the beginning")

        entry = pushed(tree, tmp_path)
        with serving(tmp_path, Cut) as url:
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            with pytest.raises(CacheInvalid) as told:
                put(entry, tmp_path / OTHER)
        assert place.is_of_server(told.value) and "broken off" in told.value.why
        assert below(tmp_path / OTHER) == set()
