from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import msgspec
import pytest

from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.receipt import Cached
from envkit.errors import EnvironmentDamaged, UsageProblem
from envkit.system.resources import data
from envkit.verify import target

INSIDE = data("inside/probe/inside.py")


def site(folder: Path, *extensions: str, metadata: str = "", installed: str = "") -> dict[str, str]:
    """Variables under which python finds a Horovod with these extensions."""
    home = folder / "site-packages" / "horovod"
    for name in ("torch", "tensorflow"):
        (home / name).mkdir(parents=True, exist_ok=True)
    (home / "__init__.py").touch()
    for extension in extensions:
        (home / extension).touch()
    if metadata:
        (home / "metadata.json").write_text(metadata)
    if installed:
        (folder / "site-packages" / f"{installed}.py").touch()
    python = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": python, "PYTHONPATH": str(home.parent), "LD_LIBRARY_PATH": "/a:/b", "CONDA_DEFAULT_ENV": "mine"}


TORCH, TENSORFLOW = (f"{stem}{EXTENSION_SUFFIXES[0]}" for stem in ("torch/mpi_lib_v2", "tensorflow/mpi_lib"))


@pytest.mark.parametrize(
    ("extensions", "metadata", "installed", "framework", "others"),
    [
        ((TORCH,), "", "", "torch", ()),
        ((TENSORFLOW,), '{"pytorch": "2.1"}', "", "tensorflow", ("torch",)),
        ((TORCH, TENSORFLOW), "", "", "tensorflow", ("torch",)),
        ((), '{"tensorflow": "2.15"}', "torch", "tensorflow", ()),
        ((), "{", "torch", "torch", ()),
    ],
)
def test_what_the_caller_stands_in(
    tmp_path: Path, extensions: tuple[str, ...], metadata: str, installed: str, framework: str, others: tuple[str, ...]
) -> None:
    found = target.current(site(tmp_path, *extensions, metadata=metadata, installed=installed))
    assert found is not None
    assert (found.name, found.framework, found.others) == ("mine", framework, others)
    assert found.horovod == tmp_path / "site-packages" / "horovod"
    assert found.library_path == (Path("/a"), Path("/b"))
    assert found.python == sys.executable


def test_where_the_horovod_that_the_caller_stands_in_was_taken_from(
    tmp_path: Path, install: Callable[..., ModuleReceipt]
) -> None:
    made = install("toy-cpu", "Python/system", "Horovod/1.0")
    env = site(Path(made.tree) / "software/Horovod/1.0/lib", TORCH)
    found = target.current(env)
    assert found is not None and found.origin == ""
    origin = Cached(place="/c", id="0" * 64, host="node1", built="2026-01-02", key="")
    modules = tuple(msgspec.structs.replace(one, cached=origin) for one in made.modules)
    for name, horovod, expected in (
        ("other-cpu", "/elsewhere/horovod", ""),
        ("toy-cpu", str(found.horovod), f"Horovod/1.0 {origin.shown}"),
    ):
        install(name, "Python/system", "Horovod/1.0", modules=modules, horovod=horovod)
        found = target.current(env)
        assert found is not None and found.origin == expected


def test_one_framework_can_be_asked_for(tmp_path: Path) -> None:
    env = site(tmp_path, TORCH, TENSORFLOW)
    found = target.current(env, "pytorch")
    assert found is not None
    assert (found.framework, found.others) == ("torch", ())
    with pytest.raises(UsageProblem, match="mine has no Horovod for tensorflow"):
        target.current(site(tmp_path / "b", TORCH), "tensorflow")


def test_a_horovod_that_is_for_nothing(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentDamaged, match="neither PyTorch nor TensorFlow"):
        target.current(site(tmp_path))


def test_no_horovod_at_all() -> None:
    assert target.current({"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}) is None


def test_nothing_of_the_probe_is_taken_for_the_environments(tmp_path: Path) -> None:
    env = site(tmp_path, TORCH)
    told = subprocess.run([sys.executable, str(INSIDE)], env=env, capture_output=True, text=True, check=True)
    assert str(INSIDE.parent) not in json.loads(told.stdout)["site_packages"]


def test_what_stands_before_the_packages_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = target.current(site(tmp_path, TORCH, installed="numpy"))
    work = tmp_path / "work"
    for path in ("horovod/__init__.py", "numpy.py", "torch/README", "mine.py", "data/__init__.py"):
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).touch()
    monkeypatch.chdir(work)
    assert found is not None
    assert found.shadows == ("horovod/__init__.py", "numpy.py")
