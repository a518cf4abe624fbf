"""What was added to a stack: ranks that cannot use it, and packages that it replaces."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from envkit.easybuild.receipt import ModuleReceipt
from envkit.inside.probe import extras as probe
from envkit.verify import target
from envkit.verify.checks import extras as checks
from envkit.verify.facts import Imported, RankFacts, World
from envkit.verify.outcome import Expected, Ranks, Result, Status

ADDED = (("tutorials", "tqdm"), ("mpi4py", "mpi4py.MPI"))
SOFTWARE = {"tutorials": "/s/tutorials/1", "mpi4py": "/s/mpi4py/4"}


def rank(number: int, **changed: Any) -> RankFacts:
    """A rank that imports all of it."""
    told: dict[str, Any] = {
        "tqdm": Imported(extra="tutorials", path="/s/tutorials/1/lib/tqdm/__init__.py"),
        "mpi4py.MPI": Imported(extra="mpi4py", path="/s/mpi4py/4/MPI.so", library="Open MPI", rank=number, size=2),
    }
    world = World(rank=number, size=2)
    return RankFacts(framework="torch", host="node1", pid=number, phase="exit", world=world, extras={**told, **changed})


def results(*facts: RankFacts, **expected: Any) -> list[Result]:
    given: dict[str, Any] = {"added": ADDED, "software": SOFTWARE, **expected}
    return checks.extras(
        Ranks(framework="torch", facts=facts, expected=Expected(size=2, frameworks=("torch",), **given))
    )


def test_where_all_is_well_it_says_what_there_is() -> None:
    [one] = results(rank(0), rank(1))
    assert one.status is Status.PASS and one.message.endswith("tutorials, mpi4py")


def test_an_environment_without_any_is_not_asked() -> None:
    assert results(rank(0), added=(), software={}) == []


@pytest.mark.parametrize(
    ("told", "case", "says"),
    [
        (
            {"tqdm": Imported(error="ModuleNotFoundError: No module named 'tqdm'")},
            "import",
            "rank 1 (node1, pid 1) cannot",
        ),
        ({"tqdm": Imported(path="/home/me/tqdm.py")}, "elsewhere", "from elsewhere: /home/me/tqdm.py"),
        ({"mpi4py.MPI": Imported(path="/s/mpi4py/4/MPI.so", rank=0, size=1)}, "world", "is 0 of 1, and Horovod"),
    ],
)
def test_a_rank_that_cannot_use_it(told: dict[str, Imported], case: str, says: str) -> None:
    [one] = results(rank(0), rank(1, **told))
    assert (one.case, one.status) == (case, Status.FAIL) and says in one.message and one.remedy


def test_over_gloo_there_is_no_world_of_mpi_to_compare() -> None:
    [one] = results(*(rank(n, **{"mpi4py.MPI": Imported(path="/s/mpi4py/4/MPI.so")}) for n in (0, 1)))
    assert one.status is Status.PASS


def test_a_package_of_the_virtual_environment_that_was_named_may_stand_before_it() -> None:
    mine = rank(0, tqdm=Imported(path="/home/me/own/lib/tqdm.py")), rank(1)
    assert [one.case for one in results(*mine, venv="/home/me/own")] == ["pass"]


def test_a_package_that_the_stack_has_itself_is_as_good() -> None:
    [one] = results(rank(0, tqdm=Imported(path="/s/TensorFlow/2/tqdm.py")), rank(1))
    assert one.status is Status.PASS


def test_ranks_that_did_not_come_so_far_are_not_judged() -> None:
    facts = RankFacts(framework="torch", host="node1", pid=1, phase="init")
    assert [one.status for one in results(rank(0), facts)] == [Status.SKIP]


def test_what_it_replaces_is_named(install: Callable[..., ModuleReceipt], tmp_path: Path) -> None:
    made = install("toy-cpu", "Python/system", "Added/1.0", "Toy/1.0", extras={"added": "Added/1.0"})
    software = Path(made.tree) / "software"
    places = [software / module / "site-packages" for module in ("Added/1.0", "Toy/1.0")]
    for place, version in zip(places, ("1.0", "2.0"), strict=True):
        (place / f"numpy-{version}.dist-info").mkdir(parents=True)
        (place / "same-1.0.dist-info").mkdir()
    made = install(
        "toy-cpu", "Python/system", "Added/1.0", "Toy/1.0", extras=made.extras, site_packages=[*map(str, places)]
    )
    found = target.installed(made, made.environment)
    assert found.replaced == ("numpy 1.0 of added (elsewhere 2.0)",)
    assert found.software == {"added": str(software / "Added/1.0")}
    [one] = results(rank(0), rank(1), replaced=found.replaced)
    assert one.status is Status.FAIL and "numpy 1.0 of added" in one.message


def test_the_probe_starts_no_mpi_and_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = ModuleType("mpi4py"), ModuleType("mpi4py.MPI")
    package.rc = ModuleType("rc")  # type: ignore[attr-defined]
    module.__dict__.update(
        Get_library_version=lambda: "Open MPI v4\0", Is_initialized=lambda: False, Is_finalized=lambda: False
    )
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", module)
    told = probe.imported(["mpi4py=mpi4py.MPI", "tutorials=no.such_thing"])
    assert told["mpi4py.MPI"] == {"extra": "mpi4py", "path": "", "library": "Open MPI v4"}
    assert package.rc.initialize is False
    assert "No module named 'no'" in told["no.such_thing"]["error"]
