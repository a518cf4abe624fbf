"""Which MPI Horovod is compiled with: families, the recipes for each, and a machine that has several."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from envkit.commands.options import MPI
from envkit.easybuild import method, mpi
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import Mpi
from envkit.errors import HostProblem, UsageProblem
from envkit.install.install import say_taken_over
from envkit.launch import launcher
from envkit.machine import host
from envkit.machine.host import MPI_FAMILIES, Host, Program, by_preference
from envkit.planning.compatibility import MPIS, versions
from envkit.planning.request import Request
from envkit.planning.stack import Stack, stacks
from envkit.system.resources import recipes

Machine = Callable[..., Host]
OPEN_MPI = Program(path=Path("/usr/bin/mpirun"), version="4.1.4", family="Open MPI")
MPICH = Program(path=Path("/opt/mpich/bin/mpirun"), version="4.3.2", family="MPICH")
INTEL = Program(path=Path("/opt/intel/bin/mpirun"), version="2021.18", family="Intel MPI")
OTHER = Program(path=Path("/opt/hp/bin/mpirun"), version="unknown", family="unknown")
RECIPES = sorted(path.name for path in Path(recipes("easyconfigs")).glob("Horovod-*-gmpich-system*.eb"))


def stack(name: str) -> Stack:
    return next(one for one in stacks() if one.name == name)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(root=tmp_path / "tree")


def build(tree: Tree, module: str) -> None:
    """A module, as far as its file goes."""
    file = tree.modulepath / f"{module}.lua"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def fitted(
    machine: Machine, tree: Tree, found: list[Program], name: str = "pytorch-2.13-cpu", family: str = ""
) -> Stack:
    """What is built where these are found, and that the machine has the MPI for it."""
    chosen, others = by_preference(found, family)
    seen = machine(mpi=chosen, other_mpis=others)
    request = Request(prefix=Prefix(root=tree.root.parent), mpi=family)
    made, taken = mpi.fitted(request, seen, stack(name), tree)
    fitting = [one for one in found if f"-{mpi.toolchain_of(one)}-" in made.easyconfig and family in ("", one.family)]
    assert not fitting or taken.mpi == fitting[0]
    return made


@pytest.mark.parametrize(
    ("found", "toolchain"),
    [
        ([], "gompi"),
        ([OPEN_MPI], "gompi"),
        ([MPICH], "gmpich"),
        ([INTEL], "gmpich"),
        ([OTHER], "gompi"),
        ([OTHER, MPICH], "gmpich"),
        ([MPICH, OPEN_MPI], "gmpich"),
        ([OPEN_MPI, MPICH, INTEL], "gompi"),
    ],
)
def test_the_first_mpi_that_there_are_recipes_for(
    found: list[Program], toolchain: str, machine: Machine, tree: Tree
) -> None:
    made = fitted(machine, tree, found)
    assert made.easyconfig == f"Horovod-0.28.1-{toolchain}-system-PyTorch-2.13.0.eb"
    assert made.module == f"Horovod/0.28.1-{toolchain}-system-PyTorch-2.13.0"
    assert set(made.seconds) == {"PyTorch/2.13.0", made.module} and made.name == "pytorch-2.13-cpu"


def test_another_one_is_asked_for(machine: Machine, tree: Tree) -> None:
    found = [OPEN_MPI, MPICH, INTEL]
    assert "gmpich" in fitted(machine, tree, found, family="Intel MPI").easyconfig
    build(tree, "Horovod/0.28.1-gompi-system-PyTorch-2.13.0")
    assert "gmpich" in fitted(machine, tree, found, family="MPICH").easyconfig


def test_what_is_built_stays_with_its_family(machine: Machine, tree: Tree) -> None:
    build(tree, "Horovod/0.28.1-gompi-system-PyTorch-2.13.0")
    assert "gompi" in fitted(machine, tree, [MPICH]).easyconfig
    assert "gompi" in fitted(machine, tree, [MPICH, OPEN_MPI]).easyconfig
    build(tree, "Horovod/0.28.1-gmpich-system-PyTorch-2.13.0")
    assert "gmpich" in fitted(machine, tree, [MPICH, OPEN_MPI]).easyconfig


def test_a_stack_that_brings_its_own_has_none_to_choose(machine: Machine, tree: Tree) -> None:
    name = "pytorch-2.9-foss-2024a-cuda"
    assert fitted(machine, tree, [MPICH], name) == stack(name)
    with pytest.raises(UsageProblem, match=r"^--mpi: pytorch-2\.9-foss-2024a-cuda takes no MPI of the machine\.$"):
        fitted(machine, tree, [MPICH], name, "MPICH")


def test_a_family_that_is_not_there() -> None:
    with pytest.raises(HostProblem, match=r"^There is no Intel MPI here") as problem:
        by_preference([OPEN_MPI, MPICH], "Intel MPI")
    assert "There is Open MPI 4.1.4 (/usr/bin/mpirun), MPICH 4.3.2 (/opt/mpich/bin/mpirun)" in problem.value.why
    with pytest.raises(HostProblem) as problem:
        by_preference([], "MPICH")
    assert "There is no MPI at all" in problem.value.why


def test_every_family_is_known_everywhere() -> None:
    named = {family for family, _ in MPI_FAMILIES}
    assert set(MPI.values()) == named == set(launcher.table()["mpi"])
    assert named == {
        one
        for one in ("Open MPI", "MPICH", "Intel MPI")
        if mpi.toolchain_of(Program(path=Path(), version="", family=one))
    }


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_differ_in_their_toolchain_alone(name: str) -> None:
    folder = Path(recipes("easyconfigs"))
    other = (folder / name.replace("gmpich", "gompi")).read_text()
    assert (folder / name).read_text() == other.replace("gompi", "gmpich")


@pytest.mark.parametrize("name", [one.name for one in stacks() if "-gompi-system" in one.easyconfig])
def test_every_stack_on_the_machines_mpi_has_them_all(name: str) -> None:
    expected = {"gompi"} if "rocm" in name else {"gompi", "gmpich"}
    assert set(mpi.variants(stack(name))) == expected


def test_several_on_path_and_beside_each_other(tmp_path: Path) -> None:
    """As Debian has them, and as a module puts a folder in front; one that is found twice is told once."""
    for folder, name, told in (
        ("usr", ".openmpi", "mpirun (Open MPI) 4.1.4"),
        ("usr", ".mpich", "HYDRA build details:\n    Version:      4.0.2"),
        ("opt", "", "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 2023"),
    ):
        for program, body in (("mpicxx", "exit 0"), ("mpirun", f"cat <<'END'\n{told}\nEND")):
            path = tmp_path / folder / f"{program}{name}"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{body}\n")
            path.chmod(0o755)
    for program in ("mpicxx", "mpirun"):
        (tmp_path / "usr" / program).symlink_to(f"{program}.openmpi")
    (tmp_path / "bin").symlink_to("usr")
    env = {"PATH": f"{tmp_path}/opt:{tmp_path}/usr:{tmp_path}/bin:/bin"}
    found = [(one.family, os.path.relpath(one.path, tmp_path)) for one in host.mpis(env)][:3]
    assert found == [("Intel MPI", "opt/mpirun"), ("Open MPI", "usr/mpirun"), ("MPICH", "usr/mpirun.mpich")]


def broken(kind: str, folder: Path) -> Program:
    """An MPI whose programs cannot be linked."""
    bodies = {
        "headers alone": "echo '/usr/bin/ld: cannot find -lmpi: No such file or directory' >&2; exit 1",
        "no compiler": "echo 'mpicxx: line 1: /opt/gcc-9/bin/g++: cannot execute: No such file' >&2; exit 127",
    }
    for name, body in (("mpicxx", bodies[kind]), ("mpirun", "true")):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return Program(path=folder / "mpirun", version="4.3.2", family="MPICH")


@pytest.mark.parametrize("kind", ["headers alone", "no compiler"])
def test_an_mpi_that_does_not_link_is_said_before_anything_is_built(
    kind: str, machine: Machine, tree: Tree, tmp_path: Path
) -> None:
    seen = machine(mpi=broken(kind, tmp_path))
    made = mpi.named(stack("pytorch-2.13-cpu"), "gompi", "gmpich")
    [problem] = mpi.problems(seen, made, tree)
    assert re.match(rf"{tmp_path}/mpicxx cannot compile and link a program of MPICH 4\.3\.2: .*cannot", problem.what)
    build(tree, "MPICH/system")
    assert not list(mpi.problems(seen, made, tree))


def test_a_module_that_stands_for_another_mpi(machine: Machine, tree: Tree) -> None:
    """Of the same toolchain: it is kept to where the choice is free, and told where it is not."""
    build(tree, "MPICH/system")
    script = tree.software / "MPICH/system/bin/mpirun"
    script.parent.mkdir(parents=True)
    script.write_text('#!/bin/sh\nexec "/opt/mpich/bin/mpirun" "$@"\n')
    request = Request(prefix=Prefix(root=tree.root.parent))
    made, taken = mpi.fitted(request, machine(mpi=INTEL, other_mpis=(MPICH,)), stack("pytorch-2.13-cpu"), tree)
    assert (taken.mpi, taken.other_mpis) == (MPICH, (INTEL,)) and not list(mpi.problems(taken, made, tree))
    [problem] = mpi.problems(machine(mpi=INTEL), made, tree)
    assert problem.what == (
        "MPICH/system of this prefix is the MPI of /opt/mpich/bin/mpirun, "
        "not Intel MPI 2021.18 (/opt/intel/bin/mpirun)."
    )


def test_the_open_mpi_that_eb_would_not_take(machine: Machine, tree: Tree) -> None:
    seen = machine(mpi=dataclasses.replace(OPEN_MPI, path=Path("/elsewhere/bin/mpirun")))
    problem = next(iter(mpi.problems(seen, stack("pytorch-2.13-cpu"), tree)))
    assert problem.what.startswith(
        "Open MPI 4.1.4 (/elsewhere/bin/mpirun) is not the first MPI on PATH, which EasyBuild"
    )
    assert "that is " in problem.what and "mpirun" in problem.what


def test_an_mpi_without_its_development_package_is_named(machine: Machine, fake: Callable[..., Path]) -> None:
    launcher = fake("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    seen = machine(mpi=None, env={"PATH": f"{launcher.parent}:/usr/bin:/bin"})
    told = method.found(None, True, mpi.without_wrappers(seen))
    assert told.startswith(f"from a wheel (Open MPI 4.1.4 ({launcher}) is here without mpicxx or mpi.h")
    assert method.found(None, True, mpi.without_wrappers(machine(mpi=None, env={"PATH": "/nowhere"}))) == (
        "from a wheel (none on this machine)"
    )


@pytest.mark.parametrize(
    ("found", "named"), [(MPICH, "mpich"), (INTEL, "impi"), (OPEN_MPI, "openmpi"), (None, "openmpi")]
)
def test_what_goes_together_is_judged_with_the_mpi_of_the_machine(
    found: Program | None, named: str, machine: Machine
) -> None:
    parts, _ = versions(stack("pytorch-2.13-cpu"), machine(mpi=found))
    assert [name for name in parts if name in MPIS.values()] == [named]
    assert parts[named] == (found.version if found else "4.1.4")


@pytest.mark.parametrize(("module", "said"), [("Toy/2.0", True), ("Toy/1.0", False)])
def test_what_the_name_stood_for_is_said(
    module: str, said: bool, install: Callable[..., ModuleReceipt], capsys: pytest.CaptureFixture[str]
) -> None:
    made = install(mpi=Mpi(family="MPICH", version="4.0.2"))
    work: Any = SimpleNamespace(tree=Tree(root=Path(made.tree)), stack=SimpleNamespace(name=made.name, module=module))
    say_taken_over(work, Console())
    assert ("toy-cpu is now the one with MPICH 4.0.2" in capsys.readouterr().out) == said
