"""Drift: a file is hashed where its size or time differ, and what has changed is named by kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.binary.build_flags import BuildFlags, Extension
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.lockfile import Lock, LockedMachine
from envkit.environments.prefix import Tree
from envkit.environments.receipt import kept_path
from envkit.verify import drift
from envkit.verify.checks import drift as checks
from envkit.verify.outcome import Expected, FileChange, Ranks, Result, Status, verdict

LOCK = Lock(
    name="toy-cpu", method="easybuild", framework="pytorch", accelerator="cpu", release="",
    machine=LockedMachine(type="x86_64"), tools={}, parts=(),
)  # fmt: skip
EXTENSION, CFFI = "horovod/torch/mpi_lib_v2.so", "cffi-2.1.1.dist-info/RECORD"


class Place:
    """An installed environment, and the files that matter in it."""

    def __init__(self, made: ModuleReceipt, site: Path, mpi: Path) -> None:
        self.made, self.site, self.mpi = made, site, mpi
        drift.keep(made, self.built())

    def built(self) -> BuildFlags:
        extension = Extension(
            framework="torch", path="", exists=True, flags={}, framework_found=True, unreadable=None,
            missing_libraries=(), missing_symbols=(), built_for=None, installed=None,
            mpi_libraries=(str(self.mpi),) if self.mpi.exists() else (),
        )  # fmt: skip
        return BuildFlags(horovod="0.28.1", extensions=(extension,))

    def changes(self) -> set[tuple[str, str, str]]:
        found = drift.changes(self.made, self.built())
        assert found is not None
        return {(one.kind, Path(one.path).name, one.how) for one in found}


@pytest.fixture(params=["of the machine", "of the tree"])
def place(install: Callable[..., ModuleReceipt], tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """With the machine's MPI, and with one that came with the environment."""
    software = tmp_path / "prefix" / f"{os.uname().machine}-py3.11" / "software"
    site = software / "Toy" / "1.0" / "site-packages"
    for name in ("horovod/__init__.py", "horovod/metadata.json", EXTENSION, CFFI):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("as it was installed")
    mpi = (tmp_path if request.param == "of the machine" else software / "OpenMPI" / "system") / "libmpi.so.40.30.4"
    mpi.parent.mkdir(parents=True, exist_ok=True)
    mpi.write_text("Open MPI")
    made = install("toy-cpu", horovod=str(site / "horovod"), site_packages=(str(site), "/usr/lib/python3"), lock=LOCK)
    return Place(made, site, mpi)


def rewrite(path: Path) -> None:
    path.write_text("changed by hand ...")  # as long as it was


def test_nothing_has_changed(place: Place) -> None:
    assert place.changes() == set()


def test_a_copy_with_other_times_is_the_same(place: Place) -> None:
    os.utime(place.site / EXTENSION, ns=(1, 1))
    assert place.changes() == set()


def test_what_has_the_same_size_and_time_is_not_read(place: Place) -> None:
    path = place.site / EXTENSION
    times = path.stat().st_mtime_ns
    rewrite(path)
    os.utime(path, ns=(times, times))
    assert place.changes() == set()


def test_what_changed_is_named_by_kind(place: Place) -> None:
    rewrite(place.site / EXTENSION)
    (place.site / CFFI).unlink()
    (place.site / "cffi-2.2.0.dist-info").mkdir()
    (place.site / "cffi-2.2.0.dist-info" / "RECORD").write_text("by pip")
    module = Tree(root=Path(place.made.tree)).file("Toy/1.0")
    assert module is not None
    module.write_text("edited")
    place.mpi.write_text("updated ")
    assert place.changes() == {
        ("horovod", "mpi_lib_v2.so", "changed"),
        ("packages", "RECORD", "gone"),
        ("packages", "RECORD", "added"),
        ("modules", "1.0.lua", "changed"),
        ("mpi", "libmpi.so.40.30.4", "changed"),
    }


def test_another_mpi_is_found(place: Place) -> None:
    place.mpi = place.mpi.rename(place.mpi.with_name("libmpi.so.40.40.0"))
    assert place.changes() == {("mpi", "libmpi.so.40.30.4", "gone"), ("mpi", "libmpi.so.40.40.0", "added")}


def test_an_extension_that_does_not_load_says_nothing_of_mpi(place: Place) -> None:
    place.mpi.unlink()
    assert place.changes() == set()


def test_a_python_cache_is_no_change(place: Place) -> None:
    (place.site / "horovod" / "__pycache__").mkdir()
    (place.site / "horovod" / "__pycache__" / "x.pyc").write_text("x")
    assert place.changes() == set()


def test_without_a_record_nothing_is_said(place: Place) -> None:
    kept_path(Tree(root=Path(place.made.tree)), "toy-cpu").unlink()
    assert drift.changes(place.made, place.built()) is None


def results(changes: tuple[FileChange, ...] | None) -> list[Result]:
    expected = Expected(size=1, frameworks=("torch",), drift=changes)
    return checks.drift(Ranks(framework="torch", facts=(), expected=expected))


def test_the_check() -> None:
    assert results(None) == []
    assert [one.status for one in results(())] == [Status.PASS]
    package = FileChange(kind="packages", path=f"software/Toy/1.0/site-packages/{CFFI}", how="gone")
    own = FileChange(kind="horovod", path=f"software/{EXTENSION}", how="changed")
    [warning] = results((package,))
    assert (warning.id, warning.status) == ("drift", Status.WARN) and "cffi-2.1.1 gone" in warning.message
    assert verdict([warning]) is Status.PASS
    failed, _ = results((own, package))
    assert failed.status is Status.FAIL and f"software/{EXTENSION} changed" in failed.message
    assert failed.cause and failed.remedy


@pytest.mark.parametrize("kind", ["modules", "mpi"])
def test_other_kinds_are_warnings(kind: str) -> None:
    [warning] = results((FileChange(kind=kind, path="x", how="changed"),))
    assert warning.status is Status.WARN and warning.cause and warning.remedy
