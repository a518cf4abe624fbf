"""``envkit kernel``: a file that starts ipykernel in an environment, in the user's own Jupyter folder."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import kernel
from envkit.errors import UsageProblem
from envkit.install import venv_creation

Output = pytest.CaptureFixture[str]


@pytest.fixture
def kernels(install: Callable[..., ModuleReceipt], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where kernels are, of a user who has an environment with ipykernel."""
    install()
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setattr(venv_creation, "versions", lambda _inside: {"ipykernel": "7.0"})
    return tmp_path / "jupyter" / "kernels"


def test_it_runs_ipykernel_in_the_environment(kernels: Path, tmp_path: Path, capsys: Output) -> None:
    assert run(["kernel", "toy"]) == 0
    spec = json.loads((kernels / "toy-cpu" / "kernel.json").read_text())
    words = ["run", "toy-cpu", "--prefix", str(tmp_path / "prefix"), "--", "python", "-m", "ipykernel_launcher"]
    assert spec["argv"][-len(words) - 2 :] == [*words, "-f", "{connection_file}"]
    assert Path(spec["argv"][0]).is_absolute()
    assert (spec["language"], spec["display_name"]) == ("python", "envkit: toy-cpu")
    assert "envkit kernel --remove --name toy-cpu" in capsys.readouterr().out
    assert run(["kernel", "toy"]) == 0  # its own is written anew


def test_it_is_removed_by_name_and_by_environment(kernels: Path, capsys: Output) -> None:
    for words in (["toy-cpu"], ["--name", "mine"], ["toy-cpu", "--name", "mine"]):
        assert run(["kernel", "toy-cpu", "--name", words[-1]]) == 0
        assert run(["kernel", *words, "--remove"]) == 0
        assert list(kernels.iterdir()) == []
    assert run(["kernel", "--remove", "--name", "mine"]) == 6
    assert "There is no kernel mine." in capsys.readouterr().err


def test_what_somebody_else_has_made_is_left(kernels: Path, capsys: Output) -> None:
    (kernels / "python3").mkdir(parents=True)
    (kernels / "python3" / "kernel.json").write_text('{"argv": ["python3"], "metadata": {}}')
    assert run(["kernel", "toy-cpu", "--name", "python3"]) == 2
    assert "There is a kernel python3 already, which envkit did not make." in capsys.readouterr().err
    assert run(["kernel", "--remove", "--name", "python3"]) == 2
    assert "python3" in (kernels / "python3" / "kernel.json").read_text()


def test_without_ipykernel_it_is_told_how_to_get_it(
    kernels: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(venv_creation, "versions", lambda _inside: {"torch": "2.13.0"})
    assert run(["kernel", "toy-cpu"]) == 3
    told = capsys.readouterr().err
    assert "toy-cpu has no ipykernel" in told
    for line in ("envkit venv toy-cpu DIR", "DIR/bin/pip install ipykernel", "envkit kernel DIR"):
        assert line in told
    assert not kernels.exists()


def test_jupyters_own_is_not_replaced(kernels: Path, capsys: Output) -> None:
    assert run(["kernel", "toy-cpu", "--name", "python3"]) == 2
    assert "--name python3: that is the kernel of Jupyter's own Python." in capsys.readouterr().err
    assert not kernels.exists()


def test_a_relative_folder_of_jupyter(kernels: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(kernels.parents[1])
    monkeypatch.setenv("JUPYTER_DATA_DIR", "jupyter")
    assert run(["kernel", "toy-cpu"]) == 0
    assert f"Made the kernel toy-cpu: {kernels}/toy-cpu\n" in capsys.readouterr().out


def test_where_jupyter_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert kernel.folder({"JUPYTER_DATA_DIR": "/data"}) == Path("/data/kernels")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert kernel.folder({}) == tmp_path / "jupyter" / "kernels"


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "Größe"])
def test_a_name_that_jupyter_does_not_take(name: str) -> None:
    with pytest.raises(UsageProblem, match="that cannot be a kernel"):
        kernel.name_of(name, "toy")


def test_the_name_comes_from_the_environment_or_the_folder() -> None:
    assert kernel.name_of(None, "/home/me/My env") == "my-env"
    assert kernel.name_of(None, "pytorch-2.13-cpu") == "pytorch-2.13-cpu"
