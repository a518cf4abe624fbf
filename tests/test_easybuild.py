import ast
import json
import os
import re
import stat
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envkit.easybuild import build, eb_command, trial_compiles
from envkit.environments import receipt
from envkit.environments.prefix import Prefix, Tree
from envkit.errors import HostProblem, PlanFailed
from envkit.machine import host
from envkit.machine.host import Host, Platform, Program
from envkit.planning import extras
from envkit.planning.plan import Patch, Plan, Step
from envkit.planning.stack import REFERENCE, from_recipe, stacks
from envkit.sources.fetch import Source
from envkit.system import process
from envkit.system.resources import easybuild_collection, recipes

Machine = Callable[..., Host]
LISTING = """\
== Temporary log file in case of crash /tmp/eb-6yx/easybuild-oaa.log
Dry run: printing build status of easyconfigs and dependencies
CFGS=/opt/share
 * [ ] $CFGS/easybuild/easyconfigs/g/GCC/GCC-system.eb (module: GCC/system)
 * [x] $CFGS/own/There-1.0.eb (module: There/1.0)
 * [ ] $CFGS/own/BuiltThereWith-1.0.eb (module: BuiltThereWith/1.0)
 * [ ] $CFGS/own/Toy-1.0.eb (module: tools | Toy/1.0)
 * [R] /elsewhere/Top-2.0.eb (module: Top/2.0)
== Temporary log file(s) /tmp/eb-6yx/easybuild-oaa.log* have been removed.
"""
PATHS = ("/opt/share/easybuild/easyconfigs/g/GCC/GCC-system.eb", "/opt/share/own/Toy-1.0.eb", "/elsewhere/Top-2.0.eb")
TOY = """\
easyblock = 'Toolchain'
name = 'Toy'
version = '1.0'
homepage = 'https://example.org'
description = 'Nothing.'
toolchain = SYSTEM
moduleclass = 'toolchain'
"""
SITE_HOOKS = """\
from pathlib import Path


def parse_hook(ec, *args, **kwargs):
    ec['moduleclass'] = 'tools'


def module_write_hook(self, path, text):
    return text + '\\n-- by the site\\n'


def pre_sanitycheck_hook(self, *args, **kwargs):
    Path(__file__).with_name('called').write_text(self.name)
"""
# Not under the present licence: no recipe uses the first three any more, the others do not run its installer.
WITHOUT_LICENCE = {"icc", "ifort", "iccifort", "imkl-FFTW", "tbb"}


def fact(path: str, **changes: Any) -> dict[str, Any]:
    given = {"event": "easyconfig", "path": path, "name": Path(path).name.partition("-")[0], "accept_eula": False}
    empty: dict[str, Any] = {"dependencies": [], "sources": [], "patches": [], "os_dependencies": []}
    return {**given, **empty, **changes}


def told(filename: str, *urls: str, **changes: Any) -> dict[str, Any]:
    given = {"filename": filename, "download_filename": filename, "sha256": "0" * 64, "urls": list(urls), "git": False}
    return {**given, **changes}


def program(version: str, family: str = "") -> Program:
    return Program(path=Path("/usr/bin/x"), version=version, family=family)


def test_steps_from_what_eb_lists_and_its_hooks_tell() -> None:
    facts = {path: fact(path) for path in PATHS} | {PATHS[1]: fact(PATHS[1], dependencies=["GCC/system"])}
    facts[PATHS[2]] |= {
        "name": "CUDA",
        "dependencies": ["There/1.0", "tools/Toy/1.0"],
        "os_dependencies": ["make", ["libx-dev", "libx-devel"]],
        "sources": [told("toy.tar.gz"), told("clone.tar.gz", git=True)],
        "patches": [{"filename": "toy.patch", "sha256": None}],
    }
    made = eb_command.steps(LISTING, facts, [PATHS[2]])
    assert made == [
        Step(module="GCC/system", easyconfig=PATHS[0]),
        Step(module="tools/Toy/1.0", easyconfig=PATHS[1], dependencies=("GCC/system",)),
        Step(
            module="Top/2.0",
            easyconfig=PATHS[2],
            dependencies=("There/1.0", "tools/Toy/1.0"),
            sources=(Source(filename="toy.tar.gz", sha256="0" * 64, needed_by="Top-2.0.eb"),),
            patches=(Patch(filename="toy.patch", sha256=None),),
            os_dependencies=(("make",), ("libx-dev", "libx-devel")),
            eula="CUDA",
        ),
    ]


def test_a_licence_that_the_recipe_accepts_itself() -> None:
    facts = {path: fact(path, name="CUDA", accept_eula=True) for path in PATHS}
    assert {step.eula for step in eb_command.steps(LISTING, facts, [PATHS[2]])} == {""}


def test_a_recipe_that_cannot_be_read() -> None:
    top = fact(PATHS[2], dependencies=["tools/Toy/1.0"])
    facts = {PATHS[2]: top, PATHS[1]: {"event": "unreadable", "message": "KeyError('x')"}}
    with pytest.raises(PlanFailed, match=r"The recipe of tools/Toy/1\.0 cannot be read\.") as failed:
        eb_command.steps(LISTING, facts, [PATHS[2]])
    assert failed.value.why == "KeyError('x')" and PATHS[1] in failed.value.fix


@pytest.mark.parametrize(
    ("one", "project", "urls"),
    [
        (told("torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", "https://d.org/whl/cpu"), "torch", None),
        (told("horovod-0.28.1.tar.gz", "https://pypi.python.org/packages/source/h/horovod"), "horovod", None),
        (told("x-1.whl", "https://pypi.python.org/packages/py3/x/x-name"), "x", None),
        (told("six-1.tar.gz", "https://pypi.python.org/packages/source/s/six/"), "six", None),
        (told("cmake-3.tar.gz", "https://github.com/Kitware/CMake/releases/download/v3"), None, None),
        (told("nothing.tar.gz"), None, ()),
        (
            told("saved.tar.gz", "https://d.org/a/", "https://e.org/b", download_filename="v1.tar.gz"),
            None,
            ("https://d.org/a/v1.tar.gz", "https://e.org/b/v1.tar.gz"),
        ),
    ],
)
def test_sources_with_their_project_and_urls(
    one: dict[str, Any], project: str | None, urls: tuple[str, ...] | None
) -> None:
    made = eb_command.source(one, "/r/Toy-1.0.eb", "Toy")
    assert made.project == project
    assert made.urls == (tuple(one["urls"]) if urls is None else urls)
    assert (made.place, made.needed_by) == (one["filename"], "Toy-1.0.eb")


@pytest.mark.parametrize(
    ("module", "lacking"),
    [
        ("CUDA/11.7.0", "Hopper (sm_90: H100, H200, GH200) and Blackwell"),
        ("system/CUDA/11.8.0", "makes no code for Blackwell"),
        ("CUDAcore/12.6", "makes no code for Blackwell"),
        ("CUDA/12.8.0", ""),
        ("NCCL/2.12.12-GCCcore-11.3.0-CUDA-11.7.0", ""),
    ],
)
def test_gpus_that_an_old_cuda_does_not_know(module: str, lacking: str) -> None:
    made = Plan(stack="toy", steps=(Step(module=module, easyconfig="/r/x.eb"),), robot=())
    lines = list(eb_command.cuda_limits(made))
    assert len(lines) == bool(lacking)
    assert all(lacking in line for line in lines)


@pytest.mark.parametrize(("software", "folder"), [("FlexiBLAS", "f/FlexiBLAS"), ("4ti2", "0/4ti2")])
def test_sources_of_the_collection_lie_by_software(software: str, folder: str) -> None:
    recipe = easybuild_collection() / "x" / software / f"{software}-1.eb"
    made = eb_command.source(told("v3.2.0.tar.gz", "https://d.org"), str(recipe), software)
    assert (made.place, made.filename) == (f"{folder}/v3.2.0.tar.gz", "v3.2.0.tar.gz")
    assert made.urls == ("https://d.org",)


@pytest.mark.parametrize(
    ("version", "usable"),
    [
        ("3.17.9", False),
        ("3.18", True),
        ("3.18.0", True),
        ("3.25.1", True),
        ("3.31.10", True),
        ("3.30.0-rc2", True),
        ("4.0.0", False),
        ("4.1.2", False),
        ("3.18.0-dirty", False),
        ("", False),
    ],
)
def test_cmake_that_builds_horovod(version: str, usable: bool) -> None:
    assert eb_command.usable_cmake(program(version)) is usable


def test_no_cmake_is_not_usable() -> None:
    assert not eb_command.usable_cmake(None)


@pytest.mark.parametrize(
    ("prefix", "compiler", "refused"),
    [
        ("{here}", "gcc", False),
        ("/nowhere", "gcc", True),
        ("{here}", "/opt/gcc/bin/gcc", True),
        ("{here}", "nvc", True),
    ],
)
def test_which_open_mpi_easybuild_refuses(prefix: str, compiler: str, refused: bool, tmp_path: Path) -> None:
    """One that was moved, or that another compiler than gcc has compiled; then it is reached by scripts."""
    told = f"  Package: x\n  Prefix: {prefix.format(here=tmp_path)}\n  C compiler: {compiler}\n"
    (tmp_path / "ompi_info.openmpi").write_text(f"#!/bin/sh\nprintf '%s' '{told}'\n")
    (tmp_path / "ompi_info.openmpi").chmod(0o755)
    mpi = Program(path=tmp_path / "mpirun.openmpi", version="5.0.3", family="Open MPI")
    assert eb_command.is_refused(mpi, dict(os.environ)) is refused
    assert not eb_command.is_refused(replace(mpi, path=tmp_path / "mpirun"), dict(os.environ))  # which tells nothing


@pytest.mark.parametrize(
    ("mpi", "cmake", "expected"),
    [
        (program("4.1.4", "Open MPI"), program("3.25.1"), []),
        (program("4.0.2", "MPICH"), program("3.25.1"), ["embedded/openmpi"]),
        (program("8.1.32", "Cray MPICH"), program("3.25.1"), ["embedded/openmpi", "cray"]),
        (None, program("4.0.0"), ["embedded/openmpi", "embedded/cmake"]),
        (program("5.0.3", "Open MPI"), None, ["embedded/cmake"]),
    ],
)
def test_what_stands_in_for_what_the_host_lacks(
    mpi: Program | None,
    cmake: Program | None,
    expected: list[str],
    machine: Machine,
    prefix: Prefix,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eb_command, "is_first", lambda *_: True)
    lacking = machine(mpi=mpi, cmake=cmake)
    tree = prefix.tree(lacking.platform)
    assert eb_command.stand_ins(lacking, tree) == expected
    assert all((recipes("easyconfigs") / name).is_dir() for name in expected)
    for module in ("OpenMPI", "CMake", "MPICH"):
        (tree.modulepath / module).mkdir(parents=True)
        (tree.modulepath / module / "system.lua").touch()
    assert eb_command.stand_ins(lacking, tree) == []


def test_an_open_mpi_that_is_not_the_first_on_path_is_reached_by_scripts(
    machine: Machine, prefix: Prefix, fake: Callable[..., Path]
) -> None:
    """EasyBuild's SystemMPI asks mpirun and mpicc as they come; those of another MPI come first here."""
    own = [fake(name, "exit 0", folder="own") for name in ("mpirun", "mpicc")]
    other = [fake(name, "exit 0", folder="other") for name in ("mpirun", "mpicc")]
    here = replace(program("5.0.3", "Open MPI"), path=own[0])
    for first, second, expected in ((own, other, []), (other, own, ["wrapped"])):
        path = f"{first[0].parent}:{second[0].parent}"
        seen = machine(mpi=here, cmake=program("3.25.1"), env={"PATH": path})
        assert eb_command.stand_ins(seen, prefix.tree(seen.platform)) == expected
    by_variant = replace(here, path=own[0].with_name("mpirun.openmpi"))
    assert not eb_command.is_first(by_variant, {"PATH": f"{own[0].parent}:{other[0].parent}"})
    own[1].unlink()
    assert not eb_command.is_first(here, {"PATH": f"{own[0].parent}:{other[0].parent}"})


def test_what_stood_in_when_it_was_built_still_does(machine: Machine, prefix: Prefix) -> None:
    """The host has got an Open MPI since."""
    here = machine(mpi=program("5.0.7", "Open MPI"), cmake=program("3.25.1"))
    tree = prefix.tree(here.platform)
    (tree.modulepath / "OpenMPI").mkdir(parents=True)
    (tree.modulepath / "OpenMPI" / "system.lua").touch()
    recipe = recipes("easyconfigs") / "embedded" / "openmpi" / "OpenMPI-system.eb"
    record = receipt.Built(module="OpenMPI/system", easyconfig=str(recipe), sha256="0" * 64, seconds=1.0)
    path = receipt.built_path(tree, "OpenMPI/system")
    path.parent.mkdir()
    path.write_bytes(msgspec.json.encode(record))
    assert eb_command.stand_ins(here, tree) == ["embedded/openmpi"]


def test_recipe_folders(machine: Machine, prefix: Prefix, tmp_path: Path) -> None:
    bare = machine(mpi=None)
    tree = prefix.tree(bare.platform)
    own, collection = str(recipes("easyconfigs")), str(easybuild_collection())
    stack = from_recipe("Horovod-0.28.1-gompi-system-PyTorch-2.13.0.eb")
    assert eb_command.robot_path(bare, stack, tree) == (f"{own}/embedded/openmpi", own, collection)
    assert eb_command.robot_path(bare, from_recipe("GCC-system.eb"), tree) == (own, collection)
    toy = from_recipe(str(write(tmp_path / "Toy-1.0.eb", TOY)))
    assert eb_command.robot_path(bare, toy, tree) == (str(tmp_path), own, collection)


def test_eb_is_given_recipes_by_their_paths(tmp_path: Path) -> None:
    """A name would be that of a file in the folder that eb is in."""
    own, collection = recipes("easyconfigs"), easybuild_collection()
    eb = eb_command.Eb(words=(), env={}, robot=(str(tmp_path), str(own), str(collection)))
    in_front = write(tmp_path / "OpenMPI-system.eb", TOY)
    assert eb_command.placed(eb, "OpenMPI-system.eb") == str(in_front)
    assert eb_command.placed(eb, "CMake-system.eb") == str(own / "CMake-system.eb")
    assert eb_command.placed(eb, REFERENCE) == str(collection / "h" / "Horovod" / REFERENCE)
    assert eb_command.placed(eb, str(in_front)) == str(in_front)
    assert eb_command.placed(replace(eb, robot=(str(own),)), REFERENCE) == REFERENCE, "that of EESSI's EasyBuild"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_hooks_of_the_site_and_the_user(tmp_path: Path) -> None:
    folders = {"XDG_CONFIG_HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": f"{tmp_path}/first:{tmp_path}/second"}
    assert eb_command.site_hooks(folders) is None
    for place in ("second/easybuild.d/a", "first/easybuild.d/a", "first/easybuild.d/b", "home/easybuild/config"):
        write(tmp_path / f"{place}.cfg", f"[MAIN]\nprefix = %(x)s\n[override]\nhooks = /{place}.py\n")
        assert eb_command.site_hooks(folders) == Path(f"/{place}.py")
    assert eb_command.site_hooks({**folders, "EASYBUILD_HOOKS": "/named.py"}) == Path("/named.py")
    write(tmp_path / "home/easybuild/config.cfg", "this is no configuration\n")
    assert eb_command.site_hooks(folders) == Path("/first/easybuild.d/b.py")


def test_eb_needs_a_modules_tool(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(HostProblem, match="needs a modules tool"):
        eb_command.bundled_eb(machine(modules_tool=None), from_recipe("GCC-system.eb"), Tree(root=tmp_path))


def test_eb_gets_no_configuration_of_the_site(machine: Machine, tmp_path: Path) -> None:
    env = eb_command.bundled_eb(machine(), from_recipe("GCC-system.eb"), Tree(root=tmp_path)).settings(tmp_path)
    assert env["XDG_CONFIG_HOME"] == env["XDG_CONFIG_DIRS"] == str(tmp_path)
    assert {name for name in env if name.startswith("EASYBUILD_")} <= {
        "EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES"
    }


@pytest.fixture
def real(lmod: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """This machine, with a cache and configuration of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return host.detect()


def kept(tmp_path: Path) -> dict[str, int]:
    """The plans in the cache and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cache/envkit/plans").iterdir()}


@pytest.mark.integration
def test_a_plan_is_kept_until_a_recipe_of_it_changes(real: Host, prefix: Prefix, tmp_path: Path) -> None:
    recipe = write(tmp_path / "recipes/Toy-1.0.eb", TOY)
    stack = from_recipe(str(recipe))
    eb = eb_command.bundled_eb(real, stack, prefix.tree(real.platform))
    made = eb_command.plan(eb, stack)
    assert made.steps == (Step(module="Toy/1.0", easyconfig=str(recipe)),)
    written = kept(tmp_path)
    assert eb_command.plan(eb, stack) == made
    assert kept(tmp_path) == written
    recipe.write_text(TOY + "osdependencies = [('make', 'gmake')]\n")
    assert eb_command.plan(eb, stack).steps[0].os_dependencies == (("make", "gmake"),)
    assert kept(tmp_path) != written
    [path] = (tmp_path / "cache/envkit/plans").iterdir()
    path.write_text("{")
    assert eb_command.read_cached(path) is None


@pytest.mark.integration
def test_a_recipe_that_eb_cannot_resolve(real: Host, prefix: Prefix, tmp_path: Path) -> None:
    recipe = write(tmp_path / "recipes/Toy-1.0.eb", TOY + "dependencies = [('Nowhere', '9')]\n")
    with pytest.raises(PlanFailed, match=re.escape(f"EasyBuild cannot resolve {recipe}.")) as failed:
        stack = from_recipe(str(recipe))
        eb_command.plan(eb_command.bundled_eb(real, stack, prefix.tree(real.platform)), stack)
    assert "Nowhere" in failed.value.why


@pytest.mark.integration
def test_a_build_tells_its_events_and_calls_the_hooks_of_the_site(
    real: Host, prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write(tmp_path / "recipes/Toy-1.0.eb", TOY)
    monkeypatch.setenv("EASYBUILD_HOOKS", str(write(tmp_path / "site/hooks.py", SITE_HOOKS)))
    step = Step(module="Toy/1.0", easyconfig=str(recipe))
    robot = (str(recipe.parent), str(easybuild_collection()))
    folder = tmp_path / "log"
    folder.mkdir()
    tree = prefix.tree(real.platform)
    job = eb_command.Build(
        machine=real,
        eb=replace(eb_command.bundled_eb(real, from_recipe(str(recipe)), tree), ccache=False),
        prefix=prefix,
        tree=tree,
        plan=Plan(stack="toy", steps=(step,), robot=robot),
        folder=folder,
        jobs=1,
    )
    status = eb_command.build(job, lambda: None)
    assert status == 0, job.log.read_text()
    events = [json.loads(line) for line in job.events.read_text().splitlines()]
    kinds = [event["event"] for event in events if event["event"] not in ("step", "command")]
    assert kinds == ["plan", "begin", "module", "ended"]
    assert events[0]["modules"] == ["Toy/1.0"]
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps[0] == "fetch" and "sanitycheck" in steps
    assert tree.has("Toy/1.0")
    assert (tree.modulepath / "Toy/1.0.lua").read_text().endswith("-- by the site\n")
    assert (tree.root / "modules/tools/Toy/1.0.lua").exists()
    assert (tmp_path / "site/called").read_text() == "Toy"


def test_what_was_compiled_in_one_prefix_is_found_in_another(
    machine: Callable[..., Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the settings that eb gets, the real ccache knows a file again that lies elsewhere, also with -g."""
    monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "cache"))
    started: list[tuple[list[str], dict[str, str]]] = []

    def supervise(argv: list[str], env: dict[str, str], **_: object) -> int:
        started.append((argv, env))
        return 0

    monkeypatch.setattr(process, "supervise", supervise)
    recipe = write(tmp_path / "recipes/Toy-1.0.eb", TOY)
    for name in ("one", "another/deeper"):
        prefix = Prefix(root=tmp_path / name)
        tree = prefix.tree(Platform.own())
        here = machine()
        eb = replace(eb_command.bundled_eb(here, from_recipe(str(recipe)), tree), ccache=True)
        plan = Plan(stack="toy", steps=(Step(module="Toy/1.0", easyconfig=str(recipe)),), robot=())
        eb_command.build(
            eb_command.Build(
                eb=eb, machine=here, prefix=prefix, tree=tree, plan=plan, folder=tree.root / "log", jobs=1
            ),
            lambda: None,
        )
        argv, env = started[-1]
        [folder] = [word.partition("=")[2] for word in argv if word.startswith("--use-ccache=")]
        write(tree.root / "software/toy.h", "#define TOY 1\n")
        code = write(tree.root / "build/Toy/toy.c", '#include "toy.h"\nint toy = TOY; char *place = __FILE__;\n')
        compile_ = ["ccache", "gcc", "-g", f"-I{tree.root}/software", "-c", str(code), "-o", "toy.o"]
        subprocess.run(compile_, cwd=code.parent, env={**env, "CCACHE_DIR": folder}, check=True)
    told = subprocess.run(
        ["ccache", "--print-stats"], env={**env, "CCACHE_DIR": folder}, capture_output=True, text=True, check=True
    )
    counts = dict(line.split("\t") for line in told.stdout.splitlines())
    assert (counts["cache_miss"], counts["direct_cache_hit"]) == ("1", "1")


def easyblocks() -> dict[str, tuple[set[str], set[str | None]]]:
    """Each class of EasyBuild's easyblocks: those below it, and the licences it asks for (None: its own name)."""
    found = {}
    for path in Path(eb_command.site_packages(), "easybuild", "easyblocks").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "class " in text else ():
            if isinstance(node, ast.ClassDef):
                asked = {
                    next((ast.literal_eval(k.value) for k in call.keywords if k.arg == "name"), None)
                    for call in ast.walk(node)
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "self.check_accepted_eula"
                }
                found[node.name] = ({ast.unparse(base) for base in node.bases}, asked)
    return found


@pytest.mark.integration
def test_every_easyblock_that_asks_for_a_licence_is_known() -> None:
    classes = easyblocks()

    def asked(name: str) -> set[str | None]:
        bases, own = classes.get(name, (set(), set()))
        return own or {licence for base in bases for licence in asked(base)}

    named = {name.removeprefix("EB_").replace("_minus_", "-"): asked(name) for name in classes if name[:3] == "EB_"}
    expected = {name: licences.pop() or name for name, licences in named.items() if licences}
    table = eb_command.rules()["eula"]
    assert {"CUDA": "CUDA", "CUDAcompat": "NVIDIA-driver", "impi": "Intel-oneAPI"}.items() <= expected.items()
    assert {name: table.get(name) for name in expected.keys() - WITHOUT_LICENCE} == {
        name: licence for name, licence in expected.items() if name not in WITHOUT_LICENCE
    }
    assert set(table.values()) <= set(expected.values())


@pytest.mark.parametrize(
    ("software", "easyblock"),
    [("CUDAcore", "EB_CUDA"), ("IntelClusterChecker", "IntelBase")],
)
def test_recipes_that_borrow_an_easyblock_with_a_licence(software: str, easyblock: str) -> None:
    texts = [path.read_text() for path in (easybuild_collection() / software[0].lower() / software).glob("*.eb")]
    assert any(re.search(rf"easyblock = ['\"]{easyblock}['\"]", text) for text in texts)
    assert software in eb_command.rules()["eula"]


def test_what_eb_is_given_has_no_password() -> None:
    proxy = "http://me:secret@proxy:3128"
    kept = {"https_proxy": "http://proxy:3128", "no_proxy": "a,b", "PATH": "/usr/bin", "LMOD_X": "me@site"}
    assert eb_command.without_passwords({**kept, "http_proxy": proxy, "ALL_PROXY": "socks5://token@p"}) == kept
    without_scheme = {"http_proxy": "me:secret@proxy:3128", "HTTPS_PROXY": "token@proxy:3128", "X": "me:secret@host"}
    assert eb_command.without_passwords({**kept, **without_scheme}) == kept
    odd = {"X": "me:secret@sha1.example.org", "SITE_PROXY_URL": "me:a/secret@host", "MY_INDEX": "secret@host"}
    assert eb_command.without_passwords({**kept, **odd}) == kept


def test_plans_are_not_kept_behind_a_link(tmp_path: Path) -> None:
    """What it leads to would be closed to all others."""
    (tmp_path / "theirs").mkdir(mode=0o755)
    (tmp_path / "plans").symlink_to(tmp_path / "theirs")
    eb_command.write_cached(tmp_path / "plans" / "s.json", Plan(stack="s", steps=(), robot=()))
    trial_compiles.keep(tmp_path / "plans" / "t.json", trial_compiles.TrialResult())
    assert list((tmp_path / "theirs").iterdir()) == []
    assert stat.S_IMODE((tmp_path / "theirs").stat().st_mode) == 0o755


def test_a_plan_of_another_user_is_not_read(tmp_path: Path) -> None:
    resolved, path = Plan(stack="s", steps=(), robot=()), tmp_path / "plans" / "s.json"
    eb_command.write_cached(path, resolved)
    assert eb_command.read_cached(path) == resolved
    path.chmod(0o620)
    assert eb_command.read_cached(path) is None
    path.chmod(0o600)
    path.parent.chmod(0o720)
    assert eb_command.read_cached(path) is None
    eb_command.write_cached(path, resolved)
    assert eb_command.read_cached(path) == resolved
    path.write_text("[" * 200_000)
    assert eb_command.read_cached(path) is None


def test_an_estimate_says_what_it_does_not_know(tmp_path: Path) -> None:
    """What a recipe of EasyBuild's collection takes is not guessed, unless it was built here before."""
    tree, own = Tree(root=tmp_path), f"{recipes('easyconfigs')}/x.eb"
    horovod = Step(module="Horovod/1", easyconfig=own)
    system = Step(module="GCC/system", easyconfig=PATHS[0])
    tools = Step(module="Python-tools/1", easyconfig=own)
    foss = [Step(module=f"Foss{number}/1", easyconfig="/elsewhere/Foss.eb") for number in range(7)]
    seconds = {"Horovod/1": 165}
    assert build.estimate(tree, [system, tools, horovod], seconds) == "About 3 minutes on two cores."
    assert build.estimate(tree, [system, tools], seconds) == ""
    assert build.estimate(tree, [], seconds) == ""
    assert build.estimate(tree, [horovod], {"Horovod/1": 20}) == "About 1 minute on two cores."
    assert build.estimate(tree, foss[:2], {}) == "How long this takes is not known, hours perhaps: Foss0/1, Foss1/1."
    told = build.estimate(tree, [*foss, horovod], seconds)
    assert told == (
        "About 3 minutes on two cores, and longer for what was never built here: Foss0/1, Foss1/1, Foss2/1, Foss3/1, "
        "Foss4/1, and 2 more."
    )
    for one in foss:
        measured = receipt.Built(module=one.module, easyconfig=one.easyconfig, sha256="0" * 64, seconds=600.0)
        receipt.write(receipt.built_path(tree, one.module), measured)
    assert build.estimate(tree, [*foss, horovod], seconds) == "About 73 minutes."


def test_every_addition_has_a_time() -> None:
    """Where its stack has one."""
    seconds = {stack.name: stack.seconds for stack in stacks()}
    for extra in extras.known().values():
        for stack, recipe in extra.recipes.items():
            module = re.sub(r"-(?=\d)", "/", recipe.removesuffix(".eb"), count=1)
            assert not seconds[stack] or module in seconds[stack]
