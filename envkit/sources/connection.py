"""Downloads over HTTP and from ``file://``, with pip's certificates, proxies, credentials and timeouts.

No password leaves this module: URLs in messages go through ``shown`` of ``addresses.py``, other texts through its
``redact``, and the log records of the HTTP libraries, some of which hold whole URLs, are dropped while a connection is
open.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit

from envkit.errors import HostProblem
from envkit.sources.addresses import host_of, is_address, is_proxy, login, redact, shown, whole_proxy
from envkit.sources.cache import CHUNK_BYTES
from envkit.sources.pipconfig import PipSettings
from envkit.system.files import open_plain

if TYPE_CHECKING:
    import ssl

    import httpx2
    from unearth.fetchers import PyPIClient

BACKOFF_S = (0.5, 2.0)
CONNECT_S = 20.0
LIMIT_BYTES = 16 << 30  # the largest source there is, of CUDA, has 5 GB
PAGE_LIMIT_BYTES = 64 << 20
OF_TRANSFER = {"content-encoding", "content-length", "transfer-encoding"}
TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504, 520, 522, 524}
CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
LOGGERS = (
    *("httpx2", "httpcore2.connection", "httpcore2.http11", "httpcore2.proxy", "httpcore2.socks"),
    *("unearth.auth", "unearth.collector", "unearth.evaluator", "unearth.utils"),
)
INDEXES = "'index-url' or 'extra-index-url' (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL)"
FIND_LINKS = "'find-links' (PIP_FIND_LINKS)"
ASK_FOR_PASSWORD = {401, 403, 407}

T = TypeVar("T")


class RefusedError(Exception):
    """A URL does not give the file; the text says why, without secrets."""


class TransientError(RefusedError):
    """The same URL may give the file in a moment."""


class UnreachableError(TransientError):
    """There is no connection to the host."""


class Connection:
    """One HTTP client for all downloads of a fetch; its methods may be called from several threads.

    ``connect_s`` is how long a host may take to accept a connection, ``backoff_s`` the waits before another try.
    Raises HostProblem for a proxy or an index that is none.
    """

    def __init__(
        self, settings: PipSettings, *, connect_s: float = CONNECT_S, backoff_s: tuple[float, ...] = BACKOFF_S
    ) -> None:
        require_addresses(settings)
        self.settings = settings
        self._backoff_s = backoff_s
        self.stopped = threading.Event()
        self._client = new_client(settings, connect_s)
        self._unreachable: dict[str, str] = {}
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

        with self._translated(url), self._client.stream("GET", url, headers=headers) as response:
            content = b"".join(limited(response.iter_bytes(), None, PAGE_LIMIT_BYTES))
        check_status(response)
        plain = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in OF_TRANSFER]
        return httpx2.Response(response.status_code, headers=plain, content=content, request=response.request)

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

        A host that could not be reached then is not tried again for any other file.
        """
        for wait_s in (*self._backoff_s, None):
            try:
                return attempt()
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
    def _translated(self, url: str) -> Iterator[None]:
        import httpx2

        if reason := self._unreachable.get(host_of(url)):
            raise UnreachableError(reason)
        try:
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


def limited(chunks: Iterable[bytes], size: int | None, limit: int) -> Iterator[bytes]:
    """Yield what comes, up to the size that was told, else to the limit. Raises RefusedError for more."""
    most, done = limit if size is None else min(size, limit), 0
    if size is not None and size > limit:
        raise RefusedError(f"it has {size} bytes, as the server says; no file of more than {limit} is taken")
    for chunk in chunks:
        done += len(chunk)
        if done > most:
            raise RefusedError(f"more comes than {most} bytes, which {'is the limit' if size is None else 'it has'}")
        yield chunk


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
        kind = TransientError if status in TRANSIENT_STATUS else RefusedError
        raise kind(f"{status} {response.reason_phrase}{advice}")


def check_redirect(response: "httpx2.Response") -> None:
    """Let no server lead to a file of this machine."""
    if response.has_redirect_location:
        target = response.url.join(response.headers["Location"])
        if target.scheme not in ("http", "https"):
            raise RefusedError(f"it leads to {shown(str(target))}, which no server may")


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


def new_client(settings: PipSettings, connect_s: float) -> "PyPIClient":
    """Return a client for HTTP that has pip's settings. Raises HostProblem for certificates that cannot be read."""
    import httpx2
    from unearth.auth import MultiDomainBasicAuth
    from unearth.fetchers import PyPIClient

    unverified = {
        f"all://{host}": httpx2.HTTPTransport(verify=False, proxy=proxy_for(host, settings))
        for host in settings.trusted_hosts
    }
    client = PyPIClient(
        trusted_hosts=settings.trusted_hosts,
        verify=tls(settings),
        proxy=settings.proxy,
        mounts=unverified,
        timeout=httpx2.Timeout(settings.timeout_s, connect=min(settings.timeout_s, connect_s), pool=None),
        follow_redirects=True,
        event_hooks={"response": [check_redirect]},
    )
    client.auth = MultiDomainBasicAuth(
        prompting=False, index_urls=[*settings.index_urls, *filter(is_http, settings.find_links)]
    )
    return client


def is_http(url: str) -> bool:
    """Say whether a URL is one of HTTP."""
    return url.startswith(("http://", "https://"))


def proxy_for(host: str, settings: PipSettings) -> str | None:
    """Return the proxy for a host, if there is any: pip's, else the one of the environment."""
    from urllib.request import getproxies, proxy_bypass

    if settings.proxy or proxy_bypass(host):
        return settings.proxy
    by_scheme = getproxies()
    proxy = by_scheme.get("https") or by_scheme.get("all")
    return whole_proxy(proxy) if proxy else None


def tls(settings: PipSettings) -> "ssl.SSLContext":
    """Return the certificates that are accepted and shown. Raises HostProblem where they cannot be read."""
    import ssl

    import httpx2

    named = [os.environ[name] for name in CA_VARIABLES if os.environ.get(name)]
    authorities = settings.cert or next(iter(named), None)
    try:
        if authorities is None:
            context = httpx2.create_ssl_context()
        elif Path(authorities).is_dir():
            context = ssl.create_default_context(capath=authorities)
        else:
            context = ssl.create_default_context(cafile=authorities)
        if settings.client_cert:
            context.load_cert_chain(settings.client_cert)
    except OSError as error:
        raise HostProblem(
            what="The certificates for downloads cannot be read.",
            why=f"{authorities or 'default'}, {settings.client_cert or 'no client certificate'}: {error}.",
            fix=f"Correct pip's 'cert' and 'client-cert', or {', '.join(CA_VARIABLES)} in the environment.",
        ) from error
    return context
