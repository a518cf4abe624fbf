"""Sources in a cache of builds: put there, and taken from there before any index, checked by their pins."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, NoReturn

import pytest

from envkit.cache import contents, folder, layout
from envkit.cache.place import Caches, Place
from envkit.cli import run
from envkit.environments.prefix import listed
from envkit.errors import CacheBlocked, DiskFull, NotReadable, SourcesMissing, UsageProblem
from envkit.install import cache_push
from envkit.sources import download, pipconfig
from envkit.sources.answers import RefusedError, SlowError, TransientError, UnreachableError
from envkit.sources.availability import Answers, ask
from envkit.sources.fetch import FetchEvent, FetchState, FileStore, Source, fetch

from .small_disk import leave, small_disk
from .test_cache import serving

TEXTS = {"one.tar.gz": b"the first" * 1000, "two.whl": b"the second" * 1000}


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sources(*urls: str) -> list[Source]:
    """Return two sources, which nobody else has."""
    return [Source(filename=name, sha256=sha(text), urls=urls, needed_by="toy.eb") for name, text in TEXTS.items()]


@pytest.fixture(autouse=True)
def pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index, and no program that is asked for it."""
    monkeypatch.setattr(pipconfig, "pip_command", list)
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def there(tmp_path: Path) -> Place:
    """A folder that the sources were put into."""
    own = tmp_path / "own"
    for each in (own, tmp_path / "cache"):
        each.mkdir()
    for name, text in TEXTS.items():
        (own / name).write_bytes(text)
    made = Place(named=str(tmp_path / "cache"))
    assert cache_push.push_sources(made, sources(), own) == 2
    return made


def raising(error: Exception) -> NoReturn:
    """Raise it."""
    raise error


def get(cache: Path, kept: Iterable[FileStore], *urls: str) -> list[FetchEvent]:
    """Fetch them; return what was told."""
    events = list[FetchEvent]()
    fetch(sources(*urls), cache, offline=False, progress=events.append, kept=tuple(kept))
    return events


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the files in a cache of sources."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


class TestTaken:
    """From the places that are named, before the index."""

    def test_from_a_folder(self, there: Place, tmp_path: Path) -> None:
        told = get(tmp_path / "new", [there])
        assert files_in(tmp_path / "new") == TEXTS
        assert {one.note for one in told if one.state is FetchState.STARTED} == {there.shown}

    def test_by_a_server(self, there: Place, tmp_path: Path) -> None:
        with serving(Path(there.named)) as url:
            get(tmp_path / "new", [Place(named=url)])
        assert files_in(tmp_path / "new") == TEXTS

    def test_what_it_lacks_comes_from_elsewhere(self, there: Place, tmp_path: Path) -> None:
        (Path(there.named) / layout.source_of(sha(TEXTS["two.whl"]))).unlink()
        told = get(tmp_path / "new", [there], (tmp_path / "own").as_uri())
        assert files_in(tmp_path / "new") == TEXTS
        assert {one.note for one in told if one.state is FetchState.STARTED} == {
            there.shown,
            (tmp_path / "own/two.whl").as_uri(),
        }

    def test_what_is_not_what_is_pinned_is_not_taken(self, there: Place, tmp_path: Path) -> None:
        (Path(there.named) / layout.source_of(sha(TEXTS["two.whl"]))).write_bytes(b"evil")
        with pytest.raises(SourcesMissing) as absent:
            get(tmp_path / "new", [there])
        assert f"{there.shown}: its SHA-256 is {sha(b'evil')}, but the recipe pins" in absent.value.why
        assert files_in(tmp_path / "new") == {"one.tar.gz": TEXTS["one.tar.gz"]}
        get(tmp_path / "new", [there], (tmp_path / "own").as_uri())
        assert files_in(tmp_path / "new") == TEXTS

    def test_another_file_in_its_place_fills_no_disk(self, there: Place, tmp_path: Path) -> None:
        """It is read before it is copied."""
        path = Path(there.named) / layout.source_of(sha(TEXTS["two.whl"]))
        path.unlink()
        with path.open("wb") as stream:
            stream.truncate(200_000_000)
        with small_disk(tmp_path / "small", 2500):
            get(tmp_path / "small/new", [there], (tmp_path / "own").as_uri())
            assert files_in(tmp_path / "small/new") == TEXTS

    def test_a_place_without_an_end_is_left_when_the_disk_is_full(self, there: Place, tmp_path: Path) -> None:
        class Endless:
            shown = "https://cache.example"

            @contextmanager
            def source(self, sha256: str) -> Iterator[Iterable[bytes]]:
                yield iter(lambda: bytes(1 << 20), b"")

        with small_disk(tmp_path / "small", 2500):
            get(tmp_path / "small/new", [Endless(), there])
            assert files_in(tmp_path / "small/new") == TEXTS

    def test_a_server_that_ends_in_the_middle(self, there: Place, tmp_path: Path) -> None:
        class Cut(SimpleHTTPRequestHandler):
            def copyfile(self, source: Any, outputfile: Any) -> None:
                content = source.read()
                outputfile.write(content[: len(content) // 2])

        with serving(Path(there.named), Cut) as url:
            get(tmp_path / "new", [Place(named=url), there])
        assert files_in(tmp_path / "new") == TEXTS

    @pytest.mark.integration
    def test_no_such_place(self, there: Place, tmp_path: Path) -> None:
        gone = [
            Place(named=str(tmp_path / "gone")),
            Place(named="http://127.0.0.1:9"),
            Place(named="oci://127.0.0.1:9/x"),
        ]
        get(tmp_path / "new", [*gone, there])
        assert files_in(tmp_path / "new") == TEXTS

    @pytest.mark.parametrize(
        ("kind", "asked"), [(RefusedError, 2), (SlowError, 1), (UnreachableError, 1), (TransientError, 2)]
    )
    def test_a_place_that_fails_is_asked_once(
        self, kind: type[RefusedError], asked: int, there: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that only lacks a file is asked for the next."""

        @dataclass(eq=False)
        class Slow:
            asked: list[str] = field(default_factory=list)
            shown: str = "slow"

            @contextmanager
            def source(self, sha256: str) -> Iterator[Iterable[bytes]]:
                self.asked.append(sha256)
                raise kind("no")
                yield []

        monkeypatch.setattr(download, "DOWNLOADS_AT_ONCE", 1)
        slow = Slow()
        get(tmp_path / "new", [slow, there])
        assert len(slow.asked) == asked
        assert files_in(tmp_path / "new") == TEXTS
        if asked == 1:
            with pytest.raises(SourcesMissing, match="sources") as absent:
                get(tmp_path / "other", [Slow()])
            assert "slow: it is not asked again: for another file no" in absent.value.why

    @pytest.mark.integration
    def test_what_is_there_is_not_said_to_lack(self, there: Place, tmp_path: Path) -> None:
        assert len(ask(sources("http://127.0.0.1:9"), 5.0).refused) == 2
        assert ask(sources("http://127.0.0.1:9"), 5.0, [there]) == Answers(number=2)
        with serving(Path(there.named)) as url:
            assert ask(sources(), 5.0, Caches(places=(url,), keys=()).kept) == Answers(number=2)
        (Path(there.named) / layout.source_of(sha(TEXTS["two.whl"]))).unlink()
        [one] = ask(sources(), 5.0, [there]).refused
        assert one.reasons == [f"{there.shown}: this file is not there"]


class TestPut:
    """Into a place."""

    def test_what_is_there_is_not_sent(self, there: Place, tmp_path: Path) -> None:
        assert cache_push.push_sources(there, sources(), tmp_path / "own") == 0
        path = Path(there.named) / layout.source_of(sha(TEXTS["two.whl"]))
        path.write_bytes(b"damaged")
        assert cache_push.push_sources(there, sources(), tmp_path / "own") == 1
        assert path.read_bytes() == TEXTS["two.whl"]

    def test_what_is_damaged_is_told_and_removed(self, there: Place) -> None:
        good, bad = (layout.source_of(sha(TEXTS[name])) for name in ("one.tar.gz", "two.whl"))
        assert [one.wrong for one in contents.verified([there], []).sources] == ["", ""]
        (Path(there.named) / bad).write_bytes(b"damaged")
        found = {one.sha256: one.wrong for one in contents.verified([there], []).sources}
        assert found[good.removeprefix("sources/")] == ""
        assert found[bad.removeprefix("sources/")] == f"It has the SHA-256 {sha(b'damaged')}."
        assert contents.prune(there, 0, dry_run=True).removed == (bad,)
        assert contents.prune(there, 0, dry_run=False).removed == (bad,)
        assert [one.sha256 for one in contents.verified([there], []).sources] == [good.removeprefix("sources/")]

    @pytest.mark.parametrize("kind", ["link", "file", "closed"])
    def test_a_folder_of_sources_that_is_not_read_is_told(
        self, kind: str, there: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        top = Path(there.named) / "sources"
        if kind == "closed":
            refusal = NotReadable(what=f"{top} cannot be read.", why="Permission denied.")
            monkeypatch.setattr(folder, "listed", lambda at: raising(refusal) if at == top else listed(at))
            why = f"{top} cannot be read: Permission denied."
        else:
            top.rename(top.with_name("away"))
            make: Callable[[], None] = partial(top.symlink_to, "away") if kind == "link" else top.touch
            make()
            why = (
                "sources/ is a link, which is not followed." if kind == "link" else "sources is a file, and no folder."
            )
        assert run(["cache", "verify", there.named]) == 4
        said = f"The sources of the cache {there.shown} cannot be used. {why} Have its owner put a folder in its place"
        assert said in capsys.readouterr().out
        assert contents.prune(there, 0, dry_run=False).unread == ("sources",)

    def test_a_web_server_lists_none(self, there: Place) -> None:
        (Path(there.named) / layout.INDEX).write_text('{"manifests": []}')
        with serving(Path(there.named)) as url:
            assert contents.verified([Place(named=url)], []).sources == ()

    def test_they_stay_when_builds_are_removed(self, there: Place) -> None:
        left = Path(there.named) / "sources/.envkit-1-0000abcd"
        left.write_text("half")
        for path in Path(there.named).rglob("*"):
            os.utime(path, (1, 1))
        assert contents.prune(there, 1, dry_run=False).removed == ("sources/.envkit-1-0000abcd",)
        assert there.names() == []
        assert len(list((Path(there.named) / "sources").iterdir())) == 2

    def test_where_nothing_can_be_put(self, there: Place, tmp_path: Path) -> None:
        with pytest.raises(UsageProblem, match="can only be read"):
            cache_push.require(Place(named="https://cache.example.org"))
        with pytest.raises(UsageProblem, match="There is no folder"):
            cache_push.require(Place(named=str(tmp_path / "gone")))
        (tmp_path / "odd").mkdir()
        (tmp_path / "odd/sources").touch()
        with pytest.raises(CacheBlocked, match="Nothing can be put into"):
            cache_push.push_sources(Place(named=str(tmp_path / "odd")), sources(), tmp_path / "own")

    def test_a_full_disk(self, there: Place, tmp_path: Path) -> None:
        with small_disk(tmp_path / "small", 20) as small:
            leave(small, 3)
            with pytest.raises(DiskFull, match="could not be put into"):
                cache_push.push_sources(Place(named=str(small)), sources(), tmp_path / "own")
            assert not list(small.rglob(".envkit-*"))
            (small / "filler").unlink()
            assert cache_push.push_sources(Place(named=str(small)), sources(), tmp_path / "own") > 0
