"""What is installed and loaded here, of what compat judges."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.doctor import installed_versions

Fake = Callable[..., Path]
PACKAGES = {
    "torch": "2.4.1+cu124",
    "horovod": "0.28.1",
    "pip": "24.0",
    "pandas": "2.0",
    "nvidia-cudnn-cu12": "9.1.0.70",
    "numpy": "strange",
}


def python(fake: Fake, versions: dict[str, str]) -> str:
    """A PATH whose first Python is 3.12.4 with these packages."""
    own = {"executable": "/own/bin/python", "python": "3.12.4"}
    facts = json.dumps(own | {"versions": versions, "horovod": "", "extensions": []})
    return str(fake("python", f"echo '{facts}'").parent)


def test_packages_and_programs(fake: Fake) -> None:
    fake("nvcc", "echo 'Cuda compilation tools, release 12.4, V12.4.131'")
    words = installed_versions.words({"PATH": f"{python(fake, PACKAGES)}:/usr/bin:/bin"})
    assert {"torch=2.4.1+cu124", "horovod=0.28.1", "python=3.12.4", "cudnn=9.1.0.70", "cuda=12.4"} <= set(words)
    names = [word.partition("=")[0] for word in words]
    assert len(names) == len(set(names))
    assert "machine" in names
    assert not {"pip", "pandas", "numpy", "cmake"} & set(names)


def test_the_verdict_on_what_is_here(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{python(fake, {'torch': '2.0.1', 'horovod': '0.28.1'})}:/usr/bin:/bin")
    assert run(["compat", "--here"]) == 1
    said = capsys.readouterr()
    assert "PyTorch 2.0.1" in said.out and "Python 3.12.4" in said.out
    assert said.err == ""
    assert run(["compat", "--here", "torch=1.13"]) == 2
    assert "PyTorch is asked for twice: 2.0.1 and 1.13." in capsys.readouterr().err


def test_without_horovod_it_is_said(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{python(fake, {})}:/usr/bin:/bin")
    run(["compat", "--here", "--json"])
    said = capsys.readouterr()
    assert "Horovod is not installed here; judged with 0." in said.err
    assert json.loads(said.out)["parts"]["python"] == "3.12.4"
