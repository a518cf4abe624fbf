"""The client of HTTP for downloads: pip's settings, and bounds for what a server sends."""

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2
from unearth.auth import MultiDomainBasicAuth
from unearth.fetchers import PyPIClient

from envkit.errors import HostProblem
from envkit.sources.answers import RefusedError, begun, in_time
from envkit.sources.pipconfig import PipSettings
from envkit.system.addresses import shown, whole_proxy

OF_TRANSFER = {"content-encoding", "content-length", "transfer-encoding"}
CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")


class Content(httpx2.SyncByteStream):
    """What a server sends after its headers, as long as that is not too slow. Reading it raises RefusedError."""

    def __init__(self, of: httpx2.SyncByteStream) -> None:
        self.of = of

    def __iter__(self) -> Iterator[bytes]:
        """Yield what comes."""
        yield from in_time(self.of)

    def close(self) -> None:
        """End the connection, or have it used again."""
        self.of.close()


class Patient(httpx2.BaseTransport):
    """A way to servers, on which none holds or fills envkit. Raises what the way itself does, and RefusedError."""

    def __init__(self, way: httpx2.BaseTransport) -> None:
        self.way = way

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the answer; its content is there for success alone, since httpx2 reads all others whole."""
        limits = request.extensions["timeout"]
        answer = begun(partial(self.way.handle_request, request), limits["connect"] + limits["read"])
        if answer.is_success and isinstance(answer.stream, httpx2.SyncByteStream):
            answer.stream = Content(answer.stream)
            return answer
        answer.close()
        return httpx2.Response(answer.status_code, headers=plain(answer), extensions=answer.extensions)


class Network(httpcore2.SyncBackend):
    """Connects to hosts, each of which is looked up once.

    A lookup whose answer is lost takes five seconds, as resolv.conf(5) has it, and many at once lose some.
    """

    def __init__(self) -> None:
        self.looking, self.addresses = dict[str, threading.Lock](), dict[str, tuple[str, ...]]()

    def connect_tcp(self, host: str, port: int, *words: Any, **more: Any) -> httpcore2.NetworkStream:
        """Return a connection to the first address of a host that accepts one. Raises what that does."""
        *others, last = self.addresses_of(host, port)
        for address in others:
            with suppress(httpcore2.ConnectError, httpcore2.ConnectTimeout):
                return super().connect_tcp(address, port, *words, **more)
        return super().connect_tcp(last, port, *words, **more)

    def addresses_of(self, host: str, port: int) -> tuple[str, ...]:
        """Return the addresses of a host. Raises ConnectError."""
        with self.looking.setdefault(host, threading.Lock()):
            if host not in self.addresses:
                try:
                    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                except OSError as error:
                    raise httpcore2.ConnectError(str(error)) from error
                self.addresses[host] = tuple(dict.fromkeys(str(one[4][0]) for one in found))
            return self.addresses[host]


class Direct(httpx2.HTTPTransport):
    """The way to servers without a proxy."""

    def __init__(self, verify: ssl.SSLContext, limits: httpx2.Limits) -> None:
        super().__init__(verify=verify, limits=limits)
        self._pool = httpcore2.ConnectionPool(
            ssl_context=verify,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=Network(),
        )


class PatientClient(PyPIClient):
    """A client that goes every way with patience, but not for ever."""

    def _init_transport(self, *_: Any, **more: Any) -> httpx2.BaseTransport:
        return Direct(more["verify"], more["limits"])

    def _transport_for_url(self, url: httpx2.URL) -> httpx2.BaseTransport:
        return Patient(super()._transport_for_url(url))


def plain(answer: httpx2.Response) -> list[tuple[str, str]]:
    """Return the headers of an answer but those of how its content came."""
    return [(name, value) for name, value in answer.headers.multi_items() if name.lower() not in OF_TRANSFER]


def check_redirect(response: "httpx2.Response") -> None:
    """Let no server lead to a file of this machine."""
    if response.has_redirect_location:
        target = response.url.join(response.headers["Location"])
        if target.scheme not in ("http", "https"):
            raise RefusedError(f"it leads to {shown(str(target))}, which no server may")


def new_client(settings: PipSettings, connect_s: float) -> PyPIClient:
    """Return a client for HTTP that has pip's settings. Raises HostProblem for certificates that cannot be read."""
    unverified = {
        f"all://{host}": httpx2.HTTPTransport(verify=False, proxy=proxy_for(host, settings))
        for host in settings.trusted_hosts
    }
    client = PatientClient(
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
    if settings.proxy or proxy_bypass(host):
        return settings.proxy
    by_scheme = getproxies()
    proxy = by_scheme.get("https") or by_scheme.get("all")
    return whole_proxy(proxy) if proxy else None


def tls(settings: PipSettings) -> ssl.SSLContext:
    """Return the certificates that are accepted and shown. Raises HostProblem where they cannot be read."""
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
