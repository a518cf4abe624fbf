import io
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from filelock import FileLock
from rich.console import Console

from envkit.apptainer.image_plan import note_of
from envkit.apptainer.receipt import ImageReceipt
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import filelocks, receipt
from envkit.environments.prefix import Prefix, Tree
from envkit.errors import EnvironmentMissing, HostProblem
from envkit.install import removal
from envkit.machine.host import Platform
from envkit.methods import installed
from envkit.verify import drift

Install = Callable[..., ModuleReceipt]
InstallImage = Callable[..., ImageReceipt]


@pytest.fixture
def tree(prefix: Prefix) -> Tree:
    return prefix.tree(Platform.own())


def remove(prefix: Prefix, name: str, *, dependencies: bool = False) -> str:
    """Remove, and return what was said."""
    said = io.StringIO()
    removal.remove(prefix, name, dependencies=dependencies, console=Console(file=said))
    return said.getvalue()


def test_what_its_files_were_goes_with_it(install: Install, prefix: Prefix, tree: Tree) -> None:
    made = install("toy-cpu")
    drift.keep(made, None)
    assert receipt.kept(tree, "toy-cpu")
    remove(prefix, "toy-cpu")
    assert receipt.kept(tree, "toy-cpu") is None


def left(tree: Tree) -> list[str]:
    """The modules of a tree that have a module file in each folder and software."""
    found = [
        sorted(str(path.relative_to(folder)).removesuffix(".lua") for path in folder.glob("*/*"))
        for folder in (tree.modulepath, tree.root / "modules" / "tools", tree.software)
    ]
    assert found[0] == found[1] == found[2]
    return found[0]


def test_the_own_module_goes_and_the_rest_stays(install: Install, prefix: Prefix, tree: Tree) -> None:
    install("toy", "Python/system", "Toy/1.0")
    said = remove(prefix, "toy")
    assert said == "Removed toy: Toy/1.0.\nKept for the next installation: Python/system.\n"
    assert left(tree) == ["Python/system"]
    assert list(installed.installed(prefix)) == []


@pytest.mark.parametrize("dependencies", [False, True])
def test_a_dry_run_names_what_then_goes(
    dependencies: bool, install: Install, install_image: InstallImage, prefix: Prefix, tree: Tree
) -> None:
    install("toy", "Python/system", "Base/1", "Toy/1.0")
    install("other", "Python/system", "Other/1.0")
    install_image("image")
    for name in ("toy", "image"):
        before = {path: path.lstat().st_mtime_ns for path in sorted(prefix.root.rglob("*"))}
        said = io.StringIO()
        planned = removal.remove(
            prefix, name, dependencies=dependencies, console=Console(file=said, width=300), dry_run=True
        )
        assert said.getvalue().startswith(f"Would remove {name}: ")
        after = {path: path.lstat().st_mtime_ns for path in sorted(prefix.root.rglob("*")) if path.suffix != ".lock"}
        assert after.keys() == {path for path in before if path.suffix != ".lock"}
        done = removal.remove(prefix, name, dependencies=dependencies, console=Console(file=io.StringIO()))
        assert done == planned
    assert left(tree) == ["Other/1.0", "Python/system"] if dependencies else "Base/1" in left(tree)


def test_a_module_that_is_read_only_goes_too(install: Install, prefix: Prefix, tree: Tree) -> None:
    install("toy")
    for folder in (tree.software / "Toy/1.0", tree.software / "Python/system"):
        folder.chmod(0o555)
    remove(prefix, "toy", dependencies=True)
    assert not list(tree.software.iterdir())


def test_dependencies_go_unless_another_environment_uses_them(install: Install, prefix: Prefix, tree: Tree) -> None:
    install("a", "Python/system", "OnlyA/1", "A/1")
    install("b", "Python/system", "B/1")
    assert remove(prefix, "a", dependencies=True) == "Removed a: OnlyA/1, A/1.\n"
    assert left(tree) == ["B/1", "Python/system"]
    assert remove(prefix, "b", dependencies=True) == "Removed b: Python/system, B/1.\n"
    assert left(tree) == []


def test_a_module_that_another_environment_is_made_of_stays(install: Install, prefix: Prefix, tree: Tree) -> None:
    install("base", "Python/system", "Base/1")
    install("top", "Python/system", "Base/1", "Top/1")
    assert remove(prefix, "base").startswith("Removed base: its receipt.\n")
    assert left(tree) == ["Base/1", "Python/system", "Top/1"]


@pytest.mark.parametrize("name", ["Python", "Toy"])
def test_a_folder_that_modules_of_others_are_in_stays(name: str, install: Install, prefix: Prefix, tree: Tree) -> None:
    """A receipt that names the folder of all versions is no reason to remove those that others use."""
    install("toy", "Python/system", "Toy/1.0")
    bad = install("bad", "Bad/1.0")
    receipt.write(receipt.path_of(tree, "bad"), msgspec.structs.replace(bad, module=name))
    remove(prefix, "bad")
    assert {"Python/system", "Toy/1.0"} <= set(left(tree))


def test_no_empty_folder_is_left_of_a_module(install: Install, prefix: Prefix, tree: Tree) -> None:
    install("toy", "Toy/1.0")
    install("other", "Kept/1.0")
    for kind in ("all", "devel"):
        for name in ("Toy/1.0.lua", "Kept/1.0.lua", "Kept/2.0.lua"):
            path = tree.root / "modules" / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    remove(prefix, "toy")
    remove(prefix, "other")
    assert [*tree.root.glob("modules/*/Toy*")] == []
    assert {path.name for path in tree.root.glob("modules/*/Kept/*")} == {"2.0.lua"}


def test_records_go_with_the_modules(install: Install, prefix: Prefix, tree: Tree) -> None:
    install("toy", "Toy/1.0")
    made = receipt.Built(module="Toy/1.0", easyconfig="", sha256="", seconds=0)
    receipt.write(receipt.built_path(tree, "Toy/1.0"), made)
    remove(prefix, "toy")
    assert receipt.built(tree, "Toy/1.0") is None


def test_a_damaged_environment_can_be_removed(install: Install, prefix: Prefix, tree: Tree) -> None:
    install("toy")
    shutil.rmtree(tree.root / "modules")
    remove(prefix, "toy")
    assert list(installed.installed(prefix)) == []


def test_what_is_not_there(prefix: Prefix) -> None:
    with pytest.raises(EnvironmentMissing, match=r"There is no environment 'toy'\."):
        remove(prefix, "toy")


def layers(tree: Tree) -> list[str]:
    return sorted(path.stem.rstrip("0") for path in tree.layers.iterdir())


def test_an_image_goes_and_its_layers_stay(install_image: InstallImage, prefix: Prefix, tree: Tree) -> None:
    made = install_image(debian="a1", build_1="b1")
    remove(prefix, "toy-image")
    assert not Path(made.image).exists()
    assert list(installed.installed(prefix)) == []
    assert layers(tree) == ["build-1-b1", "debian-a1"]


def test_layers_go_unless_another_image_was_made_of_them(
    install_image: InstallImage, prefix: Prefix, tree: Tree
) -> None:
    other = install_image("other-image", debian="a1", build_1="c1")
    install_image(debian="a1", build_1="b1")
    remove(prefix, "toy-image", dependencies=True)
    assert layers(tree) == ["build-1-c1", "debian-a1"]
    assert list(installed.installed(prefix)) == [other]


def test_what_says_where_a_layer_is_from_goes_with_it(install_image: InstallImage, prefix: Prefix, tree: Tree) -> None:
    install_image(debian="a1")
    [layer] = tree.layers.iterdir()
    note_of(layer).write_text("{}")
    remove(prefix, "toy-image", dependencies=True)
    assert [*tree.layers.iterdir()] == []


def test_an_image_that_is_a_folder(install_image: InstallImage, prefix: Prefix) -> None:
    made = install_image()
    Path(made.image).unlink()
    Path(made.image, "usr").mkdir(parents=True)
    remove(prefix, "toy-image")
    assert not Path(made.image).exists()


def test_what_another_process_is_at_work_on_stays(
    install: Install, install_image: InstallImage, prefix: Prefix, tree: Tree
) -> None:
    install("toy", "Python/system", "Toy/1.0")
    install_image(debian="a1")
    tree.locks.mkdir(exist_ok=True)
    with FileLock(tree.locks / "stack-other.lock"):
        for name in ("toy", "toy-image"):
            assert "is kept: another process is at work in" in " ".join(remove(prefix, name, dependencies=True).split())
    assert left(tree) == ["Python/system"]
    assert layers(tree) == ["debian-a1"]


def test_an_image_that_is_being_made_of_the_same_stays(install_image: InstallImage, prefix: Prefix, tree: Tree) -> None:
    """Until it has passed it lies among the layers, under its own name."""
    own = install_image(image="a1")
    made = tree.layers / f"other-{own.layers[-1].key[:20]}.sif"
    made.touch()
    remove(prefix, "toy-image", dependencies=True)
    assert list(tree.layers.iterdir()) == [made]


@pytest.fixture
def begun(prefix: Prefix, tree: Tree, install: Install) -> str:
    """An installation that was killed: a module that is there, one that is half built, and one that another has."""
    install("other", "Python/system", "Other/1")
    install("partial", "Python/system", "Base/1", "Half/1")
    receipt.path_of(tree, "partial").unlink()
    for folder in ("all", "tools"):
        (tree.root / "modules" / folder / "Half/1.lua").unlink()
    log = prefix.logs / "partial-20260102-030405"
    log.mkdir()
    events = [{"event": "plan", "modules": ["Python/system", "Base/1", "Half/1", "../escape", "Top/1"]}, {"event": 1}]
    (log / "events.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, events)) + b"\n{broken\n[]\n")
    receipt.begin(tree, "partial", "building", log)
    return "partial"


@pytest.mark.parametrize("name", ["partial", "part"])
@pytest.mark.parametrize("dependencies", [False, True])
def test_what_was_begun_can_be_removed(name: str, dependencies: bool, begun: str, prefix: Prefix, tree: Tree) -> None:
    said = remove(prefix, name, dependencies=dependencies)
    assert "Removed what had begun of partial: " in said and "Half/1" in said
    assert not (tree.software / "Half").exists() and receipt.unfinished(tree, begun) is None
    assert (tree.software / "Base").exists() != dependencies
    assert ("Kept for the next installation: Base/1." in said) != dependencies
    assert [one.name for one in installed.installed(prefix)] == ["other"]
    assert tree.has("Python/system") and tree.has("Other/1")
    with pytest.raises(EnvironmentMissing):
        remove(prefix, begun)


def test_what_is_being_installed_is_not_removed(begun: str, prefix: Prefix, tree: Tree) -> None:
    tree.locks.mkdir(exist_ok=True)
    with FileLock(tree.locks / f"stack-{begun}.lock"), pytest.raises(HostProblem, match="is being installed now"):
        remove(prefix, begun)
    assert (tree.software / "Half/1").exists()


def test_beside_another_installation_only_the_note_goes(begun: str, prefix: Prefix, tree: Tree) -> None:
    tree.locks.mkdir(exist_ok=True)
    with FileLock(tree.locks / "stack-another.lock"):
        said = remove(prefix, begun)
    assert "another process is at work" in " ".join(said.split())
    assert (tree.software / "Half/1").exists()


@pytest.mark.parametrize("dry_run", [False, True])
def test_what_is_built_again_is_not_removed(dry_run: bool, install: Install, prefix: Prefix, tree: Tree) -> None:
    install("toy", "Toy/1.0")
    receipt.begin(tree, "toy", "building", prefix.logs)
    tree.locks.mkdir(exist_ok=True)
    with (
        FileLock(tree.locks / "stack-toy.lock"),
        pytest.raises(HostProblem, match="toy is being built again") as caught,
    ):
        removal.remove(prefix, "toy", dependencies=False, console=Console(file=io.StringIO()), dry_run=dry_run)
    assert f"process {os.getpid()} on " in caught.value.why
    assert left(tree) == ["Toy/1.0"] and installed.there(tree, "toy")


@pytest.mark.parametrize("begun_before", [False, True])
def test_what_was_built_while_it_waited_is_not_removed(
    begun_before: bool, install: Install, prefix: Prefix, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has the lock first, and makes another environment of that name."""
    if begun_before:
        receipt.begin(tree, "toy", "building", prefix.logs)
    else:
        install("toy", "Toy/1.0")
    held = filelocks.held

    def after_another(*given: Any) -> AbstractContextManager[FileLock]:
        install("toy", "Toy/2.0", created="2026-11-30T01:02:03+00:00")
        return held(*given)

    monkeypatch.setattr(filelocks, "held", after_another)
    with pytest.raises(HostProblem, match="built again in the meantime"):
        remove(prefix, "toy", dependencies=True)
    new = installed.there(tree, "toy")
    assert new and tree.has("Toy/2.0")


def test_what_another_has_removed_meanwhile_is_told(
    install: Install, prefix: Prefix, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("toy", "Toy/1.0")
    held = filelocks.held

    def after_another(*given: Any) -> AbstractContextManager[FileLock]:
        receipt.path_of(tree, "toy").unlink()
        return held(*given)

    monkeypatch.setattr(filelocks, "held", after_another)
    with pytest.raises(HostProblem, match="removed in the meantime"):
        remove(prefix, "toy")
