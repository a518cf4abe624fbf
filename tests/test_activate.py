"""``envkit activate``: what is printed has a shell enter an environment and leave it again."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.apptainer.receipt import ImageReceipt
from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import activation
from envkit.machine.modules_tool import ModulesTool

from .stacks import ENVKIT

Output = pytest.CaptureFixture[str]
HOSTILE = {"TOY": "a 'b' \"c\" $HOME `id` \\ \n;*!%", "GONE": None, "NEW": "1"}
BEFORE = {"TOY": "before's \\ $x", "GONE": "there", "PATH": os.environ["PATH"]}
SHELLS = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}


def shell(name: str) -> list[str]:
    """The start of a shell without any settings of the person's."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is missing")
    return [name, *SHELLS[name], "-c"]


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one == "bash" else [pytest.mark.all]) for one in SHELLS]
)
def test_a_shell_has_the_variables_and_then_those_of_before(name: str, tmp_path: Path) -> None:
    argv = shell(name)
    script = tmp_path / "script"
    show = "env -0 > {}"
    text = activation.text(name, "toy", HOSTILE, BEFORE)
    script.write_text(
        f"{text}{show.format(tmp_path / 'inside')}\nenvkit_deactivate\n{show.format(tmp_path / 'after')}\n"
    )
    done = subprocess.run([*argv, f". {script}"], env=BEFORE, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    inside, after = (variables(tmp_path / word) for word in ("inside", "after"))
    assert {key: inside.get(key) for key in HOSTILE} == HOSTILE
    assert {key: after.get(key) for key in HOSTILE} == {"TOY": BEFORE["TOY"], "GONE": "there", "NEW": None}


def variables(path: Path) -> dict[str, str]:
    """The variables that ``env -0`` has written."""
    return dict(entry.split("=", 1) for entry in path.read_text().split("\0") if entry)


def test_prompt_and_function_are_gone_afterwards() -> None:
    text = activation.text("bash", "to`id`y", {}, {})
    line = 'PS1="> "; eval "$1"; echo "$PS1"; envkit_deactivate; echo "$PS1"; type envkit_deactivate 2>/dev/null'
    done = subprocess.run(["bash", "-c", line, "bash", text], capture_output=True, text=True)
    assert done.stdout == "(envkit to?id?y) > \n> \n"
    assert done.stderr == ""


@pytest.mark.integration
def test_the_modules_are_loaded_in_the_shell_that_evaluates_it(
    install: Callable[..., ModuleReceipt], lmod: ModulesTool, tmp_path: Path
) -> None:
    made = install()
    install("other")
    Path(made.folder, "Toy/1.0.lua").write_text('setenv("TOY", "here")\nprepend_path("PATH", "/toy/bin")\n')
    env = {**os.environ, "ENVKIT_PREFIX": str(tmp_path / "prefix")}
    line = (
        f'eval "$({ENVKIT} activate toy)"; echo $TOY ${{PATH%%:*}} $LOADEDMODULES; {ENVKIT} activate other; echo $?; '
    )
    line += f'eval "$({ENVKIT} activate toy)"; '
    line += "envkit_deactivate; echo ${TOY-gone} ${PATH%%:*}"
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True)
    first = os.environ["PATH"].partition(":")[0]
    assert done.stdout.splitlines() == ["here /toy/bin Toy/1.0", "false", "2", f"gone {first}"]
    assert "This shell is in toy-cpu already: leave it first" in done.stderr


def test_nothing_but_false_is_printed_where_a_module_cannot_be_loaded(
    install: Callable[..., ModuleReceipt], lmod: ModulesTool, tmp_path: Path, capsys: Output
) -> None:
    Path(install().folder, "Toy/1.0.lua").write_text('LmodError("broken")\n')
    assert run(["activate", "toy-cpu", "--prefix", str(tmp_path / "prefix")]) == 92
    said = capsys.readouterr()
    assert said.out == "false\n" and "the module Toy/1.0 could not be loaded" in said.err


def test_images_and_eessi_are_told_what_to_use_instead(
    install_image: Callable[..., ImageReceipt], tmp_path: Path, capsys: Output
) -> None:
    install_image()
    for words, use in (["toy-image"], "'envkit shell toy-image --prefix "), (["eessi"], "'envkit shell eessi'"):
        assert run(["activate", *words, "--prefix", str(tmp_path / "prefix")]) == 3
        said = capsys.readouterr()
        assert (
            said.out == "false\n" and use in said.err and "cannot be entered in a shell that runs already" in said.err
        )


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one == "bash" else [pytest.mark.all]) for one in SHELLS]
)
@pytest.mark.parametrize("words", ["nosuch", "--nosuch"])
def test_a_shell_that_evaluates_a_failure_fails(name: str, words: str, tmp_path: Path) -> None:
    env = {**os.environ, "ENVKIT_PREFIX": str(tmp_path / "prefix")}
    line = f'set -e; eval "$({ENVKIT} activate {words})"; echo went on'
    if name == "fish":
        line = f"{ENVKIT} activate {words} | source; and echo went on"
    done = subprocess.run([*shell(name), line], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "") and "nosuch" in done.stderr


def test_help_is_no_failure(capsys: Output) -> None:
    assert run(["activate", "--help"]) == 0
    assert "\nfalse" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("parent", "named", "shell"),
    [
        ("zsh", "/bin/bash", "zsh"),
        ("-bash", "/usr/bin/fish", "bash"),
        ("make", "/usr/bin/fish", "fish"),
        ("", "", "bash"),
    ],
)
def test_the_shell_is_the_one_that_asks(parent: str, named: str, shell: str) -> None:
    assert activation.shell_of({"SHELL": named}, parent) == shell


@pytest.mark.integration
def test_a_shell_that_inherits_the_variables_may_enter_again(
    install: Callable[..., ModuleReceipt], lmod: ModulesTool, tmp_path: Path
) -> None:
    Path(install().folder, "Toy/1.0.lua").write_text('setenv("TOY", "here")\n')
    env = {**os.environ, "ENVKIT_PREFIX": str(tmp_path / "prefix")}
    line = f'set -eu; eval "$({ENVKIT} activate toy)"; '
    inner = f"{line}echo $TOY; envkit_deactivate"
    done = subprocess.run(["bash", "-c", f"{line}bash -c '{inner}'"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "here\n", "")
