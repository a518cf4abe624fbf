"""``envkit clean``: what takes room, and what of it goes."""

import fcntl
import io
import json
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from rich.console import Console

from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import filelocks, receipt, replaced
from envkit.environments.lockfile import LockedFile, LockedPart
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import Built
from envkit.install import cleaning
from envkit.machine.host import Platform
from envkit.sources.source_cache import SourceCache

Install = Callable[..., ModuleReceipt]
Output = pytest.CaptureFixture[str]
DATED = "20260102-030405"


@pytest.fixture
def tree(prefix: Prefix) -> Tree:
    made = prefix.tree(Platform.own())
    made.locks.mkdir(parents=True)
    return made


@pytest.fixture
def full(prefix: Prefix, tree: Tree, install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Prefix:
    """A prefix with something of each kind, and foreign files beside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("CCACHE_DIR", raising=False)
    install("toy", "Python/system", "Toy/1.0", log=str(prefix.logs / f"toy-{DATED}"))
    for module in ("Python/system", "Toy/1.0", "Old/1"):
        (tree.software / module).mkdir(parents=True, exist_ok=True)
        (tree.software / module / "file").write_bytes(b"x" * 100_000)
        receipt.write(receipt.built_path(tree, module), Built(module=module, easyconfig="", sha256="0" * 64, seconds=1))
    cache = SourceCache(prefix.sources)
    cache.store("a.whl", [b"x" * 200_000], None)
    cache.save_stamps()
    for path in (
        prefix.sources / "b.whl.bad-01234567",
        prefix.sources / f"c.whl.part-999999999@{os.uname().nodename}",
        prefix.sources / "d.whl.part-999999999@other",
        prefix.sources / "foreign.tar",
        prefix.logs / f"toy-{DATED}" / "events.jsonl",
        prefix.logs / f"other-{DATED}" / "events.jsonl",
        prefix.logs / f"train-{DATED}" / "model.pt",
        prefix.logs / "foreign" / "log",
        tree.layers / f"debian-{'0' * 20}.sif",
        tree.layers / "foreign.sif",
        tree.replaced / "new" / "toy" / "software" / "file",
        tree.software / "Foreign" / "1" / "file",
        tmp_path / "cache/envkit/ccache/0/file",
        prefix.root / "ccache" / "thesis",
        tree.replaced / "new" / "mine" / "notes",
        tmp_path / "cache/envkit/plans/file",
        tmp_path / "cache/foreign",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 5000)
    return prefix


def files(*places: Path) -> set[str]:
    return {str(path) for place in places for path in place.rglob("*") if path.is_file() and path.suffix != ".lock"}


def told(capsys: Output, *words: str, prefix: Prefix, status: int = 0) -> dict[str, object]:
    assert run(["clean", *words, "--json", "--prefix", str(prefix.root)]) == status
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def kinds(found: dict[str, object]) -> set[str]:
    items = found["items"]
    assert isinstance(items, list)
    return {one["kind"] for one in items}


def test_without_a_kind_nothing_goes(full: Prefix, tmp_path: Path, capsys: Output) -> None:
    before = files(full.root, tmp_path / "cache")
    assert kinds(told(capsys, prefix=full)) == {*cleaning.KINDS} - {"sessions", "reports"}
    assert run(["clean", "--prefix", str(full.root)]) == 0
    said = capsys.readouterr().out
    assert "sources" in said and "envkit clean KIND" in said
    assert files(full.root, tmp_path / "cache") == before


def test_all_goes_but_environments_and_what_is_foreign(full: Prefix, tree: Tree, tmp_path: Path) -> None:
    assert run(["clean", "all", "--yes", "--prefix", str(full.root)]) == 0
    left = files(full.root, tmp_path / "cache")
    names = {Path(path).name for path in left}
    assert {
        "foreign.tar",
        "foreign.sif",
        "foreign",
        "model.pt",
        "thesis",
        "notes",
        "d.whl.part-999999999@other",
    } <= names
    assert str(full.logs / "foreign/log") in left and str(full.logs / f"toy-{DATED}/events.jsonl") in left
    assert str(tree.software / "Foreign/1/file") in left and str(tree.software / "Toy/1.0/file") in left
    gone = ("a.whl", "b.whl.bad-01234567", f"c.whl.part-999999999@{os.uname().nodename}", f"debian-{'0' * 20}.sif")
    assert not names & {*gone}
    assert not (tree.software / "Old").exists() and receipt.built(tree, "Old/1") is None
    assert not (tmp_path / "cache/envkit/ccache").exists() and not (full.logs / f"other-{DATED}").exists()
    assert run(["show", "toy", "--prefix", str(full.root)]) == 0


def test_what_says_where_layers_are_from_stays_as_long_as_any(full: Prefix, tree: Tree, capsys: Output) -> None:
    """Another may be built on one that is gone, and is trusted no more than that."""
    layer = tree.layers / f"debian-{'0' * 20}.sif"
    note, lone = layer.with_suffix(".json"), tree.layers / f"build-1-{'1' * 20}.json"
    for path in (note, lone):
        path.write_text("{}")
        os.utime(path, (1, 1))
    told(capsys, "layers", "--older-than", "1d", "--yes", prefix=full)
    assert layer.exists() and note.exists() and lone.exists()
    told(capsys, "layers", "--yes", prefix=full)
    assert not layer.exists() and not note.exists() and not lone.exists()


def test_a_dry_run_removes_nothing(full: Prefix, tmp_path: Path, capsys: Output) -> None:
    before = files(full.root, tmp_path / "cache")
    found = told(capsys, "sources", "logs", "--dry-run", prefix=full)
    assert kinds(found) == {"sources", "logs"} and isinstance(found["size"], int) and found["size"] > 200_000
    assert run(["clean", "sources", "--dry-run", "--prefix", str(full.root)]) == 0
    assert "Would remove 1 item" in capsys.readouterr().out
    assert files(full.root, tmp_path / "cache") == before


def test_by_age_and_size(full: Prefix) -> None:
    old = time.time() - 40 * 24 * 3600
    os.utime(full.sources / "a.whl", (old, old))
    for words in (["--older-than", "50d"], ["--larger-than", "1M"]):
        assert run(["clean", "sources", "--yes", *words, "--prefix", str(full.root)]) == 0
        assert (full.sources / "a.whl").exists()
    assert (
        run(["clean", "sources", "--yes", "--older-than", "30d", "--larger-than", "100K", "--prefix", str(full.root)])
        == 0
    )
    assert not (full.sources / "a.whl").exists()


def test_an_age_without_end_is_too_large(full: Prefix, capsys: Output) -> None:
    assert run(["clean", "sources", "--yes", "--older-than", "99999999999d", "--prefix", str(full.root)]) == 2
    assert "'99999999999d' is too large." in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--older-than", "soon"], ["--larger-than", "1X"], ["nonsense"], ["sources"]])
def test_what_cannot_be_understood(words: list[str], full: Prefix, capsys: Output) -> None:
    """Nobody is there to be asked."""
    before = files(full.root)
    assert run(["clean", *words, "--prefix", str(full.root)]) == 2
    assert files(full.root) == before


@pytest.mark.parametrize("lock", ["stack-other", "Python--system", "replaced-other"])
def test_nothing_goes_that_an_installation_may_use(
    lock: str, full: Prefix, tree: Tree, tmp_path: Path, capsys: Output
) -> None:
    before = files(full.root, tmp_path / "cache")
    with filelocks.held(tree, lock, Console(file=io.StringIO()), ""):
        assert run(["clean", "all", "--yes", "--prefix", str(full.root)]) == 0
    said = capsys.readouterr().out
    assert "Removed 0 items" in said and "an installation is under way" in said
    assert files(full.root, tmp_path / "cache") == before


def test_what_an_installation_in_another_prefix_uses_is_kept(full: Prefix, tmp_path: Path, capsys: Output) -> None:
    other = Prefix(root=tmp_path / "other").tree(Platform.own())
    shared = files(tmp_path / "cache")
    with filelocks.held(other, "stack-toy", Console(file=io.StringIO()), ""):
        assert run(["clean", "all", "--yes", "--prefix", str(full.root)]) == 0
    assert "Kept 2 items: an installation is under way in another prefix" in capsys.readouterr().out
    assert files(tmp_path / "cache") == shared and not (full.sources / "a.whl").exists()
    assert run(["clean", "ccache", "plans", "--yes", "--prefix", str(full.root)]) == 0
    assert files(tmp_path / "cache") == {str(tmp_path / "cache/foreign")}


def test_no_installation_in_another_prefix_begins_meanwhile(
    full: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import ExitStack

    from envkit.errors import HostProblem

    monkeypatch.setattr(filelocks, "PATIENCE_S", 0.0)
    other = Prefix(root=tmp_path / "other").tree(Platform.own())
    with ExitStack() as stack:
        assert cleaning.at_work_elsewhere(stack) == ""
        with (
            pytest.raises(HostProblem, match="is at work"),
            filelocks.held(other, "x", Console(file=io.StringIO()), ""),
        ):
            pass


def test_no_installation_begins_meanwhile(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    from envkit.errors import HostProblem

    monkeypatch.setattr(filelocks, "PATIENCE_S", 0.0)
    console = Console(file=io.StringIO())
    with replaced.locked(filelocks.cleaning(tree), fcntl.LOCK_EX, 0), pytest.raises(HostProblem, match="is at work"):
        with filelocks.held(tree, "stack-toy", console, ""):
            pass
    with filelocks.held(tree, "stack-toy", console, ""), filelocks.held(tree, "stack-other", console, ""):
        pass


def test_modules_stay_while_an_installation_has_not_ended(full: Prefix, tree: Tree, capsys: Output) -> None:
    receipt.begin(tree, "other", "building", full.logs / f"other-{DATED}")
    assert run(["clean", "modules", "logs", "--yes", "--prefix", str(full.root)]) == 0
    assert (tree.software / "Old/1").exists() and (full.logs / f"other-{DATED}").exists()
    assert run(["clean", "modules", "--dry-run", "--prefix", str(full.root)]) == 0
    assert "the installation of other has not ended" in capsys.readouterr().out


def test_modules_stay_while_a_receipt_cannot_be_read(full: Prefix, tree: Tree) -> None:
    (tree.environments / "bad.json").write_text("{")
    assert run(["clean", "modules", "--yes", "--prefix", str(full.root)]) == 0
    assert (tree.software / "Old/1").exists()


def test_what_lies_behind_a_link_stays(full: Prefix, tree: Tree, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "Linked/1").mkdir(parents=True)
    (outside / "Linked/1/file").touch()
    (tree.software / "Linked").symlink_to(outside / "Linked")
    receipt.write(receipt.built_path(tree, "Linked/1"), Built(module="Linked/1", easyconfig="", sha256="", seconds=1))
    target = outside / "kept.whl"
    (full.sources / "a.whl").rename(target)
    (full.sources / "a.whl").symlink_to(target)
    run(["clean", "all", "--yes", "--prefix", str(full.root)])
    assert target.exists() and (outside / "Linked/1/file").exists()


@pytest.mark.parametrize("place", ["{outside}", "../../outside", "x/../../../outside", "a\n", ""])
def test_a_source_that_a_record_names_elsewhere_stays(full: Prefix, tree: Tree, tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("years of work")
    os.utime(outside, (0, 0))
    named = LockedFile(filename=place.format(outside=outside), sha256="0" * 64)
    part = LockedPart(name="X/1", recipe="x.eb", sha256="0" * 64, sources=(named,))
    built = Built(module="X/1", easyconfig="", sha256="", seconds=1, part=part)
    receipt.write(receipt.built_path(tree, "X/1"), built)
    SourceCache(full.sources).save_stamps()
    run(["clean", "all", "--yes", "--prefix", str(full.root)])
    assert outside.read_text() == "years of work"
    with pytest.raises(OSError, match="It lies outside of"):
        cleaning.away("sources", full, outside)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a prefix to another user")
def test_nothing_goes_of_a_prefix_that_others_can_change(full: Prefix, capsys: Output) -> None:
    before = files(full.root)
    os.chown(full.root, 12345, -1)
    for words in (["clean", "sources", "--yes"], ["clean", "modules"], ["remove", "toy"]):  # there are no such modules
        assert run([*words, "--prefix", str(full.root)]) == 3
        said = " ".join(capsys.readouterr().err.split())
        assert f"Nothing in the prefix {full.root} is removed: others can change it." in said
        assert "would be removed with your rights" in said
    assert files(full.root) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a prefix to another user")
def test_nothing_is_made_in_one_either(full: Prefix, tree: Tree, tmp_path: Path) -> None:
    """Plans lie elsewhere, and go whosever the prefix is."""
    (tree.locks / "cleaning.lock").unlink(missing_ok=True)
    os.chown(full.root, 12345, -1)
    before = files(full.root)
    assert run(["clean", "plans", "--yes", "--prefix", str(full.root)]) == 0
    assert files(full.root) == before and not (tmp_path / "cache/envkit/plans").exists()


@pytest.mark.parametrize("held", [True, False])
def test_a_pipe_in_the_place_of_a_lock_is_not_waited_for(held: bool, tree: Tree) -> None:
    path = tree.locks / "stack-toy.lock"
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with replaced.locked(path, fcntl.LOCK_EX, 0) if held else nullcontext():
        assert filelocks.is_held(path) is held


def test_a_tree_behind_a_link_stays(full: Prefix, tree: Tree, tmp_path: Path, capsys: Output) -> None:
    """It may be that of another prefix."""
    tree.root.rename(tmp_path / "elsewhere")
    tree.root.symlink_to(tmp_path / "elsewhere")
    before = files(tmp_path / "elsewhere")
    run(["clean", "all", "--yes", "--prefix", str(full.root)])
    run(["remove", "toy", "--dependencies", "--prefix", str(full.root)])
    assert "Traceback" not in capsys.readouterr().err
    assert files(tmp_path / "elsewhere") == before


def test_a_prefix_behind_a_link_is_tidied_up(full: Prefix, tmp_path: Path) -> None:
    full.root.rename(tmp_path / "scratch")
    full.root.symlink_to(tmp_path / "scratch")
    run(["clean", "all", "--yes", "--prefix", str(full.root)])
    assert not (tmp_path / "scratch/sources/a.whl").exists()


def test_a_compiler_cache_of_the_users_own_stays(full: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own-ccache"
    own.mkdir()
    (own / "file").touch()
    monkeypatch.setenv("CCACHE_DIR", str(own))
    assert run(["clean", "ccache", "--yes", "--prefix", str(full.root)]) == 0
    assert (own / "file").exists()


def test_an_empty_prefix(prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for root in (prefix.root, tmp_path / "none"):
        assert run(["clean", "--prefix", str(root)]) == 0
    assert run(["clean", "logs", "--yes", "--prefix", str(prefix.root)]) == 0
    assert "Removed 0 items, 0 B." in capsys.readouterr().out


def test_a_folder_that_envkit_was_never_used_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "proj" / "ccache"))
    for name in (
        f"logs/train-{DATED}/events.jsonl",
        "ccache/0/x",
        "sources/a.bad-01234567",
        "replaced/new/toy/software/x",
    ):
        path = tmp_path / "proj" / name
        path.parent.mkdir(parents=True)
        path.write_text("years of work")
    before = files(tmp_path / "proj")
    assert run(["clean", "all", "--yes", "--prefix", str(tmp_path / "proj")]) == 0
    assert files(tmp_path / "proj") == before


@pytest.mark.parametrize("module", ["Toy/1.0/bin", "Toy"])
def test_a_log_cannot_name_what_lies_in_a_module_that_is_used(full: Prefix, tree: Tree, module: str) -> None:
    (tree.software / "Toy/1.0/bin").mkdir()
    event = {"event": "begin", "module": module}
    (full.logs / f"other-{DATED}" / "events.jsonl").write_text(json.dumps(event))
    assert run(["clean", "modules", "--yes", "--prefix", str(full.root)]) == 0
    assert (tree.software / "Toy/1.0/bin").is_dir() and (tree.software / "Toy/1.0/file").is_file()


@pytest.mark.parametrize("in_the_way", ["pipe", "device", "deep"])
def test_a_log_that_is_none(full: Prefix, in_the_way: str) -> None:
    events = full.logs / f"other-{DATED}" / "events.jsonl"
    events.unlink()
    if in_the_way == "pipe":
        os.mkfifo(events)
    elif in_the_way == "device":
        events.symlink_to("/dev/zero")
    else:
        events.write_bytes(b"[" * 100_000)
    assert run(["clean", "--prefix", str(full.root)]) == 0
    assert run(["clean", "modules", "logs", "--yes", "--prefix", str(full.root)]) == 0


def test_what_has_come_into_use_while_it_was_asked_about_is_kept(full: Prefix, tree: Tree, install: Install) -> None:
    found = cleaning.find(full, ["modules"])
    assert [Path(one.path).name for one in found] == ["1"]
    install("late", "Old/1")
    [kept] = cleaning.remove(full, found)
    assert (kept.removed, kept.kept) == (False, "it is in use now")
    assert (tree.software / "Old/1").is_dir()
