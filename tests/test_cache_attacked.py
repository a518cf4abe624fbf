"""Caches that outsiders have attacked, or have had by mischance: what they say, and what they leave alone."""

import errno
import io
import os
import tarfile
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envkit.cache import contents, folder, manifest, oci, place, publishing, unpack
from envkit.cache.manifest import PackedFile
from envkit.cache.place import Place
from envkit.cli import run
from envkit.environments.prefix import Tree
from envkit.errors import CacheBlocked, CacheInvalid, DiskFull, NotWritable, UsageProblem
from envkit.install import cache_pull, cache_push
from envkit.system import files
from envkit.system.decompression import zstd

from .test_cache import described, packed, pushed, serving
from .test_cache import tree as tree

Output = pytest.CaptureFixture[str]


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305, 306, 307, 308])
def test_a_server_that_leads_nowhere(status: int, tmp_path: Path) -> None:
    class Nowhere(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving(tmp_path, Nowhere) as url, pytest.raises(CacheInvalid) as error:
        Place(named=url).names()
    assert f"{status} " in error.value.why and "no address to go to" in error.value.why


def object_of(member: tarfile.TarInfo, content: bytes) -> bytes:
    """Return an object with one member."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member, io.BytesIO(content))
    return zstd.compress(stream.getvalue())


@pytest.mark.parametrize("size", [5_000, 3_000_000_000])
@pytest.mark.parametrize("version", ["0.1", "1.0"])
def test_an_object_with_a_hole(size: int, version: str, tree: Tree, tmp_path: Path) -> None:
    """It has the size that its manifest says, and next to nothing is in it: the rest would be zeros in memory."""
    member, content = tarfile.TarInfo("software/Horovod/1.0-toy/x"), b"0\n" if version == "1.0" else b""
    marks = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(size)}
    old = {"GNU.sparse.map": f"{size},0", "GNU.sparse.size": str(size)}
    member.pax_headers = {**(marks if version == "1.0" else old), "GNU.sparse.name": member.name}
    member.size = len(content := content.ljust(512 if content else 0, b"\0"))
    of = {member.name: PackedFile(size=size, sha256="0" * 64, is_program=False)}
    made = msgspec.structs.replace(described(packed(tree, tmp_path / "p")), files=of, unpacked=size)
    entry = place.SignedManifest(
        place=Place(named=str(tmp_path)), manifest=made, signed=manifest.read(manifest.packed(made, b""))[1]
    )
    with pytest.raises(CacheInvalid) as error:
        unpack.compare(entry, io.BytesIO(object_of(member, content)))
    assert "does not name so" in error.value.why or "is too large" in error.value.why


def test_a_file_larger_than_any_that_is_packed(tree: Tree, tmp_path: Path) -> None:
    entry = pushed(tree, tmp_path / "cache")
    large = {"software/Horovod/1.0-toy/x": PackedFile(size=files.MOST + 1, sha256="0" * 64, is_program=False)}
    other = msgspec.structs.replace(entry.manifest, files=large)
    with pytest.raises(CacheInvalid) as error:
        unpack.compare(place.SignedManifest(place=entry.place, manifest=other, signed=entry.signed), io.BytesIO())
    assert "'software/Horovod/1.0-toy/x', which is too large" in error.value.why


def test_a_file_that_goes_while_all_are_listed(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody puts another one there, which gets its name."""
    entry, files_of = pushed(tree, tmp_path / "cache"), folder.files_of
    monkeypatch.setattr(folder, "files_of", lambda at: [*files_of(at), at / "objects/.envkit-1-0123abcd"])
    assert len([*folder.stored(entry.place.named)]) == 3
    assert contents.prune(entry.place, 0, dry_run=False).removed == ()
    assert [one.state for one in contents.verified([entry.place], ()).builds] == ["unsigned"]


@pytest.mark.parametrize("text", ["// my settings\n{a: 1}\n", "", '{"manifests": ["x"], "schemaVersion": 2}', "[]"])
def test_an_index_of_something_else(text: str, tree: Tree, tmp_path: Path) -> None:
    (own := tmp_path / "own").mkdir()
    (own / "index.json").write_text(text)
    for attempt in (
        lambda: contents.prune(Place(named=str(own)), 0, dry_run=False),
        lambda: pushed(tree, own),
    ):
        with pytest.raises(UsageProblem, match="is no cache of builds"):
            attempt()
    assert [(path.name, path.read_text()) for path in own.iterdir()] == [("index.json", text)]


@pytest.mark.parametrize("text", ["// damaged", "", '{"manifests": ["x"]}'])
def test_a_damaged_index_of_a_cache_is_written_anew(
    text: str, tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = pushed(tree, tmp_path / "cache")
    (tmp_path / "cache/index.json").write_text(text)
    assert contents.prune(entry.place, 0, dry_run=True).index == "It is none, or is damaged."
    assert (tmp_path / "cache/index.json").read_text() == text
    assert run(["cache", "prune", entry.place.named]) == 0
    assert "Its index was written anew. It is none, or is damaged.\n" in capsys.readouterr().out
    assert publishing.indexed(entry.place) == (f"Horovod--1.0-toy/{entry.id}.json",)
    assert contents.prune(entry.place, 0, dry_run=False).index == ""


def test_tidying_up_what_is_no_cache_leaves_nothing_there(tmp_path: Path) -> None:
    (own := tmp_path / "own").mkdir()
    (own / "thesis.tex").write_text("dear")
    with pytest.raises(CacheInvalid, match="There is no cache in"):
        contents.prune(Place(named=str(own)), 0, dry_run=False)
    assert [path.name for path in own.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ("manifests", "manifests/ is a link, which is not followed."),
        ("manifests/Horovod--1.0-toy", "manifests/Horovod--1.0-toy/ is a link, which is not followed."),
        ("file", "manifests is a file, and no folder."),
    ],
)
def test_manifests_behind_a_link_have_not_gone(
    of: str, said: str, tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody has moved them to another disk: no object goes, however old, and each command says why."""
    entry, place = pushed(tree, tmp_path / "cache"), tmp_path / "cache" / ("manifests" if of == "file" else of)
    at = tmp_path / "cache" / entry.manifest.object_name
    os.utime(at, (1e9, 1e9))
    place.rename(tmp_path / "away")
    if of == "file":
        place.touch()
    else:
        place.symlink_to(tmp_path / "away")
    for command in ("prune", "list", "verify"):
        assert run(["cache", command, entry.place.named]) == 4
        told = capsys.readouterr()
        assert said in told.out + told.err
    assert at.is_file()
    place.unlink()
    (tmp_path / "away").rename(place)
    assert [one.state for one in contents.verified([entry.place], ()).builds] == ["unsigned"]
    (tmp_path / "cache/manifests/README").touch()
    assert contents.prune(entry.place, 0, dry_run=False).removed == ()


def test_what_may_not_be_read_is_for_its_owner(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not for prune, which leaves it. What is a link is called one, not too many."""
    entry, opened = pushed(tree, tmp_path / "cache"), files.open_plain_in

    def refusing(at: int, name: str) -> Any:
        if name == f"{entry.id}.json":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(at, name)

    with monkeypatch.context() as patch:
        patch.setattr(files, "open_plain_in", refusing)
        assert run(["cache", "list", entry.place.named]) == 4
        told = capsys.readouterr().err
        assert "Permission denied. Check its name, and ask its owner for the right to read it." in told
        assert "prune" not in told
    path = tmp_path / "cache" / f"manifests/Horovod--1.0-toy/{entry.id}.json"
    path.rename(tmp_path / "away")
    path.symlink_to(tmp_path / "away")
    assert run(["cache", "verify", entry.place.named]) == 4
    assert "it is a link, which is not followed." in capsys.readouterr().out


@pytest.mark.parametrize("name", ["objects", "manifests"])
def test_a_link_in_the_place_of_a_folder_is_called_one(name: str, tree: Tree, tmp_path: Path) -> None:
    entry = pushed(tree, tmp_path / "cache")
    (tmp_path / "cache" / name).rename(tmp_path / "away")
    (tmp_path / "cache" / name).symlink_to(tmp_path / "away")
    path = entry.manifest.object_name if name == "objects" else f"manifests/Horovod--1.0-toy/{entry.id}.json"
    with pytest.raises(CacheInvalid) as told:
        entry.place.read(path, 10**9)
    assert told.value.why == f"{path}: {name}/ is a link, which is not followed."


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("// damaged", "It is none, or is damaged."),
        ('{"manifests": []}', "It lacks 1 build."),
        (None, "index.json: this file is not there."),
        ("folder", "index.json: Is a directory. Remove what stands in its place;"),
    ],
)
def test_an_index_that_does_not_name_what_is_there_is_told(
    text: str | None, why: str, tree: Tree, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry, index = pushed(tree, tmp_path / "cache"), tmp_path / "cache/index.json"
    assert run(["cache", "verify", entry.place.named]) == 0
    capsys.readouterr()
    index.unlink()
    if text == "folder":
        index.mkdir()
    elif text is not None:
        index.write_text(text)
    at = entry.place.named
    assert contents.verified([entry.place], ()).wrong == (
        f"The index of {at} is wrong: {why} 'envkit cache prune {at}' writes it anew.",
    )
    assert run(["cache", "verify", at]) == 4
    assert capsys.readouterr().out.splitlines()[0].startswith("unsigned ")


def test_an_index_that_names_what_has_gone_is_told(tree: Tree, tmp_path: Path) -> None:
    entry = pushed(tree, tmp_path / "cache")
    [path] = (tmp_path / "cache/manifests").rglob("*.json")
    path.unlink()
    [wrong] = contents.verified([entry.place], ()).wrong
    assert "It names 1 build that is not there." in wrong
    contents.prune(entry.place, 0, dry_run=False)
    assert contents.verified([entry.place], ()).wrong == ()


def test_a_folder_in_the_place_of_the_index_is_told_before_anything_is_put(tree: Tree, tmp_path: Path) -> None:
    entry = pushed(tree, tmp_path / "cache")
    (tmp_path / "new/index.json").mkdir(parents=True)
    new = Place(named=str(tmp_path / "new"))
    pull = lambda: cache_pull.pull(  # noqa: E731
        place.Caches(places=(entry.place.named,), keys=(), unsigned=True), new, None, every=True
    )
    for attempt in (pull, lambda: cache_push.require(new), lambda: contents.prune(new, 0, dry_run=False)):
        with pytest.raises(CacheBlocked) as told:
            attempt()
        assert told.value.what == f"Nothing can be put into {new.shown}: its index.json is a folder."
        assert told.value.fix.endswith(f"rm -r {tmp_path}/new/index.json")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["index.json"]


def test_a_file_of_ones_own_with_such_a_name_stays(tree: Tree, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for there in (pushed(tree, cache).place, Place(named=str(tmp_path / "none"))):
        at = folder.path_of(there.named)
        at.mkdir(exist_ok=True)
        for name in (".envkit-notes", ".envkit-1-x", ".envkit-venv"):
            (at / name).write_text("mine")
            os.utime(at / name, (1, 1))
        contents.prune(there, 0, dry_run=False)
        assert {".envkit-notes", ".envkit-1-x", ".envkit-venv"} <= {path.name for path in at.iterdir()}


def test_what_a_killed_installation_has_left_of_a_cache(
    prefix: Any, install: Callable[..., Any], capsys: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from envkit.machine.host import Platform
    from envkit.system.temporary import this_node

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    install("toy")
    root = prefix.tree(Platform.own()).root
    prefix.tree(Platform.own()).locks.mkdir(exist_ok=True)
    left = root / f"envkit-cache-of-{this_node()}.999999999.0123abcd"
    runs, far = root / f"envkit-cache-of-{this_node()}.{os.getpid()}.0123abcd", root / "envkit-cache-of-n7.1.1.0123abcd"
    for path in (left, runs, far):
        (path / "tree").mkdir(parents=True)
        (path / "tree/file").write_text("x")
    assert run(["clean", "replaced", "--yes", "--prefix", str(prefix.root)]) == 0
    assert "Removed 1 item" in capsys.readouterr().out
    assert (left.exists(), runs.exists(), far.exists()) == (False, True, True)


def test_a_target_whose_manifests_cannot_be_read_is_not_called_the_source(tree: Tree, tmp_path: Path) -> None:
    pushed(tree, tmp_path / "cache")
    (to := tmp_path / "to").mkdir()
    (to / "manifests").touch()
    with pytest.raises(NotWritable) as error, publishing.writing(Place(named=str(to)), "Horovod"):
        pushed(tree, to)
    assert error.value.what == f"Nothing can be put into {to}."


def test_a_full_disk_for_temporary_files_is_named(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = pushed(tree, tmp_path / "cache", b"a signature")

    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DiskFull) as error:
        place.signer(entry, ["key.pem"])
    assert str(tmp_path / "cache") in error.value.what and "/envkit-cache-of-" in error.value.why


def test_a_build_that_two_places_have_is_shown_from_the_first(tree: Tree, tmp_path: Path) -> None:
    entries = [pushed(tree, tmp_path / name) for name in ("first", "second")]
    found = contents.find([one.place for one in entries], entries[0].id[:9])
    assert found.place == entries[0].place


RETRIED = "HTTPSConnectionPool(host='h', port=443): Max retries exceeded with url: /x (Caused by {})"
REFUSED = (
    """NewConnectionError("HTTPConnection(host='h', port=9): Failed to establish it: [Errno 111] Connection refused")"""
)
UNNAMED = """NameResolutionError("x: Failed to resolve 'no.such.host' ([Errno -2] Name or service not known)")"""
UNTRUSTED = "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate is bad (_ssl.c:1006)'))"
SLOW = "ConnectTimeoutError(<HTTPSConnection(host='h') at 0x7f>, 'Connection to h timed out. (connect timeout=10)')"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (RETRIED.format(REFUSED), "Connection refused"),
        (RETRIED.format(UNNAMED), "Name or service not known"),
        (RETRIED.format(UNTRUSTED), "certificate is bad"),
        (RETRIED.format(SLOW), "Connection to h timed out"),
        (RETRIED.format(f"ProxyError('Unable to connect to proxy', {REFUSED})"), "Its proxy: Connection refused"),
        ("('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))", "Connection reset by peer"),
        ("HTTPConnectionPool(host='h', port=80): Read timed out. (read timeout=2)", "Read timed out"),
        (RETRIED.format("another thing."), "another thing"),
    ],
)
def test_why_there_is_no_connection_is_said_in_words(said: str, expected: str) -> None:
    assert oci.in_words(said) == expected


@pytest.mark.xdist_group("schemas")  # what asks one imports what they do
def test_a_registry_that_is_not_there() -> None:
    with pytest.raises(CacheInvalid) as error:
        Place(named="oci://127.0.0.1:9/site/x").names()
    assert error.value.why == "Connection refused."
