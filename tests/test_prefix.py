import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envkit.cli import run
from envkit.environments.prefix import Prefix, compiler_cache, locate, not_writable, prune_logs
from envkit.errors import HostProblem, NotWritable
from envkit.machine.host import Platform
from envkit.system.umask import like

ALL = {"ENVKIT_PREFIX": "/envkit", "EBU_USER_PREFIX": "/ebu"}


@pytest.mark.parametrize(
    ("option", "env", "expected"),
    [
        ("/option", ALL, "/option"),
        (None, ALL, "/envkit"),
        (None, {"EBU_USER_PREFIX": "/ebu"}, "/ebu"),
        (None, {"ENVKIT_PREFIX": "", "EBU_USER_PREFIX": "/ebu"}, "/ebu"),
        ("/a/b+c@d=e,f~g^h_i-j.k", {}, "/a/b+c@d=e,f~g^h_i-j.k"),
    ],
)
def test_where_the_prefix_is(option: str | None, env: dict[str, str], expected: str) -> None:
    assert locate(option, env) == Prefix(root=Path(expected))


def test_without_being_told_it_is_the_data_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert locate(None, {}).root == tmp_path / "envkit"


def test_a_prefix_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/u")
    assert locate("here", {}).root == tmp_path / "here"
    assert locate("~/there", {}).root == Path("/home/u/there")


@pytest.mark.parametrize("odd", [" ", "'", '"', "$", "\n", "*", "%", "#", "\\", ";"])
def test_paths_that_a_build_cannot_carry(odd: str) -> None:
    with pytest.raises(HostProblem, match="cannot be used") as problem:
        locate(f"/a{odd}b", {})
    assert repr(odd) in problem.value.what


def test_create_is_private_and_may_be_repeated(tmp_path: Path) -> None:
    made = Prefix(root=tmp_path / "a" / "b")
    made.create()
    made.create()
    assert stat.S_IMODE(made.root.stat().st_mode) == 0o700
    assert made.sources.is_dir() and made.logs.is_dir()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("root", ["/proc", "/proc/self/x", "/sys/x", "/dev", "LINK/x"])
def test_a_folder_of_the_kernels_is_none(root: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    with pytest.raises(HostProblem, match="lies in a folder of the kernel's"):
        locate(root.replace("LINK", str(tmp_path / "link")), {})
    assert locate("/dev/shm/envkit", {}).root == Path("/dev/shm/envkit")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize(
    ("root", "user", "file"),
    [
        (None, 1000, 0o600),
        (0o700, 1000, 0o600),
        (0o755, 1000, 0o644),
        (0o2775, 1000, 0o664),
        (0o777, 1000, 0o600),
        (None, 0, 0o644),
        (0o755, 0, 0o644),
    ],
)
def test_files_have_the_mode_of_the_prefix(
    root: int | None, user: int, file: int, umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    made = Prefix(root=tmp_path / "a" / "prefix")
    if root is not None:
        made.root.mkdir(parents=True)
        made.root.chmod(root)
    before = os.umask(umask)
    try:
        made.create()
        with like(made.root):
            (made.root / "file").touch()
        (tmp_path / "after").touch()
    finally:
        os.umask(before)
    assert mode_of(made.root) == (root or 0o700)
    assert mode_of(made.root / "file") == file
    assert mode_of(tmp_path / "after") == 0o666 & ~umask
    if root is None:
        assert mode_of(made.root.parent) == 0o700


def test_create_leaves_the_permissions_of_a_folder_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o755)
    Prefix(root=tmp_path / "shared").create()
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o755


def test_create_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotWritable, match=r"file/a/prefix cannot be written to\.") as problem:
        Prefix(root=tmp_path / "file" / "a" / "prefix").create()
    assert problem.value.why == "Not a directory."


def test_trees_are_those_of_the_machine_type_newest_python_first(tmp_path: Path) -> None:
    for name in ("x86_64-py3.9", "x86_64-py3.13", "x86_64-py3.10", "aarch64-py3.11", "sources", "x86_64-eessi-2023.06"):
        (tmp_path / name).mkdir()
    found = Prefix(root=tmp_path).trees("x86_64")
    pythons = ["x86_64-py3.13", "x86_64-py3.10", "x86_64-py3.9"]
    assert [tree.root.name for tree in found] == [*pythons, "x86_64-eessi-2023.06"]
    assert Prefix(root=tmp_path).tree(Platform(machine="x86_64", python="3.9"), "2023.06").root == found[-1].root
    assert Prefix(root=tmp_path / "nothing").trees("x86_64") == []


def test_a_tree_has_modules_in_lua_and_tcl(tmp_path: Path) -> None:
    tree = Prefix(root=tmp_path).tree(Platform(machine="x86_64", python="3.11"))
    assert tree.root == tmp_path / "x86_64-py3.11"
    (tree.modulepath / "Toy").mkdir(parents=True)
    (tree.modulepath / "Toy" / "1.lua").touch()
    (tree.modulepath / "Toy" / "2").touch()
    assert [tree.has(f"Toy/{version}") for version in (1, 2, 3)] == [True, True, False]
    assert not tree.has("Toy")


def test_the_compiler_cache_is_one_for_all_prefixes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prefix = Prefix(root=tmp_path / "prefix")
    assert compiler_cache(prefix, {}) == tmp_path / "cache" / "envkit" / "ccache"
    assert compiler_cache(prefix, {"CCACHE_DIR": str(tmp_path / "own")}) == tmp_path / "own"
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o2777)
    assert compiler_cache(prefix, {"CCACHE_DIR": str(tmp_path / "open")}) == prefix.root / "ccache"
    (tmp_path / "file").touch()
    assert compiler_cache(prefix, {"CCACHE_DIR": str(tmp_path / "file" / "cache")}) == prefix.root / "ccache"


def test_logs_that_nothing_refers_to_are_kept_in_a_bounded_number(prefix: Prefix) -> None:
    there = [prefix.logs / f"toy-cpu-20260101-0000{number:02}" for number in range(15)]
    others = [prefix.logs / "toy-cpu-more-20260101-000000", prefix.logs / "toy-20260101-000000"]
    for folder in (*there, *others):
        (folder / "tmp").mkdir(parents=True)
        (folder / "build.log").touch()
    prune_logs(prefix, "toy-cpu", {str(there[2])})
    assert sorted(prefix.logs.iterdir()) == sorted([there[2], *there[5:], *others])
    assert [folder.name for folder in (*there[2:3], *there[5:]) if (folder / "tmp").exists()] == [
        there[13].name,
        there[14].name,
    ]
    assert all((folder / "tmp").exists() for folder in others)


def test_who_can_write_to_what_is_somebody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = PermissionError(13, "Permission denied")
    assert "Choose another folder" in not_writable(tmp_path, refused).fix
    uid = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert f"It belongs to {pwd.getpwuid(uid).pw_name}, who can do it" in not_writable(tmp_path, refused).fix


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (__file__, f"The prefix {__file__} cannot be used: it is no folder."),
        (f"{__file__}:/proc/nonexistent", f"The prefix {__file__} cannot be used: it is no folder."),
        ("a:/proc/nonexistent", "it has ':' in it, and 'a' is not an absolute path."),
        ("/proc/nonexistent:a/b", "it has ':' in it, and 'a/b' is not an absolute path."),
    ],
)
def test_what_can_be_no_prefix(named: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["list"], ["show", "x"], ["install", "pytorch", "--dry-run"]):
        assert run([*words, "--prefix", named]) == 3
        told = capsys.readouterr()
        assert said in told.err and not told.out


@pytest.mark.parametrize("words", [["list", "--prefix"], ["venv", "x"]])
def test_a_home_of_nobody(words: list[str], install: Callable[..., Any], prefix: Prefix,
                          monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    install("x")
    monkeypatch.setenv("ENVKIT_PREFIX", str(prefix.root))
    assert run([*words, "~no-such-user/x"]) == 2
    assert "There is no folder ~no-such-user/x: ~no-such-user is nobody's home here." in capsys.readouterr().err


def test_no_name_is_no_environment(install: Callable[..., Any], prefix: Prefix,
                                   capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    install("x")
    assert run(["show", "", "--prefix", str(prefix.root)]) == 6
    assert f"There is no environment ''.\n\n  Installed in {prefix.root}: x." in capsys.readouterr().err
