"""What the tests keep of a prefix for the next run, and what they build anew."""

import os
import time
from pathlib import Path

import pytest

from envkit.system.resources import recipes

from . import built, stacks

PYTORCH, TENSORFLOW = "PyTorch/2.13.0", "TensorFlow/2.21.0"
ON_TOP = ("Horovod/0.28.1-gompi-system-PyTorch-2.13.0", "Horovod/0.28.1-gompi-system-TensorFlow-2.21.0")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A prefix with two stacks and an image, as a run leaves it."""
    made = tmp_path / "TensorFlow" / "prefix"
    stacks.begin(made)
    tree = made / "x86_64-py3.11"
    for module in ("Python/system", PYTORCH, TENSORFLOW, *ON_TOP):
        files = [f"software/{module}/lib/file", f"modules/all/{module}.lua", f"modules/ai/{module}.lua"]
        files += [f"built/{module.replace('/', '--')}{kind}" for kind in (".json", ".files")]
        files += [f"ebfiles_repo/{module}.eb"]
        for name in files:
            write(tree / name)
    names = ("environments/tensorflow-2.21-cpu.json", "images/i.sif", "layers/debian-1.sif", "locks/a.lock")
    for path in (*(tree / name for name in names), made / "sources" / "torch.whl", made / "logs" / "a" / "eb.log"):
        write(path)
    return made


def write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def left(prefix: Path) -> set[str]:
    """The files of a prefix, without the tree and without what says what it is made of."""
    files = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}
    return {name.removeprefix("x86_64-py3.11/") for name in files - {"fingerprint"}}


ALWAYS = {"sources/torch.whl", "layers/debian-1.sif"}


def test_tensorflow_is_kept_and_everything_else_is_built_again(prefix: Path) -> None:
    stacks.begin(prefix)
    modules = (TENSORFLOW, ON_TOP[1])
    kept = {f"software/{name}/lib/file" for name in modules} | {
        f"modules/{kind}/{name}.lua" for kind in ("all", "ai") for name in modules
    }
    assert left(prefix) == ALWAYS | kept | {
        f"built/{name.replace('/', '--')}{kind}" for name in modules for kind in (".json", ".files")
    }


def test_what_is_made_of_something_else_is_not_kept(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "made_of", lambda: "other")
    stacks.begin(prefix)
    assert left(prefix) == ALWAYS


def test_nothing_that_was_built_is_kept_for_long(prefix: Path) -> None:
    old = time.time() - stacks.KEPT_S - 1
    for path in (prefix / "fingerprint", prefix / "x86_64-py3.11" / "layers" / "debian-1.sif"):
        os.utime(path, (old, old))
    stacks.begin(prefix)
    assert left(prefix) == {"sources/torch.whl"}


def test_two_sessions_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (one, held), (other, also_held) = stacks.own_folder(), stacks.own_folder()
    assert one != other
    held.release()
    again, held_again = stacks.own_folder()
    assert again == one
    for lock in (also_held, held_again):
        lock.release()


def test_a_folder_that_is_named_is_one_sessions_alone(tmp_path: Path) -> None:
    folder, held = stacks.own_folder(str(tmp_path / "new"))
    assert folder == tmp_path / "new"
    with pytest.raises(pytest.UsageError, match="another session uses ENVKIT_TEST_PREFIX="):
        stacks.own_folder(str(tmp_path / "new"))
    held.release()
    stacks.own_folder(str(tmp_path / "new"))[1].release()


def test_in_one_that_is_named_builds_stay_and_are_verified_again(tmp_path: Path) -> None:
    tree = tmp_path / "x86_64-py3.11"
    for name in ("environments/toy.json", "built/X--1.json", "software/X/1/a", "modules/all/X/1.lua"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    for _run in range(2):
        stacks.unverify(tmp_path)
        files = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
        assert files == {"built/X--1.json", "software/X/1/a", "modules/all/X/1.lua"}


@pytest.mark.parametrize("file", ["TensorFlow-2.15.1.eb", "Horovod-0.28.1_legacy-keras.patch", "gompi-system.eb"])
def test_a_stack_has_changed_when_something_that_it_is_made_of_has(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "easyconfigs"
    folder.mkdir()
    for path in recipes("easyconfigs").glob("*.*"):
        (folder / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(built, "recipes", lambda kind: tmp_path / kind)
    before = built.made_of("tensorflow-2.15-cpu")
    (folder / "Horovod-0.28.1-gompi-system-PyTorch-2.13.0.eb").write_text("# of another stack\n")
    assert built.made_of("tensorflow-2.15-cpu") == before
    with (folder / file).open("a") as stream:
        stream.write("# changed\n")
    assert built.made_of("tensorflow-2.15-cpu") != before
