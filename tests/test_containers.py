"""The recipes of images: what they pin, and the shell in them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envkit.apptainer import definition_file, image_plan
from envkit.planning.stack import Stack, stacks
from envkit.system.resources import recipes

FOLDER = recipes("containers")
RECIPES = sorted(FOLDER.glob("*.def"))
DEFINITIONS = [*RECIPES, *sorted((Path(__file__).parents[1] / "benchmarks").glob("*.def"))]
IMAGES = [stack for stack in stacks() if stack.method == "apptainer"]
MACHINES = ("x86_64", "aarch64")


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.name)
def test_the_shell_of_a_recipe(path: Path, tmp_path: Path) -> None:
    for stage in definition_file.read(path):
        values = dict.fromkeys(stage.arguments, "value")
        for number, section in enumerate(stage.sections):
            if section.name not in {"post", "test", "environment", "runscript"}:
                continue
            script = tmp_path / f"{stage.name}-{number}-{section.name}.sh"
            script.write_text(definition_file.filled(section.text, values))
            checker = Path(sys.executable).with_name("shellcheck")
            done = subprocess.run(
                [checker, "--shell=dash", "--exclude=SC2043,SC2194", script],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_a_recipe_starts_from_an_image_by_digest_or_from_a_mirror(path: Path) -> None:
    for stage in definition_file.read(path):
        if stage.header["Bootstrap"] != "debootstrap":
            assert stage.arguments["BOOTSTRAP"] == "docker"
            assert len(stage.arguments["BASE"].partition("@sha256:")[2]) == 64


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.name)
def test_stages_agree_on_their_arguments(path: Path) -> None:
    found: dict[str, str] = {}
    for stage in definition_file.read(path):
        for name, value in stage.arguments.items():
            assert found.setdefault(name, value) == value


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("stack", IMAGES, ids=lambda stack: stack.name)
def test_every_file_that_pip_takes_is_pinned(stack: Stack, machine: str) -> None:
    if machine not in stack.machines:
        return
    wanted = image_plan.ImageRecipe(
        name=stack.name,
        recipe=stack.recipe,
        arguments=stack.arguments,
        own={"PROBE": str(FOLDER)},
        base=image_plan.Base(bootstrap="docker", reference=""),
        machine=machine,
    )
    found = image_plan.plan(wanted, Path("/layers")).sources
    assert all(source.sha256 and source.project for source in found)
    names = [source.filename for source in found]
    assert len(names) == len(set(names))
    assert any(name.startswith("horovod-") for name in names)
    for name in names:
        assert name.endswith((".tar.gz", "-any.whl", f"_{machine}.whl"))


@pytest.mark.integration
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.name)
def test_pins_are_what_pip_reads(path: Path, tmp_path: Path) -> None:
    """pip itself parses the file, and gets to the point where it looks for the first file in an empty folder."""
    pip = [sys.executable, "-m", "pip", "download", "--isolated", "--no-deps", "--require-hashes", "--no-index"]
    done = subprocess.run([*pip, "-d", tmp_path, "-r", path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No matching distribution found" in done.stderr


def test_python_of_the_tests_has_what_checks_shell() -> None:
    assert shutil.which("shellcheck", path=str(Path(sys.executable).parent))
