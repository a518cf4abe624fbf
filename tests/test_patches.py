"""Horovod's patches as a series: which, in which order, with what their headers say."""

import ast
import os
import re
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.planning import patches
from envkit.planning.stack import Stack, stacks

from .test_easyconfigs import EASYCONFIGS, PATCHES, parsed

ROOT = Path(__file__).parents[1]
OF_EASYBUILD = [stack for stack in stacks() if stack.easyconfig]


def names(stack: Stack) -> list[str]:
    return [f"Horovod-{one.version}_{one.name}.patch" for one in patches.of_stack(stack)]


@pytest.mark.parametrize("stack", OF_EASYBUILD, ids=lambda stack: stack.name)
def test_the_order_is_that_of_the_recipe(stack: Stack) -> None:
    options = parsed(EASYCONFIGS / stack.easyconfig, "3.11.7", "x86_64")["exts_list"][-1][2]
    assert names(stack) == options["patches"]


def test_an_image_has_those_of_the_same_versions_by_easybuild() -> None:
    found = {stack.name: names(stack) for stack in stacks()}
    images = {name for name in found if name.endswith("-image")}
    assert {name.removesuffix("-image") for name in images} <= found.keys()
    assert all(found[name] == found[name.removesuffix("-image")] for name in images)


def test_every_patch_is_used_and_has_a_header_and_tests() -> None:
    every = patches.every()
    assert {f"Horovod-{one.version}_{one.name}.patch" for one in every} == {path.name for path in PATCHES}
    assert patches.tests().keys() == {one.name for one in every}
    for one in every:
        assert one.title.endswith(".") and one.why, one.name
        assert re.match(r"Not (upstream|in any release)\b", one.upstream), one.name


def test_the_tests_that_are_named_are_there() -> None:
    for tested in patches.tests().values():
        assert tested.tests
        for one in tested.tests:
            path, _, name = one.partition("::")
            tree = ast.parse((ROOT / path).read_text())
            assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, one


def test_a_series_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "series"
    assert run(["export", "patches", str(folder), "tensorflow-2.21-cpu"]) == 0
    assert "the 9 patches of tensorflow-2.21-cpu" in capsys.readouterr().out
    ordered = (folder / "series").read_text().split()
    assert ordered[0] == "0001-missing-includes.patch" and ordered[4] == "0005-keras3.patch"
    assert {path.name for path in folder.iterdir()} == {*ordered, "series", "README.md"}
    assert (folder / ordered[4]).read_bytes() == (EASYCONFIGS / "Horovod-0.28.1_keras3.patch").read_bytes()
    said = (folder / "README.md").read_text()
    for words in (
        "# Patches for Horovod 0.28.1 with TensorFlow",
        "HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1",
        "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0  horovod-0.28.1.tar.gz",
        "### 0005-keras3.patch\n\nWork with Keras 3:",
        "<https://github.com/horovod/horovod/issues/4290>",
        "test_ranks_train_with_keras_as_one_would",
        "| `pytorch-2.13-cpu` | PyTorch | cxx17, missing-includes, assignable-span, bfloat16, gloo-again |",
    ):
        assert words in said
    assert [path.name for path in folder.parent.iterdir()] == ["series"]


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ([], "0001-cxx17.patch"),
        (["--framework", "tensorflow"], "0001-missing-includes.patch"),
        (["tensorflow-2.13-rocm-image"], "0001-missing-includes.patch"),
    ],
)
def test_what_chooses_a_stack_chooses_a_series(words: list[str], first: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run(["export", "patches", str(tmp_path / "empty"), *words]) == 0
    assert (tmp_path / "empty" / "series").read_text().split()[0] == first


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("mine\n")
    for place in (tmp_path, tmp_path / "mine"):
        assert run(["export", "patches", str(place)]) == 2
        assert f"{place} is there already, and no empty folder.\n\nWhat to do: " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link to another user")
def test_nothing_is_made_behind_a_link_of_another_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared, own = tmp_path / "shared", tmp_path / "own"
    for made in (shared, own):
        made.mkdir()
    shared.chmod(0o1777)
    (shared / "series").symlink_to(own / "made")
    (shared / "way").symlink_to(own)
    for link in shared.iterdir():
        os.lchown(link, 12345, 12345)
    for place in (shared / "series", shared / "way/series", shared / "way/more/series"):
        assert run(["export", "patches", str(place)]) == 7
        assert "It is a link that another user has put there." in capsys.readouterr().err
    assert not [*own.iterdir()]


@pytest.mark.parametrize("named", ["series", "new/folder/series", ".", "link/series"])
def test_where_it_is_written(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    if named == ".":
        (tmp_path / "here/link").unlink()
    monkeypatch.chdir(tmp_path / "here")
    assert run(["export", "patches", named]) == 0
    assert (tmp_path / "here" / named / "series").is_file()
    assert not list(tmp_path.rglob(".envkit-*"))


def test_where_none_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run(["export", "patches", str(tmp_path / "file" / "series")]) == 7
    assert "The series could not be written to" in capsys.readouterr().err


def test_a_recipe_without_any_has_no_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "patches", str(tmp_path / "series"), "GCC-12.3.0.eb"]) == 2
    assert "There is no series of patches for GCC-12.3.0." in capsys.readouterr().err
    assert not (tmp_path / "series").exists()


def test_the_recipe_of_an_image_is_what_a_file_asks_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, words in enumerate((["image"], ["--framework", "pytorch"], [])):
        path = tmp_path / f"{number}.def"
        assert run(["export", *words, str(path), "--accelerator", "cpu"]) == 0
        assert "%post" in path.read_text()
    assert run(["export", "--help"]) == 0
    said = capsys.readouterr().out
    assert "image    Write" in said and "patches  Write" in said
