"""The places where a file can be downloaded: pip's find-links and indexes, then the URLs of its recipe.

``unearth`` reads the pages. Nothing is resolved and no code of a package runs: only a link with exactly the
wanted file name counts, so that an index's plain build can never stand in for a ``+cpu`` one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast
from urllib.parse import quote, unquote, urlsplit

from envkit.sources.answers import RefusedError
from envkit.sources.connection import Connection, file_path
from envkit.sources.source_cache import Source
from envkit.system.addresses import redact, shown, without_login

if TYPE_CHECKING:
    import httpx2
    from unearth.fetchers import Fetcher

FILE_SUFFIXES = (".gz", ".tgz", ".bz2", ".xz", ".tar", ".zip", ".whl", ".patch", ".diff")


class Candidate(NamedTuple):
    """A place that may have the file, and the SHA-256 that an index page states for it."""

    url: str
    sha256: str | None = None


class FileStore(Protocol):
    """A place that keeps files by their SHA-256, such as a cache of builds."""

    @property
    def shown(self) -> str:
        """It, as it may be shown."""

    def source(self, sha256: str) -> AbstractContextManager[Iterable[bytes]]:
        """Give a file in pieces. Raises RefusedError, also while it is read."""


class Pages:
    """Reads index pages for ``unearth`` (its Fetcher protocol), noting each page that cannot be read."""

    def __init__(self, connection: Connection, note: Callable[[str], None]) -> None:
        self._connection = connection
        self._note = note

    def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> "httpx2.Response":
        """Get a page."""
        return self._read(url, lambda: self._connection.get(url, headers=headers))

    def head(self, url: str, *, headers: Mapping[str, str] | None = None) -> "httpx2.Response":
        """Ask about a page."""
        return self._read(url, lambda: self._connection.head(url, headers=headers))

    def iter_secure_origins(self) -> Iterable[tuple[str, str, str]]:
        """Return the origins that pages may be read from."""
        return self._connection.iter_secure_origins()

    def _read(self, url: str, attempt: Callable[[], "httpx2.Response"]) -> "httpx2.Response":
        from unearth.collector import LinkCollectError

        try:
            return self._connection.with_retries(url, attempt, lambda _: None)
        except RefusedError as error:
            self._note(f"{shown(url)}: {error}")
            raise LinkCollectError(str(error)) from None


def candidates(source: Source, connection: Connection, note: Callable[[str], None]) -> Iterator[Candidate]:
    """Yield the places to try, best first, reading each page only when the places before it have failed."""
    settings = connection.settings
    if source.project:
        yield from linked(source, connection, note, settings.find_links, settings.index_urls)
    for url in source.urls:
        whole = whole_url(url, source.filename)
        yield Candidate(whole)
        if source.project and whole != url:
            yield from linked(source, connection, note, (), (url,))


def whole_url(url: str, filename: str) -> str:
    """Return the URL of the file: ``url`` itself if it ends in a file name, else the file below it."""
    last = unquote(urlsplit(url).path).rpartition("/")[2]
    if last == filename or last.endswith(FILE_SUFFIXES):
        return url
    return f"{url.rstrip('/')}/{quote(filename)}"


def linked(
    source: Source,
    connection: Connection,
    note: Callable[[str], None],
    find_links: Sequence[str],
    index_urls: Sequence[str],
) -> Iterator[Candidate]:
    """Yield the links to a source on pages of find-links and indexes."""
    from envkit.sources.finder import FileFinder

    pages = Pages(connection, note)
    finder = FileFinder(pages, source.filename)
    for place in filter(None, (existing(place, note) for place in find_links)):
        finder.add_find_links(place)
    for url in index_urls:
        if is_trusted(url, pages, note):
            finder.add_index_url(url)
    try:
        for package in finder.find_all_packages(source.project or "", allow_yanked=True):
            if package.link.filename == source.filename:
                stated = (package.link.hash_option or {}).get("sha256", [None])[0]
                yield Candidate(package.link.url_without_fragment, stated)
    except ValueError as error:
        note(f"{source.project}: a page of an index has a link that is no address: {redact(str(error))}")
    except LookupError as error:
        note(f"{source.project}: a page of an index is in a coding that there is not: {redact(str(error))}")


def existing(place: str, note: Callable[[str], None]) -> str | None:
    """Return a place of find-links as a URL; None, and a note, where there is no such file or folder."""
    if "://" in place and not place.startswith("file://"):
        return place
    path = file_path(place) if place.startswith("file://") else Path(place).expanduser()
    if path.exists():
        return path.resolve().as_uri()
    note(f"find-links {without_login(str(path))}: no such file or folder")
    return None


def is_trusted(url: str, pages: Pages, note: Callable[[str], None]) -> bool:
    """Say whether pip would read an index; if not, note why."""
    from unearth.collector import is_secure_origin
    from unearth.link import Link

    if is_secure_origin(cast("Fetcher", pages), Link(url)):
        return True
    note(f"{shown(url)}: plain http, and not one of pip's trusted-host: pip does not read it either")
    return False
