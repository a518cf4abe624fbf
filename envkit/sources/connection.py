"""Downloads over HTTP and from ``file://``, with pip's certificates, proxies, credentials and timeouts.

No password leaves this module: URLs in messages go through ``shown`` of ``addresses.py``, other texts through its
``redact``, and the log records of the HTTP libraries, some of which hold whole URLs, are dropped while a connection is
open.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from envkit.errors import HostProblem
from envkit.sources.answers import (
    AbsentError,
    RefusedError,
    SlowError,
    TransientError,
    UnreachableError,
    in_time,
    limited,
)
from envkit.sources.pipconfig import PipSettings
from envkit.sources.source_cache import CHUNK_BYTES
from envkit.system.addresses import host_of, is_address, is_proxy, login, redact, shown, whole_proxy
from envkit.system.files import open_plain

if TYPE_CHECKING:
    import httpx2

CODINGS = {"gzip", "deflate", "br", "zstd"}  # that httpx2 unpacks
BACKOFF_S = (0.5, 2.0)
CONNECT_S = 20.0
LIMIT_BYTES = 16 << 30  # the largest source there is, of CUDA, has 5 GB
PAGE_LIMIT_BYTES = 64 << 20
NO_SUCH = 404
TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504, 520, 522, 524}
LOGGERS = (
    *("httpx2", "httpcore2.connection", "httpcore2.http11", "httpcore2.proxy", "httpcore2.socks"),
    *("unearth.auth", "unearth.collector", "unearth.evaluator", "unearth.utils"),
)
INDEXES = "'index-url' or 'extra-index-url' (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL)"
FIND_LINKS = "'find-links' (PIP_FIND_LINKS)"
ASK_FOR_PASSWORD = {401, 403, 407}

T = TypeVar("T")


class Connection:
    """One HTTP client for all downloads of a fetch; its methods may be called from several threads.

    ``connect_s`` is how long a host may take to accept a connection, ``backoff_s`` the waits before another try.
    ``asking`` has what each thread is waiting for, and since when.
    Raises HostProblem for a proxy or an index that is none.
    """

    def __init__(
        self, settings: PipSettings, *, connect_s: float = CONNECT_S, backoff_s: tuple[float, ...] = BACKOFF_S
    ) -> None:
        from envkit.sources.client import new_client

        require_addresses(settings)
        self.settings = settings
        self._backoff_s = backoff_s
        self.stopped = threading.Event()
        self._client = new_client(settings, connect_s)
        self._unreachable: dict[str, str] = {}
        self.asking: dict[int, tuple[str, float]] = {}
        hooks = self._client.event_hooks
        hooks["request"].append(self._asks)
        self._client.event_hooks = hooks
        self._drop = lambda _record: False
        for name in LOGGERS:
            logging.getLogger(name).addFilter(self._drop)

    def close(self) -> None:
        """Close every connection."""
        self._client.close()
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self._drop)

    @contextmanager
    def opened(self, url: str) -> Iterator[tuple[int | None, Iterable[bytes]]]:
        """Give the length in bytes, if it is known, and the content in pieces. Raises RefusedError."""
        if url.startswith("file://"):
            with opened_file(url) as answer:
                yield answer
            return
        with self._translated(url):
            # A server that declares a .tar.gz as a compressed .tar must not have it unpacked on the way.
            with self._client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response:
                check_status(response)
                length = response.headers.get("Content-Length", "")
                size = int(length[:20]) if length.isascii() and length.isdecimal() else None
                yield size, limited(response.iter_raw(), size, LIMIT_BYTES)

    def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> "httpx2.Response":
        """Get a page. Raises RefusedError."""
        import httpx2

        from envkit.sources.client import plain

        asked = {**(headers or {}), "Accept-Encoding": "gzip"}
        with self._translated(url), self._client.stream("GET", url, headers=asked) as response:
            check_status(response)
            codings = response.headers.get("Content-Encoding", "").lower().split(",")
            packed = [coding for coding in map(str.strip, codings) if coding in CODINGS]
            if packed not in ([], ["gzip"]):  # others unpack to a million times as much
                raise RefusedError(f"it is packed by {', '.join(packed)}, which was not asked for")
            content = b"".join(limited(in_time(response.iter_bytes()), None, PAGE_LIMIT_BYTES))
        return httpx2.Response(response.status_code, headers=plain(response), content=content, request=response.request)

    def head(self, url: str, *, headers: Mapping[str, str] | None = None) -> "httpx2.Response":
        """Ask about a page. Raises RefusedError."""
        with self._translated(url):
            response = self._client.head(url, headers=headers)
        check_status(response)
        return response

    def iter_secure_origins(self) -> Iterable[tuple[str, str, str]]:
        """Return the (scheme, host, port) patterns of origins that pip would read pages from."""
        return self._client.iter_secure_origins()

    def with_retries(self, url: str, attempt: Callable[[], T], tell: Callable[[str], None]) -> T:
        """Try what gets ``url``, and again after each of ``backoff_s`` while the failure may pass.

        A host that could not be reached then, or that is too slow, is not tried again for any other file.
        """
        for wait_s in (*self._backoff_s, None):
            try:
                return attempt()
            except SlowError as error:
                self._unreachable.setdefault(host_of(url), f"it is too slow: for another file {error}")
                raise
            except TransientError as error:
                host = host_of(url)
                if wait_s is None and isinstance(error, UnreachableError):
                    self._unreachable.setdefault(host, str(error))
                if wait_s is None or host in self._unreachable:
                    raise
                tell(f"{shown(url)}: {error}; trying again")
                if self.stopped.wait(wait_s):
                    raise
        raise AssertionError

    @contextmanager
    def waiting_for(self, url: str) -> Iterator[None]:
        """Note what this thread is waiting for."""
        thread = threading.get_ident()
        before = self.asking.get(thread)
        self.asking[thread] = url, time.monotonic()
        try:
            yield
        finally:
            self.asking.pop(thread)
            if before:
                self.asking[thread] = before

    def _asks(self, request: "httpx2.Request") -> None:
        """Note where a server has led."""
        thread = threading.get_ident()
        if thread in self.asking:
            self.asking[thread] = str(request.url), time.monotonic()

    @contextmanager
    def _translated(self, url: str) -> Iterator[None]:
        import httpx2

        if reason := self._unreachable.get(host_of(url)):
            raise UnreachableError(reason)
        try:
            with self.waiting_for(url):
                yield
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise RefusedError(f"its certificate is not accepted: {redact(str(error))}") from None
            raise UnreachableError(said(error)) from None
        except httpx2.InvalidURL:  # what it says may be a part of a password
            raise RefusedError("it is no address") from None
        except (httpx2.UnsupportedProtocol, httpx2.TooManyRedirects) as error:
            raise RefusedError(said(error)) from None
        except httpx2.HTTPError as error:
            raise TransientError(said(error)) from None


def require_addresses(settings: PipSettings) -> None:
    """Require that proxies and indexes are addresses. Raises HostProblem, which shows no password."""
    for name, value in proxies(settings):
        if value.startswith("socks") and not find_spec("socksio"):
            fix = "Name a proxy for HTTP, or add the package socksio to envkit's own Python."
            raise HostProblem(what=f"{name} is a SOCKS proxy, for which envkit lacks a package.", fix=fix)
        if not is_proxy(value):
            raise misspelt(f"{name} is no address of a proxy.", "http://HOST:PORT", "http://USER:PASSWORD@HOST:PORT")
    folders = tuple(
        link for link in settings.find_links if "://" not in link and (not login(link) or Path(link).exists())
    )
    for name, values, good in ((INDEXES, settings.index_urls, ()), (FIND_LINKS, settings.find_links, folders)):
        others = [url for url in values if url not in good and not url.startswith(("/", "file:/"))]
        if not all(is_address(url, ("http", "https")) for url in others):
            what = f"pip's {name} has something in it that is no address."
            raise misspelt(what, "https://HOST/PATH", "https://USER:PASSWORD@HOST/PATH")


def misspelt(what: str, plain: str, with_login: str) -> HostProblem:
    """Say that an address is none, and how it is written."""
    return HostProblem(
        what=what,
        why="What it says is not shown: there may be a password in it.",
        fix=f"Write it as {plain}, or as {with_login}; in a password %23 is #, %2F is /, %3A is : and %40 is @.",
    )


def proxies(settings: PipSettings) -> Iterator[tuple[str, str]]:
    """Yield where a proxy is from, and the proxy: pip's, else those of the environment."""
    from urllib.request import getproxies

    if settings.proxy:
        yield "pip's 'proxy' (PIP_PROXY)", settings.proxy
        return
    by_scheme = getproxies()
    for kind in ("https", "http", "all"):
        if proxy := by_scheme.get(kind):
            name = f"{kind}_proxy"
            yield name if os.environ.get(name) else name.upper(), whole_proxy(proxy)


def file_path(url: str) -> Path:
    """Return the path that a ``file://`` URL means."""
    return Path(unquote(urlsplit(url).path))


def said(error: Exception) -> str:
    """Return what an error says, without secrets; its name where it says nothing."""
    return redact(str(error)) or type(error).__name__


def check_status(response: "httpx2.Response") -> None:
    """Raise RefusedError, or TransientError, for an answer that is none of success."""
    status = response.status_code
    if status >= 400 or status < 200:
        advice = ": check the password in pip's configuration or ~/.netrc" if status in ASK_FOR_PASSWORD else ""
        kind = AbsentError if status == NO_SUCH else TransientError if status in TRANSIENT_STATUS else RefusedError
        raise kind(f"{status} {response.reason_phrase}{advice}")
    if status >= 300:  # where it leads has been followed, if it leads anywhere
        raise RefusedError(f"{status} {response.reason_phrase}, and no address to go to")


@contextmanager
def opened_file(url: str) -> Iterator[tuple[int, Iterable[bytes]]]:
    """Give the size and the content of a file that a URL means. Raises RefusedError."""
    try:
        stream = open_plain(file_path(url))
    except OSError as error:
        raise RefusedError(error.strerror or str(error)) from None
    with stream:
        size = os.fstat(stream.fileno()).st_size
        yield size, limited(iter(lambda: stream.read(CHUNK_BYTES), b""), size, LIMIT_BYTES)
