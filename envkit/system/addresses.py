"""Addresses as they may be shown, without users and passwords, and which of them can be used.

A proxy may be written without a scheme, as pip, curl and git take it: ``user:password@host:port``.
"""

import re
from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

# A quotation mark within a word ends no URL; what stands before a digest is an image.
IN_URL = re.compile(r"://(?!git@|[\w.-]*@sha\d+:(?:[0-9a-f]{9}|DIGEST))((?:[^\s/'\"]|(?<=\w)['\"](?=\w))*)@")
# What ends before a host, as ada:pw does, in what has no blank in it: no digest of an image, no version of a symbol.
RUN = re.compile(
    r"(?<![^\s/'\"])[^\s/'\"]+@(?=\[|[^\W\d]|\d{1,3}(?:\.\d{1,3}){3}(?![\w.]))"
    r"(?!sha\d+:[0-9a-f]|(?:o2ib|tcp|gni|kfi)\d*(?![\w.-])|[A-Z][A-Z0-9]*_[A-Z0-9_.]*(?![\w.-]|:\d))"
)  # begins where nothing else can: it takes a time in proportion to the text
# Variables whose values are addresses, in which a user and a password may stand also without http:// before them.
OF_ADDRESSES = re.compile(r"(?i)PROXY|URL|URI|INDEX|SERVER")
SCHEME = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?//")
FIRST = re.compile(r"[^/?#\\]*")
DIGEST = re.compile(r"sha\d+:[0-9a-f]", re.ASCII)
USER = re.compile(r"(?!(?i:mailto|from|to|cc):[^:]*@)(?<![\w.%~+-])\w[\w.%~+-]*:(?=.)")


def redact(text: str) -> str:
    """Replace the user and password of every address in a text, be it a URL or ``user:password@host``."""
    return RUN.sub(without, IN_URL.sub("://***@", text))


def shown(url: str) -> str:
    """Return one URL as it may be shown: without password, query and fragment. A password may have ? and # in it."""
    return without_login(url).partition("#")[0].partition("?")[0]


def without_login(url: str) -> str:
    """Return one URL, or one address without a scheme, without its user and password, whatever is in these."""
    credentials = login(url)
    return redact(url.replace(f"{credentials}@", "***@", 1) if credentials else url)


def without_logins(text: str, words: Iterable[str]) -> str:
    """Replace the user and password of every address in a text that has some of these words, whatever is in them."""
    for word in words:
        for address in (word, word.partition("=")[2]):
            credentials = login(address) if "@" in address else ""
            if ":" in credentials or (credentials and "://" in address):
                text = text.replace(credentials, "***")
    return redact(text)


def login(url: str) -> str:
    """Return the user and password of one URL, with or without a scheme: what it has up to its last @; else nothing.

    An @ behind a host is one of the path. What has a colon in it may be a user, and a / of the password follows. What
    has capital letters and no dot is no host, but the beginning of a token.
    """
    begin = SCHEME.match(url)
    rest = url[begin.end() :] if begin else url
    first = FIRST.match(rest)
    before, _, behind = rest.rpartition("@")
    if DIGEST.match(behind):
        return ""
    is_token = begin and first and first[0] != first[0].lower() and "." not in first[0]
    return before if is_token or (first and {*":@"} & {*first[0]}) else ""


def logins(text: str) -> Iterator[str]:
    """Yield ``user:password`` of each address in a text that has no scheme."""
    for run in RUN.findall(IN_URL.sub("://", text)):
        if match := USER.search(run):
            yield run[match.start() : -1]


def whole_proxy(proxy: str) -> str:
    """Return a proxy with its scheme, which is http:// where none is written."""
    return proxy if "://" in proxy else f"http://{proxy}"


def host_of(url: str) -> str:
    """Return the host of a URL with all that is told with it; the URL itself where it has none."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return url


def is_proxy(url: str) -> bool:
    """Say whether a URL is one of a proxy: nothing but a host, with or without port and login."""
    if not is_address(url, ("http", "https", "socks5", "socks5h")):
        return False
    parts = urlsplit(url)
    return parts.path in ("", "/") and not parts.query + parts.fragment


def is_address(url: str, schemes: tuple[str, ...]) -> bool:
    """Say whether a URL has a host, a port that is one, and no login behind them, as one with # in it would be."""
    import httpx2

    try:
        parts = urlsplit(url)
        _ = parts.port, httpx2.URL(url)
    except (ValueError, httpx2.InvalidURL):
        return False
    return parts.scheme in schemes and bool(parts.hostname) and "@" not in parts.query + parts.fragment


def without(match: re.Match[str]) -> str:
    """Return what is shown in place of one match of RUN: without its user and password, if it has these."""
    user = USER.search(match[0])
    return f"{match[0][: user.start()]}***@" if user else match[0]
