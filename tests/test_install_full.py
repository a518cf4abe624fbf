"""The end of an installation on a full disk: its verdict is printed, nothing is offered, and the next one ends well."""

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import receipt
from envkit.environments.prefix import Prefix
from envkit.errors import DiskFull
from envkit.install import install as work
from envkit.machine.host import Platform
from envkit.methods import installed
from envkit.verify import launch, target

from .small_disk import leave, small_disk
from .verify.test_report import report

BEGUN = 2  # pages that the note of a begun installation takes


@pytest.mark.parametrize("free", range(BEGUN, BEGUN + 6))
def test_the_verdict_is_printed_before_what_is_written(
    free: int, install: Callable[..., ModuleReceipt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "small", 64) as small:
        prefix = Prefix(root=small / "prefix")
        prefix.create()
        own = install(horovod=str(tmp_path))
        tree = prefix.tree(Platform.own())
        made = replace(own, tree=str(tree.root))
        for folder in (tree.environments, tree.kept, tree.unfinished):
            folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(target, "installed", lambda *_: SimpleNamespace(built=None))
        monkeypatch.setattr(launch, "verify", lambda *_, **__: report("pytorch-2ranks"))
        monkeypatch.setattr(work, "lock_of", lambda *_: None)
        what: Any = SimpleNamespace(
            tree=tree,
            stack=SimpleNamespace(name=made.name, extras={}),
            describe=lambda _: made,
            settle=lambda one: one,
            entered=lambda _: None,
            request=SimpleNamespace(locked=None),
            env={},
        )

        def prove() -> str:
            console = Console(file=io.StringIO(), width=80)
            try:
                with work.storage_explained(prefix):
                    work.prove(what, small, console)
            finally:
                said.append(console.file.getvalue())  # type: ignore[attr-defined]
            return said[-1]

        said: list[str] = []
        path = receipt.path_of(tree, made.name)
        leave(small, free)
        try:
            prove()
        except DiskFull as full:
            assert full.exit_code == 7
            assert "it resumes" in full.fix
            assert not path.exists()
            assert "Installed" not in said[0]
        else:
            assert installed.read(path) == made
        assert ("PASS  demo" in said[0]) == (said[0] != "")
        assert not list(small.rglob(".envkit-*"))
        (small / "filler").unlink()
        assert prove().startswith("Verifying on 2 ranks\nPASS  demo")
        assert installed.read(path) == made
