import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from envkit.errors import HostProblem
from envkit.system import resources

ROOT = Path(__file__).parents[1]
KINDS = ("easyconfigs", "containers", "eessi", "examples")
SHIPPED = sorted(
    path.relative_to(ROOT)
    for folder in ("envkit", *KINDS)
    for pattern in ("*.py", "*.toml", "*.sh", "*.bash", "*.eb", "*.patch", "*.def", "*.md", "py.typed")
    for path in (ROOT / folder).rglob(pattern)
)
LOOK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from envkit.system import resources
print(json.dumps({kind: str(resources.recipes(kind)) for kind in ("easyconfigs", "containers", "eessi", "examples")}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    [made] = folder.glob("*.whl")
    return made


@pytest.mark.parametrize("kind", KINDS)
def test_recipes_lie_beside_the_package_in_a_checkout(kind: str) -> None:
    assert resources.recipes(kind) == ROOT / kind


def test_recipes_that_are_not_there() -> None:
    with pytest.raises(HostProblem, match="The folder of recipes 'spack' is missing"):
        resources.recipes("spack")


def test_data_is_in_the_package() -> None:
    assert resources.data("planning/stacks.toml") == ROOT / "envkit" / "planning" / "stacks.toml"
    assert resources.data("environments/shell/enter.sh").is_file()


def test_easybuild_collection() -> None:
    assert (resources.easybuild_collection() / "g" / "GCC" / "GCC-system.eb").is_file()


def test_every_recipe_and_data_file_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {str(path) if path.parts[0] == "envkit" else f"envkit/recipes/{path}" for path in SHIPPED}
    assert expected - names == set()
    assert not [name for name in names if name.startswith(("tests/", "scripts/")) or "__pycache__" in name]


def test_recipes_are_found_in_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(site)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for kind in KINDS:
        assert f'"{site}/envkit/recipes/{kind}"' in done.stdout
    assert {path.name for path in (site / "envkit/recipes/easyconfigs").rglob("*.eb")} == {
        path.name for path in (ROOT / "easyconfigs").rglob("*.eb")
    }
