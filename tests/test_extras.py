"""What is added to a stack: which stack has what, what is said of the rest, and how it goes in and out."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from envkit.cli import run
from envkit.easybuild import eb_command, method, mpi
from envkit.easybuild.receipt import ModuleReceipt
from envkit.easybuild.removal import remove_module
from envkit.environments import receipt
from envkit.environments.lockfile import Lock, LockedMachine, LockedPart
from envkit.environments.prefix import Prefix, Tree
from envkit.errors import UsageProblem
from envkit.install import removal
from envkit.machine.host import Platform
from envkit.methods import installed
from envkit.planning import extras
from envkit.planning.request import Request
from envkit.planning.stack import Stack, stacks
from envkit.system.resources import recipes

Install = Callable[..., ModuleReceipt]
Output = pytest.CaptureFixture[str]
STACKS = {stack.name: stack for stack in stacks()}
TORCH = STACKS["pytorch-2.13-cpu"]
PINS = re.compile(r"'([\w.+-]+\.whl)':\s+'([0-9a-f]{64})'")
PAGE = Path(__file__).parent.parent / "docs" / "packages.md"


@pytest.mark.parametrize(("name", "stack"), [(n, s) for n, one in extras.known().items() for s in one.recipes])
def test_each_has_a_recipe_for_each_mpi_of_its_stack(name: str, stack: str) -> None:
    made = extras.added(STACKS[stack], [name])
    for variant in mpi.variants(made).values():
        assert (Path(recipes("easyconfigs")) / variant.extras[name]).is_file()


def test_each_can_be_had_or_it_is_said_why_not() -> None:
    for name, one in extras.known().items():
        assert bool(one.recipes and one.imports) != bool(one.absent), name


@pytest.mark.parametrize("stack", [one for one in STACKS if extras.of_stack(one)])
def test_a_package_that_the_stack_has_too_is_the_same_file(stack: str) -> None:
    """And one that two extras have."""
    folder = Path(recipes("easyconfigs"))
    own = [one.recipes[stack] for one in extras.known().values() if stack in one.recipes]
    parts = [STACKS[stack].easyconfig, *(re.split(r"-\d[\d.]*-", recipe, maxsplit=1)[1] for recipe in own), *own]
    there: dict[str, frozenset[tuple[str, str]]] = {}
    for recipe in parts:
        for package, pins in pinned(folder / recipe):
            assert there.setdefault(package.lower(), pins) == pins, (recipe, package)


def pinned(recipe: Path) -> list[tuple[str, frozenset[tuple[str, str]]]]:
    """The wheels that a recipe pins, by package."""
    found = PINS.findall(recipe.read_text())
    names = dict.fromkeys(wheel.partition("-")[0] for wheel, _ in found)
    return [(name, frozenset(one for one in found if one[0].partition("-")[0] == name)) for name in names]


@pytest.mark.parametrize(
    ("stack", "name", "says", "fix"),
    [
        ("pytorch-2.13-cpu", "h5py", "h5py is part of tutorials", "Use --with tutorials."),
        ("pytorch-2.13-cpu", "torchvision", "libtorch_cuda.so", "envkit venv pytorch-2.13-cpu DIR"),
        ("pytorch-2.13-cpu", "torchaudio", "libtorch_cuda.so", "envkit venv pytorch-2.13-cpu DIR"),
        ("tensorflow-2.21-cpu", "torchvision", "It has: mpi4py, tutorials, tensorflow-datasets.", "envkit venv"),
        ("tensorflow-2.21-cpu", "tfds", "tfds is part of tensorflow-datasets", "Use --with tensorflow-datasets."),
        ("pytorch-2.13-cpu", "nothing", "It has: mpi4py, tutorials, lightning.", "envkit venv"),
        ("pytorch-2.13-cpu", "tensorflow-datasets", "It has: mpi4py, tutorials,", "has it: tensorflow-2.21-cpu."),
        ("tensorflow-2.13-rocm", "mpi4py", "It has none.", "Use a stack that has it: pytorch-2.13-cpu,"),
        ("tensorflow-2.13-rocm", "nothing", "It has none.", "Leave it out."),
    ],
)
def test_what_a_stack_does_not_have_is_refused(stack: str, name: str, says: str, fix: str) -> None:
    with pytest.raises(UsageProblem, match=f"{stack} has no extra named '{name}'") as refused:
        extras.added(STACKS[stack], [name])
    assert says in refused.value.why and fix in refused.value.fix


@pytest.mark.parametrize("wanted", [(), ("pytorch",), ("--framework", "pytorch")])
def test_where_the_method_is_open_an_extra_of_no_stack_is_a_mistake(wanted: tuple[str, ...], capsys: Output) -> None:
    """Not something that this machine lacks."""
    assert run(["install", *wanted, "--with", "nothing", "--dry-run"]) == 2
    assert "pytorch-2.13-cpu has no extra named 'nothing'" in capsys.readouterr().err


def test_methods_without_any_refuse_them(capsys: Output) -> None:
    assert run(["install", "pytorch-2.13-cpu-image", "--with", "mpi4py", "--dry-run"]) == 2
    assert "--with goes with --method easybuild" in capsys.readouterr().err


def test_the_last_step_is_the_stacks_own() -> None:
    fact = {"event": "easyconfig", "name": "x", "accept_eula": False, "os_dependencies": [], "sources": []}
    facts = {f"/r/{name}.eb": {**fact, "patches": [], "dependencies": []} for name in ("Base", "Top", "Added", "Other")}
    facts["/r/Top.eb"]["dependencies"] = facts["/r/Added.eb"]["dependencies"] = ["Base"]
    listing = "".join(f" * [ ] /r/{name}.eb (module: {name})\n" for name in ("Base", "Top", "Other", "Added"))
    made = eb_command.steps(listing, facts, ["Added.eb", "Top.eb"])
    assert [step.module for step in made] == ["Base", "Added", "Top"]


def test_it_is_entered_shown_and_removed_with_its_environment(
    install: Install, prefix: Prefix, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = install("toy-cpu", "Python/system", "Added/1.0", "Toy/1.0", extras={"added": "Added/1.0"})
    monkeypatch.setenv("ENVKIT_PREFIX", str(prefix.root))
    assert made.environment.modules == ("Toy/1.0", "Added/1.0")
    assert run(["show", "toy-cpu"]) == 0
    shown = capsys.readouterr().out
    assert "Extras:     added" in shown and "module load Toy/1.0 Added/1.0" in shown
    assert run(["list", "--installed"]) == 0
    assert "with added" in capsys.readouterr().out
    assert run(["list", "--installed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["environments"][0]["extras"] == ["added"]
    removal.remove(prefix, "toy-cpu", dependencies=False, console=Console(file=io.StringIO()))
    tree = Tree(root=Path(made.tree))
    assert [tree.has(one) for one in ("Toy/1.0", "Added/1.0", "Python/system")] == [False, False, True]


def test_one_that_has_gone_is_damage(install: Install, prefix: Prefix) -> None:
    made = install("toy-cpu", "Python/system", "Added/1.0", "Toy/1.0", extras={"added": "Added/1.0"})
    assert not made.damage()
    remove_module(Tree(root=Path(made.tree)), "Added/1.0")
    assert "its module Added/1.0 has gone" in made.damage()


@pytest.mark.parametrize("named", [{"a b": "Added/1.0"}, {"added": "; touch /tmp/x"}])
def test_a_receipt_with_what_cannot_be_one_is_refused(named: dict[str, str], install: Install) -> None:
    made = install("toy-cpu", extras=named)
    assert made.validation_error()


def test_what_is_asked_for_later_makes_it_another_one(install: Install, prefix: Prefix) -> None:
    made = install(TORCH.name, "Python/system", "Toy/1.0", extras={"mpi4py": "Toy/1.0"})
    for asked, is_other in ((), False), (("mpi4py",), False), (("tutorials",), True):
        assert method.is_other(Request(prefix=prefix, extras=asked), TORCH, made) is is_other
    assert method.request_of(prefix, made).extras == ("mpi4py",)  # a repair and an upgrade keep it
    assert receipt.extras(Tree(root=Path(made.tree)), TORCH.name) == ["mpi4py"]
    assert installed.find(prefix, TORCH.name).extras == {"mpi4py": "Toy/1.0"}


def test_a_receipt_of_an_earlier_envkit_has_none(install: Install, prefix: Prefix) -> None:
    made = install("toy-cpu")
    path = receipt.path_of(prefix.tree(Platform.own()), "toy-cpu")
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "extras"}))
    assert installed.read(path) == made


def test_a_lock_names_them() -> None:
    part = LockedPart(name="mpi4py/4", recipe="mpi4py-4.1.2-gompi-system.eb", sha256="0" * 64)
    locked = Lock(
        name=TORCH.name, method="easybuild", framework="pytorch", accelerator="cpu", release="",
        machine=LockedMachine(type="x86_64"), tools={}, parts=(part,),
    )  # fmt: skip
    assert extras.in_lock(locked) == ("mpi4py",)
    assert extras.in_lock(msgspec.structs.replace(locked, parts=())) == extras.in_lock(None) == ()


def test_a_plan_says_what_there_is() -> None:
    made: Stack = extras.added(TORCH, ["mpi4py"])
    told = [line.split()[:2] for line in extras.lines(made)]
    assert told == [
        ["With:", "mpi4py"],
        ["Without:", "tutorials:"],
        ["Without:", "lightning:"],
        ["Absent:", "torchvision:"],
        ["Absent:", "torchaudio:"],
    ]
    assert [*extras.lines(STACKS["tensorflow-2.13-rocm"])] == []


def test_the_page_has_every_one() -> None:
    for name, one in extras.known().items():
        assert f"`{name}`" in PAGE.read_text(), name
        assert all(package in PAGE.read_text().lower() for package in one.packages)
