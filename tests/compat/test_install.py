"""What an installation is known to fail with, before anything is built."""

from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.compat.complete import best
from envkit.machine.host import Accelerator, Host, Interpreter, Program
from envkit.machine.modules_tool import without_private_folders
from envkit.planning.compatibility import here, known_bad, of_name
from envkit.planning.stack import Stack, from_recipe, stacks

Fake = Callable[..., Path]
Machine = Callable[..., Host]
CUDA = "Horovod-0.28.1-foss-2022a-CUDA-11.7.0-PyTorch-1.13.1.eb"
BARE = "easyblock = 'Toy'\nname = 'Horovod'\n"


def own(name: str) -> Stack:
    return next(stack for stack in stacks() if stack.name == name)


def gcc(version: str) -> Program:
    return Program(path=Path("/usr/bin/g++"), version=version)


def with_gpu(machine: Machine, fake: Fake, capability: str) -> Host:
    """A machine with a GPU of a compute capability."""
    folder = fake("nvidia-smi", f"echo {capability}").parent
    return machine(accelerator=Accelerator.CUDA, env={"PATH": f"{folder}:{without_private_folders({})}"})


@pytest.mark.parametrize("stack", stacks(), ids=lambda stack: stack.name)
@pytest.mark.parametrize("version", ["9.4.0", "11.3.0", "12.2.0", "13.3.0", "14.2.0", "15.3.0"])
def test_the_stacks_are_refused_with_no_compiler_of_these(stack: Stack, version: str, machine: Machine) -> None:
    assert list(known_bad(stack, machine(compiler=gcc(version)))) == []


@pytest.mark.parametrize("stack", stacks(), ids=lambda stack: stack.name)
@pytest.mark.parametrize("python", ["3.10.4", "3.11.7", "3.12.3", "3.13.1"])
def test_no_stack_is_refused_with_a_python_that_it_is_for(stack: Stack, python: str, machine: Machine) -> None:
    there = machine(python=Interpreter(path=Path("/p"), version=python, headers=True), compiler=None)
    refused = list(known_bad(stack, there))
    assert refused == [] or python.rpartition(".")[0] not in stack.pythons.get("x86_64", ())
    if stack.name.startswith("pytorch"):
        assert refused == []


def test_a_compiler_that_is_too_old(machine: Machine) -> None:
    [problem] = known_bad(own("tensorflow-2.21-cpu"), machine(compiler=gcc("7.5.0")))
    assert problem.what.startswith(
        "Known to fail: GCC 7.5.0 with TensorFlow 2.21.0; TensorFlow's headers are C++17 (docs"
    )
    assert "envkit compat gcc=VERSION tensorflow=VERSION" in problem.fix
    assert "--force" in problem.fix
    assert list(known_bad(own("tensorflow-2.21-cpu-image"), machine(compiler=gcc("7.5.0")))) == []


def test_an_mpi_that_hangs(machine: Machine) -> None:
    """Open MPI of the machine is what the stacks of modules are linked with; images have their own."""
    there = machine(mpi=Program(path=Path("/usr/bin/mpirun"), version="3.1.3", family="Open MPI"))
    [problem] = known_bad(own("pytorch-2.13-cpu"), there)
    assert problem.what.startswith("Known to fail: Open MPI 3.1.3; it may hang (docs; ")
    assert list(known_bad(own("pytorch-2.13-cpu-image"), there)) == []
    mpich = machine(mpi=Program(path=Path("/usr/bin/mpirun"), version="3.1.3", family="MPICH"))
    assert list(known_bad(own("pytorch-2.13-cpu"), mpich)) == []


@pytest.mark.parametrize("version", ["", "3.11.7+", "12 (custom)", "trunk"])
def test_versions_that_cannot_be_compared(version: str, machine: Machine) -> None:
    there = machine(compiler=gcc(version), python=Interpreter(path=Path("/p"), version=version, headers=True))
    assert {"gcc", "python"} & here(there).parts.keys() == set()
    assert list(known_bad(own("pytorch-2.13-cpu"), there)) == []


def test_a_machine_type_that_nobody_has_tried(machine: Machine) -> None:
    assert best({}, here(machine(machine="riscv64"))) is None


def test_a_gpu_that_cuda_does_not_know(machine: Machine, fake: Fake) -> None:
    stack = from_recipe(CUDA)
    [problem] = known_bad(stack, with_gpu(machine, fake, "9.0"))
    assert "CUDA 11.7.0 with compute capability of an NVIDIA GPU 9.0" in problem.what
    assert "(docs; " in problem.what
    assert list(known_bad(stack, with_gpu(machine, fake, "8.0"))) == []
    assert list(known_bad(stack, machine())) == []


def test_a_recipe_of_ones_own(machine: Machine, tmp_path: Path) -> None:
    recipe = tmp_path / "Horovod-0.28.1-foss-2023b-PyTorch-2.3.0.eb"
    recipe.write_text(BARE)
    [problem] = known_bad(from_recipe(str(recipe)), machine())
    assert problem.what.startswith("Known to fail: Horovod 0.28.1 with PyTorch 2.3")
    assert problem.fix.startswith("Its recipe needs C++17 for the extension of PyTorch.")
    recipe.write_text(f"{BARE}patches = ['our-own.patch']\n")
    assert list(known_bad(from_recipe(str(recipe)), machine())) == []


def test_a_recipe_by_the_machines_own_compiler(machine: Machine, tmp_path: Path) -> None:
    recipe = tmp_path / "Horovod-0.28.1-gompi-system-PyTorch-2.0.1.eb"
    recipe.write_text(BARE)
    assert list(known_bad(from_recipe(str(recipe)), machine())) == []
    [problem] = known_bad(from_recipe(str(recipe)), machine(compiler=gcc("13.2.0")))
    assert "GCC 13.2.0" in problem.what


SPAN = "Known to fail: Horovod 0.28.1 with GCC 14.2.0; third_party/flatbuffers assigns to a const member"


@pytest.mark.parametrize(
    ("modules", "patch", "refused"),
    [
        (["GCC/14.2.0", "PyTorch/2.0.1-foss-2025a"], None, True),
        (["GCC/14.2.0", "PyTorch/2.0.1-foss-2025a"], "horovod/common/common.h", True),
        (["GCC/14.2.0"], "third_party/flatbuffers/include/flatbuffers/stl_emulation.h", False),
        (["GCC/12.3.0", "CUDA/14.2.0"], None, False),
        ([], None, False),
    ],
)
def test_a_recipe_by_the_compiler_of_its_toolchain(
    modules: list[str], patch: str | None, refused: bool, machine: Machine, tmp_path: Path
) -> None:
    """The name of a recipe does not tell which GCC a toolchain has; its plan does, and its patches what they mend."""
    recipe = tmp_path / "Horovod-0.28.1-foss-2025a-PyTorch-2.0.1.eb"
    recipe.write_text(BARE + ("patches = ['some.patch']\n" if patch else ""))
    if patch:
        (tmp_path / "some.patch").write_text(f"--- a/{patch}\n+++ b/{patch}\n")
    problems = list(known_bad(from_recipe(str(recipe)), machine(), modules))
    assert any(problem.what.startswith(SPAN) for problem in problems) is refused
    assert all("--force" in problem.fix for problem in problems)


def test_what_has_no_horovod_is_not_judged(machine: Machine, tmp_path: Path) -> None:
    recipe = tmp_path / "PyTorch-2.3.0-foss-2023b-CUDA-12.4.0.eb"
    recipe.write_text(BARE)
    assert list(known_bad(from_recipe(str(recipe)), machine())) == []


@pytest.mark.parametrize(
    ("stem", "parts"),
    [
        (
            "Horovod-0.28.1-foss-2022a-CUDA-11.7.0-PyTorch-1.13.1",
            {"horovod": "0.28.1", "cuda": "11.7.0", "torch": "1.13.1"},
        ),
        ("Horovod-0.28.1-gompi-system-TensorFlow-2.15.1", {"horovod": "0.28.1", "tensorflow": "2.15.1"}),
        ("Horovod-0.25.0-GCC-11.3.0-OpenMPI-4.1.4", {"horovod": "0.25.0", "gcc": "11.3.0", "openmpi": "4.1.4"}),
        ("toy-1.0", {}),
    ],
)
def test_versions_in_the_name_of_a_recipe(stem: str, parts: dict[str, str]) -> None:
    assert of_name(stem) == parts
