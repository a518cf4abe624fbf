import io
import os
import pwd
from collections.abc import Callable

import msgspec
import pytest
from rich.console import Console

from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import filelocks, receipt
from envkit.environments.prefix import Prefix
from envkit.environments.receipt import Mpi
from envkit.install import catalogue
from envkit.machine.host import Platform
from envkit.planning.stack import stacks

Install = Callable[..., ModuleReceipt]
HERE = Platform.own()


def states(prefix: Prefix) -> dict[str, str]:
    return {entry.name: entry.state for entry in catalogue.entries(prefix)}


def test_every_stack_is_listed_with_whether_it_fits_here(prefix: Prefix) -> None:
    assert states(prefix) == {
        stack.name: "can be installed" if stack.runs_on(HERE) else f"not for Python {HERE.python} on {HERE.machine}"
        for stack in stacks()
    }


def test_what_is_installed_comes_first_and_once(prefix: Prefix, install: Install) -> None:
    name = stacks()[0].name
    install(name, python="3.11.7")
    install(name, python="3.13.1", verified="2026-03-04", horovod="/h")
    install("own-recipe", python="3.11.7")
    found = catalogue.entries(prefix)
    assert {entry.name for entry in found[:2]} == {"own-recipe", name}
    assert len(found) == len(stacks()) + 1
    assert states(prefix)[name] == "installed, verified 2026-03-04"
    assert states(prefix)["own-recipe"].endswith(", no Horovod in it")


def test_what_has_begun(prefix: Prefix) -> None:
    stack = stacks()[0].name
    receipt.begin(prefix.tree(HERE), stack, "building", prefix.logs)
    assert states(prefix)[stack] == "begun, not finished: 'envkit install' resumes it"


def test_what_is_being_installed_and_what_somebody_else_has_begun(
    prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, tree = stacks()[0].name, prefix.tree(HERE)
    receipt.begin(tree, stack, "building", prefix.logs)
    with filelocks.held(tree, f"stack-{stack}", Console(file=io.StringIO()), ""):
        assert states(prefix)[stack] == "being installed now"
    assert states(prefix)[stack].startswith("begun, not finished")
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert catalogue.unfinished(tree, tree.unfinished / f"{stack}.json") == f"begun by {pwd.getpwuid(uid).pw_name}"


def test_a_recipe_by_path_that_has_begun(prefix: Prefix) -> None:
    receipt.begin(prefix.tree(HERE), "toy-1.0", "building", prefix.logs)
    assert states(prefix)["toy-1.0"].startswith("begun, not finished")


def test_json_of_the_list(prefix: Prefix) -> None:
    told = msgspec.json.decode(catalogue.to_json(catalogue.entries(prefix)))
    assert told["version"] == 1
    assert told["environments"][0]["name"] == stacks()[0].name


def test_json_of_a_receipt_is_the_receipt(install: Install) -> None:
    made = install("toy")
    assert msgspec.json.decode(catalogue.receipt_json(made).encode(), type=ModuleReceipt) == made


@pytest.mark.parametrize(
    ("mpi", "said"),
    [
        (Mpi(family="Open MPI", version="4.1.4"), "Open MPI 4.1.4"),
        (Mpi(family="Open MPI", version="5.0.3", embedded=True), "Open MPI 5.0.3 (came with it)"),
        (None, "none"),
    ],
)
def test_description_for_people(mpi: Mpi | None, said: str, install: Install) -> None:
    made = install("toy", "Python/system", "Toy/1.0", mpi=mpi, load=("gcc/12",), horovod="/h")
    lines = catalogue.describe(made).splitlines()
    assert lines[0] == "Name:       toy"
    assert f"MPI:        {said}" in lines
    assert "Horovod:    /h" in lines
    assert f"By hand:    module use {made.tree}/modules/all && module load gcc/12 Toy/1.0" in lines
    assert lines[-2:] == ["Modules:    Python/system", "            Toy/1.0"]
