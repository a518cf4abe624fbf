"""Several downloads at once, with news of them."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import chain

import msgspec

from envkit.errors import DiskFull
from envkit.sources.answers import RefusedError, SlowError, TransientError, UnreachableError
from envkit.sources.connection import Connection
from envkit.sources.index import Candidate, FileStore, candidates
from envkit.sources.pipconfig import pip_settings
from envkit.sources.source_cache import Source, SourceCache, WrongContentError
from envkit.system.addresses import shown

DOWNLOADS_AT_ONCE = 3
EVENT_BYTES = 1 << 20
FAREWELL_S = 1.0


class FetchState(StrEnum):
    """The news of a file: what has just happened to it."""

    SET_ASIDE = "set aside"
    STARTED = "started"
    PROGRESS = "progress"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"


class FetchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """News of file ``number`` of ``count``, in bytes; ``bytes_total`` is None while nobody has said it.

    ``note`` is the URL (without secrets) of a start, and the reason of anything that went wrong.
    """

    state: FetchState
    filename: str
    number: int
    count: int
    bytes_done: int = 0
    bytes_total: int | None = None
    note: str = ""


class Unavailable(msgspec.Struct, frozen=True, kw_only=True):
    """A source that could not be had, and why at each place where it was sought."""

    source: Source
    reasons: list[str]
    wrong_content: bool = False


class Download:
    """The downloads of one fetch: a few threads that take sources from a queue."""

    def __init__(
        self,
        here: SourceCache,
        progress: Callable[[FetchEvent], None],
        sources: Sequence[Source],
        kept: Sequence[FileStore] = (),
        known: Mapping[Source, Candidate] | None = None,
    ) -> None:
        self._here = here
        self._progress = progress
        self._sources = sources
        self._kept = list(kept)
        self._known = known or {}
        self._failing = set[FileStore]()
        self._left: dict[FileStore, str] = {}  # those that fail, and why
        self._telling = threading.Lock()
        self._connection = Connection(pip_settings())
        self._queue: queue.SimpleQueue[tuple[int, Source]] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Unavailable | BaseException | None] = queue.SimpleQueue()

    def all(self) -> list[Unavailable]:
        """Get every source; return what could not be had. What is not a source's own fault is raised."""
        for job in enumerate(self._sources, 1):
            self._queue.put(job)
        # Daemons: Ctrl-C must not wait for a server that has gone silent.
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(DOWNLOADS_AT_ONCE)]
        try:
            for thread in threads:
                thread.start()
            return list(self._problems())
        finally:
            self._connection.stopped.set()
            deadline = time.monotonic() + FAREWELL_S
            for thread in threads:
                if thread.is_alive():  # a signal may come before all of them are started
                    thread.join(max(0.0, deadline - time.monotonic()))
            self._connection.close()

    def _problems(self) -> Iterator[Unavailable]:
        for _ in self._sources:
            outcome = self._outcomes.get()
            if isinstance(outcome, BaseException):
                raise outcome
            if outcome:
                yield outcome

    def _work(self) -> None:
        with suppress(queue.Empty):
            while not self._connection.stopped.is_set():
                number, source = self._queue.get_nowait()
                try:
                    self._outcomes.put(self._get(number, source))
                except BaseException as error:  # handed to the thread that waits
                    self._outcomes.put(error)

    def _get(self, number: int, source: Source) -> Unavailable | None:
        reasons: list[str] = []
        wrong_content = False
        for store in [*self._kept]:
            if store in self._left:
                reasons.append(f"{store.shown}: {self._left[store]}")
                continue
            try:
                self._take(number, source, store)
            except WrongContentError as error:
                reasons.append(f"{store.shown}: {error}, but the recipe pins {source.sha256}")
            except DiskFull as error:  # it may be that of something else, without an end
                reasons.append(f"{store.shown}: {error.what}")
            except RefusedError as error:
                reasons.append(f"{store.shown}: {error}")
                if isinstance(error, SlowError | UnreachableError) or store in self._failing:
                    self._left[store] = f"it is not asked again: for another file {error}"
                elif isinstance(error, TransientError):
                    self._failing.add(store)
            else:
                return None
        known = self._known.get(source)
        others = (place for place in candidates(source, self._connection, reasons.append) if place != known)
        for place in chain([known] if known else [], others):
            try:
                if place.sha256 not in (None, source.sha256):
                    raise WrongContentError(place.sha256 or "")
                self._download(number, source, place)
            except WrongContentError as error:
                wrong_content = True
                reasons.append(f"{shown(place.url)}: {error}, but the recipe pins {source.sha256}")
            except RefusedError as error:
                reasons.append(f"{shown(place.url)}: {error}")
            else:
                return None
        self._tell(number, source, FetchState.FAILED, note="; ".join(reasons))
        return Unavailable(source=source, reasons=reasons, wrong_content=wrong_content)

    def _take(self, number: int, source: Source, kept: FileStore) -> None:
        with kept.source(source.sha256 or "") as chunks:
            self._tell(number, source, FetchState.STARTED, note=kept.shown)
            self._here.store(source.place, self._watched(number, source, None, chunks), source.sha256)
        size = self._here.path(source.place).stat().st_size
        self._tell(number, source, FetchState.DONE, size, size)

    def _download(self, number: int, source: Source, place: Candidate) -> None:
        def attempt() -> None:
            self._tell(number, source, FetchState.STARTED, note=shown(place.url))
            with self._connection.opened(place.url) as (total, chunks):
                watched = self._watched(number, source, total, chunks)
                self._here.store(source.place, watched, source.sha256)

        self._connection.with_retries(
            place.url, attempt, lambda note: self._tell(number, source, FetchState.RETRYING, note=note)
        )
        size = self._here.path(source.place).stat().st_size
        self._tell(number, source, FetchState.DONE, size, size)

    def _watched(self, number: int, source: Source, total: int | None, chunks: Iterable[bytes]) -> Iterator[bytes]:
        done = reported = 0
        for chunk in chunks:
            if self._connection.stopped.is_set():
                raise RefusedError("stopped")
            yield chunk
            done += len(chunk)
            if done - reported >= EVENT_BYTES:
                reported = done
                self._tell(number, source, FetchState.PROGRESS, done, total)

    def _tell(
        self,
        number: int,
        source: Source,
        state: FetchState,
        bytes_done: int = 0,
        bytes_total: int | None = None,
        note: str = "",
    ) -> None:
        event = FetchEvent(
            state=state,
            filename=source.filename,
            number=number,
            count=len(self._sources),
            bytes_done=bytes_done,
            bytes_total=bytes_total,
            note=note,
        )
        with self._telling:
            self._progress(event)
