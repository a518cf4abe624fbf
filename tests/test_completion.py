"""What a shell offers for a word, by the protocol of click and in a real bash."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.diagnose import rules
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.prefix import Prefix
from envkit.machine import site
from envkit.planning.stack import stacks
from envkit.training.example import everything

pytestmark = pytest.mark.integration

Install = Callable[..., ModuleReceipt]


def offered(words: str, shell: str = "bash", **settings: str) -> list[str]:
    """What is offered for the last word of a line."""
    before = words.split(" ")
    place = words if shell == "fish" else str(len(before) - 1)
    place = before[-1] if shell == "fish" else place
    env = {**os.environ, **settings, "_ENVKIT_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": place}
    done = subprocess.run([sys.executable, "-m", "envkit"], env=env, capture_output=True, text=True, check=False)
    assert not done.stderr
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("envkit ins", ["install"]),
        ("envkit install --off", ["--offline"]),
        ("envkit install --framework ten", ["tensorflow"]),
        ("envkit run --ra", ["--ranks"]),
        ("envkit nothing --hel", ["--help"]),
        ("envkit job slurm --si", ["--site"]),
        ("envkit help dia", ["diagnose"]),
        ("envkit completion z", ["zsh"]),
        ("envkit install tensorflow-2.2", [one.name for one in stacks() if one.name.startswith("tensorflow-2.2")]),
        ("envkit cache pull tensorflow-2.2", [one.name for one in stacks() if one.name.startswith("tensorflow-2.2")]),
        ("envkit cache push --from", ["--from-ci"]),
        ("envkit example ", [one.name for one in everything()]),
        ("envkit run --example tf-m", ["tf-mnist"]),
        ("envkit job slurm --site ", site.names()),
        ("envkit verify --explain world-", ["world-size"]),
        ("envkit diagnose --explain gpu-f", [one.id for one in rules() if one.id.startswith("gpu-f")]),
    ],
)
def test_words(words: str, expected: list[str], tmp_path: Path) -> None:
    assert expected
    assert [line.partition(",")[2] for line in offered(words)] == expected


NAMING = ["run", "shell", "verify", "show", "activate", "remove", "repair", "job slurm", "venv"]


@pytest.mark.parametrize("command", NAMING)
def test_environments(command: str, prefix: Prefix, install: Install) -> None:
    install("toy-cpu")
    install("toy-two")
    words = f"envkit {command} to"
    expected = ["plain,toy-cpu", "plain,toy-two"]
    assert offered(words, ENVKIT_PREFIX=str(prefix.root)) == expected
    assert offered(f"envkit {command} --prefix {prefix.root} to") == expected
    for shell in ("zsh", "fish"):
        said = " ".join(offered(words, shell, ENVKIT_PREFIX=str(prefix.root)))
        assert re.findall(r"toy-\w+", said) == ["toy-cpu", "toy-two"]


def test_names_that_a_shell_would_run(prefix: Prefix, install: Install) -> None:
    install("toy-cpu")
    receipt = next(prefix.root.glob("*/environments/toy-cpu.json"))
    for name in ("toy$(touch x)", "toy`id`", "toy;id", "toy x", "toy&", "toy'"):
        (receipt.with_name(f"{name}.json")).write_bytes(receipt.read_bytes())
    for shell in ("bash", "zsh", "fish"):
        said = offered("envkit run to", shell, ENVKIT_PREFIX=str(prefix.root))
        assert [line for line in said if "toy" in line and not line.endswith("toy-cpu")] == []
        assert "toy-cpu" in " ".join(said)


def test_of_a_configured_prefix(prefix: Prefix, install: Install, tmp_path: Path) -> None:
    install("toy-cpu")
    (tmp_path / "envkit").mkdir()
    (tmp_path / "envkit/config.toml").write_text(f'prefix = "{prefix.root}"')
    settings = {"XDG_CONFIG_HOME": str(tmp_path), "ENVKIT_PREFIX": "", "EBU_USER_PREFIX": ""}
    assert offered("envkit run t", **settings) == ["plain,toy-cpu"]


def test_paths() -> None:
    assert offered("envkit run ./m") == ["dir,./m"]
    assert offered("envkit run toy -- tr") == ["file,tr"]
    assert offered("envkit run -- tr") == ["file,tr"]
    assert offered("envkit list --prefix /o") == ["dir,/o"]
    assert offered("envkit diagnose bu") == ["file,bu"]


@pytest.mark.parametrize("text", ["[", "prefix = 3", "prefix = '/dev/null'"])
def test_what_is_broken_offers_nothing_and_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "envkit").mkdir()
    (tmp_path / "envkit/config.toml").write_text(text)
    settings = {"XDG_CONFIG_HOME": str(tmp_path), "ENVKIT_PREFIX": "/a b", "EBU_USER_PREFIX": ""}
    assert offered("envkit run t", **settings) == []
    assert offered("envkit lis", **settings) == ["plain,list"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_for_the_shell(shell: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "envkit", "completion", shell], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"_ENVKIT_COMPLETE={shell}_complete" in done.stdout
    assert not done.stderr


def test_in_a_real_bash(prefix: Prefix, install: Install, tmp_path: Path) -> None:
    install("toy-cpu")
    (tmp_path / "bin").mkdir(exist_ok=True)
    program = tmp_path / "bin" / "envkit"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m envkit "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(envkit completion bash)"
        complete -p envkit
        COMP_WORDS=(envkit run to) COMP_CWORD=2
        _envkit_completion envkit
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "ENVKIT_PREFIX": str(prefix.root)}
    done = subprocess.run(["bash", "--norc", "-eu", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.splitlines() == ["complete -o nosort -F _envkit_completion envkit", "toy-cpu"]
