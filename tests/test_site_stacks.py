"""Stacks that a site offers: what its file may say, what becomes of it, and who may write it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from envkit.cli import run
from envkit.environments.prefix import Prefix
from envkit.errors import ConfigInvalid
from envkit.install import preference
from envkit.machine.host import Accelerator, Platform
from envkit.planning import site_stacks
from envkit.planning.request import Request
from envkit.planning.stack import from_recipe, own_stacks, select, stacks

Write = Callable[[str], Path]
PLATFORM = Platform(machine="x86_64", python="3.11")
RECIPE = "Horovod-0.28.1-gompi-system-PyTorch-2.13.0-ours.eb"
OURS = f"""["pytorch-2.13-ours"]
easyconfig = "recipes/{RECIPE}"
framework = "pytorch"
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the file of a site with a recipe beside it."""
    path = tmp_path / "offers" / "stacks.toml"
    (path.parent / "recipes").mkdir(parents=True)
    (path.parent / "recipes" / RECIPE).write_text("name = 'Horovod'\n")
    monkeypatch.setenv("ENVKIT_STACKS", str(path))

    def make(text: str) -> Path:
        path.write_text(text)
        return path

    return make


def test_without_a_file_there_are_envkits_own() -> None:
    assert stacks() == own_stacks() and not any(stack.of_site for stack in stacks())


def test_a_stack_of_the_site(write: Write) -> None:
    path = write(f'{OURS}requires = ["mpi", "gloo"]\nnote = "for us"\ndisk_mb = 5\nmachines = ["x86_64"]\n')
    assert stacks()[:-1] == own_stacks()
    ours = stacks()[-1]
    assert ours.of_site and (ours.name, ours.method, ours.accelerator) == ("pytorch-2.13-ours", "easybuild", "cpu")
    assert ours.easyconfig == str(path.parent / "recipes" / RECIPE)
    assert ours.module == "Horovod/0.28.1-gompi-system-PyTorch-2.13.0-ours"
    assert (ours.requires, ours.disk_mb, ours.status) == (("mpi", "gloo"), 5, "offered by your site; for us")
    assert ours.runs_on(PLATFORM) and not ours.runs_on(Platform(machine="aarch64", python="3.11"))
    assert select("pytorch-2.13-ours", platform=PLATFORM) == ours
    assert select("pytorch", platform=PLATFORM).name == "pytorch-2.13-cpu"  # it is not the default
    assert from_recipe(ours.easyconfig).name == Path(RECIPE).stem  # by its path it is called as ever


def test_a_stack_on_a_release_of_eessi(write: Write) -> None:
    write(f'{OURS}method = "eessi"\n')
    [ours] = [stack for stack in stacks() if stack.of_site]
    assert (ours.method, ours.release) == ("eessi", "2023.06")
    write(f'{OURS}method = "eessi"\nrelease = "2025.06"\n')
    assert stacks()[-1].release == "2025.06"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_default_of_the_site_is_taken_first(write: Write, device: str, tmp_path: Path) -> None:
    write(f'{OURS}default = true\naccelerator = "{device}"\n')
    assert select("pytorch", accelerator=device, platform=PLATFORM).name == "pytorch-2.13-ours"
    assert select("tensorflow", platform=PLATFORM).name == "tensorflow-2.21-cpu"
    request = Request(prefix=Prefix(root=tmp_path), wanted=None)
    [first, *_] = preference.candidates(request, [Accelerator(device)])
    assert first.name == "pytorch-2.13-ours"
    if device == "cuda":
        assert stacks()[-1].requires == ("cuda", "nccl")
        assert select("pytorch", platform=PLATFORM).name == "pytorch-2.13-cpu"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", ": this is not TOML: "),
        ("x = 1", ":1: 'x' is no table: write ['x'], and its keys below."),
        (OURS.replace('"', "", 2), ":1: pytorch-2: there is no table in a table; a name with a dot takes quotes"),
        (OURS.replace("-ours", "-cpu", 1), ":1: pytorch-2.13-cpu is a stack of envkit's own: give yours another"),
        (OURS.replace("pytorch-2.13-ours", "pytorch"), ":1: pytorch means any stack for it: give yours another name."),
        (OURS.replace("pytorch-2.13-ours", "../x"), ":1: '../x' cannot be the name of a stack: it has letters"),
        (OURS.replace("pytorch-2.13-ours", "x.eb"), ":1: 'x.eb' cannot be the name of a stack: it has letters"),
        (OURS.replace("-ours.eb", ".eb"), ":2: pytorch-2.13-ours: 'easyconfig': there is no file "),
        (OURS.replace("-ours.eb", ""), ":2: pytorch-2.13-ours: 'easyconfig': expected the path of a recipe, from"),
        (OURS.replace('"pytorch"', '"jax"'), ":3: pytorch-2.13-ours: 'framework': expected one of pytorch, tensor"),
        (OURS.replace('"pytorch"', "3"), ":3: pytorch-2.13-ours: 'framework': expected one of pytorch, tensor"),
        (OURS.partition("frame")[0], ":1: pytorch-2.13-ours: the key 'framework' is missing: expected one of "),
        (f"{OURS}defautl = true", ":4: pytorch-2.13-ours: there is no key 'defautl'. Did you mean 'default'?"),
        (f"{OURS}x = true", ":4: pytorch-2.13-ours: there is no key 'x'; there are easyconfig, framework, accelerator"),
        (f"{OURS}default = 1", ":4: pytorch-2.13-ours: 'default': expected true or false, found 1."),
        (f'{OURS}requires = ["mpi2"]', ":4: pytorch-2.13-ours: 'requires': expected a list of build flags: mpi, gloo,"),
        (f'{OURS}accelerator = "gpu"', ":4: pytorch-2.13-ours: 'accelerator': expected one of cpu, cuda, rocm, found"),
        (f'{OURS}method = "apptainer"', ":4: pytorch-2.13-ours: 'method': expected one of easybuild, eessi, found 'ap"),
        (f'{OURS}method = ["eessi"]', ":4: pytorch-2.13-ours: 'method': expected one of easybuild, eessi, found ['ee"),
        (f'{OURS}release = "2023.06"', ":1: pytorch-2.13-ours: 'release' is for the method eessi."),
        (f'{OURS}machines = "x86_64"', ":4: pytorch-2.13-ours: 'machines': expected a list of machine types, such as "),
        (f'{OURS}note = "a\\u001bb"', ":4: pytorch-2.13-ours: 'note': expected a line of text of at most 200 charact"),
        (f"{OURS}disk_mb = -1", ":4: pytorch-2.13-ours: 'disk_mb': expected a whole number of megabytes, not more"),
    ],
)  # fmt: skip
def test_mistakes(write: Write, text: str, said: str) -> None:
    path = write(text)
    with pytest.raises(ConfigInvalid, match="The stacks that your site offers cannot be read") as problem:
        stacks()
    [mistake] = problem.value.why.splitlines()
    assert mistake.startswith(f"{path}{said}")
    assert "docs/stacks.md" in problem.value.fix and problem.value.exit_code == 2


def test_a_method_that_is_a_list_with_a_release(write: Write) -> None:
    write(f'{OURS}method = ["eessi"]\nrelease = "2023.06"\n')
    with pytest.raises(ConfigInvalid) as problem:
        stacks()
    assert len(problem.value.why.splitlines()) == 2


def test_every_mistake_is_told_at_once_and_where_it_matters(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("[a]\nx = 1\n[b]\n")
    for command in ("list", "config", "install"):
        assert run([command]) == 2
        assert len([line for line in capsys.readouterr().err.splitlines() if "stacks.toml:" in line]) == 5
    assert run(["compat", "torch=2.13", "gcc=12"]) == 0


def test_a_file_that_is_not_there(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("").unlink()
    assert run(["list"]) == 2
    assert "There is no such file; it is named by ENVKIT_STACKS." in capsys.readouterr().err


@pytest.fixture
def open_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user of the machine can get into, with what a site offers in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "offers" / "recipes" / "t" / "toy").mkdir(parents=True)
        (folder / "offers" / "recipes" / RECIPE).write_text("name = 'Horovod'\n")
        (folder / "offers" / "recipes" / "toy.patch").touch()
        (folder / "offers" / "recipes" / "t" / "toy" / "toy-1.0.eb").touch()
        (folder / "offers" / "stacks.toml").write_text(OURS)
        monkeypatch.setenv("ENVKIT_STACKS", str(folder / "offers" / "stacks.toml"))
        yield folder


PLACES = [
    ".", "offers", "offers/stacks.toml", "offers/recipes", f"offers/recipes/{RECIPE}", "offers/recipes/toy.patch",
    "offers/recipes/t", "offers/recipes/t/toy", "offers/recipes/t/toy/toy-1.0.eb",
]  # fmt: skip


@pytest.mark.parametrize("which", PLACES)
def test_what_others_can_change_is_not_used(open_folder: Path, which: str) -> None:
    assert stacks()[-1].of_site
    place = open_folder / which
    place.chmod(place.stat().st_mode | 0o002)
    with pytest.raises(ConfigInvalid) as problem:
        stacks()
    assert problem.value.why == f"{place}: Everybody may write to it, who may not say what counts for you."


@pytest.mark.parametrize(
    "link", [f"offers/recipes/{RECIPE}", "offers/stacks.toml", "offers/recipes", "offers/recipes/x"]
)
def test_where_a_link_leads_counts(open_folder: Path, link: str) -> None:
    """What is beside its target could be put in the place of that."""
    elsewhere = open_folder / "elsewhere"
    elsewhere.mkdir()
    place, target = open_folder / link, elsewhere / "target"
    if place.exists():
        place.rename(target)
    else:
        target.mkdir()
    place.symlink_to(target)
    assert stacks()[-1].of_site
    elsewhere.chmod(0o777)
    with pytest.raises(ConfigInvalid) as problem:
        stacks()
    assert problem.value.why.startswith(f"{elsewhere}: Everybody may write to it")


def test_what_an_editor_leaves_beside_it_is_no_matter(open_folder: Path) -> None:
    (open_folder / f"offers/recipes/.#{RECIPE}").symlink_to("ada@login1.4711:1700000000")
    (open_folder / "offers/recipes/loop.eb").symlink_to("loop.eb")
    (open_folder / "offers/recipes/up").symlink_to("..")
    (open_folder / "offers/recipes/notes.txt").touch(0o666)
    assert stacks()[-1].of_site


@pytest.mark.parametrize("machines", ['["aarch64"]', '["riscv64", "aarch64"]'])
def test_one_for_another_machine_type_is_refused_here(
    write: Write, machines: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if os.uname().machine in machines:
        pytest.skip("it is for this machine")
    write(f"{OURS}machines = {machines}\n")
    assert run(["list", "--json", "--prefix", str(tmp_path / "none")]) == 0
    [ours] = [line for line in json.loads(capsys.readouterr().out)["environments"] if line["name"].endswith("-ours")]
    assert ours["state"] == "lacks" and ours["why"] == f"pytorch-2.13-ours is not for {os.uname().machine}."
    assert run(["install", "pytorch-2.13-ours", "--prefix", str(tmp_path / "none"), "--offline"]) == 3
    assert "It can be installed on" in capsys.readouterr().err


def test_one_default_of_each_kind(write: Write) -> None:
    again = OURS.replace("-ours", "-more", 1)
    path = write(f"{OURS}default = true\n{again}default = true\n")
    with pytest.raises(ConfigInvalid) as problem:
        stacks()
    assert problem.value.why == (
        f"{path}:8: pytorch-2.13-more: 'default': pytorch-2.13-ours is the one for pytorch on cpu already."
    )
    write(f'{OURS}default = true\n{again}default = true\naccelerator = "cuda"\n')
    assert [stack.name for stack in stacks() if stack.of_site and stack.default] == [
        "pytorch-2.13-ours", "pytorch-2.13-more",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "device"),
    [("Horovod-1-CUDA-12.1.1.eb", "cuda"), ("Horovod-1-rocm.eb", "rocm"), ("barracuda-1.eb", "cpu"), ("x-1.eb", "cpu")],
)
def test_the_device_in_the_name_of_a_recipe(recipe: str, device: str) -> None:
    assert site_stacks.device_in(recipe) == device


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_whose_it_may_be(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(OURS)
    os.chown(path.parent / "recipes" / RECIPE, 12345, -1)
    with pytest.raises(ConfigInvalid, match="cannot be read") as problem:
        stacks()
    assert "It belongs to 12345" in problem.value.why
    monkeypatch.setenv("ENVKIT_TRUST", "12345")
    assert stacks()[-1].of_site


def test_the_list_has_it(write: Write, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(f'{OURS}note = "for us"\n')
    assert run(["list", "--json", "--prefix", str(tmp_path / "none")]) == 0
    [ours] = [line for line in json.loads(capsys.readouterr().out)["environments"] if line["name"].endswith("-ours")]
    assert (ours["built"], ours["status"]) == (None, "offered by your site; for us")
    assert run(["list", "--prefix", str(tmp_path / "none")]) == 0
    assert "offered by your site; for us" in capsys.readouterr().out


def test_the_page_has_every_key_and_a_file_that_can_be_read(write: Write) -> None:
    page = (Path(__file__).parents[1] / "docs/stacks.md").read_text().partition("## Stacks of your site\n")[2]
    rows = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert rows == {field.name for field in msgspec.structs.fields(site_stacks.Offer)}
    write(page.partition("```toml\n")[2].partition("```")[0])
    assert stacks()[-1].name == "pytorch-2.13-ours" and stacks()[-1].default


def test_the_doctor_tells_of_a_mistake_once(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write("[a]\nx = 1\n")
    run(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert f"{path}:2: a: there is no key 'x'; " in told["facts"]["configuration"][2]
    [easybuild] = [method for method in told["methods"] if method["method"] == "easybuild"]
    assert "The stacks that your site offers cannot be read" in json.dumps(easybuild)
    notes = json.dumps(told["notes"])
    assert str(path) in notes and "cannot be read" not in notes
