"""What the files of a module were, and what has become of them; lists that nobody should believe."""

from __future__ import annotations

import json
import os
import py_compile
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envkit.environments import manifest
from envkit.environments.manifest import Damage
from envkit.environments.prefix import Tree

MODULE = "Toy/1.0"
SITE = "lib/python3/site-packages"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A tree with one module, and the list of its files."""
    made = Tree(root=tmp_path / "tree")
    top = made.software / MODULE
    for name, text in {
        "bin/toy": "#!/bin/sh\n", "lib/libtoy.so.1": "ELF", f"{SITE}/toy/__init__.py": "answer = 42\n",
        f"{SITE}/toy/data.json": "{}", "easybuild/toy.log": "built",
    }.items():  # fmt: skip
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    (top / "bin/toy").chmod(0o755)
    (top / "lib64").symlink_to("lib")
    py_compile.compile(str(top / SITE / "toy/__init__.py"), doraise=True)
    for folder in ("all", "tools"):
        (made.root / "modules" / folder / "Toy").mkdir(parents=True)
    (made.modulepath / f"{MODULE}.lua").write_text("help([[toy]])\n")
    (made.root / "modules/tools" / f"{MODULE}.lua").symlink_to(made.modulepath / f"{MODULE}.lua")
    manifest.write(made, MODULE)
    return made


def found(tree: Tree, **how: bool) -> list[tuple[str, str]]:
    """How each damaged file is, by its path in the tree."""
    return [(one.how, str(Path(one.path).relative_to(tree.root))) for one in manifest.damage(tree, [MODULE], **how)]


def top(tree: Tree, name: str) -> Path:
    return tree.software / MODULE / name


def compiled(tree: Tree) -> Path:
    [path] = top(tree, f"{SITE}/toy/__pycache__").iterdir()
    return path


def rewritten(path: Path, data: bytes, *, is_same_time: bool = False) -> None:
    before = path.stat()
    path.write_bytes(data)
    later = before.st_mtime_ns + (0 if is_same_time else 10**9)
    os.utime(path, ns=(later, later))


def test_nothing_is_damaged(tree: Tree) -> None:
    for how in ({"digests": False}, {}, {"every": True}):
        assert found(tree, **how) == []
    assert manifest.broken(tree, [MODULE]) is None
    measure = manifest.measure(tree, [MODULE, "Other/1.0"])
    assert (measure.modules, measure.files, measure.unlisted) == (1, 8, ("Other/1.0",))


@pytest.mark.parametrize(
    "name", ["bin/toy", "lib/libtoy.so.1", f"{SITE}/toy/__init__.py", f"{SITE}/toy/data.json", "lib64"]
)
def test_a_file_that_has_gone(tree: Tree, name: str) -> None:
    top(tree, name).unlink()
    assert found(tree, digests=False) == found(tree) == [("gone", f"software/{MODULE}/{name}")]


@pytest.mark.parametrize("name", ["bin/toy", "lib/libtoy.so.1"])
def test_what_is_looked_at_first(tree: Tree, name: str) -> None:
    rewritten(top(tree, name), b"", is_same_time=True)
    assert manifest.broken(tree, [MODULE]) == Damage(module=MODULE, path=str(top(tree, name)), how="changed")
    top(tree, name).unlink()
    assert manifest.broken(tree, [MODULE]) == Damage(module=MODULE, path=str(top(tree, name)), how="gone")


def test_a_byte_of_it_by_time_and_by_content(tree: Tree) -> None:
    path = top(tree, f"{SITE}/toy/data.json")
    expected = [("changed", f"software/{MODULE}/{SITE}/toy/data.json")]
    rewritten(path, b"[]", is_same_time=True)
    assert found(tree, digests=False) == found(tree) == []
    assert found(tree, every=True) == expected
    rewritten(path, b"[]")
    assert found(tree, digests=False) == []
    assert found(tree) == expected
    rewritten(path, b"{}")  # another time alone
    assert found(tree) == found(tree, every=True) == []


def test_kinds_of_files(tree: Tree) -> None:
    top(tree, "bin/toy").chmod(0o644)
    top(tree, "lib64").unlink()
    top(tree, "lib64").symlink_to("/etc")
    data = top(tree, f"{SITE}/toy/data.json")
    data.unlink()
    os.mkfifo(data)  # nothing waits for it
    names = ("bin/toy", "lib64", f"{SITE}/toy/data.json")
    assert sorted(found(tree, every=True)) == sorted(("changed", f"software/{MODULE}/{name}") for name in names)


def test_module_files_of_every_category(tree: Tree) -> None:
    (tree.root / "modules/tools" / f"{MODULE}.lua").unlink()
    (tree.modulepath / MODULE).write_text("#%Module\n")
    assert found(tree) == [("gone", f"modules/tools/{MODULE}.lua"), ("added", f"modules/all/{MODULE}")]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (f"{SITE}/torch.py", f"{SITE}/torch.py"),
        (f"{SITE}/hook.pth", f"{SITE}/hook.pth"),
        (f"{SITE}/fast.so", f"{SITE}/fast.so"),
        (f"{SITE}/torch/__init__.py", f"{SITE}/torch"),
        (f"{SITE}/torch/ops/deep.py", f"{SITE}/torch"),
        ("lib/libmpi.so.40", "lib/libmpi.so.40"),
        (f"{SITE}/numpy.libs/libblas.so", f"{SITE}/numpy.libs/libblas.so"),
        (f"{SITE}/toy/more.py", ""),
        (f"{SITE}/toy-1.0.dist-info/RECORD", ""),
        (f"{SITE}/__pycache__/torch.cpython-311.pyc", ""),
        (f"{SITE}/torch/__pycache__/a.cpython-311.pyc", ""),
        ("lib/toy.log", ""),
        ("easybuild/other.log", ""),
        ("share/notes", ""),
    ],
)
def test_what_was_added_counts_where_it_is_loaded(tree: Tree, name: str, told: str) -> None:
    top(tree, name).parent.mkdir(parents=True, exist_ok=True)
    top(tree, name).write_text("x")
    assert found(tree) == ([("added", f"software/{MODULE}/{told}")] if told else [])


def test_python_may_write_its_files_anew(tree: Tree) -> None:
    path, source = compiled(tree), top(tree, f"{SITE}/toy/__init__.py")
    py_compile.compile(str(source), doraise=True)
    assert found(tree, every=True) == []
    os.utime(source, (1, 1))
    py_compile.compile(str(source), doraise=True)
    assert found(tree, every=True) == []
    path.unlink()
    assert found(tree, every=True) == []


@pytest.mark.parametrize("is_same_time", [False, True])
@pytest.mark.parametrize("keep", [20, 60, -1])
def test_a_compiled_file_that_python_would_take_and_cannot_read(tree: Tree, keep: int, is_same_time: bool) -> None:
    path = compiled(tree)
    rewritten(path, path.read_bytes()[:keep], is_same_time=is_same_time)
    assert found(tree, every=True) == [("changed", str(path.relative_to(tree.root)))]


def test_a_compiled_file_that_python_does_not_take(tree: Tree) -> None:
    path = compiled(tree)
    for data in (b"", b"short", path.read_bytes()[:8] + b"\1\0\0\0" + path.read_bytes()[12:30]):
        rewritten(path, data)
        assert found(tree, every=True) == []


NOT_ENTRIES: list[Any] = [None, {}, [], ["1", 1], [1, 1, 2]]
ENTRY = [1, 1, "0" * 64, "", False]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"null", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"module": "Toy/1.0"}',
        json.dumps({"module": "Other/1.0", "files": {}}).encode(),
        *(json.dumps({"module": MODULE, "files": {name: ENTRY}}).encode() for name in (
            "/etc/passwd", "../../etc/passwd", f"software/{MODULE}/../../../etc", f"software/{MODULE}//a", "",
            "software/Toy/1.0.1/a", f"modules/a/b/{MODULE}", f"modules/{MODULE}", f"software/{MODULE}/" + "a" * 5000,
            "built/Toy--1.0.json", f"software/{MODULE}/a\0b", f"software/{MODULE}/./a",
        )),
        *(json.dumps({"module": MODULE, "files": {f"software/{MODULE}/a": entry}}).encode() for entry in NOT_ENTRIES),
    ],
)  # fmt: skip
def test_a_list_that_is_none(tree: Tree, content: bytes) -> None:
    path = manifest.path_of(tree, MODULE)
    path.write_bytes(content)
    expected = Damage(module=MODULE, path=str(path), how="changed")
    assert manifest.damage(tree, [MODULE]) == [expected]
    assert manifest.broken(tree, [MODULE]) == expected
    assert manifest.measure(tree, [MODULE]).unlisted == (MODULE,)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def huge(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(manifest.MOST + 1)


@pytest.mark.parametrize("put", [pipe, folder, huge])
def test_no_list_is_waited_for_nor_too_large(tree: Tree, put: Callable[[Path], Any]) -> None:
    path = manifest.path_of(tree, MODULE)
    path.unlink()
    put(path)
    assert [one.path for one in manifest.damage(tree, [MODULE])] == [str(path)]


def test_without_a_list_nothing_is_said(tree: Tree) -> None:
    manifest.path_of(tree, MODULE).unlink()
    top(tree, "bin/toy").unlink()
    assert found(tree) == []


def test_behind_a_link_nothing_is_looked_at(tree: Tree, tmp_path: Path) -> None:
    tree.software.rename(tmp_path / "elsewhere")
    tree.software.symlink_to(tmp_path / "elsewhere")
    top(tree, "bin/toy").unlink()
    assert found(tree) == []
    assert manifest.measure(tree, [MODULE]).behind == (MODULE,)
    manifest.write(tree, MODULE)
    assert not manifest.path_of(tree, MODULE).exists()


def test_a_link_to_a_folder_elsewhere_is_a_link(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "lib").mkdir(parents=True)
    (tmp_path / "elsewhere" / "lib" / "libother.so").touch()
    top(tree, "more").symlink_to(tmp_path / "elsewhere")
    assert found(tree) == []
    manifest.write(tree, MODULE)
    assert "libother" not in manifest.path_of(tree, MODULE).read_text()


def test_names_that_are_no_text(tree: Tree) -> None:
    with open(os.fsencode(top(tree, "lib")) + b"/caf\xe9", "wb") as stream:  # noqa: PTH123
        stream.write(b"x")
    manifest.write(tree, MODULE)
    assert found(tree, every=True) == []
    os.unlink(os.fsencode(top(tree, "lib")) + b"/caf\xe9")  # noqa: PTH108
    assert found(tree) == [("gone", f"software/{MODULE}/lib/caf\\xe9")]


def test_of_many_each_is_asked_in_its_order_and_none_after_one_that_fails() -> None:
    assert manifest.at_once(str, range(1000)) == [str(number) for number in range(1000)]
    assert manifest.at_once(str, iter(())) == []
    asked = list[int]()

    def failing(number: int) -> int:
        asked.append(number)
        time.sleep(0.005)
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        manifest.at_once(failing, range(4000))
    assert len(asked) < 2000


@pytest.mark.parametrize("name", ["lib/libtoy.so.1", f"{SITE}/toy/data.json", "lib", f"{SITE}/toy"])
def test_what_may_not_be_read_is_not_called_changed_nor_gone(tree: Tree, name: str) -> None:
    top(tree, name).chmod(0)
    script = (
        "from pathlib import Path; import sys; from envkit.environments import manifest, prefix\n"
        "tree, module = prefix.Tree(root=Path(sys.argv[1])), sys.argv[2]\n"
        "for how in ({'digests': False}, {}, {'every': True}):\n"
        "    print(*[(one.how, one.path, one.access) for one in manifest.damage(tree, [module], **how)])\n"
        "first = manifest.broken(tree, [module])\nprint(first.how if first else '')"
    )
    without = (
        ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"] if not os.geteuid() else []
    )
    argv = [*without, sys.executable, "-c", script, str(tree.root), MODULE]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    finally:
        top(tree, name).chmod(0o755)
    told = f"('unreadable', '{top(tree, name)}', 'mode 000, owner {manifest.owner(os.geteuid())}')"
    assert done.stdout.splitlines() == [told] * 3 + ["" if "toy" in name and "lib/lib" not in name else "unreadable"]


def test_the_owner_is_told_one_command() -> None:
    files = [Damage(module=MODULE, path=f"/p/lib/{name}", how="unreadable") for name in ("a b", "c")]
    assert manifest.opening(files[:1]) == "chmod a+rX '/p/lib/a b'"
    assert manifest.opening([replace(files[0], path="/p/lib/libtoy.so.1")]) == "chmod a+rx /p/lib/libtoy.so.1"
    assert manifest.opening(files) == "chmod -R a+rX /p/lib"
