"""What ``envkit repair`` finds and asks for, where nothing is built; what else is said of a damaged environment."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from filelock import FileLock
from rich.console import Console

from envkit.apptainer import method as apptainer
from envkit.apptainer.receipt import ImageReceipt
from envkit.cli import run
from envkit.easybuild import method as easybuild
from envkit.easybuild.receipt import ModuleReceipt
from envkit.eessi import method as eessi
from envkit.eessi.receipt import EessiReceipt
from envkit.environments import manifest, receipt
from envkit.environments.prefix import Prefix, Tree
from envkit.errors import EnvironmentDamaged, EnvironmentMissing, HostProblem
from envkit.install import install as installation
from envkit.install import listing, repair
from envkit.install.install import damage_lines
from envkit.planning.request import Request

Install = Callable[..., ModuleReceipt]
MODULES = ("Python/system", "Toy/1.0")


@pytest.fixture
def made(install: Install) -> ModuleReceipt:
    """An environment with lists of its files."""
    found = install("toy-cpu", *MODULES)
    for module in MODULES:
        manifest.write(tree_of(found), module)
    return found


def tree_of(found: ModuleReceipt | ImageReceipt) -> Tree:
    return Tree(root=Path(found.tree))


def look(prefix: Prefix, capsys: pytest.CaptureFixture[str], name: str = "toy-cpu") -> tuple[int, str]:
    status = repair.repair(prefix, name, is_dry=True, console=Console(width=1000))
    return status, capsys.readouterr().out


def test_nothing_is_damaged(prefix: Prefix, made: ModuleReceipt, capsys: pytest.CaptureFixture[str]) -> None:
    assert look(prefix, capsys) == (0, "Nothing of toy-cpu is damaged: 6 files (0 MB) as built.\n")
    assert not listing.damage(made)


def test_every_damaged_file_is_named(prefix: Prefix, made: ModuleReceipt, capsys: pytest.CaptureFixture[str]) -> None:
    tree = tree_of(made)
    (tree.software / "Toy/1.0/file").write_text("x")
    (tree.modulepath / "Python/system.lua").unlink()
    status, said = look(prefix, capsys)
    assert (status, said) == (
        6,
        f"""toy-cpu is damaged:
  Python/system: 1 file
    gone     {tree.modulepath}/Python/system.lua
  Toy/1.0: 1 file
    changed  {tree.software}/Toy/1.0/file
Build it again with 'envkit repair toy-cpu --prefix {prefix.root}'.
""",
    )
    mend = f"envkit repair toy-cpu --prefix {tree.root.parent}"
    expected = f"{tree.modulepath}/Python/system.lua has gone; mend it with '{mend}'"
    assert listing.damage(made) == expected
    assert f"Damaged:    {expected}" in listing.describe(made)
    [listed] = [entry for entry in listing.entries(prefix) if entry.name == "toy-cpu"]
    assert (listed.state, listed.fix) == ("damaged", mend) and listed.why in expected


def test_only_the_first_files_of_a_module_are_named() -> None:
    found = [manifest.Damage(module="Toy/1.0", path=f"/t/\x1b{number}", how="gone") for number in range(8)]
    assert list(damage_lines(found, 1)) == ["  Toy/1.0: 8 files", r"    gone     '/t/\x1b0'", "    and 7 more"]
    assert len(list(damage_lines(found, None))) == 9


def test_modules_without_lists(prefix: Prefix, install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    made = install("toy-cpu", *MODULES)
    status, said = look(prefix, capsys)
    assert status == 0
    assert "Not compared, since nothing says what its files were: Python/system, Toy/1.0." in said
    (tree_of(made).modulepath / "Python/system.lua").unlink()
    status, said = look(prefix, capsys)
    assert status == 6
    assert "  Python/system: 1 file\n    gone " in said


@pytest.mark.parametrize("lists", ["with lists", "without lists", "behind a dead link"])
def test_all_software_has_gone(
    prefix: Prefix, install: Install, lists: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = install("toy-cpu", *MODULES)
    tree = tree_of(made)
    for module in MODULES if lists != "without lists" else ():
        manifest.write(tree, module)
    shutil.rmtree(tree.software)
    if lists == "behind a dead link":
        tree.software.symlink_to(tmp_path / "purged")
    status, said = look(prefix, capsys)
    assert status == 6
    assert f"toy-cpu is damaged: all its software has gone. It was in {tree.software}.\n" in said
    for module in MODULES:
        assert f"  {module}: 1 file\n    gone     {tree.software}/{module}" in said
    assert said.endswith(f"Build it again with 'envkit repair toy-cpu --prefix {prefix.root}'.\n")
    assert "has gone; mend it with 'envkit repair toy-cpu --prefix " in listing.damage(made)
    if lists == "behind a dead link":
        with pytest.raises(HostProblem, match="is a link that leads nowhere") as refused:
            repair.repair(prefix, "toy-cpu", is_dry=False, console=Console(width=1000))
        assert f"rm {tree.software}" in refused.value.fix


def test_what_was_copied_is_refused(
    prefix: Prefix, install: Install, made: ModuleReceipt, capsys: pytest.CaptureFixture[str]
) -> None:
    receipt.write(receipt.path_of(tree_of(made), "toy-cpu"), msgspec.structs.replace(made, tree="/elsewhere/tree"))
    with pytest.raises(EnvironmentDamaged, match="does not work where it lies"):
        look(prefix, capsys)


def test_a_recipe_that_has_gone(prefix: Prefix, made: ModuleReceipt) -> None:
    with pytest.raises(EnvironmentDamaged, match="its recipe has gone") as refused:
        easybuild.request_of(prefix, made)
    assert refused.value.fix.endswith(f"envkit remove toy-cpu --prefix {prefix.root}")


def test_of_another_python(prefix: Prefix, install: Install) -> None:
    other = install("pytorch-2.13-cpu", *MODULES, python="3.9.1")
    with pytest.raises(HostProblem, match="cannot be built again here"):
        repair.asked(prefix, Path(other.tree), other)


def test_a_receipt_that_has_gone_is_told_with_what_puts_it_back(
    prefix: Prefix, made: ModuleReceipt, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree, recipe = tree_of(made), tmp_path / "toy-cpu.eb"
    built = receipt.Built(module="Toy/1.0", easyconfig=str(recipe), sha256="", seconds=1)
    receipt.write(receipt.built_path(tree, "Toy/1.0"), built)
    receipt.path_of(tree, "toy-cpu").unlink()
    with pytest.raises(EnvironmentMissing) as missing:
        look(prefix, capsys)
    assert missing.value.fix.endswith(f"envkit install {recipe} --prefix {prefix.root}")


def test_what_is_asked_for_again(prefix: Prefix, install: Install, tmp_path: Path) -> None:
    request = easybuild.request_of(prefix, install("pytorch-2.13-cpu", *MODULES, load=("gcc/13",)))
    assert (request.wanted, request.method, request.load) == ("pytorch-2.13-cpu", "easybuild", ("gcc/13",))
    recipe = tmp_path / "toy-1.0.eb"
    recipe.touch()
    module = receipt.Module(name="Toy/1.0", easyconfig=str(recipe), sha256="")
    own = msgspec.structs.replace(install("toy-1.0", "Toy/1.0"), modules=(module,))
    assert easybuild.request_of(prefix, own).wanted == str(recipe)
    given = {name: getattr(own, name) for name in EessiReceipt.__struct_fields__ if hasattr(own, name)}
    on_top = EessiReceipt(**given, release="2023.06", copy="/copy")
    request = eessi.request_of(prefix, on_top)
    assert (request.wanted, request.method) == (str(recipe), "eessi")
    assert (request.release, request.access) == ("2023.06", "dir:/copy")


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("docker://a/b@sha256:" + "0" * 64, {"source": "docker://a/b@sha256:" + "0" * 64}),
        ("/there/toy.sif", {"source": "/there/toy.sif"}),
        ("/there/Dockerfile", {"dockerfile": Path("/there/Dockerfile")}),
    ],
)
def test_an_image_that_is_asked_for_again(
    prefix: Prefix, install_image: Callable[..., ImageReceipt], origin: str, expected: dict[str, Any]
) -> None:
    found = msgspec.structs.replace(install_image(), source=origin, binds=("/scratch",))
    request = apptainer.request_of(prefix, found)
    assert {name: getattr(request, name) for name in expected} == expected
    assert (request.wanted, request.method, request.binds) == ("toy-image", "apptainer", ("/scratch",))
    for unknown in ({"source": "toy.sif"}, {"settings": {"A": "1"}}, {"srun": ("--mpi=pmi2",)}):
        with pytest.raises(EnvironmentDamaged, match="the command that it was installed with"):
            apptainer.request_of(prefix, msgspec.structs.replace(found, **unknown))


def test_an_image(
    prefix: Prefix, install_image: Callable[..., ImageReceipt], capsys: pytest.CaptureFixture[str]
) -> None:
    image = Path(install_image().image)
    before = image.stat()
    assert look(prefix, capsys, "toy-image") == (0, "Nothing of toy-image is damaged: 1 file (0 MB) as built.\n")
    image.write_text("toy-imagf")
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    status, said = look(prefix, capsys, "toy-image")
    assert (status, f"    changed  {image}\n" in said) == (6, True)
    image.write_text("short")
    assert "has changed" in {e.name: e.why for e in listing.entries(prefix)}["toy-image"]
    image.unlink()
    assert "has gone" in {e.name: e.why for e in listing.entries(prefix)}["toy-image"]
    assert f"    gone     {image}\n" in look(prefix, capsys, "toy-image")[1]


def test_a_good_one_of_another_prefix_is_named(
    made: ModuleReceipt, prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Install,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The first prefix has a damaged one of the name, the second a good one."""
    first = tmp_path / "first"
    shutil.copytree(prefix.root, first, symlinks=True)
    path = next(first.glob("*/environments/toy-cpu.json"))
    path.write_text(path.read_text().replace(str(prefix.root), str(first)))
    next(first.glob("*/modules/all/Toy/1.0.lua")).unlink()
    monkeypatch.setenv("ENVKIT_PREFIX", f"{first}:{prefix.root}")
    assert run(["show", "toy-cpu"]) == 6
    told = capsys.readouterr().err
    assert f"Put it back with 'envkit repair toy-cpu --prefix {first}'." in told
    assert f"Or take the one of {prefix.root}, which is as it was installed: --prefix {prefix.root}" in told
    path.write_text("{")
    assert run(["show", "toy-cpu"]) == 6
    assert f"Or take the one of {prefix.root}" in capsys.readouterr().err
    assert run(["show", "toy-cpu", "--prefix", str(prefix.root)]) == 0
    monkeypatch.setenv("ENVKIT_PREFIX", str(first))
    capsys.readouterr()
    assert run(["show", "toy-cpu"]) == 6
    assert "Or take" not in capsys.readouterr().err


def test_what_may_not_be_read_is_not_built_again(
    prefix: Prefix, made: ModuleReceipt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tree_of(made).software / "Toy/1.0/file"
    path.chmod(0o600)
    access = os.access
    monkeypatch.setattr(os, "access", lambda name, *_, **how: Path(name) != path and access(name, os.F_OK))
    with pytest.raises(EnvironmentDamaged) as raised:
        look(prefix, capsys)
    assert f"you may not read {path} (mode 600, owner " in raised.value.what
    assert raised.value.fix.endswith(f"chmod a+rX {path}") and "repair" not in raised.value.fix
    assert f"unreadable {path}" in capsys.readouterr().out
    assert "may not be read by you" in listing.SAID["unreadable"]


def test_what_is_built_again_by_another_is_not_repaired(prefix: Prefix, made: ModuleReceipt) -> None:
    tree = tree_of(made)
    (tree.modulepath / "Python/system.lua").unlink()
    receipt.begin(tree, "toy-cpu", "building", prefix.logs)
    tree.locks.mkdir(exist_ok=True)
    with FileLock(tree.locks / "stack-toy-cpu.lock"), pytest.raises(HostProblem, match="is being built again"):
        repair.repair(prefix, "toy-cpu", is_dry=False, console=Console(file=io.StringIO()))


def test_another_one_than_was_found_is_not_built_again(
    prefix: Prefix, made: ModuleReceipt, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(prefix=prefix)
    work = SimpleNamespace(tree=tree_of(made), stack=SimpleNamespace(name="toy-cpu"), request=request)
    monkeypatch.setattr(installation, "supplied", lambda _: work)
    monkeypatch.setattr(installation, "problems", lambda _: [])
    monkeypatch.setattr(installation, "find_installed", lambda _: made)
    installation.install_now(request, Console(file=io.StringIO()), made)
    install("toy-cpu", *MODULES, created="2026-11-30T01:02:03+00:00")
    with pytest.raises(HostProblem, match="built again in the meantime"):
        installation.install_now(request, Console(file=io.StringIO()), made)
