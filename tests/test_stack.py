import re
from pathlib import Path
from typing import Any

import pytest

from envkit.errors import UnknownStack
from envkit.machine.host import Accelerator, Platform
from envkit.planning import compatibility, extras
from envkit.planning.stack import REFERENCE, Stack, find_easyconfig, from_recipe, select, stacks, with_flag
from envkit.system.resources import recipes

HERE = Platform(machine="x86_64", python="3.11")
STACKS = {stack.name: stack for stack in stacks()}
MODULES = [stack.name for stack in stacks() if stack.method == "easybuild"]
ARCHS = ("x86_64", "aarch64", "ppc64le")
PYTHONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


def parsed(recipe: Path, platform: Platform) -> dict[str, Any]:
    """The parameters of an easyconfig, as EasyBuild would see them on that platform."""
    parameters: dict[str, Any] = {
        "ARCH": platform.machine,
        "EXTERNAL_MODULE": "EXTERNAL_MODULE",
        "PYPI_SOURCE": "pypi",
        "SHLIB_EXT": "so",
        "SYSTEM": {"name": "system", "version": "system"},
        "SYS_PYTHON_VERSION": f"{platform.python}.1",
    }
    exec(compile(recipe.read_text(), recipe, "exec"), parameters)
    return parameters


def parts(stack: Stack, platform: Platform) -> list[Path]:
    """The recipes of envkit's own that a stack is made of: its own and its framework's."""
    own = recipes("easyconfigs")
    found = [own / stack.easyconfig]
    parameters = parsed(found[0], platform)
    toolchain = "-{name}-{version}".format_map(parameters["toolchain"])
    for name, version, *suffix in parameters["dependencies"]:
        if name in ("PyTorch", "TensorFlow"):
            found += own.glob(f"{name}-{version}{'' if suffix[1:] else toolchain}{''.join(suffix[:1])}.eb")
    return found


def version_of(parameters: dict[str, Any]) -> str:
    """The version of the module that a recipe makes."""
    toolchain = "-{name}-{version}".format_map(parameters["toolchain"])
    toolchain = "" if toolchain == "-system-system" else toolchain
    return f"{parameters['version']}{toolchain}{parameters.get('versionsuffix', '')}"


def served(stack: Stack, platform: Platform) -> bool:
    """Whether no recipe of a stack refuses a platform."""
    try:
        for recipe in parts(stack, HERE):
            parsed(recipe, platform)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_by_its_name(name: str) -> None:
    for platform in (HERE, Platform(machine="riscv64", python="3.9")):
        assert select(name, platform=platform) == STACKS[name]


@pytest.mark.parametrize(
    ("wanted", "framework", "accelerator", "expected"),
    [
        (None, None, "auto", "pytorch-2.13-cpu"),
        ("pytorch", None, "auto", "pytorch-2.13-cpu"),
        ("pytorch", None, "cpu", "pytorch-2.13-cpu"),
        ("tensorflow", None, "auto", "tensorflow-2.21-cpu"),
        (None, "tensorflow", "cpu", "tensorflow-2.21-cpu"),
        (None, None, "cuda", "pytorch-2.13-cuda"),
        ("tensorflow", None, "cuda", "tensorflow-2.15-foss-2023a-cuda"),
        (None, None, "rocm", "tensorflow-2.13-rocm"),
    ],
)
def test_a_stack_by_what_it_contains(
    wanted: str | None, framework: str | None, accelerator: str, expected: str
) -> None:
    assert select(wanted, framework=framework, accelerator=accelerator, platform=HERE).name == expected


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        (Platform(machine="x86_64", python="3.13"), "pytorch-2.13-cuda"),
        (Platform(machine="x86_64", python="3.14"), "pytorch-2.9-foss-2024a-cuda"),
        (Platform(machine="aarch64", python="3.11"), "pytorch-2.13-cuda"),
        (Platform(machine="aarch64", python="3.10"), "pytorch-2.9-foss-2024a-cuda"),
    ],
)
def test_where_there_are_no_wheels_with_cuda_eb_builds_all_of_it(platform: Platform, expected: str) -> None:
    assert select("pytorch", accelerator="cuda", platform=platform).name == expected


@pytest.mark.parametrize(
    ("framework", "accelerator", "expected"),
    [
        (None, "auto", "pytorch-2.13-cpu-image"),
        ("tensorflow", "cpu", "tensorflow-2.21-cpu-image"),
        (None, "cuda", "pytorch-2.13-cuda-image"),
        (None, "rocm", "tensorflow-2.13-rocm-image"),
    ],
)
def test_an_image_by_what_it_contains(framework: str | None, accelerator: str, expected: str) -> None:
    found = select(None, method="apptainer", framework=framework, accelerator=accelerator, platform=HERE)
    assert found.name == expected


@pytest.mark.parametrize(("framework", "name"), [(None, "pytorch-2.1-eessi"), ("tensorflow", "tensorflow-2.13-eessi")])
def test_a_stack_on_top_of_eessi_by_what_it_contains(framework: str | None, name: str) -> None:
    found = select(None, method="eessi", framework=framework, platform=Platform(machine="aarch64", python="3.14"))
    assert (found.name, found.release) == (name, "2023.06")
    assert select(found.easyconfig, method="eessi", platform=HERE) == found
    assert select(name, release="2023.06", platform=HERE) == found
    for wanted in (name, found.easyconfig):
        with pytest.raises(UnknownStack, match=r"--release 2025\.06 contradict each other"):
            select(wanted, method="eessi", release="2025.06", platform=HERE)


def test_a_stack_on_top_of_eessi_for_gpus() -> None:
    found = select(None, method="eessi", accelerator="cuda", platform=HERE)
    assert (found.name, found.status.partition(",")[0]) == ("pytorch-2.1-eessi-cuda", "planned only")
    with pytest.raises(UnknownStack, match="no stack for tensorflow on cuda by --method eessi"):
        select(None, method="eessi", framework="tensorflow", accelerator="cuda", platform=HERE)


def test_any_recipe_on_top_of_eessi() -> None:
    found = select("GCC-system.eb", method="eessi", platform=HERE)
    assert (found.method, found.release, found.easyconfig) == ("eessi", "2023.06", "GCC-system.eb")
    assert select("GCC-system.eb", method="eessi", release="2025.06", platform=HERE).release == "2025.06"
    with pytest.raises(UnknownStack, match="contradict each other"):
        select("GCC-system.eb", method="apptainer", platform=HERE)


@pytest.mark.parametrize("name", [stack.name for stack in stacks() if stack.method == "eessi"])
def test_the_recipe_on_top_of_eessi_makes_the_module(name: str) -> None:
    stack = STACKS[name]
    made = parsed(recipes("easyconfigs") / stack.easyconfig, HERE)
    toolchain = f"-{made['toolchain']['name']}-{made['toolchain']['version']}"
    cuda = next((version for name, version, *_ in made["dependencies"] if name == "CUDA"), "")
    suffix = made["versionsuffix"].replace("%(cudaver)s", cuda)
    assert stack.module == f"{made['name']}/{made['version']}{toolchain}{suffix}"
    assert stack.easyconfig == stack.module.replace("/", "-") + ".eb"
    assert set(stack.seconds) == ({stack.module} if stack.accelerator == "cpu" else set())


def test_a_stack_for_the_python_and_the_machine_there_is() -> None:
    for stack in stacks():
        for machine, pythons in stack.pythons.items():
            for python in pythons:
                platform = Platform(machine=machine, python=python)
                assert select(stack.framework, platform=platform).runs_on(platform)


def test_a_stack_that_fits_but_for_the_host_is_left_to_the_preflight() -> None:
    found = select("pytorch", platform=Platform(machine="x86_64", python="3.10"))
    assert found.name == "pytorch-2.13-cpu"
    assert not found.runs_on(Platform(machine="x86_64", python="3.10"))
    assert found.runs_on(Platform(machine="aarch64", python="3.10"))


def test_no_stack_for_an_accelerator() -> None:
    with pytest.raises(UnknownStack, match=r"There is no stack for pytorch on rocm by --method easybuild\.") as problem:
        select("pytorch", accelerator="rocm", platform=HERE)
    assert "pytorch-2.13-cpu" in problem.value.why
    assert "--accelerator cpu" in problem.value.fix


@pytest.mark.parametrize(
    ("wanted", "near"),
    [("pytorch-2.13", "pytorch-2.13-cpu"), ("tensorflow-2.15", "tensorflow-2.15-cpu"), ("xyz", "pytorch-2.13-cpu")],
)
def test_unknown_names_and_the_nearest(wanted: str, near: str) -> None:
    with pytest.raises(UnknownStack, match=re.escape(f"There is no stack named {wanted!r}.")) as problem:
        select(wanted, platform=HERE)
    assert near in problem.value.why


def test_a_recipe_of_the_collection() -> None:
    assert find_easyconfig(REFERENCE) is not None
    found = select(REFERENCE, platform=HERE)
    assert found == from_recipe(REFERENCE)
    assert found.name == REFERENCE.removesuffix(".eb")
    assert found.module == "Horovod/0.28.1-foss-2022a-CUDA-11.7.0-TensorFlow-2.11.0"
    assert (found.framework, found.accelerator) == ("tensorflow", Accelerator.CUDA)
    assert found.requires == ("cuda", "nccl")
    assert found.runs_on(Platform(machine="ppc64le", python="3.6"))


def test_a_recipe_without_horovod() -> None:
    found = from_recipe("GCC-system.eb")
    assert (found.name, found.module, found.framework) == ("GCC-system", "GCC/system", "none")
    assert found.requires == ()


def test_the_recipe_of_a_stack_is_the_stack() -> None:
    for stack in map(STACKS.__getitem__, MODULES):
        assert select(stack.easyconfig, platform=HERE) == stack


def test_a_recipe_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "Toy-1.0-PyTorch-2.0.eb"
    recipe.write_text("")
    monkeypatch.chdir(tmp_path)
    for wanted in (str(recipe), f"./{recipe.name}", f"../{tmp_path.name}/{recipe.name}"):
        found = select(wanted, platform=HERE)
        assert found.easyconfig == str(recipe)
        assert (found.name, found.module, found.framework) == ("Toy-1.0-PyTorch-2.0", "Toy/1.0-PyTorch-2.0", "pytorch")
    with pytest.raises(UnknownStack, match=r"There is no recipe Toy-1.0-PyTorch-2.0.eb\.") as problem:
        select(recipe.name, platform=HERE)
    assert f": ./{recipe.name}\n" in problem.value.fix


@pytest.mark.parametrize("name", ["GCC-system.eb", REFERENCE])
def test_a_recipe_in_the_current_folder_takes_the_place_of_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of envkit's own nor of one of EasyBuild's collection."""
    there = compatibility.measures_of(name)
    (tmp_path / name).write_text("patches = ['no-such.patch']\nimport os; os.system('evil')\n")
    monkeypatch.chdir(tmp_path)
    assert select(name, platform=HERE).easyconfig == name
    assert compatibility.measures_of(name) == there
    assert select(f"./{name}", platform=HERE).easyconfig == str(tmp_path / name)


@pytest.mark.parametrize(
    ("wanted", "near"),
    [
        ("Horovod-0.28.1-foss-2022a-CUDA-11.7.0-TensorFlow-2.12.0.eb", REFERENCE),
        ("/nowhere/Toy-1.0.eb", ""),
        ("*-system.eb", ""),
        ("ünknown-1.eb", ""),
        (".eb", ""),
    ],
)
def test_unknown_recipes(wanted: str, near: str) -> None:
    with pytest.raises(UnknownStack, match=re.escape(f"There is no recipe {wanted}.")) as problem:
        select(wanted, platform=HERE)
    assert near in problem.value.why


@pytest.mark.parametrize("name", MODULES)
def test_the_recipe_of_a_stack_is_there_and_makes_its_module(name: str) -> None:
    stack = STACKS[name]
    made = parsed(recipes("easyconfigs") / stack.easyconfig, HERE)
    assert stack.module == f"{made['name']}/{version_of(made)}"
    assert stack.easyconfig == stack.module.replace("/", "-") + ".eb"


@pytest.mark.parametrize("name", MODULES)
def test_a_stack_is_for_the_platforms_that_its_recipes_serve(name: str) -> None:
    stack = STACKS[name]
    assert len(parts(stack, HERE)) == (2 if "-system" in stack.easyconfig else 1)
    for machine in ARCHS:
        for python in PYTHONS:
            platform = Platform(machine=machine, python=python)
            assert stack.runs_on(platform) == served(stack, platform), platform


@pytest.mark.parametrize("name", MODULES)
def test_times_are_of_modules_that_a_stack_has(name: str) -> None:
    stack = STACKS[name]
    added = [recipes("easyconfigs") / recipe for recipe in extras.added(stack, extras.of_stack(name)).extras.values()]
    made = [parsed(recipe, HERE) for recipe in (*parts(stack, HERE), *added)]
    modules = {f"{one['name']}/{version_of(one)}" for one in made}
    assert set(stack.seconds) <= modules


def test_one_stack_is_the_default_of_a_framework_and_accelerator() -> None:
    kinds = {(stack.method, stack.framework, stack.accelerator) for stack in stacks()}
    defaults = [(stack.method, stack.framework, stack.accelerator) for stack in stacks() if stack.default]
    assert sorted(kinds) == sorted(defaults)


@pytest.mark.parametrize(
    ("wanted", "options"),
    [
        ("pytorch-2.13-cpu", {"framework": "tensorflow"}),
        ("pytorch-2.13-cpu", {"accelerator": "cuda"}),
        ("pytorch", {"framework": "tensorflow"}),
    ],
)
def test_a_name_and_an_option_that_contradict_each_other(wanted: str, options: dict[str, str]) -> None:
    with pytest.raises(UnknownStack, match="contradict each other"):
        select(wanted, platform=Platform(machine="x86_64", python="3.11"), **options)


@pytest.mark.parametrize(
    ("flag", "framework", "method", "name", "expected"),
    [
        ("nccl", "pytorch", "easybuild", "pytorch-2.13-cpu", "pytorch-2.13-cuda"),
        ("nccl", "pytorch", "apptainer", "pytorch-2.13-cpu-image", "pytorch-2.13-cuda-image"),
        ("rocm", "tensorflow", "apptainer", "tensorflow-2.21-cpu-image", "tensorflow-2.13-rocm-image"),
        ("rocm", "pytorch", "easybuild", "pytorch-2.13-cpu", ""),
        ("ddl", "pytorch", "easybuild", "pytorch-2.13-cpu", ""),
    ],
)
def test_the_nearest_stack_that_has_a_flag(flag: str, framework: str, method: str, name: str, expected: str) -> None:
    assert with_flag(flag, framework, method, name) == expected
