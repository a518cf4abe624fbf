import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest

from envkit.cli import run
from envkit.errors import BundleInvalid, ChecksumMismatch, DiskFull, EnvkitError, NotWritable, SourcesMissing
from envkit.sources.bundle import is_bundle
from envkit.sources.fetch import BundleManifest, Source, admit, missing, read_bundle, write_bundle
from envkit.sources.source_cache import SourceCache

from .small_disk import PAGE, leave, small_disk

CONTENT = {"a-1.tar.gz": b"a" * 5000, "torch-2+cpu.whl": os.urandom(3 << 20), "c.patch": b""}


def source(filename: str, *, pinned: bool = True) -> Source:
    sha256 = hashlib.sha256(CONTENT[filename]).hexdigest()
    return Source(filename=filename, sha256=sha256 if pinned else None, needed_by="x.eb")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def bundle(tmp_path: Path, cache: Path) -> Path:
    path = tmp_path / "bundle.tar"
    write_bundle([source(name) for name in CONTENT], cache, path, stack="pytorch")
    return path


def forged(path: Path, files: list[dict[str, str]], add: Callable[[tarfile.TarFile], None]) -> Path:
    listing = json.dumps({"version": 1, "stack": "s", "files": files}).encode()
    with tarfile.open(path, "w") as tar:
        plain(tar, "manifest.json", listing)
        add(tar)
    return path


def plain(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def entry(name: str, content: bytes = b"x") -> dict[str, str]:
    return {"filename": name, "sha256": hashlib.sha256(content).hexdigest(), "needed_by": "x.eb"}


def refusal(path: Path, cache: Path) -> BundleInvalid:
    with pytest.raises(BundleInvalid) as caught:
        read_bundle(path, cache)
    assert str(path) in caught.value.what
    assert caught.value.fix
    return caught.value


def test_round_trip(tmp_path: Path, bundle: Path) -> None:
    target = tmp_path / "elsewhere" / "cache"
    manifest = read_bundle(bundle, target)
    assert isinstance(manifest, BundleManifest)
    assert manifest.stack == "pytorch"
    assert [file.filename for file in manifest.files] == sorted(CONTENT)
    assert {path.name: path.read_bytes() for path in target.iterdir() if path.name[0] != "."} == CONTENT
    assert missing([source(name) for name in CONTENT], target) == []


def test_a_file_that_lies_by_software_does_so_again(tmp_path: Path, cache: Path) -> None:
    (cache / "f/Flat").mkdir(parents=True)
    (cache / "f/Flat/a-1.tar.gz").write_bytes(b"other")
    sha256 = hashlib.sha256(b"other").hexdigest()
    both = [source("a-1.tar.gz"), Source(filename="a-1.tar.gz", folder="f/Flat", sha256=sha256, needed_by="y.eb")]
    write_bundle(both, cache, tmp_path / "both.tar", stack="flat")
    target = tmp_path / "target"
    read_bundle(tmp_path / "both.tar", target)
    assert (target / "f/Flat/a-1.tar.gz").read_bytes() == b"other"
    assert missing(both, target) == []


def test_plain_tar_reads_it(tmp_path: Path, bundle: Path) -> None:
    with tarfile.open(bundle, "r:") as tar:
        assert tar.getnames() == ["manifest.json", *sorted(CONTENT)]


def test_same_sources_give_the_same_bytes(tmp_path: Path, cache: Path, bundle: Path) -> None:
    for name in CONTENT:
        os.utime(cache / name, (1, 1))
    again = tmp_path / "again.tar"
    write_bundle([source(name) for name in reversed(CONTENT)], cache, again, stack="pytorch")
    assert again.read_bytes() == bundle.read_bytes()


def test_unpinned_source_is_pinned_by_the_bundle(tmp_path: Path, cache: Path) -> None:
    manifest = write_bundle([source("c.patch", pinned=False)], cache, tmp_path / "b.tar", stack="s")
    assert manifest.files[0].sha256 == hashlib.sha256(b"").hexdigest()


def test_bundle_of_an_incomplete_cache_is_refused(tmp_path: Path, cache: Path) -> None:
    (cache / "a-1.tar.gz").unlink()
    (cache / "c.patch").write_bytes(b"changed")
    with pytest.raises(SourcesMissing) as caught:
        write_bundle([source(name) for name in CONTENT], cache, tmp_path / "b.tar", stack="pytorch")
    assert "a-1.tar.gz" in caught.value.why
    assert "c.patch" in caught.value.why
    assert "torch" not in caught.value.why
    assert not list(tmp_path.glob("b.tar*"))


def test_bundle_cannot_be_written(tmp_path: Path, cache: Path, bundle: Path) -> None:
    with pytest.raises(NotWritable):
        write_bundle([source("c.patch")], cache, bundle / "b.tar", stack="s")


@pytest.mark.parametrize("free", range(4))
@pytest.mark.parametrize("old", [b"", b"old"])
def test_full_disk_while_a_bundle_is_written(free: int, old: bytes, tmp_path: Path, cache: Path) -> None:
    wanted = [source(name) for name in CONTENT]
    whole = tmp_path / "whole.tar"
    write_bundle(wanted, cache, whole, stack="s")
    assert whole.stat().st_size > 3 * PAGE
    with small_disk(tmp_path / "small", 16) as small:
        path = small / "b.tar"
        if old:
            path.write_bytes(old)
        leave(small, free)
        before = {one.name: one.stat().st_size for one in small.iterdir()}
        with pytest.raises(DiskFull):
            write_bundle(wanted, cache, path, stack="s")
        assert {one.name: one.stat().st_size for one in small.iterdir()} == before


def test_a_bundle_into_a_pipe(tmp_path: Path, cache: Path, bundle: Path) -> None:
    path, got = tmp_path / "pipe", tmp_path / "got"
    os.mkfifo(path)
    with got.open("wb") as stream, Popen(["cat", path], stdout=stream):
        write_bundle([source(name) for name in CONTENT], cache, path, stack="pytorch")
    assert got.read_bytes() == bundle.read_bytes()


def taken(path: Path, cache: Path, *sources: Source) -> None:
    """Take a bundle as an installation does."""
    admit(read_bundle(path, cache), sources, cache, path)


def test_bundle_read_over_a_wrong_file_sets_it_aside(cache: Path, bundle: Path) -> None:
    (cache / "a-1.tar.gz").write_bytes(b"wrong")
    taken(bundle, cache, source("a-1.tar.gz"))
    assert (cache / "a-1.tar.gz").read_bytes() == CONTENT["a-1.tar.gz"]
    assert [path.read_bytes() for path in cache.glob("a-1.tar.gz.bad-*")] == [b"wrong"]
    assert not list(cache.glob("*.part-*"))


@pytest.mark.parametrize("pinned", [True, False, None])
def test_a_good_file_is_never_displaced(pinned: bool | None, tmp_path: Path, cache: Path) -> None:
    """Whether its recipe pins it, pins nothing, or is not among those that are installed."""
    before = (cache / "a-1.tar.gz").read_bytes()
    path = forged(tmp_path / "b.tar", [entry("a-1.tar.gz")], lambda tar: plain(tar, "a-1.tar.gz", b"x"))
    sources = [] if pinned is None else [source("a-1.tar.gz", pinned=pinned)]
    if pinned:
        with pytest.raises(ChecksumMismatch, match="not what the recipes here pin") as caught:
            taken(path, cache, *sources)
        assert "x.eb pins" in caught.value.why and str(path) in caught.value.what
    else:
        taken(path, cache, *sources)
    assert (cache / "a-1.tar.gz").read_bytes() == before
    assert {path.name for path in cache.glob("[!.]*")} == set(CONTENT)


def test_what_is_not_pinned_so_does_not_stay_in_its_place(tmp_path: Path) -> None:
    path = forged(tmp_path / "b.tar", [entry("a-1.tar.gz")], lambda tar: plain(tar, "a-1.tar.gz", b"x"))
    with pytest.raises(ChecksumMismatch):
        taken(path, tmp_path / "new", source("a-1.tar.gz"))
    assert not (tmp_path / "new" / "a-1.tar.gz").exists()


def test_what_an_interrupted_installation_left_of_a_bundle_is_removed(cache: Path, bundle: Path) -> None:
    (cache / "a-1.tar.gz").write_bytes(b"wrong")
    with Popen([sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n" + LEAVE, bundle, cache]) as left:
        assert left.wait() == 0
    assert len(list(cache.glob("*.part-*"))) == 1
    taken(bundle, cache, source("a-1.tar.gz"))
    assert not list(cache.glob("*.part-*"))


LEAVE = """
from pathlib import Path
from envkit.sources.fetch import read_bundle
read_bundle(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_manifest_that_is_nested_without_end(tmp_path: Path) -> None:
    path = tmp_path / "b.tar"
    with tarfile.open(path, "w") as tar:
        plain(tar, "manifest.json", b"[" * 500_000)
    refusal(path, tmp_path / "cache")


def test_a_header_that_would_fill_the_memory(tmp_path: Path) -> None:
    """tarfile reads it in one piece; the file behind it has holes, so that it costs who made it nothing."""
    path, member = tmp_path / "b.tar", tarfile.TarInfo("x")
    member.type, member.size = tarfile.XHDTYPE, 64 << 30
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT))
    os.truncate(path, 65 << 30)
    assert "header of 68719476736 bytes" in refusal(path, tmp_path / "cache").why


def header(kind: bytes, content: bytes) -> bytes:
    """A header of a tar file that says something of the next member."""
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, len(content)
    return member.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(header(tarfile.XHDTYPE, b"13 comment=x\n") * 5000, id="pax"),
        pytest.param(header(tarfile.GNUTYPE_LONGNAME, b"name\0") * 5000, id="longname"),
        pytest.param(header(tarfile.GNUTYPE_LONGLINK, b"name\0") * 5000, id="longlink"),
        pytest.param(header(tarfile.XHDTYPE, b"22 GNU.sparse.map=1,x\n"), id="map"),
        pytest.param(header(tarfile.XHDTYPE, b"21 GNU.sparse.size=x\n"), id="size"),
        pytest.param(header(tarfile.XHDTYPE, b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"), id="none"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_headers_that_tarfile_itself_cannot_read(headers: bytes, is_first: bool, tmp_path: Path) -> None:
    path = forged(tmp_path / "b.tar", [entry("x")], lambda tar: plain(tar, "x", b"x"))
    whole = path.read_bytes()
    where = 0 if is_first else 2 * tarfile.BLOCKSIZE
    path.write_bytes(whole[:where] + headers + whole[where:])
    assert "It is no tar file" in refusal(path, tmp_path / "cache").why


def test_a_pipe_is_no_bundle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "b.tar")
    assert "pipe" in refusal(tmp_path / "b.tar", tmp_path / "cache").why


@pytest.mark.parametrize("content", [b"", b"hello", b"\x1f\x8b" + bytes(600), bytes(10240)])
def test_not_a_bundle(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "b.tar"
    path.write_bytes(content)
    refusal(path, tmp_path / "cache")


def test_no_such_bundle(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "b.tar", tmp_path / "cache").why
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("part", [0.01, 0.3, 0.6, 0.9])
def test_truncated_bundle(tmp_path: Path, bundle: Path, part: float) -> None:
    bundle.write_bytes(bundle.read_bytes()[: int(bundle.stat().st_size * part)])
    target = tmp_path / "elsewhere"
    refusal(bundle, target)
    for path in target.glob("[!.]*"):
        assert path.read_bytes() == CONTENT[path.name]


def test_bundle_cut_between_two_files_names_what_is_not_there(tmp_path: Path) -> None:
    path = forged(tmp_path / "b.tar", [entry("a"), entry("b")], lambda tar: plain(tar, "a", b"x"))
    assert "before b" in refusal(path, tmp_path / "cache").why


def test_wrong_content_is_named_and_not_kept(tmp_path: Path, bundle: Path) -> None:
    content = bytearray(bundle.read_bytes())
    content[content.index(b"a" * 5000)] = ord("b")
    bundle.write_bytes(content)
    target = tmp_path / "elsewhere"
    with pytest.raises(ChecksumMismatch) as caught:
        read_bundle(bundle, target)
    assert "a-1.tar.gz" in caught.value.why
    assert hashlib.sha256(CONTENT["a-1.tar.gz"]).hexdigest() in caught.value.why
    assert "torch" not in caught.value.why
    assert {path.name for path in target.glob("[!.]*")} == set(CONTENT) - {"a-1.tar.gz"}


def test_wrong_content_is_found_even_if_the_cache_is_complete(cache: Path, bundle: Path) -> None:
    content = bytearray(bundle.read_bytes())
    content[content.index(b"a" * 5000)] = ord("b")
    bundle.write_bytes(content)
    with pytest.raises(ChecksumMismatch):
        read_bundle(bundle, cache)
    assert (cache / "a-1.tar.gz").read_bytes() == CONTENT["a-1.tar.gz"]


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "x/evil", ".hidden", "evil.part-1@host"])
def test_paths_are_refused_even_if_the_manifest_names_them(tmp_path: Path, name: str) -> None:
    path = forged(tmp_path / "b.tar", [entry(name)], lambda tar: plain(tar, name, b"x"))
    refusal(path, tmp_path / "cache")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    member = tarfile.TarInfo("a")
    member.type, member.linkname = kind, "manifest.json"
    path = forged(tmp_path / "b.tar", [entry("a")], lambda tar: tar.addfile(member))
    assert "not a plain file" in refusal(path, tmp_path / "cache").why


@pytest.mark.parametrize("second", ["a", "b"])
def test_what_the_manifest_does_not_name_is_refused(tmp_path: Path, second: str) -> None:
    def add(tar: tarfile.TarFile) -> None:
        plain(tar, "a", b"x")
        plain(tar, second, b"x")

    path = forged(tmp_path / "b.tar", [entry("a")], add)
    assert repr(second) in refusal(path, tmp_path / "cache").why


@pytest.mark.parametrize("listing", [b"{}", b"[]", b"nonsense", b'{"version": 2}', b'{"version": 1, "files": 3}'])
def test_manifest_is_checked(tmp_path: Path, listing: bytes) -> None:
    path = tmp_path / "b.tar"
    with tarfile.open(path, "w") as tar:
        plain(tar, "manifest.json", listing)
    refusal(path, tmp_path / "cache")


def test_every_failure_can_be_shown(tmp_path: Path) -> None:
    with pytest.raises(EnvkitError) as caught:
        read_bundle(tmp_path, tmp_path / "cache")
    assert caught.value.exit_code == 4


def test_a_bundle_takes_the_place_of_none_but_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN PRIVATE KEY-----")
    words = ["fetch", "pytorch", "--prefix", str(tmp_path / "p")]
    assert run([*words, "--bundle", str(key)]) == 2
    assert f"{key} is there, and is no bundle" in capsys.readouterr().err
    assert key.read_text() == "-----BEGIN PRIVATE KEY-----"
    assert run([*words, "--bundle", str(tmp_path / "none/b.tar")]) == 2
    assert f"there is no folder {tmp_path / 'none'}" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_what_begins_as_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_bytes(b"s")
    pin = hashlib.sha256(b"s").hexdigest()
    write_bundle([Source(filename="s.txt", sha256=pin, needed_by="x.eb")], tmp_path, tmp_path / "b.tar", stack="x")
    assert is_bundle(tmp_path / "b.tar")
    assert not is_bundle(tmp_path / "s.txt")


def test_a_pipe_in_the_cache_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "s.txt")
    with pytest.raises(OSError, match="not a plain file"):
        SourceCache(tmp_path).sha256("s.txt")
