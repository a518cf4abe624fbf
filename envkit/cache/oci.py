"""A cache in a registry of images (OCI): ``oci://HOST/NAME``, by oras-py.

A build is an artifact. Its tag is ``MODULE.KEY``; its first layer is the manifest's file, its second the object, which
is thus kept under its own SHA-256. The tags stand for the index. Who may write is told by ``docker login``, ``apptainer
registry login`` or ``podman login``; nothing of that is written or shown. What a registry answers is not believed.
"""

import calendar
import hashlib
import inspect
import io
import json
import os
import re
import time
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar
from urllib.parse import urljoin, urlsplit

import msgspec

from envkit.cache import manifest
from envkit.cache.layout import CONNECT_S, INDEX, PIECE, SLOWEST, Stored, object_of, sha256_of, source_of
from envkit.system import record

T = TypeVar("T")

NAMED = re.compile(
    r"oci://(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*(:\d{1,5})?)/"
    r"(?P<name>[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*)/?",
    re.ASCII,
)
TAG = re.compile(r"(?P<folder>[A-Za-z0-9_][\w.-]*)\.(?P<key>[0-9a-f]{64})", re.ASCII)
SOURCE_TAG = re.compile("source-(?P<sha256>[0-9a-f]{64})")
LONGEST = 128  # characters of a tag
MOST_TAGS = 100_000
LISTING_S = 60.0  # for all pages of the tags
SHOWN = 300  # characters of a refusal
HIDDEN = "{}; what it says is not shown, since a password may be in it: look at the login and the proxies"
ARTIFACT = "application/vnd.envkit.build.v1"
SOURCES, SOURCE = "application/vnd.envkit.sources.v1", "application/octet-stream"
MANIFEST = "application/vnd.envkit.manifest.v1+json"
MODULE_OBJECT, IMAGE_OBJECT = "application/vnd.envkit.module.v1.tar+zstd", "application/vnd.envkit.image.v1.sif"
IMAGE, EMPTY = "application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.empty.v1+json"
CREATED = "org.opencontainers.image.created"
CREATED_FORM = "%Y-%m-%dT%H:%M:%SZ"
LOCAL = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")  # reached without TLS, as other clients do
LOGINS = ("~/.docker/config.json", "~/.apptainer/docker-config.json", "~/.config/containers/auth.json")
FORM = "A registry is named oci://HOST/NAME, in small letters: the name of a repository, such as site/envkit."
WANTED = "{} wants a login, and none for it is kept here"
REFUSED = "{} refuses the login that is kept here, or does not allow it this"
UNKNOWN = "NAME_UNKNOWN"  # what a registry says of a repository that it does not have
NO_SUCH, UNAUTHORIZED, FORBIDDEN, SERVER_ERROR = 404, 401, 403, 500
NO_ANSWER = "Cannot respond to request for authentication"  # as oras-py says that it got no token
AGAIN_S = (0.2, 1.0)
REASONS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[Errno -?\d+\] ([^'\")]+)",
        r"\[SSL: \w+\] ([^'\"(]+)",
        r"Error\(\d+, '([^']+)'\)",
        r"((?:Connection|Read)[^'\"(]* timed out)",
    )
)  # where in what requests says of a failure the reason is
# What a registry says of a manifest while another push writes the link of a blob anew; it is asked again then (s).
HALF_WRITTEN, WRITING_S = "DIGEST_INVALID", (0.2, 0.5, 1.0)


@contextmanager
def asking() -> Iterator[None]:
    """Say in one way what a registry refuses. Raises RefusedError."""
    from envkit.sources.answers import RefusedError, TransientError, UnreachableError
    from envkit.system.addresses import redact

    try:
        import oras.provider  # noqa: F401
        from requests import RequestException, exceptions
        from requests.exceptions import InvalidHeader, InvalidURL
        from urllib3.exceptions import HTTPError, LocationValueError, ProtocolError
    except ImportError as error:
        raise RefusedError("A registry takes the Python package oras: pip install 'envkit[oci]'") from error
    try:
        yield
    except (InvalidHeader, InvalidURL, LocationValueError) as error:
        raise RefusedError(HIDDEN.format(type(error).__name__)) from error
    except (exceptions.ConnectionError, ProtocolError) as error:  # there was none, or it broke
        raise UnreachableError(in_words(redact(str(error)))) from error
    except (RequestException, HTTPError, ValueError) as error:
        kind = TransientError if isinstance(error, RequestException | HTTPError) else RefusedError
        raise kind(redact(str(error)).rstrip(".")) from error


def in_words(text: str) -> str:
    """Return why there is no connection, of what requests makes of what its libraries say."""
    said = next(filter(None, (reason.search(text) for reason in REASONS)), None)
    if said is None:
        return text.rpartition("(Caused by ")[2].rstrip(".)'")
    return f"{'Its proxy: ' if 'ProxyError(' in text else ''}{said[1].strip()}"


class Blob(msgspec.Struct, frozen=True):
    """A blob of an artifact."""

    mediaType: str  # noqa: N815  (as OCI calls it)
    digest: Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]
    size: int


class Artifact(msgspec.Struct, frozen=True):
    """The artifact that a tag stands for."""

    layers: tuple[Blob, ...]
    annotations: dict[str, str] = {}

    def layer(self, kind: str) -> Blob | None:
        """Return the layer of a kind, if there is one."""
        return next((blob for blob in self.layers if blob.mediaType == kind), None)


class LoginFile(msgspec.Struct, frozen=True):
    """A file that logins are kept in, as far as it is read by oras-py."""

    auths: dict[str, dict[str, Any]] = {}
    credHelpers: dict[str, str] = {}  # noqa: N815  (as docker calls it)
    credsStore: str | None = None  # noqa: N815


class Tags(msgspec.Struct, frozen=True):
    """A page of the tags of a repository."""

    tags: tuple[str, ...] | None = None


class Refusal(msgspec.Struct, frozen=True):
    """One reason of a refusal."""

    code: str = ""
    message: str = ""


class Refusals(msgspec.Struct, frozen=True):
    """The reasons that a registry gives for what it refuses."""

    errors: tuple[Refusal, ...]


class Reached:
    """A repository of a registry. Its functions raise RefusedError, RequestException and ValueError."""

    def __init__(self, named: str) -> None:
        from envkit.sources.answers import RefusedError

        match = NAMED.fullmatch(named)
        if match is None:
            raise RefusedError(FORM.rstrip("."))
        self.host = match["host"]
        with understood():
            self.client = client(self.host, tuple(sorted(logins())))
        self.at = f"{self.client.prefix}://{match['host']}/v2/{match['name']}"

    def ask(self, method: str, what: str, *good: int, **given: Any) -> Any:
        """Return an answer that has one of the statuses that are good.

        ``what`` begins at the repository, or is a link of the registry's own; one that leads elsewhere is not followed.
        What only reads is asked again if the server fails: some do, for a blob that another client pushes just now.
        """
        from envkit.sources.answers import AbsentError, RefusedError, TransientError
        from envkit.sources.connection import TRANSIENT_STATUS

        url = urljoin(f"{self.at}/", what)
        if urlsplit(url)[:2] != urlsplit(self.at)[:2]:
            raise RefusedError("It sends to another server, which gets no login from here")
        answer = self.answer(method, url, **given)
        if answer.status_code == UNAUTHORIZED and getattr(self.client.auth, "token", None):
            self.client.auth.token = None  # it was for reading
            answer.close()
            answer = self.answer(method, url, **given)
        for wait_s in AGAIN_S if method in ("GET", "HEAD") else ():
            if answer.status_code < SERVER_ERROR:
                break
            answer.close()
            time.sleep(wait_s)
            answer = self.answer(method, url, **given)
        if answer.status_code not in good:
            is_passing = answer.status_code >= SERVER_ERROR or answer.status_code in TRANSIENT_STATUS
            kind: type[RefusedError] = TransientError if is_passing else RefusedError
            kind = AbsentError if answer.status_code == NO_SUCH else kind
            said = f"{method} {what.partition('?')[0]}: {told(answer)}"
            if answer.status_code in (UNAUTHORIZED, FORBIDDEN):
                raise self.not_allowed(said)
            raise kind(said)
        return answer

    def not_allowed(self, said: str) -> Exception:
        """Return what to raise where a login is wanted, or another one."""
        from envkit.sources.answers import LoginError

        text = REFUSED if getattr(self.client.auth, "_basic_auth", "") else WANTED
        return LoginError(f"{text.format(self.host)} ({said})")

    def answer(self, method: str, url: str, headers: Mapping[str, str] | None = None, **given: Any) -> Any:
        """Return what the registry answers; a password goes with each request, since content is sent once."""
        auth = self.client.auth
        login = {} if hasattr(auth, "token") else auth.get_auth_header() if hasattr(auth, "_basic_auth") else {}
        once = inspect.unwrap(type(self.client).do_request)  # oras-py itself tries for two minutes
        try:
            with understood():
                return once(self.client, url, method, headers={**login, **(headers or {})}, **given)
        except ValueError as error:
            if NO_ANSWER in str(error):
                raise self.not_allowed("it gives no token") from error
            raise

    def tagged(self, tag: str) -> Artifact:
        """Return the artifact of a tag."""
        return content(self.ask("GET", f"manifests/{tag}", 200, headers={"Accept": IMAGE}, stream=True), Artifact)

    def send(self, content: BinaryIO, size: int, digest: str) -> None:
        """Send a blob, if it is not there."""
        if self.ask("HEAD", f"blobs/{digest}", 200, NO_SUCH).status_code != NO_SUCH:
            return
        begun = self.ask("POST", "blobs/uploads/", 202).headers.get("Location", "")
        mark = "&" if "?" in begun else "?"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        self.ask("PUT", f"{begun}{mark}digest={digest}", 201, data=content, headers=headers)

    def tag(self, tag: str, kind: str, layers: list[dict[str, Any]]) -> None:
        """Have a tag stand for an artifact of blobs that are there."""
        config = described(EMPTY, 2, hashlib.sha256(b"{}").hexdigest())
        self.send(io.BytesIO(b"{}"), 2, config["digest"])
        artifact = {
            "schemaVersion": 2, "mediaType": IMAGE, "artifactType": kind, "config": config, "layers": layers,
            "annotations": {CREATED: time.strftime(CREATED_FORM, time.gmtime())},
        }  # fmt: skip
        from envkit.sources.answers import RefusedError

        for pause_s in (*WRITING_S, 0):
            try:
                self.ask("PUT", f"manifests/{tag}", 201, data=json.dumps(artifact), headers={"Content-Type": IMAGE})
                return
            except RefusedError as error:
                if HALF_WRITTEN not in str(error) or not pause_s:
                    raise
            time.sleep(pause_s)


@contextmanager
def understood() -> Iterator[None]:
    """Say what oras-py does not understand, such as a damaged file of logins. Raises ValueError."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"oras-py does not understand the login or what the registry asks for ({error!r})") from error


def content(answer: Any, kind: type[T]) -> T:
    """Return what an answer says in JSON. Raises RefusedError, ValueError."""
    try:
        return record.decode(b"".join(bounded(answer, manifest.MOST)), kind)
    except record.RecordInvalid as error:
        raise ValueError(f"its answer is not as OCI has it: {error}") from error


def told(answer: Any) -> str:
    """Return what a registry says of what it refuses."""
    from envkit.sources.answers import RefusedError

    reason = str(answer.reason)
    with suppress(RefusedError, ValueError):
        reason = next((f"{refusal.code} {refusal.message}" for refusal in content(answer, Refusals).errors), reason)
    for secret in secrets(answer.request.headers.get("Authorization", "")):
        reason = reason.replace(secret, "***")
    return f"{answer.status_code} {reason[:SHOWN]}".strip()


def secrets(authorization: str) -> list[str]:
    """Return what a server must not have shown of the login that it was sent: as sent, and the password in it."""
    sent, login = authorization.rpartition(" ")[2], ""
    with suppress(ValueError):
        login = b64decode(sent, validate=True).decode()
    return [secret for secret in (sent, login, login.partition(":")[2]) if secret]


def bounded(answer: Any, most: int) -> Iterator[bytes]:
    """Yield what a registry sends, at most so many bytes. Raises RefusedError, also where that is too slow."""
    from envkit.sources.answers import end, in_time, limited, whole

    length = answer.headers.get("Content-Length", "")
    size = int(length) if length.isdecimal() else None
    if "Content-Encoding" in answer.headers or answer.request.method == "HEAD":
        size = None  # it is that of what is packed, or of what GET would send
    try:
        yield from in_time(whole(limited(pieces(answer), size, most), size), SLOWEST)
    finally:
        end(answer.close)


def pieces(answer: Any) -> Iterator[bytes]:
    """Yield what comes as soon as it comes; ``iter_content`` waits until a piece is full."""
    if answer.raw.closed:  # read already
        yield answer.content
        return
    while piece := answer.raw.read1(PIECE, decode_content=True):
        yield piece


def logins() -> Iterator[str]:
    """Yield the files that logins are kept in."""
    named = [os.environ.get("REGISTRY_AUTH_FILE"), *map(os.path.expanduser, LOGINS)]
    if folder := os.environ.get("DOCKER_CONFIG"):
        named.append(f"{folder}/config.json")
    if folder := os.environ.get("XDG_RUNTIME_DIR"):
        named.append(f"{folder}/containers/auth.json")
    yield from (path for path in named if path and Path(path).is_file())


@cache
def client(host: str, files: tuple[str, ...]) -> Any:
    """Return the client of a registry, which knows how to log in there.

    Raises LoginError where a login is wanted and there is none, RequestException, ValueError.
    """
    from oras import logger, provider
    from oras.container import Container
    from requests import Session
    from requests.adapters import HTTPAdapter

    from envkit.sources.answers import MOST_SAID, PATIENCE_S, LoginError, begun

    class Patient(HTTPAdapter):
        def send(self, request: Any, **given: Any) -> Any:  # type: ignore[override]
            if hasattr(request.body, "seek"):  # with another token it is sent again
                request.body.seek(0)
            send = partial(super().send, request, **{**given, "timeout": (CONNECT_S, PATIENCE_S), "stream": True})
            answer = begun(send, CONNECT_S, getattr(request.body, "tell", int))
            # Those are read all at once by requests and oras-py, however much and slow, or left open.
            if not given.get("stream") or answer.is_redirect or answer.status_code == UNAUTHORIZED:
                answer._content = b"".join(bounded(answer, MOST_SAID))
            return answer

    logger.setup_logger(quiet=True)
    is_local = LOCAL.fullmatch(host) is not None
    with Session() as session:
        for scheme in ("http://", "https://"):
            session.mount(scheme, Patient())
        answer = session.get(f"{'http' if is_local else 'https'}://{host}/v2/")
        kind = answer.headers.get("Www-Authenticate", "").partition(" ")[0].lower()
    registry = provider.Registry(host, insecure=is_local, auth_backend="basic" if kind == "basic" else "token")
    for scheme in ("http://", "https://"):
        registry.session.mount(scheme, Patient())
    for file in files:
        require_logins(Path(file))
    registry.auth.load_configs(Container(f"{host}/envkit"), configs=[*files])
    if kind == "basic" and not getattr(registry.auth, "_basic_auth", ""):
        raise LoginError(WANTED.format(host))
    return registry


def require_logins(path: Path) -> None:
    """Require that a file of logins can be read. Raises ValueError."""
    try:
        record.read(path, LoginFile)
    except OSError as error:
        raise ValueError(f"{path}, which keeps logins, cannot be read: {error.strerror}") from error
    except record.RecordInvalid as error:
        raise ValueError(f"{path} does not keep logins as docker does: {error}") from error


def tag_of(name: str) -> str:
    """Return the tag of a manifest, by its name in a place. Raises ValueError."""
    folder, key = name.removeprefix("manifests/").removesuffix(".json").split("/")
    tag = f"{folder}.{key}"
    if TAG.fullmatch(tag) is None or len(tag) > LONGEST:
        raise ValueError(f"the name of the module, {folder}, cannot be a tag in a registry")
    return tag


def names(named: str) -> list[str]:
    """Return the names of its manifests. Raises RefusedError."""
    matches = [match for tag in tags(named) if (match := TAG.fullmatch(tag))]
    return [f"{parts['folder']}/{parts['key']}.json" for parts in matches]


def tags(named: str) -> list[str]:
    """Return all of its tags, whoever's. Raises RefusedError."""
    from envkit.sources.answers import AbsentError

    with asking():
        reached = Reached(named)
        collected, what, began = list[str](), "tags/list?n=1000", time.monotonic()
        while what:
            if time.monotonic() - began > LISTING_S:
                raise ValueError(f"it has named {len(collected)} tags in {LISTING_S:.0f} s, and names more")
            try:
                answer = reached.ask("GET", what, 200, stream=True)
            except AbsentError as error:
                if UNKNOWN not in str(error):
                    raise
                break  # it begins with what is pushed to it
            page = content(answer, Tags).tags or ()
            collected += page
            what = answer.links.get("next", {}).get("url", "") if page else ""
            if len(collected) > MOST_TAGS:
                raise ValueError(f"it has more than {MOST_TAGS} tags")
    return collected


@contextmanager
def opened(named: str, name: str, most: int) -> Iterator[Iterable[bytes]]:
    """Give a file in pieces. Raises RefusedError, also while it is read."""
    from envkit.sources.answers import RefusedError

    if name == INDEX:
        raise RefusedError("A registry has no index")
    with asking():
        reached = Reached(named)
        if name.startswith("manifests/"):
            tag = tag_of(name)
            layer = reached.tagged(tag).layer(MANIFEST)
            if layer is None:
                raise ValueError(f"{tag} is no build of envkit's")
            digest = layer.digest
        else:
            digest = f"sha256:{sha256_of(name)}"
        with reached.ask("GET", f"blobs/{digest}", 200, stream=True) as answer:
            yield bounded(answer, most)


def require(named: str) -> None:
    """Require that the registry answers; a repository begins with what is pushed to it. Raises RefusedError."""
    with asking():
        Reached(named).ask("GET", "tags/list?n=1", 200, NO_SUCH)


def refuses(module: str) -> str:
    """Say why no build can be called so, whatever its key is; nothing where one can."""
    try:
        tag_of(f"{manifest.folder_of(module)}/{'0' * 64}.json")
    except ValueError:
        most = LONGEST - len(f".{'0' * 64}")
        return f"A registry knows it by a tag, in which at most {most} letters, digits and . _ - stand for its name."
    return ""


def locked(named: str) -> nullcontext[None]:  # noqa: ARG001
    """Hold nothing: there is no index."""
    return nullcontext()


def holds(named: str, name: str, size: int, sha256: str) -> bool:
    """Say whether an object or a source is there; a registry has it under its SHA-256. Raises RefusedError."""
    with asking():
        if name.startswith("sources/"):
            named_by = f"manifests/source-{sha256}"
            reply = Reached(named).ask("HEAD", named_by, 200, NO_SUCH, headers={"Accept": IMAGE})
            if reply.status_code == NO_SUCH:
                return False
        answer = Reached(named).ask("HEAD", f"blobs/sha256:{sha256}", 200, NO_SUCH)
        return answer.status_code != NO_SUCH and int(answer.headers.get("Content-Length", size)) == size


def put(named: str, name: str, stream: BinaryIO) -> None:
    """Write a file: a manifest makes the artifact of it and of its object. Raises RefusedError."""
    if name == INDEX:
        return
    with asking():
        reached = Reached(named)
        if not name.startswith("manifests/"):
            size = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            reached.send(stream, size, f"sha256:{sha256_of(name)}")
            if name.startswith("sources/"):  # without an artifact that names it, a registry removes a blob in time
                reached.tag(f"source-{sha256_of(name)}", SOURCES, [described(SOURCE, size, sha256_of(name))])
            return
        tag, text = tag_of(name), stream.read()
        build, _ = manifest.read(text)
        own = described(MANIFEST, len(text), hashlib.sha256(text).hexdigest())
        reached.send(io.BytesIO(text), len(text), own["digest"])
        kind = IMAGE_OBJECT if build.is_image else MODULE_OBJECT
        reached.tag(tag, ARTIFACT, [own, described(kind, build.size, build.sha256)])


def described(kind: str, size: int, sha256: str) -> dict[str, Any]:
    """Return the descriptor of a blob."""
    return {"mediaType": kind, "size": size, "digest": f"sha256:{sha256}"}


def stored(named: str) -> Iterator[Stored]:
    """Yield its files: the manifests, the objects that they name, and the sources. Raises RefusedError."""
    for tag in tags(named):
        match, source = TAG.fullmatch(tag), SOURCE_TAG.fullmatch(tag)
        if not match and not source:
            continue
        with asking():
            artifact = Reached(named).tagged(tag)
        changed = time.time()
        with suppress(ValueError):
            changed = float(calendar.timegm(time.strptime(artifact.annotations.get(CREATED, ""), CREATED_FORM)))
        if source:
            size = sum(blob.size for blob in artifact.layers)
            yield Stored(name=source_of(source["sha256"]), size=size, changed=changed)
        elif match and (layer := artifact.layer(MANIFEST)):
            name = f"manifests/{match['folder']}/{match['key']}.json"
            yield Stored(name=name, size=layer.size, changed=changed)
        for kind in (MODULE_OBJECT, IMAGE_OBJECT) if match else ():
            if layer := artifact.layer(kind):
                name = object_of(layer.digest.removeprefix("sha256:"), is_image=kind == IMAGE_OBJECT)
                yield Stored(name=name, size=layer.size, changed=changed)


def remove(named: str, name: str) -> None:
    """Remove an artifact, if it is there; what no artifact names any more the registry itself removes in time.

    Raises RefusedError.
    """
    if name.startswith(("manifests/", "sources/")):
        with asking():
            reached = Reached(named)
            tag = tag_of(name) if name.startswith("manifests/") else f"source-{sha256_of(name)}"
            answer = reached.ask("HEAD", f"manifests/{tag}", 200, NO_SUCH, headers={"Accept": IMAGE})
            if answer.status_code != NO_SUCH:
                digest = answer.headers.get("Docker-Content-Digest")
                if not re.fullmatch("sha256:[0-9a-f]{64}", digest or ""):
                    raise ValueError("it does not say the digest of what is to be removed")
                reached.ask("DELETE", f"manifests/{digest}", 202, NO_SUCH)
