"""What an earlier installation has left behind is said before the next one begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import receipt
from envkit.environments.lockfile import Lock, LockedMachine, LockedPart
from envkit.environments.prefix import Prefix, Tree
from envkit.errors import BuildFailed
from envkit.install import earlier, listing
from envkit.machine.host import Platform

ERROR = BuildFailed(what="Building Horovod/1 failed in step build.", why="GCC 14 cannot.\nlog:7: error: x", fix="Mend.")


def work(tmp_path: Path, **of_machine: str) -> Any:
    given: dict[str, Any] = {"type": "x86_64", "python": "3.11.7", "compiler": "GCC 12.2.0", "mpi": "MPICH 4.3.2"}
    own = LockedMachine(**{**given, **of_machine})
    lock = Lock(
        name="toy", method="easybuild", framework="pytorch", accelerator="cpu", release="", machine=own, tools={},
        parts=(LockedPart(name="Toy/1", recipe="Toy-1.eb", sha256="a" * 64),),
    )  # fmt: skip
    tree = Tree(root=tmp_path / "tree")
    tree.unfinished.mkdir(parents=True, exist_ok=True)
    (tmp_path / "tree" / "environments").mkdir(exist_ok=True)
    return SimpleNamespace(
        tree=tree, lock=lock, stack=SimpleNamespace(name="toy"), missing=["Toy/1"], steps=["Toy/1"], unit="modules"
    )


def test_nothing_is_said_where_nothing_failed(tmp_path: Path) -> None:
    made = work(tmp_path)
    assert not list(earlier.failed(made))
    earlier.remember(made, ERROR)  # of a build that had not begun there is no note
    assert not list(earlier.failed(made))
    receipt.begin(made.tree, "toy", "building", tmp_path / "log")
    assert not list(earlier.failed(made))


@pytest.mark.parametrize(
    ("now", "since"),
    [
        ({}, "Nothing that counts has changed since."),
        ({"compiler": "GCC 14.2.0"}, "That was with compiler GCC 12.2.0."),
        ({"mpi": "", "python": "3.13.5"}, "That was with Python 3.11.7, MPI MPICH 4.3.2."),
    ],
)
def test_what_failed_is_said_with_what_has_changed_since(
    now: dict[str, str], since: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = work(tmp_path)
    receipt.begin(before.tree, "toy", "building", tmp_path / "log")
    earlier.remember(before, ERROR)
    told = "\n".join(earlier.failed(work(tmp_path, **now)))
    assert "Building Horovod/1 failed in step build. GCC 14 cannot." in told
    assert since in told and str(tmp_path / "log") in told
    earlier.say_resumed(before, Console(width=500))
    assert "GCC 14 cannot." in capsys.readouterr().out
    begun = listing.begun(before.tree, before.tree.unfinished / "toy.json")
    assert begun and "GCC 14 cannot." in begun.failed


def test_what_another_python_has_of_the_same_name_is_told(
    prefix: Prefix, install: Callable[..., ModuleReceipt]
) -> None:
    for python in ("3.9.1", "3.13.0"):
        install("toy-cpu", python=python)
    tree = prefix.tree(Platform(machine=os.uname().machine, python="3.13"))
    asked: Any = SimpleNamespace(
        tree=tree, stack=SimpleNamespace(name="toy-cpu"), request=SimpleNamespace(prefix=prefix)
    )
    assert list(earlier.beside(asked)) == [
        "Beside:   another Python's toy-cpu stays as it is, and is called toy-cpu-py3.9"
    ]


def test_a_note_of_an_earlier_envkit_says_nothing_of_it(tmp_path: Path) -> None:
    made = work(tmp_path)
    receipt.begin(made.tree, "toy", "building", tmp_path / "log")
    path = made.tree.unfinished / "toy.json"
    old = {name: value for name, value in msgspec.json.decode(path.read_bytes()).items() if name not in NEW}
    path.write_bytes(msgspec.json.encode(old))
    assert not list(earlier.failed(made)) and receipt.unfinished(made.tree, "toy") is not None


NEW = ("failed", "made_of")
