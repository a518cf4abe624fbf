import os
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envkit.apptainer.receipt import ImageReceipt
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import receipt
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import Built
from envkit.errors import EnvironmentDamaged, EnvironmentMissing
from envkit.machine.host import Platform
from envkit.methods import installed

Install = Callable[..., ModuleReceipt]
InstallImage = Callable[..., ImageReceipt]


@pytest.fixture
def tree(prefix: Prefix) -> Tree:
    return prefix.tree(Platform.own())


def test_what_is_written_is_read(install: Install, tree: Tree) -> None:
    made = install("toy-cpu", load=("site/1",))
    path = receipt.path_of(tree, "toy-cpu")
    assert installed.read(path) == made
    assert msgspec.json.decode(path.read_bytes())["version"] == 1
    assert path.read_text().endswith("}\n") and "\n  " in path.read_text()


def test_the_way_in(install: Install, tree: Tree) -> None:
    inside = install("toy-cpu", load=("site/1",)).environment
    assert (inside.name, inside.modules, inside.load) == ("toy-cpu", ("Toy/1.0",), ("site/1",))
    assert inside.modulepath == tree.root / "modules" / "all"


def test_readers_see_all_of_a_record_or_nothing(tree: Tree) -> None:
    path = tree.root / "built" / "x.json"
    records = [Built(module=letter * 200_000, easyconfig="", sha256="", seconds=0.0) for letter in "ab"]
    receipt.write(path, records[0])
    seen: list[Built] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(msgspec.json.decode(path.read_bytes(), type=Built))

    reader = threading.Thread(target=read)
    reader.start()
    for record in records * 10:
        receipt.write(path, record)
    done.set()
    reader.join()
    assert seen and all(one in records for one in seen)
    assert [one.name for one in path.parent.iterdir()] == ["x.json"]


@pytest.mark.parametrize("text", ["", "{", "{}", '{"version": 1, "name": 5}', "\0" * 100])
def test_a_damaged_receipt(text: str, install: Install, prefix: Prefix, tree: Tree) -> None:
    install("toy-cpu")
    path = receipt.path_of(tree, "toy-cpu")
    path.write_text(text)
    with pytest.raises(EnvironmentDamaged, match=r"The receipt .+/toy-cpu\.json cannot be read\.") as damaged:
        installed.find(prefix, "toy-cpu")
    assert "envkit install toy-cpu" in damaged.value.fix


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(install: Install, prefix: Prefix, tree: Tree) -> None:
    install("toy-cpu")
    made = install("other")
    for path in (
        receipt.path_of(tree, "toy-cpu"),
        receipt.kept_path(tree, "other"),
        receipt.built_path(tree, made.module),
        tree.unfinished / "other.json",
        tree.replaced / "other.json",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    with pytest.raises(EnvironmentDamaged, match="cannot be read") as damaged:
        installed.read(receipt.path_of(tree, "toy-cpu"))
    assert "It is a pipe" in damaged.value.why
    assert installed.find(prefix, "other").name == "other"
    assert (receipt.kept(tree, "other"), receipt.built(tree, made.module)) == (None, None)
    assert receipt.unfinished(tree, "other") is None


def test_a_receipt_that_is_being_written_is_none(install: Install, prefix: Prefix, tree: Tree) -> None:
    install("toy-cpu")
    (tree.environments / ".toy-cpu.json.123").write_text("{")
    assert [one.name for one in installed.installed(prefix)] == ["toy-cpu"]


def test_newest_python_first_and_of_this_machine_only(install: Install, prefix: Prefix) -> None:
    for python in ("3.9.1", "3.13.0", "3.11.7"):
        install("toy-cpu", python=python)
    other = prefix.root / "other-py3.14" / "environments"
    other.mkdir(parents=True)
    (other / "x.json").write_text("{")
    assert [one.python for one in installed.installed(prefix)] == ["3.13.0", "3.11.7", "3.9.1"]
    assert installed.find(prefix, "toy-cpu").python == "3.13.0"


def test_find_the_only_one_without_a_name(install: Install, prefix: Prefix) -> None:
    made = install("toy-cpu")
    assert (
        installed.find(prefix, None) == installed.find(prefix, "toy-cpu") == installed.find(prefix, "Toy/1.0") == made
    )


def test_find_needs_a_name_where_there_are_several(install: Install, prefix: Prefix) -> None:
    install("a")
    install("b")
    assert installed.find(prefix, "b").name == "b"
    with pytest.raises(EnvironmentMissing, match=r"Which environment\? There is more than one\.") as several:
        installed.find(prefix, None)
    assert several.value.why == f"Installed in {prefix.root}: a, b."


def test_find_what_is_not_there(install: Install, prefix: Prefix) -> None:
    with pytest.raises(EnvironmentMissing, match=r"No environment is installed\."):
        installed.find(prefix, None)
    install("a")
    with pytest.raises(EnvironmentMissing, match=r"There is no environment 'b'\.") as missing:
        installed.find(prefix, "b")
    assert missing.value.why == f"Installed in {prefix.root}: a."


def test_find_in_a_prefix_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissing):
        installed.find(Prefix(root=tmp_path / "none"), None)


def test_an_environment_whose_module_has_gone(install: Install, prefix: Prefix, tree: Tree) -> None:
    made = install("toy-cpu")
    (tree.modulepath / "Toy" / "1.0.lua").unlink()
    with pytest.raises(EnvironmentDamaged, match=r"its module Toy/1\.0 has gone"):
        installed.find(prefix, "toy-cpu")
    assert installed.named(prefix, "toy-cpu") == made


def test_records_of_modules(tree: Tree) -> None:
    made = Built(module="Toy/1.0", easyconfig="/r/Toy-1.0.eb", sha256="0" * 64, seconds=1.5)
    assert receipt.built(tree, "Toy/1.0") is None
    receipt.write(receipt.built_path(tree, "Toy/1.0"), made)
    assert receipt.built(tree, "Toy/1.0") == made
    receipt.built_path(tree, "Toy/1.0").write_text("{")
    assert receipt.built(tree, "Toy/1.0") is None


def test_notes_of_installations_under_way(tree: Tree, tmp_path: Path) -> None:
    assert receipt.waiting(tree, "toy") == "Another process is installing toy; waiting for it."
    receipt.begin(tree, "toy", "building", tmp_path)
    note = receipt.unfinished(tree, "toy")
    assert note is not None and (note.stage, note.pid, note.log) == ("building", os.getpid(), str(tmp_path))
    assert f"Process {os.getpid()} on " in receipt.waiting(tree, "toy")
    receipt.end(tree, "toy")
    receipt.end(tree, "toy")
    assert receipt.unfinished(tree, "toy") is None


def test_one_environment_under_two_pythons_needs_no_name(prefix: Prefix, install: Callable[..., ModuleReceipt]) -> None:
    install("toy-cpu", python="3.11.7")
    install("toy-cpu", python="3.12.1")
    assert installed.find(prefix, None).python == "3.12.1"


def test_an_image_is_known_by_its_method(install_image: InstallImage, prefix: Prefix) -> None:
    made = install_image()
    found = installed.find(prefix, "toy-image")
    assert (found, found.method) == (made, "apptainer")
    assert installed.find(prefix, made.image) == made
    inside = found.environment
    assert (inside.name, inside.variables({})["ENVKIT_NAME"]) == ("toy-image", "toy-image")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: None, ""),
        (lambda path: os.utime(path, ns=(1, 1)), ""),
        (lambda path: path.write_text("toy-imagf"), "is not the one that was installed"),
        (lambda path: path.write_text("longer than it was"), "is not the one that was installed"),
        (lambda path: path.unlink(), "has gone"),
    ],
    ids=["same", "touched", "changed", "longer", "gone"],
)
def test_what_became_of_an_image(
    change: Callable[[Path], None], said: str, install_image: InstallImage, prefix: Prefix
) -> None:
    made = install_image()
    change(Path(made.image))
    if not said:
        assert installed.find(prefix, "toy-image") == made
        return
    with pytest.raises(EnvironmentDamaged, match="The environment toy-image is damaged") as refused:
        installed.find(prefix, "toy-image")
    assert said in f"{refused.value.what} {refused.value.why}"
    assert "envkit install toy-image" in refused.value.fix
