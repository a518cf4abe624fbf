"""What is said to be built and verified, and by what that is done again."""

import ast
import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from envkit.config.keys import KEYS
from envkit.planning.stack import stacks
from envkit.system.resources import recipes

from . import built

ROOT = Path(__file__).parents[1]
TRIED = [(stack, one) for stack in stacks() for one in stack.tried]


@pytest.fixture
def support() -> ModuleType:
    spec = importlib.util.spec_from_file_location("support", ROOT / "scripts" / "support.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_has_the_table(support: ModuleType) -> None:
    """scripts/support.py writes it."""
    for place, name in support.PLACES.items():
        assert support.written(place.read_text(), name) == place.read_text(), place
    for stack in stacks():
        assert f"| `{stack.name}` |" in support.table()
    with pytest.raises(ValueError, match="0 times"):
        support.written("no marks", "support")


def test_the_options_of_install_and_job_and_the_keys_are_all_told(support: ModuleType) -> None:
    """Those that help shows, with the commands of job that take them; what is code in the help is code in the table."""
    assert "| `--cli [1\\|2]` | The version of runai. Default: what is on PATH, else 2. | runai |\n" in support.of_job()
    assert "| `-n, --ranks N` | How many ranks in all, instead of `--ranks-per-node`. | all |\n" in support.of_job()
    assert "| slurm |\n" in next(row for row in support.of_job().splitlines(keepends=True) if "--array" in row)
    assert "| `--sandbox` | Make an image a folder, which can be changed. | images |\n" in support.of_install()
    assert support.in_code("see 'envkit show NAME --lock' or --from; $HOME") == (
        "see `envkit show NAME --lock` or `--from`; `$HOME`"
    )
    told = {row.split("`")[1]: row.rsplit("| ", 1)[1] for row in support.keys().splitlines() if "`" in row}
    assert told == {name: "yes |" if key.in_project else "no |" for name, key in KEYS.items()}


def test_a_test_of_horovod_fails_for_a_known_cause_where_one_fails(support: ModuleType) -> None:
    assert "| 398 pass, 0 fail |\n" in support.table()
    assert "| 396 pass, 2 fail for a known cause |\n" in support.table()


def test_each_fate_of_a_feature_is_told(support: ModuleType) -> None:
    for name, row in tomllib.loads(support.FEATURES.read_text()).items():
        assert row.keys() <= {"pytorch", "tensorflow"} and row, name
        for told in row.values():
            assert told.keys() in (set(), {"error", "says"}, {"over_gloo", "says"}), name
    assert support.fate({"pytorch": {}}, "tensorflow") == ""
    assert "| Adasum | works over MPI; limit over Gloo:" in support.features()


def test_the_tests_that_do_it_again_are_there() -> None:
    for stack, one in TRIED:
        path, _, name = one.by.partition("::")
        if not name:
            assert path.startswith("scripts/") and (ROOT / path).is_file(), one
        else:
            tree = ast.parse((ROOT / path).read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (stack.name, one)


def test_what_is_kept_as_verified_is_said_and_the_other_way_round() -> None:
    """The records that test_built.py holds against what the stacks are made of now."""
    files = (recipes(kind) / "verified.toml" for kind in ("easyconfigs", "containers"))
    kept = {name for file in files for name in tomllib.loads(file.read_text())}
    assert kept == set(built.FLAGS)
    again = {(stack.name, one.mpi) for stack, one in TRIED if "test_built.py" in one.by}
    assert {stack for stack, _ in again} == {name.partition(" with ")[0] for name in kept}
    for family in {name.partition(" with ")[2] for name in kept} - {""}:
        assert any(mpi.startswith(family) for _, mpi in again)


def test_the_words_for_it() -> None:
    words = {stack.name: stack.status for stack in stacks()}
    assert words["tensorflow-2.21-cpu"] == (
        "built and verified on x86_64 with Python 3.11, 3.12 and 3.13, and on aarch64, emulated, with Python 3.11"
    )
    assert words["pytorch-2.13-cuda"] == (
        "built, and verified on CPU tensors, on x86_64 with Python 3.11, and on aarch64, emulated, with Python 3.11; "
        "not tried on a GPU"
    )
    assert words["pytorch-2.1-eessi"].endswith("; not on EESSI itself")
