import ast
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.system.resources import recipes
from envkit.training import example, mnist

Output = pytest.CaptureFixture[str]
NAMES = [one.name for one in example.everything()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in of MNIST, below a folder."""
    return mnist.made(tmp_path_factory.mktemp("data")).folder


@pytest.fixture
def toy(install: Callable[..., ModuleReceipt], made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment with PyTorch, and the stand-in of MNIST; returns its folder."""
    install(horovod="/h")
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))
    return shutil.copytree(made, tmp_path / "prefix" / "data" / made.name)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_printed_to_be_copied(name: str, capsys: Output) -> None:
    assert run(["example", name]) == 0
    said = capsys.readouterr().out
    compile(said, name, "exec")
    assert "envkit" not in said and "import argparse" in said


def test_without_a_name_they_are_listed(capsys: Output) -> None:
    assert run(["example"]) == 0
    assert capsys.readouterr().out.splitlines() == example.listing().splitlines()


def test_an_unknown_one_lists_them_all(toy: Path, capsys: Output) -> None:
    assert run(["run", "toy-cpu", "--example", "help"]) == 2
    said = capsys.readouterr().err
    assert "There is no example 'help'." in said
    assert all(one.name in said and one.title in said for one in example.everything())


def test_one_for_another_framework_is_refused(toy: Path, capsys: Output) -> None:
    assert run(["run", "toy-cpu", "-n", "2", "--example", "tf-mnist"]) == 2
    assert "The example tf-mnist is for tensorflow, and toy-cpu has pytorch." in capsys.readouterr().err


def test_it_is_a_command_with_its_data(toy: Path, capsys: Output) -> None:
    assert run(["run", "toy-cpu", "--print", "--example", "pytorch-mnist", "--", "--epochs", "2"]) == 0
    said = capsys.readouterr()
    assert said.out.endswith(f"/examples/pytorch_mnist.py --data {toy} --epochs 2\n")
    assert "generated stand-in, not MNIST" in said.err


def test_a_line_that_is_only_printed_makes_no_data(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    prefix = tmp_path / "prefix"
    shutil.rmtree(prefix / "data", ignore_errors=True)
    before = sorted(prefix.rglob("*"))
    assert run(["run", "toy-cpu", "--print", "--example", "pytorch-mnist"]) == 0
    said = capsys.readouterr()
    assert f" --data {prefix}/data/mnist\n" in said.out
    assert "not there yet" in said.err and f"envkit data mnist --to {prefix}/data\n" in said.err
    assert sorted(prefix.rglob("*")) == before
    mnist.made(prefix / "data")
    assert run(["run", "toy-cpu", "--print", "--example", "pytorch-mnist"]) == 0
    assert f" --data {prefix}/data/mnist-generated\n" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--data", "/d"], ["--data=/d"]])
def test_data_that_are_named_are_taken(words: list[str], toy: Path, capsys: Output) -> None:
    assert run(["run", "toy-cpu", "--print", "--example", "pytorch-ddp-mnist", "--", *words]) == 0
    said = capsys.readouterr()
    assert said.out.endswith(f"/pytorch_ddp_mnist.py {' '.join(words)}\n") and not said.err
    assert example.visible(example.find("pytorch-mnist"), words)[1] == Path("/d")


def test_one_without_data_needs_none(toy: Path, capsys: Output) -> None:
    assert run(["run", "toy-cpu", "--print", "--example=pytorch-synthetic"]) == 0
    assert "--data" not in capsys.readouterr().out


@pytest.mark.parametrize("engine", ["slurm", "pbs"])
def test_in_a_job(engine: str, toy: Path, capsys: Output) -> None:
    shape = ["--nodes", "2", "--ranks-per-node", "2"]
    assert run(["job", engine, "toy-cpu", *shape, "--example", "pytorch-mnist", "--", "--epochs", "2"]) == 0
    said = capsys.readouterr().out
    assert f" --example pytorch-mnist -- --data {toy} --epochs 2\n" in said


def test_a_command_or_an_example_is_needed(toy: Path, capsys: Output) -> None:
    assert run(["run", "toy-cpu", "--"]) == 2
    assert "There is no command after --." in capsys.readouterr().err
    assert run(["run", "eessi", "--example", "tf-mnist"]) == 2
    assert "--example does not go with the name 'eessi'." in capsys.readouterr().err


def test_images_see_what_the_example_needs(toy: Path, install_image: Callable[..., object], capsys: Output) -> None:
    install_image()
    assert run(["run", "toy-image", "--print", "--example", "pytorch-mnist"]) == 0
    said = capsys.readouterr().out
    script = example.find("pytorch-mnist").path
    assert f"--bind {script.parent}:{script.parent}" in said and f"--bind {toy}:{toy}" in said


def test_the_scripts_have_no_syntax_of_later_pythons(tmp_path: Path) -> None:
    for one in example.everything():
        argv = [sys.executable, "-m", "ruff", "check", "--target-version", "py310", "--select", "E9,F", "--isolated"]
        done = subprocess.run([*argv, str(one.path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_a_checkpoint_runs_no_code() -> None:
    """Where torch.load does not say otherwise, an older PyTorch runs what a pickle names."""
    calls = [
        node
        for path in Path(recipes("examples")).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "numpy.load", "np.load")
    ]
    assert len(calls) == 3
    for call in calls:
        said = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert said.get("weights_only") == "True" or (
            ast.unparse(call.func) != "torch.load" and "allow_pickle" not in said
        )
