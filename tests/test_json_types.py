"""What commands print with --json is what their schemas say; every command that tells something prints it."""

import json
from collections.abc import Callable
from typing import Any

import click
import msgspec
import pytest

from envkit.cli import envkit, run
from envkit.commands import json_types
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import receipt
from envkit.environments.lockfile import Lock, LockedMachine
from envkit.environments.prefix import Prefix
from envkit.machine.host import Platform

from . import schemas

pytestmark = pytest.mark.xdist_group("schemas")
SILENT = {  # what begins a program, or writes a file or text that is to be used as it is
    "export", "shell", "run", "activate", "venv", "kernel", "example", "data", "completion", "help",
}  # fmt: skip
ELSEWHERE = {"job", "eessi", "cache"}  # groups


def valid(command: str, text: str) -> Any:
    """Check what a command has printed against its schema, and return it."""
    from jsonschema import Draft202012Validator

    told = json.loads(text)
    schema = json.loads(schemas.schema(command, json_types.type_of(command)))
    Draft202012Validator(schema).validate(told)
    return told


@pytest.mark.parametrize("command", [*json_types.TYPES, "show"])
def test_each_has_a_schema(command: str) -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(json.loads(schemas.schema(command, json_types.type_of(command))))


def test_every_command_that_tells_something_has_json() -> None:
    context = click.Context(envkit)
    lacking = set()
    for name in envkit.list_commands(context):
        command = envkit.get_command(context, name)
        assert command
        if "--json" not in {word for option in command.params for word in option.opts}:
            lacking.add(name)
    assert lacking == SILENT | ELSEWHERE


@pytest.fixture
def there(prefix: Prefix, install: Callable[..., ModuleReceipt]) -> Prefix:
    """A prefix with an environment, one that is damaged, and an installation that has begun."""
    lock = Lock(
        name="toy", method="easybuild", framework="pytorch", accelerator="cpu", release="",
        machine=LockedMachine(type="x86_64"), tools={}, parts=(),
    )  # fmt: skip
    install("toy", "Base/1", "Toy/1", lock=lock, horovod="/h")
    install("bad", "Base/1", "Bad/1")
    tree = prefix.tree(Platform.own())
    tree.file("Bad/1").unlink()  # type: ignore[union-attr]
    receipt.begin(tree, "half", "building", prefix.logs)
    return prefix


@pytest.mark.parametrize(
    ("words", "command", "status"),
    [
        (["list", "--json"], "list", 0),
        (["list", "--json", "--installed"], "list", 0),
        (["show", "toy", "--json"], "show", 0),
        (["repair", "bad", "--dry-run", "--json"], "repair", 6),
        (["repair", "toy", "--json"], "repair", 0),
        (["remove", "toy", "--dry-run", "--json"], "remove", 0),
        (["remove", "toy", "--json"], "remove", 0),
        (["remove", "half", "--dry-run", "--json"], "remove", 0),
        (["remove", "half", "--json"], "remove", 0),
        (["clean", "--json"], "clean", 0),
        (["clean", "modules", "--yes", "--json"], "clean", 0),
        (["compat", "torch=2.13", "python=3.11", "--json"], "compat", None),
        (["doctor", "--json"], "doctor", None),
        (["eessi", "list", "--json"], "eessi list", 0),
    ],
)
def test_what_is_printed_is_what_the_schema_says(
    words: list[str],
    command: str,
    status: int | None,
    there: Prefix,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ENVKIT_PREFIX", str(there.root))
    monkeypatch.setenv("XDG_STATE_HOME", str(there.root / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(there.root / "cache"))
    assert run(words) == status or status is None
    assert "version" in valid(command, capsys.readouterr().out)


def test_states_are_an_enumeration(there: Prefix, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "--json", "--installed", "--prefix", str(there.root)]) == 0
    states = {one["name"]: one["state"] for one in valid("list", capsys.readouterr().out)["environments"]}
    assert states == {"toy": "installed", "bad": "damaged", "half": "unfinished"}
    definitions = msgspec.json.schema(json_types.type_of("list"))["$defs"]
    assert "installed" in definitions["EnvironmentState"]["enum"]


def test_what_was_removed_is_told(there: Prefix, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["remove", "toy", "--json", "--prefix", str(there.root)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["removed"], told["kept"]) == ("toy", ["Toy/1"], ["Base/1"])


def test_json_of_an_installation_is_that_of_its_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["install", "pytorch", "--json"]) == 2
    assert "--json goes with --dry-run" in capsys.readouterr().err
