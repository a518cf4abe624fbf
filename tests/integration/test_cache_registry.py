"""The cache of builds in a registry of images, on a real one (Debian's docker-registry)."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from envkit import cli
from envkit.cache import contents, layout, publishing
from envkit.cache import oci as oci
from envkit.cache.manifest import Manifest
from envkit.cache.place import Place
from envkit.environments.prefix import Tree
from envkit.errors import CacheInvalid, NotWritable, UsageProblem
from envkit.install import cache_push
from envkit.sources import answers
from envkit.sources.answers import LoginError, RefusedError
from envkit.sources.fetch import fetch

from ..test_cache import MODULE, OTHER, described, module_in, packed, put
from ..test_cache_pull import states, take
from ..test_cache_sources import TEXTS, files_in, sources
from . import registry
from .site import needs

pytestmark = pytest.mark.integration
WHO, SECRET = "somebody", "s3cr3t-of-a-registry"
NAME = "site/envkit"
NONSENSE = [b"[]", b"{", b'{"tags": [1]}', b'{"tags": "x"}', b"[" * 100_000, b"\xff", b'{"layers": [{"digest": "x"}]}']
TAGS = [b'{"tags": ["latest"]}']
SOCKETS = 30_000_000  # bytes that may wait in buffers
Says = Callable[[str], tuple[dict[str, str], list[bytes]]]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Place]]:
    """A repository that nothing has been pushed to, each time another, in a registry that asks nobody."""
    needs("docker-registry")
    with registry.serving(tmp_path_factory.mktemp("registry")) as port:
        made = list[Place]()

        def another() -> Place:
            made.append(Place(named=f"oci://127.0.0.1:{port}/{NAME}{len(made)}"))
            return made[-1]

        yield another


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A prefix with a module in it."""
    return module_in(tmp_path / "a-prefix-of-some-length")


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without logins."""
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    oci.client.cache_clear()
    return tmp_path


def publish(to: Place, made: Manifest, at: Path, signature: bytes = b"") -> publishing.Sent:
    """Push a build."""
    with at.open("rb") as stream:
        return publishing.publish(to, made, stream, signature)


def pushed(to: Place, tree: Tree, folder: Path) -> Manifest:
    """Push the module."""
    made = described(packed(tree, folder / "packed"))
    assert publish(to, made, folder / "packed")
    return made


def name_of(made: Manifest) -> str:
    """What a manifest is called."""
    return f"Horovod--1.0-toy/{made.key}.json"


class TestRegistry:
    """What a folder does, a registry does."""

    def test_a_build_by_a_registry(self, here: Callable[[], Place], tree: Tree, tmp_path: Path) -> None:
        cache = here()
        made = pushed(cache, tree, tmp_path)
        assert cache.names() == [name_of(made)]
        assert (put(cache.entry(name_of(made)), tmp_path / OTHER).software / MODULE / "bin/horovodrun").is_file()
        assert not publish(cache, made, tmp_path / "packed")
        assert [one.state for one in contents.verified([cache], ()).builds] == ["unsigned"]

    def test_a_signature_that_comes_later(self, here: Callable[[], Place], tree: Tree, tmp_path: Path) -> None:
        cache = here()
        made = pushed(cache, tree, tmp_path)
        assert not cache.entry(name_of(made)).signed.signature
        assert publish(cache, made, tmp_path / "packed", b"of a key")
        assert cache.entry(name_of(made)).signed.signature_bytes == b"of a key"
        assert cache.names() == [name_of(made)]

    def test_copied_out_of_a_registry_and_into_one(self, here: Callable[[], Place], tree: Tree, tmp_path: Path) -> None:
        cache, other, new = here(), here(), tmp_path / "mirror"
        made = pushed(cache, tree, tmp_path)
        new.mkdir()
        assert [states(take(cache, Place(named=str(new)))) for _ in range(2)] == [["copied"], ["there"]]
        assert (new / layout.object_of(made.sha256)).read_bytes() == (tmp_path / "packed").read_bytes()
        assert [states(take(str(new), other)) for _ in range(2)] == [["copied"], ["there"]]
        assert [one.state for one in contents.verified([other], ()).builds] == ["unsigned"]

    def test_sources(self, here: Callable[[], Place], tmp_path: Path) -> None:
        """Each is an artifact of its own, so that the registry keeps it, and none is taken for a build."""
        cache = here()
        (tmp_path / "own").mkdir()
        for name, text in TEXTS.items():
            (tmp_path / "own" / name).write_bytes(text)
        assert [cache_push.push_sources(cache, sources(), tmp_path / "own") for _ in range(2)] == [2, 0]
        tags = oci.Reached(cache.named).ask("GET", "tags/list", 200).json()["tags"]
        assert sorted(tags) == sorted(f"source-{one.sha256}" for one in sources())
        assert cache.names() == [] and contents.prune(cache, 0, dry_run=False).removed == ()
        fetch(sources(), tmp_path / "new", offline=False, progress=lambda _: None, kept=[cache])
        assert files_in(tmp_path / "new") == TEXTS
        found = contents.verified([cache], []).sources
        assert {one.sha256: (one.size, one.wrong) for one in found} == {
            one.sha256: (len(TEXTS[one.filename]), "") for one in sources()
        }
        cache.writable.remove(cache.named, f"sources/{found[0].sha256}")
        assert [one.sha256 for one in contents.verified([cache], []).sources] == [found[1].sha256]

    def test_pushes_at_the_same_time(self, here: Callable[[], Place], tree: Tree, tmp_path: Path) -> None:
        cache, of, errors = here(), packed(tree, tmp_path / "packed"), list[Exception]()
        builds = [described(of, cpu=(f"feature{number}",)) for number in range(4)]

        def push(one: Manifest) -> None:
            try:
                publish(cache, one, tmp_path / "packed")
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=push, args=(one,)) for one in builds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert sorted(cache.names()) == sorted(map(name_of, builds))

    def test_what_is_removed(self, here: Callable[[], Place], tree: Tree, tmp_path: Path) -> None:
        cache = here()
        made = pushed(cache, tree, tmp_path)
        [told, of] = sorted(cache.writable.stored(cache.named), key=lambda one: one.name)
        assert (of.name, of.size) == (layout.object_of(made.sha256), made.size)
        assert told.name == f"manifests/{name_of(made)}" and abs(told.changed - time.time()) < 60
        assert contents.prune(cache, 0, dry_run=True).removed == ()
        cache.writable.remove(cache.named, told.name)
        cache.writable.remove(cache.named, told.name)
        assert cache.names() == []
        assert publish(cache, made, tmp_path / "packed") and cache.names() == [name_of(made)]

    def test_what_others_have_put_there(self, here: Callable[[], Place], tree: Tree, tmp_path: Path) -> None:
        """An image is no build; an artifact under the tag of a build is told as what cannot be used."""
        cache = here()
        port, name = int(cache.named.split(":")[2].split("/")[0]), cache.named.partition(NAME)[2]
        made = pushed(cache, tree, tmp_path)
        (tmp_path / "layer").write_bytes(b"a layer")
        registry.put(port, NAME + name, tmp_path / "layer")
        body = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": registry.MANIFEST,
                "layers": [],
                "config": {"mediaType": "application/json", "size": 2, "digest": registry.digest(b"{}")},
            }
        ).encode()
        tag = f"Horovod--1.0-toy.{'0' * 64}"
        registry.request(port, "PUT", f"/v2/{NAME}{name}/manifests/{tag}", body, registry.MANIFEST)
        registry.request(port, "PUT", f"/v2/{NAME}{name}/manifests/latest", body, registry.MANIFEST)
        assert sorted(cache.names()) == sorted([name_of(made), f"Horovod--1.0-toy/{'0' * 64}.json"])
        with pytest.raises(CacheInvalid, match="cannot be used") as told:
            cache.entry(f"Horovod--1.0-toy/{'0' * 64}.json")
        assert "is no build of envkit's" in told.value.why

    def test_a_source_whose_content_the_registry_has_lost_is_sent_again(self, tmp_path: Path) -> None:
        needs("docker-registry")
        content, at = b"a source", tmp_path / "registry"
        at.mkdir()
        sha256 = hashlib.sha256(content).hexdigest()
        for _ in range(2):
            with registry.serving(at) as port:
                cache = Place(named=f"oci://127.0.0.1:{port}/{NAME}")
                held = partial(oci.holds, cache.named, layout.source_of(sha256), len(content), sha256)
                assert not held()
                oci.put(cache.named, layout.source_of(sha256), io.BytesIO(content))
                assert held()
            for lost in (at / "content").rglob(sha256):
                shutil.rmtree(lost)

    def test_a_damaged_object_stays_until_the_registry_has_collected_it(
        self, tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A push finds it there and sends the manifest alone, which it says; so does the command that finds it bad."""
        needs("docker-registry")
        (at := tmp_path / "registry").mkdir()
        with registry.serving(at) as port:
            cache = Place(named=f"oci://127.0.0.1:{port}/{NAME}")
            made = described(packed(tree, tmp_path / "packed"))
            assert publish(cache, made, tmp_path / "packed") == {"object", "manifest"}
            [blob] = (at / "content").rglob(f"blobs/sha256/{made.sha256[:2]}/{made.sha256}/data")
            blob.write_bytes(b"x" + blob.read_bytes()[1:])
            assert cli.run(["cache", "verify", cache.named]) == 4
            assert "until its own garbage collection has run" in capsys.readouterr().out
            assert cli.run(["cache", "prune", cache.named]) == 0
            assert "until its own garbage collection has run" in capsys.readouterr().out
            assert publish(cache, made, tmp_path / "packed") == {"manifest"}
            assert [one.state for one in contents.verified([cache], ()).builds] == ["bad"]
            contents.prune(cache, 0, dry_run=False)
        words = ["docker-registry", "garbage-collect", str(at / "registry.yml")]
        subprocess.run(words, check=True, capture_output=True)
        with registry.serving(at) as port:
            cache = Place(named=f"oci://127.0.0.1:{port}/{NAME}")
            assert publish(cache, made, tmp_path / "packed") == {"object", "manifest"}
            assert [one.state for one in contents.verified([cache], ()).builds] == ["unsigned"]

    def test_commands(self, here: Callable[[], Place], tree: Tree, tmp_path: Path) -> None:
        cache = here()
        made = pushed(cache, tree, tmp_path)

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            env = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
            argv = [str(Path(sys.executable).with_name("envkit")), "cache", *words]
            return subprocess.run(argv, env=env, capture_output=True, text=True)

        [listed] = json.loads(run("list", cache.named, "--json").stdout)["builds"]
        assert (listed["id"], listed["place"]) == (made.key, cache.named)
        assert f"Cache:    {cache.named}" in run("show", made.key[:8], cache.named).stdout
        assert run("verify", cache.named).stdout.endswith("1 build, none bad.\n")
        gone = run("prune", cache.named, "--older-than", "1h", "--json")
        assert (gone.returncode, json.loads(gone.stdout)["removed"]) == (0, []), gone.stderr


class TestLogin:
    """Who may push is told by the file of a login, whichever program wrote it."""

    def test_by_a_password(self, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        needs("docker-registry", "perl")
        hashed = subprocess.run(
            ["perl", "-e", 'print crypt($ARGV[0], "\\$2y\\$05\\$abcdefghijklmnopqrstuu")', SECRET],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        (tmp_path / "htpasswd").write_text(f"{WHO}:{hashed}\n")
        with registry.serving(tmp_path, f"{{htpasswd: {{realm: site, path: {tmp_path}/htpasswd}}}}") as port:
            cache = Place(named=f"oci://127.0.0.1:{port}/{NAME}")
            with pytest.raises(LoginError, match=r"127\.0\.0\.1:\d+ wants a login, and none for it is kept here"):
                pushed(cache, tree, tmp_path)
            with pytest.raises(NotWritable) as refused:
                cache_push.require(cache)
            assert f"apptainer registry login --username NAME oci://127.0.0.1:{port}" in refused.value.fix
            oci.client.cache_clear()
            for place_of, settings in {
                ".docker/config.json": {}, "elsewhere/config.json": {"DOCKER_CONFIG": f"{tmp_path}/elsewhere"},
                ".apptainer/docker-config.json": {}, "auth.json": {"REGISTRY_AUTH_FILE": f"{tmp_path}/auth.json"},
            }.items():  # fmt: skip
                with monkeypatch.context() as changed:
                    for key, value in settings.items():
                        changed.setenv(key, value)
                    path = login(tmp_path / place_of, port, SECRET)
                    made = described(packed(tree, tmp_path / "packed"), cpu=(place_of,))
                    assert publish(cache, made, tmp_path / "packed")
                    path.unlink()
                oci.client.cache_clear()
            login(tmp_path / ".docker/config.json", port, "another")
            with pytest.raises(LoginError, match=r"refuses the login that is kept here.*401 Unauthorized") as told:
                pushed(cache, tree, tmp_path)
            assert "another" not in str(told.value) and WHO not in str(told.value)

    def test_by_a_token(self, tree: Tree, tmp_path: Path) -> None:
        """As registries do that are not one's own: anybody may read, and a token to push is had for a login."""
        needs("docker-registry")
        with tokens(tmp_path) as auth, registry.serving(tmp_path, auth) as port:
            cache = Place(named=f"oci://127.0.0.1:{port}/{NAME}")
            with pytest.raises(LoginError, match=r"wants a login.*POST blobs/uploads/: 401 UNAUTHORIZED"):
                pushed(cache, tree, tmp_path)
            oci.client.cache_clear()
            login(tmp_path / ".docker/config.json", port, SECRET)
            made = pushed(cache, tree, tmp_path)
            (tmp_path / ".docker/config.json").unlink()
            oci.client.cache_clear()
            assert cache.names() == [name_of(made)]
            assert cache.entry(name_of(made)).manifest == made
            with pytest.raises(LoginError, match="401 UNAUTHORIZED"):
                cache.writable.remove(cache.named, f"manifests/{name_of(made)}")


def login(path: Path, port: int, secret: str) -> Path:
    """Write what a login writes."""
    path.parent.mkdir(exist_ok=True)
    word = base64.b64encode(f"{WHO}:{secret}".encode()).decode()
    path.write_text(json.dumps({"auths": {f"127.0.0.1:{port}": {"auth": word}}}))
    return path


@contextmanager
def tokens(folder: Path) -> Iterator[str]:
    """Run a server of tokens; yield the section of a registry's settings that names it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.x509.oid import NameOID

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tokens")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(key, hashes.SHA256())
    )  # fmt: skip
    (folder / "tokens.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    chain = base64.b64encode(certificate.public_bytes(serialization.Encoding.DER)).decode()
    known = base64.b64encode(f"{WHO}:{SECRET}".encode()).decode()

    def coded(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    class Tokens(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            may = ["pull"] + ["push", "delete"] * (self.headers.get("Authorization") == f"Basic {known}")
            access = []
            for scope in " ".join(asked.get("scope", [])).split():
                kind, _, rest = scope.partition(":")
                named, _, actions = rest.rpartition(":")
                access.append(
                    {"type": kind, "name": named, "actions": [one for one in actions.split(",") if one in may]}
                )
            claims = {
                "iss": "tokens", "sub": "", "aud": "registry", "exp": time.time() + 60, "nbf": time.time() - 60,
                "iat": time.time(), "jti": str(time.time_ns()), "access": access,
            }  # fmt: skip
            claims = {name: int(value) if isinstance(value, float) else value for name, value in claims.items()}
            head = {"typ": "JWT", "alg": "RS256", "x5c": [chain]}
            text = f"{coded(json.dumps(head).encode())}.{coded(json.dumps(claims).encode())}"
            signed = key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
            body = json.dumps({"token": f"{text}.{coded(signed)}"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Tokens) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        realm = f"http://127.0.0.1:{server.server_port}/token"
        yield (
            f"{{token: {{realm: '{realm}', service: registry, issuer: tokens, rootcertbundle: {folder}/tokens.pem}}}}"
        )
        server.shutdown()


@contextmanager
def answering(body: bytes, status: int = 200, first: Sequence[int] = ()) -> Iterator[int]:
    """Run a server that answers everything alike, as no registry does; yield its port.

    It fails with the statuses ``first`` when it is asked for tags.
    """
    statuses = list(first)

    class Alike(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses.pop(0) if statuses and "tags" in self.path else status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Www-Authenticate", "Bearer")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Alike) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


class Hostile(ThreadingHTTPServer):
    """A registry that means harm; ``endless`` is what has no end of what is asked for, and comes in pieces."""

    def __init__(
        self, says: Says, *, endless: str = "", status: int = 200, pause_s: float = 0, piece: bytes = bytes(1 << 20)
    ) -> None:
        self.asked, self.sent = list[str](), 0
        outer = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                headers, body = says(self.path)
                is_endless = bool(endless) and endless in self.path.replace("/v2/x", "")
                code = 401 if endless == "token" and "token" not in self.path else status
                self.send_response(200 if self.path == "/v2/" and not is_endless and code != 401 else code)
                for name, value in headers.items():
                    self.send_header(name, value.replace("PORT", str(outer.server_port)))
                self.send_header("Connection", "close")
                self.end_headers()
                with suppress(OSError):
                    for sent in itertools.repeat(piece) if is_endless else [] if self.command == "HEAD" else body:
                        self.wfile.write(sent)
                        self.wfile.flush()
                        outer.sent += len(sent)
                        time.sleep(pause_s)

            do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Answers)
        self.named = f"oci://127.0.0.1:{self.server_port}/x/y"
        self.place = Place(named=self.named)


@contextmanager
def hostile(says: Says, **given: Any) -> Iterator[Hostile]:
    """Run such a registry."""
    with Hostile(says, **given) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class TestRefused:
    """What cannot be is said in a sentence."""

    def refused(self, cache: Place) -> str:
        with pytest.raises(CacheInvalid) as told:
            cache.names()
        return told.value.why

    @pytest.mark.parametrize(
        "named", ["oci://host", "oci://host/Upper", "oci:///name", "oci://host/a b", "oci://h/a@b"]
    )
    def test_a_name_that_is_none(self, named: str) -> None:
        with pytest.raises(UsageProblem) as told:
            Place(named=named)
        assert told.value.why == oci.FORM

    def test_no_such_repository(self, here: Callable[[], Place]) -> None:
        """It begins with what is pushed to it, and is as an empty folder until then."""
        assert here().names() == [] and contents.verified([here()], ()).builds == ()

    def test_no_server(self) -> None:
        assert "Connection refused" in self.refused(Place(named="oci://127.0.0.1:9/site/envkit"))

    def test_a_module_whose_name_is_no_tag(self) -> None:
        for name in (f"manifests/{'x' * 64}/{'0' * 64}.json", f"manifests/A+B/{'0' * 64}.json"):
            with pytest.raises(ValueError, match="cannot be a tag in a registry"):
                oci.tag_of(name)

    def test_without_oras(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "oras.provider", None)
        why = self.refused(Place(named="oci://127.0.0.1:9/site/envkit"))
        assert why == "A registry takes the Python package oras: pip install 'envkit[oci]'."

    @pytest.mark.parametrize(
        "body",
        [b"[]", b"{", b'{"tags": [1]}', b'{"tags": "x"}', b"[" * 100_000, b"\xff", b'{"layers": [{"digest": "x"}]}'],
    )
    def test_what_it_answers_is_not_believed(self, body: bytes) -> None:
        """Whatever comes in place of JSON of OCI's form is told in a sentence."""
        with answering(body) as port:
            cache = Place(named=f"oci://127.0.0.1:{port}/site/envkit")
            tags = body.startswith(b'{"layers"')
            assert tags or "not as OCI has it" in self.refused(cache)
            with pytest.raises(CacheInvalid, match="cannot be used") as told:
                cache.entry(f"Horovod--1.0-toy/{'0' * 64}.json")
            assert "not as OCI has it" in told.value.why

    @pytest.mark.parametrize("failures", [1, 2, 3])
    def test_a_server_that_fails_for_a_moment(self, failures: int) -> None:
        """It is asked again: a registry fails so for what another client pushes just now."""
        with answering(b'{"tags": []}', first=[503, 500, 500][:failures]) as port:
            cache = Place(named=f"oci://127.0.0.1:{port}/site/envkit")
            if failures < 3:
                assert list(cache.names()) == []
            else:
                assert "500" in self.refused(cache)

    @pytest.mark.parametrize("text", ["[]", "{", '{"auths": []}', '{"auths": {"127.0.0.1:PORT": {"auth": 3}}}'])
    def test_a_damaged_file_of_logins(self, text: str, nobody: Path) -> None:
        with answering(b'{"tags": []}', status=401) as port:
            path = nobody / ".docker/config.json"
            path.parent.mkdir()
            path.write_text(text.replace("PORT", str(port)))
            assert text.endswith("3}}}") or str(path) in self.refused(
                Place(named=f"oci://127.0.0.1:{port}/site/envkit")
            )
            self.refused(Place(named=f"oci://127.0.0.1:{port}/site/envkit"))

    def test_a_token_that_runs_out_while_content_is_sent(self, nobody: Path) -> None:
        """It is sent again, whole, with another token."""
        content, got, tokens = b"a blob" * 10_000, list[bytes](), list[str]()

        class Forgetful(BaseHTTPRequestHandler):
            def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def ask_login(self) -> None:
                realm = f"http://127.0.0.1:{server.server_port}/token"
                self.answer(401, Www_Authenticate=f'Bearer realm="{realm}",service="x",scope="repository:x:push"')

            def is_known(self) -> bool:
                return bool(tokens) and self.headers.get("Authorization") == f"Bearer {tokens[-1]}"

            def do_GET(self) -> None:
                if "/token" in self.path:
                    tokens.append(f"token-{len(tokens)}")
                    self.answer(200, json.dumps({"token": tokens[-1]}).encode())
                else:
                    self.ask_login()

            def do_HEAD(self) -> None:
                self.answer(404)

            def do_POST(self) -> None:
                if self.is_known():
                    self.answer(202, Location="/v2/x/y/blobs/uploads/1")
                else:
                    self.ask_login()

            def do_PUT(self) -> None:
                got.append(self.rfile.read(int(self.headers["Content-Length"])))
                if len(got) == 1:
                    tokens.append("the next, which nobody has yet")
                if self.is_known():
                    self.answer(201)
                else:
                    self.ask_login()

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Forgetful) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            login(nobody / ".docker/config.json", server.server_port, SECRET)
            digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
            oci.Reached(f"oci://127.0.0.1:{server.server_port}/x/y").send(io.BytesIO(content), len(content), digest)
            server.shutdown()
        assert set(got) == {content} and len(got) > 1 and tokens[-1].startswith("token-")

    def test_a_link_that_leads_elsewhere(self) -> None:
        """No other server gets the login."""
        with hostile(lambda _: ({"Link": '<https://elsewhere.example/v2/x/tags/list>; rel="next"'}, TAGS)) as server:
            assert "sends to another server" in self.refused(server.place)
        assert server.asked == ["/v2/", "/v2/x/y/tags/list?n=1000"]

    def test_pages_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(oci, "LISTING_S", 1.0)
        with hostile(lambda path: ({"Link": f'<{path}1>; rel="next"'}, TAGS)) as server:
            assert "and names more" in self.refused(server.place)

    @pytest.mark.parametrize("where", ["/v2/", "tags", "token"])
    @pytest.mark.parametrize("status", [200, 307, 500])
    def test_an_answer_without_end(self, where: str, status: int) -> None:
        """It is neither read into memory nor asked for again and again."""
        with hostile(self.needs_token, endless=where, status=status) as server:
            self.refused(server.place)
        assert server.sent < 6 * answers.MOST_SAID + SOCKETS

    def test_an_answer_that_unpacks_to_more(self) -> None:
        bomb = gzip.compress(bytes(3 * answers.MOST_SAID))
        with hostile(lambda _: ({"Content-Encoding": "gzip"}, [bomb])) as server:
            assert "more comes than" in self.refused(server.place)

    def test_an_answer_that_drips(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(answers, "PATIENCE_S", 1.0)
        with hostile(lambda _: ({}, TAGS), endless="tags", pause_s=0.1, piece=b" ") as server:
            assert "bytes came in" in self.refused(server.place)

    def test_a_long_refusal(self) -> None:
        text = json.dumps({"errors": [{"code": "DENIED", "message": "\x9d" * 100_000}]}).encode()
        with hostile(lambda path: ({}, TAGS if path == "/v2/" else [text]), status=400) as server:
            assert len(self.refused(server.place)) < 2 * oci.SHOWN

    def test_a_server_that_repeats_the_login(self, nobody: Path) -> None:
        login = base64.b64encode(b"ada:hunter2").decode()
        text = json.dumps(
            {"errors": [{"code": "DENIED", "message": f"no Basic {login}, ada:hunter2, hunter2"}]}
        ).encode()
        needs = {"Www-Authenticate": 'Basic realm="x"'}
        with hostile(lambda path: (needs, TAGS if path == "/v2/" else [text]), status=403) as server:
            path = nobody / ".docker/config.json"
            path.parent.mkdir()
            path.write_text(json.dumps({"auths": {server.named.split("/")[2]: {"auth": login}}}))
            assert self.refused(server.place).endswith("403 DENIED no Basic ***, ***, ***).")

    @pytest.mark.parametrize(
        "proxy", ["http://me:hunter2#x@127.0.0.1:9", "http://me:x/hunter2@127.0.0.1:9", "me:hunter2@"]
    )
    def test_a_proxy_that_is_none(self, proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy)
        for host in ("127.0.0.1:9", "registry.example"):
            assert "hunter2" not in self.refused(Place(named=f"oci://{host}/site/envkit"))

    def test_a_digest_that_leads_elsewhere(self) -> None:
        headers = {"Docker-Content-Digest": "../../other/manifests/latest"}
        with hostile(lambda _: (headers, TAGS)) as server, pytest.raises(RefusedError, match="does not say the digest"):
            oci.remove(server.named, f"manifests/Horovod--1/{'0' * 64}.json")
        assert not any("other" in path for path in server.asked)

    def needs_token(self, path: str) -> tuple[dict[str, str], list[bytes]]:
        """What a registry says that sends to itself for a token, which it does not take."""
        return {
            "Www-Authenticate": f'Bearer realm="http://127.0.0.1:PORT/token",service="x",scope="{path}"',
            "Location": "/v2/x/y/tags",
        }, TAGS
