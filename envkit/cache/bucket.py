"""A cache in a bucket of S3: the same files as in a folder, by boto3.

Credentials, endpoint and region are those of AWS's tools (``~/.aws``, ``AWS_*``, the role of a machine); without
credentials a bucket is read as anybody may. Nothing of them is written or shown.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from envkit.cache.layout import CONNECT_S, OWN, PIECE, SLOWEST, Stored
from envkit.errors import HostProblem

NAMED = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/(?P<folder>[\w.@=+~-]+(/[\w.@=+~-]+)*)?)?/?", re.ASCII
)
FORM = "A bucket is named s3://BUCKET or s3://BUCKET/FOLDER, in small letters, digits, . and -."
ANONYMOUS = "there are no credentials, so it was asked as anybody may"
NO_ENDPOINT = (
    "The endpoint (AWS_ENDPOINT_URL, or endpoint_url in ~/.aws/config) does not begin with http:// or https://"
)
BROKEN_OFF = "the connection was broken off"
QUESTION = re.compile(r'\?[^"\s]*')  # of a URL
PAGE = 1000  # names at a time
LISTING_S = 60.0  # for all names
MOST_FILES = 100_000
OF_CLIENT = re.compile(r"AWS_|(?i:\w+_proxy\Z)", re.ASCII)
CODE = re.compile(r"[A-Za-z0-9.]{1,80}", re.ASCII)
SHOWN = (
    *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ConnectionClosedError", "SSLError"),
    *("ProxyConnectionError", "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ConfigNotFound"),
    "InvalidRegionError",
)  # the errors of botocore that have no more of a setting in them than an address
HIDDEN = "{}; what it says is not shown, since a password may be in it: look at AWS_*, ~/.aws and the proxies"
NO_SUCH, NOT_ALLOWED, TOO_LARGE = 404, (401, 403), "EntityTooLarge"
REGION = "us-east-1"  # what servers other than AWS's expect where none is set


@contextmanager
def asking() -> Iterator[None]:
    """Say in one way what S3 refuses. Raises RefusedError."""
    from envkit.sources.answers import AbsentError, LoginError, RefusedError, TransientError, UnreachableError
    from envkit.sources.connection import TRANSIENT_STATUS

    try:
        from botocore import exceptions
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError, ProtocolError
    except ImportError as error:
        raise RefusedError("A bucket takes the Python package boto3: pip install 'envkit[s3]'") from error
    try:
        yield
    except ClientError as error:
        kind: type[RefusedError] = TransientError if status_of(error) in TRANSIENT_STATUS else RefusedError
        kind = AbsentError if status_of(error) == NO_SUCH else kind
        raise (LoginError if status_of(error) in NOT_ALLOWED else kind)(told(error)) from error
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
        raise LoginError(told(error)) from error
    except exceptions.ConnectionError as error:
        raise UnreachableError(told(error)) from error
    except (exceptions.ResponseStreamingError, exceptions.IncompleteReadError, ProtocolError) as error:
        raise UnreachableError(BROKEN_OFF) from error
    except (BotoCoreError, HTTPError) as error:
        raise TransientError(told(error)) from error
    except (AttributeError, LookupError, TypeError, ArithmeticError, ValueError, RuntimeError) as error:
        raise RefusedError(f"It does not answer as S3 does ({type(error).__name__})") from error  # botocore's own


def status_of(error: Any) -> int:
    """Return the status of HTTP that a refusal came with; 0 where it had none."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status if isinstance(status, int) else 0


def told(error: Exception) -> str:
    """Return what is said of a failure: of the server's answer its code, and no text with a password in it."""
    from botocore import exceptions

    from envkit.system.addresses import redact

    if isinstance(error, exceptions.ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        said = f"{error.operation_name}: {code if CODE.fullmatch(code) else 'it is refused'}"
        return f"{said} ({ANONYMOUS})" if status_of(error) in NOT_ALLOWED and is_anonymous() else said
    shown = tuple(getattr(exceptions, name) for name in SHOWN)
    text = QUESTION.sub("", redact(str(error))).rstrip(".")
    return text if isinstance(error, shown) else HIDDEN.format(type(error).__name__)


def reached(named: str) -> tuple[Any, str, str]:
    """Return a client, the bucket, and what the names in it begin with. Raises RefusedError, BotoCoreError."""
    from envkit.sources.answers import RefusedError

    match = NAMED.fullmatch(named)
    if match is None:
        raise RefusedError(FORM.rstrip("."))
    try:
        s3 = client(settings())
    except (OSError, ValueError) as error:  # an endpoint that is none, a program for credentials that is another
        raise RefusedError(NO_ENDPOINT if "Invalid endpoint" in str(error) else told(error)) from error
    if not is_plain(s3.meta.endpoint_url):
        raise RefusedError(HIDDEN.format("The endpoint is no address"))
    return s3, match["bucket"], f"{match['folder']}/" if match["folder"] else ""


def settings() -> tuple[tuple[str, str], ...]:
    """Return the variables that a client follows."""
    return tuple(entry for entry in os.environ.items() if OF_CLIENT.match(entry[0]))


def is_anonymous() -> bool:
    """Say whether there are no credentials."""
    from botocore import UNSIGNED

    return client(settings()).meta.config.signature_version is UNSIGNED


def is_plain(url: str) -> bool:
    """Say whether an address has its login, if it has one, where programs look for it, and hide it."""
    from envkit.system.addresses import is_address, login

    return is_address(url, ("http", "https")) and login(url) == urlsplit(url).netloc.rpartition("@")[0]


@cache
def client(of: tuple[tuple[str, str], ...]) -> Any:  # noqa: ARG001
    """Return the client of the settings that there are. Raises BotoCoreError."""
    import boto3
    from botocore import UNSIGNED
    from botocore.config import Config

    from envkit.sources.answers import PATIENCE_S

    session = boto3.Session()
    settings = Config(
        connect_timeout=CONNECT_S,
        read_timeout=PATIENCE_S,
        retries={"mode": "standard", "total_max_attempts": 2},
        request_checksum_calculation="when_required",  # servers other than AWS's do not know the newer ones
        response_checksum_validation="when_required",
    )
    if session.get_credentials() is None:
        settings = settings.merge(Config(signature_version=UNSIGNED))
    made = session.client("s3", region_name=session.region_name or REGION, config=settings)
    made.meta.events.register("before-send.s3", partial(sent, made._endpoint.http_session.send))
    return made


def sent(send: Callable[[Any], Any], request: Any, **_given: Any) -> Any:
    """Send a request in botocore's place, which reads any answer whole, however long and slow. Raises RefusedError."""
    from botocore.awsrequest import AWSResponse

    from envkit.sources.answers import begun

    request.stream_output = True
    answer = begun(partial(send, request), CONNECT_S, getattr(request.body, "tell", int))
    return AWSResponse(answer.url, answer.status_code, answer.headers, Answer(answer.raw))


class Answer:
    """What S3 sends, as botocore reads it: a file in pieces, all else at once. Reading it raises RefusedError."""

    def __init__(self, raw: Any) -> None:
        from envkit.sources.answers import end, in_time

        self.close = partial(end, raw.close)
        self._pieces = in_time(iter(partial(raw.read1, PIECE), b""), SLOWEST)

    def read(self, _amount: int | None = None) -> bytes:
        """Return what comes next, without waiting for more; nothing at its end."""
        return next(self._pieces, b"")

    def stream(self) -> Iterator[bytes]:
        """Yield what comes of an answer that is no file."""
        from envkit.sources.answers import MOST_SAID, limited

        return limited(self._pieces, None, MOST_SAID)


def names(named: str) -> list[str]:
    """Return the names of its manifests. Raises RefusedError."""
    return [file.name.removeprefix("manifests/") for file in listed(named, "manifests/")]


def listed(named: str, start: str) -> list[Stored]:
    """Return the files whose names begin so. Raises RefusedError."""
    from envkit.sources.answers import RefusedError

    with asking():
        s3, bucket, folder = reached(named)
        pages = s3.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=folder + start, PaginationConfig={"PageSize": PAGE}
        )
        files, began = list[Stored](), time.monotonic()
        try:
            for page in pages:
                for entry in page.get("Contents", ()):
                    name, changed = entry["Key"].removeprefix(folder), entry["LastModified"].timestamp()
                    files.append(Stored(name=name, size=entry["Size"], changed=changed))
                if time.monotonic() - began > LISTING_S or len(files) > MOST_FILES:
                    took_s = time.monotonic() - began
                    raise RefusedError(f"It has named {len(files)} files in {took_s:.0f} s, and names more")
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise RefusedError(f"Its list of files is not as S3 has it ({error!r:.300})") from error
        return files


@contextmanager
def opened(named: str, name: str, most: int) -> Iterator[Iterable[bytes]]:
    """Give a file in pieces. Raises RefusedError, also while it is read."""
    from envkit.sources.answers import limited

    with asking():
        s3, bucket, folder = reached(named)
        answer = s3.get_object(Bucket=bucket, Key=folder + name)
    with closing(answer["Body"]) as body:
        yield limited(pieces(body), answer.get("ContentLength"), most)


def pieces(body: Any) -> Iterator[bytes]:
    """Yield the content of a file. Raises RefusedError."""
    with asking():
        yield from body.iter_chunks(PIECE)


def require(named: str) -> None:
    """Require that the bucket can be read. Raises RefusedError."""
    with asking():
        s3, bucket, folder = reached(named)
        s3.list_objects_v2(Bucket=bucket, Prefix=folder, MaxKeys=1)


def refuses(module: str) -> str:  # noqa: ARG001
    """Say nothing: a build can be called as any module is."""
    return ""


def locked(named: str) -> nullcontext[None]:  # noqa: ARG001
    """Hold nothing: a bucket has no locks, and whoever writes its index looks again."""
    return nullcontext()


def holds(named: str, name: str, size: int, sha256: str) -> bool:  # noqa: ARG001
    """Say whether a file of that size is there; S3 has no half-written ones. Raises RefusedError."""
    return any(file.name == name and file.size == size for file in listed(named, name))


def put(named: str, name: str, stream: BinaryIO) -> None:
    """Write a file. Raises RefusedError, and HostProblem for what is larger than the server takes."""
    from envkit.sources.answers import RefusedError

    try:
        with asking():
            s3, bucket, folder = reached(named)
            s3.put_object(Bucket=bucket, Key=folder + name, Body=stream)
    except RefusedError as error:
        if TOO_LARGE not in str(error):
            raise
        raise HostProblem(
            what=f"{name} is too large for {named}.",
            why=f"The server takes no more in one piece ({error}); Amazon's takes 5 GB.",
            fix="Push it into a folder or a registry.",
        ) from error


def stored(named: str) -> list[Stored]:
    """Return its files that envkit has written. Raises RefusedError."""
    files = (file for start in ("manifests/", "objects/", "sources/") for file in listed(named, start))
    return [file for file in files if OWN.fullmatch(file.name)]


def remove(named: str, name: str) -> None:
    """Remove a file, if it is there. Raises RefusedError."""
    with asking():
        s3, bucket, folder = reached(named)
        s3.delete_object(Bucket=bucket, Key=folder + name)
