import errno
import os
from pathlib import Path

import pytest

from envkit.environments import replaced
from envkit.environments.prefix import Tree
from envkit.environments.replaced import Aside
from envkit.errors import HostProblem

FILES = ("images/toy.sif", "environments/toy.json", "layers/image-1.sif")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(root=tmp_path / "tree")
    fill(made, "old", *FILES)
    return made


def fill(tree: Tree, text: str, *paths: str) -> None:
    for path in paths:
        (tree.root / path).parent.mkdir(parents=True, exist_ok=True)
        (tree.root / path).write_text(text)


def content(tree: Tree) -> dict[str, str]:
    """The files of a tree but for locks."""
    files = (path for path in tree.root.rglob("*") if path.is_file() and "locks" not in path.parts)
    return {str(path.relative_to(tree.root)): path.read_text() for path in files}


@pytest.mark.parametrize("new", [(), FILES[:1], FILES[:2]])
def test_what_does_not_pass_goes(tree: Tree, new: tuple[str, ...]) -> None:
    before = content(tree)
    with pytest.raises(ZeroDivisionError), replaced.guarded(tree, "toy"):
        replaced.set_aside(tree, "toy", Aside(modules=(), files=FILES))
        fill(tree, "new", *new)
        raise ZeroDivisionError
    assert content(tree) == before


def test_what_passes_stays(tree: Tree) -> None:
    with replaced.guarded(tree, "toy"):
        replaced.set_aside(tree, "toy", Aside(modules=(), files=FILES))
        fill(tree, "new", *FILES[:2])
        replaced.settle(tree, "toy")
    assert content(tree) == dict.fromkeys(FILES[:2], "new")


def test_what_is_under_way_is_left_alone_and_what_was_killed_is_put_back(tree: Tree) -> None:
    before = content(tree)
    with replaced.guarded(tree, "toy"):
        replaced.set_aside(tree, "toy", Aside(modules=(), files=FILES))
        replaced.recover(tree)
        assert not (tree.root / FILES[0]).exists()
        replaced.put_back(tree, "toy")
    replaced.set_aside(tree, "toy", Aside(modules=(), files=FILES))  # and the process is gone
    replaced.recover(tree)
    assert content(tree) == before


def test_what_jobs_build_is_put_back_by_an_installation_alone(tree: Tree) -> None:
    before = content(tree)
    replaced.set_aside(tree, "toy", Aside(modules=(), files=FILES, in_jobs=True))
    replaced.recover(tree)
    assert not (tree.root / FILES[0]).exists()
    with replaced.guarded(tree, "toy"):
        assert not (tree.root / FILES[0]).exists()
    assert content(tree) == before


@pytest.mark.parametrize("stop_at", range(12))
@pytest.mark.parametrize("stop_again_at", [0, 2, 5])
def test_stopped_at_any_rename(tree: Tree, stop_at: int, stop_again_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting aside, building and putting back, each cut off: in the end all is as before."""
    modules = ("Toy/1.0", "Base/2")
    places = ("modules/all/{}.lua", "modules/devel/{}.lua", "software/{}/file")
    fill(tree, "old", *(place.format(module) for module in modules for place in places))
    fill(tree, "old", *map(replaced.record, modules))
    before, real = content(tree), Path.rename
    left = [stop_at]

    def rename(path: Path, target: Path) -> Path:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    try:
        replaced.set_aside(tree, "toy", Aside(modules=modules, files=FILES))
        fill(tree, "new", "modules/all/Toy/1.0.lua", "software/Toy/1.0/file", replaced.record("Toy/1.0"))
    except KeyboardInterrupt:
        pass
    left[0] = stop_again_at
    with pytest.raises(KeyboardInterrupt):
        replaced.recover(tree)
        raise KeyboardInterrupt
    left[0] = 1000
    replaced.recover(tree)
    now = {path: text for path, text in content(tree).items() if not path.startswith("replaced/new/")}
    assert now == before


@pytest.mark.parametrize(
    "note", ['{"modules": ["../x"], "files": []}', '{"modules": [], "files": ["../../x"]}', "{", "[]", "\0"]
)
def test_a_note_that_names_what_lies_elsewhere_is_none(tree: Tree, note: str) -> None:
    tree.replaced.mkdir()
    (tree.replaced / "toy.json").write_text(note)
    assert replaced.find(tree, "toy") is None


def test_what_cannot_be_moved_leaves_all_as_it_was(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file that is immutable, or on which something is mounted."""
    before, rename = content(tree), Path.rename

    def refused(self: Path, target: Path) -> Path:
        if self == tree.root / FILES[1]:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    with replaced.guarded(tree, "toy"), pytest.raises(HostProblem) as caught:
        replaced.set_aside(tree, "toy", Aside(modules=(), files=FILES))
    assert f"{FILES[1]} cannot be moved: Device or resource busy" in caught.value.why
    assert content(tree) == before
