"""``envkit upgrade``: what counts as changed, and what is said of it; building is tested with real tools."""

import io
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from rich.console import Console

from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import receipt
from envkit.environments.lockfile import Lock, LockedFile, LockedMachine, LockedPart
from envkit.environments.prefix import Prefix
from envkit.install import upgrade as work
from envkit.install.upgrade import ModuleChange
from envkit.machine.host import Platform
from envkit.planning.stack import stacks

Install = Callable[..., ModuleReceipt]


def part(name: str, digest: str = "0", *sources: str, pin: str = "a") -> LockedPart:
    files = tuple(LockedFile(filename=one, sha256=pin * 64) for one in sources)
    return LockedPart(name=name, recipe=f"{name.replace('/', '-')}.eb", sha256=digest * 64, sources=files)


def lock(*parts: LockedPart, **machine: Any) -> Lock:
    return Lock(
        name="toy", method="easybuild", framework="pytorch", accelerator="cpu", release="",
        machine=LockedMachine(type="x86_64", **machine), tools={"envkit": "0.1"}, parts=parts,
    )  # fmt: skip


BASE, TOP = part("Base/1"), part("Top/1", "0", "top.tar")


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ((BASE, TOP), []),
        ((part("Base/1", "1"), TOP), [ModuleChange(what="changed", was="Base/1", now="Base/1")]),
        ((BASE, part("Top/2")), [ModuleChange(what="changed", was="Top/1", now="Top/2")]),
        ((BASE, TOP, part("New/1")), [ModuleChange(what="added", was=None, now="New/1")]),
        ((TOP,), [ModuleChange(what="removed", was="Base/1", now=None)]),
        (
            (BASE, part("Top/1", "1", "top.tar", pin="b")),
            [ModuleChange(what="changed", was="Top/1", now="Top/1", files=("top.tar",))],
        ),
        (
            (BASE, part("Top/1", "1", "top2.tar")),
            [ModuleChange(what="changed", was="Top/1", now="Top/1", files=("- top.tar", "+ top2.tar"))],
        ),
    ],
)
def test_what_has_changed(now: tuple[LockedPart, ...], expected: list[ModuleChange]) -> None:
    assert list(work.changes(lock(BASE, TOP), lock(*now))) == expected


def test_a_receipt_without_a_lock_is_compared_by_its_recipes() -> None:
    was = {"Base/1": "0" * 64, "Top/1": "1" * 64}
    assert list(work.changes(was, lock(BASE, TOP))) == [ModuleChange(what="changed", was="Top/1", now="Top/1")]


def test_newer_stacks_are_named_and_never_taken(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    found = install("pytorch-2.13-cpu")
    later = [
        msgspec.structs.replace(stacks()[0], name=name)
        for name in ("pytorch-2.14-cpu", "pytorch-2.9-cpu", "pytorch-3.0-cpu-image", "tensorflow-3.0-cpu")
    ]
    monkeypatch.setattr(work, "stacks", lambda: (*stacks(), *later))
    assert list(work.newer(found)) == ["pytorch-2.14-cpu"]


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have a lock planned, and nothing built."""

    def plan(now: Lock) -> None:
        class Work:
            lock = now
            request = None

        monkeypatch.setattr(work, "planned", lambda *_: Work)

    return plan


def test_nothing_is_built_where_nothing_has_changed(
    install: Install, prefix: Prefix, planned: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install("toy", "Base/1", "Top/1", lock=lock(BASE, TOP, python="3.11.2"))
    planned(lock(BASE, TOP, python="3.11.3"))
    assert run(["upgrade", "toy", "--json", "--prefix", str(prefix.root)]) == 0
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["state"], told["changes"]) == ("current", [])
    assert told["besides"] == ["Python: 3.11.2 in the lock, 3.11.3 here"]
    assert "toy is up to date" in said.err and "Python: 3.11.2 then, 3.11.3 now" in said.err


def test_a_dry_run_says_what_would_be_built(
    install: Install, prefix: Prefix, planned: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install("toy", "Base/1", "Top/1", lock=lock(BASE, TOP))
    planned(lock(BASE, part("Top/2")))
    assert run(["upgrade", "--dry-run", "--prefix", str(prefix.root)]) == 0
    assert "  changed  Top/1 -> Top/2\n" in capsys.readouterr().out


@pytest.mark.parametrize(("verdict", "state", "status"), [("pass", "upgraded", 0), ("fail", "kept", 1)])
def test_what_becomes_of_it(
    verdict: str,
    state: str,
    status: int,
    install: Install,
    prefix: Prefix,
    planned: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Report:
        pass

    setattr(Report, "verdict", verdict)  # noqa: B010
    made = install("toy", "Base/1", "Top/1", lock=lock(BASE, TOP))
    planned(lock(BASE, part("Top/2")))
    in_place_of = list[ModuleReceipt]()

    def installed_now(_request: object, _console: Console, old: ModuleReceipt) -> type[Report]:
        in_place_of.append(old)
        return Report

    monkeypatch.setattr("envkit.install.install.install_now", installed_now)
    said = io.StringIO()
    done = work.upgrade(prefix, "toy", None, is_dry=False, console=Console(file=said))  # type: ignore[arg-type]
    assert in_place_of == [made]
    assert (done.state, work.status(done)) == (state, status)
    assert ("No longer part of it: Top/1" in said.getvalue()) == (state == "upgraded")


def test_what_is_damaged_and_has_not_changed(install: Install, prefix: Prefix, planned: Callable[..., None]) -> None:
    made = install("toy", "Base/1", "Top/1", lock=lock(BASE, TOP))
    planned(lock(BASE, TOP))
    made.folder.joinpath("Base/1.lua").unlink()
    assert run(["upgrade", "toy", "--prefix", str(prefix.root)]) == 6


def test_an_environment_of_another_module_is_offered_until_the_new_one_has_passed(
    install: Install, prefix: Prefix
) -> None:
    install("toy", "Base/1", "Top/1")
    tree = prefix.tree(Platform.own())

    assert receipt.has_other_module(tree, "toy", "Top/2") and not receipt.has_other_module(tree, "toy", "Top/1")
    assert not receipt.has_other_module(tree, "other", "Top/2")
    receipt.path_of(tree, "toy").write_text("{")
    assert not receipt.has_other_module(tree, "toy", "Top/2")
