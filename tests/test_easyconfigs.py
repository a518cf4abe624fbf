"""The easyconfigs as data: every source is pinned for every host, every patch is there, the rest is refused."""

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

EASYCONFIGS = Path(__file__).parents[1] / "easyconfigs"
CONTAINERS = Path(__file__).parents[1] / "containers"
RECIPES = sorted(EASYCONFIGS.rglob("*.eb"))
TOOLS = [*sorted((EASYCONFIGS / "embedded").rglob("*.eb")), EASYCONFIGS / "nvcc-13.0.88.eb"]
PATCHES = sorted(EASYCONFIGS.rglob("*.patch"))
ARCHS = ("x86_64", "aarch64")
PYTHONS = ("3.10.13", "3.11.7", "3.12.1", "3.13.0")
HOSTS = [(python, arch) for python in PYTHONS for arch in ARCHS]
SHA256 = re.compile(r"[0-9a-f]{64}")
UNSUPPORTED = {  # the first whose name is in a recipe's counts
    "tensorflow-datasets-": {("3.10.13", arch) for arch in ARCHS},
    "CUDA-13.0": {("3.10.13", arch) for arch in ARCHS},
    "ROCm-5.7": set(HOSTS) - {("3.11.7", "x86_64")},
    "PyTorch-2.13.0": {("3.10.13", "x86_64")},
    "TensorFlow-2.15.1": {(python, arch) for python in ("3.12.1", "3.13.0") for arch in ARCHS},
    "TensorFlow-2.21.0": set[tuple[str, str]](),
}


def stack_of(recipe: Path) -> str | None:
    return next((stack for stack in UNSUPPORTED if stack in recipe.name and "-foss-" not in recipe.name), None)


def supports(recipe: Path, python: str, arch: str) -> bool:
    stack = stack_of(recipe)
    return stack is None or (python, arch) not in UNSUPPORTED[stack]


def parsed(recipe: Path, python: str, arch: str) -> dict[str, Any]:
    """The parameters of an easyconfig, as EasyBuild would see them on a host with that Python and machine."""
    parameters: dict[str, Any] = {
        "ARCH": arch,
        "EXTERNAL_MODULE": "EXTERNAL_MODULE",
        "PYPI_SOURCE": "pypi/%(nameletter)s/%(name)s",
        "SHLIB_EXT": "so",
        "SYSTEM": {"name": "system", "version": "system"},
        "SYS_PYTHON_VERSION": python,
    }
    exec(compile(recipe.read_text(), recipe, "exec"), parameters)
    return parameters


def pinned_files(parameters: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Name of each source and patch with the checksums given for it, those of extensions included."""
    pinned: list[tuple[str, dict[str, str]]] = []
    extensions = [options for _, _, options in parameters.get("exts_list", [])]
    for options in (parameters, *extensions):
        files = [*options.get("sources", []), *options.get("patches", [])]
        names = [file["filename"] if isinstance(file, dict) else file for file in files]
        pinned += zip(names, options.get("checksums", []), strict=True)
    return pinned


def refusal(python: str, arch: str) -> str:
    minor = python.rpartition(".")[0]
    return rf"no wheels for Python {minor} on {arch}\. Run EasyBuild with one of: Python 3\.1\d.* on x86_64"


def wheel_fits(name: str, python: str, arch: str) -> bool:
    """Whether a wheel is for that Python and machine, by its name."""
    interpreters, abi, platforms = name.removesuffix(".whl").split("-")[-3:]
    major, minor = (int(part) for part in python.split(".")[:2])
    newest = max(int(minor_version or 0) for minor_version in re.findall(r"[cp][py]3(\d*)", interpreters))
    python_fits = newest == minor if abi == f"cp{major}{minor}" else abi in ("abi3", "none") and newest <= minor
    return python_fits and (platforms == "any" or platforms.endswith(arch))


@pytest.mark.integration
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: str(recipe.relative_to(EASYCONFIGS)))
def test_every_source_is_pinned_for_its_host(recipe: Path) -> None:
    for python, arch in HOSTS:
        if not supports(recipe, python, arch):
            with pytest.raises(ValueError, match=refusal(python, arch)):
                parsed(recipe, python, arch)
            continue
        for name, checksums in pinned_files(parsed(recipe, python, arch)):
            assert SHA256.fullmatch(checksums[name]), (python, arch, name)
            assert not name.endswith(".whl") or wheel_fits(name, python, arch), (python, arch, name)


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if stack_of(recipe)], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize(("python", "arch"), [("3.9.18", "x86_64"), ("3.14.0", "aarch64"), ("3.11.7", "ppc64le")])
def test_other_hosts_are_refused_with_the_ones_that_are_served(recipe: Path, python: str, arch: str) -> None:
    with pytest.raises(ValueError, match=refusal(python, arch)):
        parsed(recipe, python, arch)


@pytest.mark.parametrize("arch", ["ppc64le", "riscv64"])
@pytest.mark.parametrize("recipe", TOOLS, ids=lambda recipe: recipe.name)
def test_tools_from_wheels_refuse_other_machines(recipe: Path, arch: str) -> None:
    with pytest.raises(ValueError, match=f"no wheel for {arch}"):
        parsed(recipe, "3.11.7", arch)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: str(recipe.relative_to(EASYCONFIGS)))
def test_patches_are_beside_the_recipe_with_the_right_checksum(recipe: Path) -> None:
    host = next(host for host in HOSTS if supports(recipe, *host))
    for name, checksums in pinned_files(parsed(recipe, *host)):
        if name.endswith(".patch"):
            assert hashlib.sha256((recipe.parent / name).read_bytes()).hexdigest() == checksums[name]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_patches_say_what_why_and_where(patch: Path) -> None:
    header, _, change = patch.read_text().partition("\ndiff -ru ")
    what, why, upstream = header.strip().split("\n\n")
    assert what.endswith(".") and why
    assert upstream.startswith(("Not in any release. See https://", "Not upstream"))
    assert change


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_patches_are_used(patch: Path) -> None:
    short = patch.stem.partition("_")[2]
    images = [line for path in CONTAINERS.glob("*.def") for line in path.read_text().splitlines() if "PATCHES=" in line]
    assert any(patch.name in recipe.read_text() for recipe in RECIPES) or any(short in line for line in images)


@pytest.mark.parametrize(
    "recipe", [path for path in RECIPES if path.name.startswith("Horovod") and "-system" in path.name]
)
def test_what_the_machines_own_compiler_builds_takes_a_new_one(recipe: Path) -> None:
    """GCC 13 needs the includes, GCC 14 the span; a toolchain that brings its own older one needs neither."""
    assert {"Horovod-0.28.1_missing-includes.patch", "Horovod-0.28.1_assignable-span.patch"} <= set(
        re.findall(r"[\w.-]+\.patch", recipe.read_text())
    )


@pytest.mark.parametrize("recipe", sorted(CONTAINERS.glob("*.def")), ids=lambda path: path.name)
def test_images_take_a_new_compiler(recipe: Path) -> None:
    for line in re.findall(r"^ +PATCHES=(.*)$", recipe.read_text(), re.MULTILINE):
        assert {"missing-includes", "assignable-span"} <= set(line.split())


def test_torch_is_never_taken_from_the_package_index() -> None:
    recipe = EASYCONFIGS / "PyTorch-2.13.0.eb"
    [torch] = [options for name, _, options in parsed(recipe, "3.11.7", "x86_64")["exts_list"] if name == "torch"]
    [source] = torch["sources"]
    assert source["filename"].startswith("torch-2.13.0+cpu-")
    assert source["source_urls"] == ["https://download.pytorch.org/whl/cpu"]
    assert all("+cpu-" in name for name in torch["checksums"][0])


@pytest.mark.parametrize("name", ["OpenMPI-system.eb", "CMake-system.eb"])
def test_what_stands_in_for_the_tools_of_the_host_takes_their_place(name: str) -> None:
    own, *others = (parsed(recipe, "3.11.7", "x86_64") for recipe in sorted(EASYCONFIGS.rglob(name)))
    assert others
    for other in others:
        for parameter in ("name", "version", "toolchain", "moduleclass"):
            assert own[parameter] == other[parameter]
