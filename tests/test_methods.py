"""Each method has what is asked of one, and nothing else names them; a new one needs no more."""

from __future__ import annotations

import ast
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import envkit
from envkit import api
from envkit.apptainer import method as apptainer
from envkit.easybuild import method as easybuild
from envkit.eessi import method as eessi
from envkit.errors import UsageProblem
from envkit.knowledge import methods
from envkit.methods import registry
from envkit.planning.method import Method
from envkit.planning.request import Request
from envkit.report.words import plain

PACKAGE = Path(envkit.__file__).parent
METHODS: list[Method] = [easybuild, apptainer, eessi]  # mypy holds the types of their functions
ASKED = [name for name, _ in inspect.getmembers(Method, inspect.isfunction) if not name.startswith("_")]
# Modules in which a word that is the name of a method, too, is another thing, or that are about one method.
NO_METHOD = {
    "the name 'eessi', by which a release is entered, and the commands for it": {
        "cli", "commands.activate", "commands.complete", "commands.kernel", "commands.options",
        "commands.venv", "environments.eessi", "knowledge.foreign",
    },
    "a program, a package or a folder": {
        "compat.evidence", "environments.manifest", "inside.probe.machine", "machine.runtime", "system.resources",
        "ticket.gather",
    },
    "a recipe that only Apptainer reads": {"commands.export"},
    "what the doctor knows of a method besides its preflight": {"doctor.gather", "doctor.rules"},
}  # fmt: skip


def test_those_named_are_the_folders_that_have_a_method() -> None:
    there = {path.parent.name for path in PACKAGE.glob("*/method.py")} - {"planning"}
    assert set(registry.NAMES) == there
    assert [registry.method(name) for name in registry.NAMES] == METHODS


@pytest.mark.parametrize("name", registry.NAMES)
def test_it_has_every_function_and_a_receipt_of_its_name(name: str) -> None:
    asked = {one: list(inspect.signature(getattr(Method, one)).parameters)[1:] for one in ASKED}
    assert {one: list(inspect.signature(getattr(registry.method(name), one)).parameters) for one in ASKED} == asked
    assert registry.receipt_of(name).__struct_config__.tag == name


@pytest.mark.parametrize("name", registry.NAMES)
def test_what_the_table_says_of_it(name: str) -> None:
    words, fields = methods.known()[name], set(Request.__dataclass_fields__)
    assert all(text == plain(text) for text in (words.what, words.otherwise, *words.options.values()))
    assert {*words.options, *words.without} <= fields
    assert all(option.startswith("--") for option in words.options.values())


def test_an_option_is_of_one_method() -> None:
    options = [option for words in methods.known().values() for option in words.options]
    assert len(options) == len(set(options))
    assert all(methods.takes(methods.of_option(option), option) for option in options)


def naming() -> dict[str, list[int]]:
    """The lines of each module on which a word is the name of a method, but for the folders of the methods."""
    found = dict[str, list[int]]()
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        text = path.read_text()
        if place.parts[0] in ("recipes", *registry.NAMES) or not any(f'"{name}"' in text for name in registry.NAMES):
            continue
        lines = [
            node.lineno
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and node.value in registry.NAMES
        ]
        if lines:
            found[".".join(place.with_suffix("").parts).removesuffix(".__init__")] = lines
    return found


def test_no_other_module_names_a_method() -> None:
    assert naming().keys() == set[str]().union(*NO_METHOD.values())


def test_what_is_no_method_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageProblem) as error:
        api.install("pytorch", method="spack")
    assert error.value.what == "There is no method 'spack'."
    assert error.value.fix == f"Take one of auto, {', '.join(registry.NAMES)}."


# What a new method takes: two files and two tables, in a copy of the package.
TABLE = """
[toy]
what = "nothing is built"
otherwise = "Play something else."
options = { jobs = "--toys" }
"""
STACK = """
[toy-stack]
method = "toy"
framework = "pytorch"
accelerator = "cpu"
default = true
"""
METHOD = """
from envkit.errors import HostProblem, Problem

LACKS = Problem(what="There is no toy.", fix="Buy one.")


def prepare(request, machine, stack):
    raise HostProblem(what=f"{stack.name} is planned.", fix="Play.")


def unfit(request, machine, stack):
    return [LACKS]


def lacking(request, machine, stack):
    return [LACKS] if request.load else []


def is_other(request, stack, found):
    return False


def request_of(prefix, found):
    raise NotImplementedError


def removable(tree, found, others, *, dependencies):
    return []


def remove(tree, found, others, *, dependencies, console):
    pass
"""
RECEIPT = '''
from envkit.environments.receipt import Receipt


class ToyReceipt(Receipt, frozen=True, kw_only=True, tag_field="method", tag="toy"):
    """A toy."""

    def validation_error(self):
        return ""


RECEIPT = ToyReceipt
'''
TELL = """
import json
import sys
from concurrent.futures import Future
from pathlib import Path

from envkit import api
from envkit.commands.fetch import fetch
from envkit.commands.install import install
from envkit.config.keys import KEYS
from envkit.doctor import gather, rules
from envkit.doctor.facts import Facts, Missing
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import path_of
from envkit.errors import EnvkitError
from envkit.install import preference
from envkit.machine.host import Accelerator, Platform
from envkit.methods import installed, registry
from envkit.planning.request import Request
from envkit.planning.stack import select, stacks

prefix = Prefix(root=Path(sys.argv[1]))
tree = Tree(root=prefix.root / "tree")
path_of(tree, "mine").parent.mkdir(parents=True)
path_of(tree, "mine").write_text(sys.argv[2])
machine = type("Machine", (), {"accelerator": Accelerator.CUDA, "platform": Platform.own()})
host = Future()
host.set_result(machine)

def preflight(*load):
    return gather.preflight("toy", prefix, load, {}, {"host": host})

def verdict(**facts):
    found = rules.judge(Facts(user="ada", uid=1000, **facts)).methods
    return [[one.state, one.why, [each.what for each in one.problems]] for one in found if one.method == "toy"]

def said(call):
    try:
        call()
    except EnvkitError as error:
        return f"{error.what} {error.fix}"

choices = {
    command.name: list(option.type.choices) for command in (install, fetch)
    for option in command.params if option.name == "method"
}
request = Request(prefix=prefix, method="auto")
stack = select(None, method="toy", platform=Platform.own())
made = installed.read(path_of(tree, "mine"))
print(json.dumps({
    "choices": choices,
    "configured": KEYS["method"].take("toy"),
    "expected": KEYS["method"].expected,
    "names": registry.NAMES,
    "stack": stack.name,
    "fetched by": select("toy-stack", platform=Platform.own()).method,
    "receipt": [type(made).__name__, made.method, said(lambda: made.within(Path("venv")))],
    "question": "preflight toy" in gather.all_questions(prefix, (), {}),
    "works": verdict(preflights={"toy": preflight()}),
    "fails": verdict(preflights={"toy": preflight("module")}),
    "unknown": verdict(missing=(Missing(probe="preflight toy", why="it hangs"),)),
    "lines": preference.lines(stack, "so")[0],
    "options": [[one.method, one.words] for one in preference.options(Request(prefix=prefix, jobs=2))],
    "last": preference.ordered(Accelerator.CPU)[-1].name,
    "nothing": preference.nothing(request, [preference.Refused(stack=one, problems=()) for one in stacks()]).why,
    "refused": said(lambda: api.install(method="spack", prefix=prefix.root)),
    "planned": said(lambda: api.install(method="toy", prefix=prefix.root)),
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of envkit tells to which a method was added."""
    folder = tmp_path_factory.mktemp("toy")
    copy = Path(shutil.copytree(PACKAGE, folder / "envkit", ignore=shutil.ignore_patterns("recipes")))
    for name in ("easyconfigs", "containers", "eessi", "examples"):
        there = next(one for one in (PACKAGE / "recipes" / name, PACKAGE.parent / name) if one.is_dir())
        (folder / name).symlink_to(there)
    (copy / "toy").mkdir()
    (copy / "toy" / "method.py").write_text(METHOD)
    (copy / "toy" / "receipt.py").write_text(RECEIPT)
    for table, text in (("knowledge/methods.toml", TABLE), ("planning/stacks.toml", STACK)):
        with (copy / table).open("a") as stream:
            stream.write(text)
    made: dict[str, Any] = {
        "method": "toy", "name": "mine", "framework": "pytorch", "accelerator": "cpu", "requires": [], "machine": "m",
        "python": "3.11.2", "tree": str(folder / "prefix" / "tree"), "mpi": None, "horovod": "", "site_packages": [],
        "library_path": [], "verified": "", "log": "", "created": "", "envkit": "",
    }  # fmt: skip
    words = [sys.executable, "-c", TELL, str(folder / "prefix"), json.dumps(made)]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.integration
def test_a_new_method_can_be_asked_for(told: dict[str, Any]) -> None:
    assert told["names"] == [*registry.NAMES, "toy"]
    assert told["choices"] == {"install": ["auto", *told["names"]], "fetch": told["names"]}
    assert told["configured"] == "toy"
    assert told["expected"] == f"one of auto, {', '.join(told['names'])}"
    assert told["refused"] == f"There is no method 'spack'. Take one of auto, {', '.join(told['names'])}."
    assert (told["stack"], told["fetched by"]) == ("toy-stack", "toy")
    assert told["planned"] == "toy-stack is planned. Play."


@pytest.mark.integration
def test_what_a_new_method_has_made_is_read(told: dict[str, Any]) -> None:
    kind, method, shut = told["receipt"]
    assert (kind, method) == ("ToyReceipt", "toy")
    assert shut.startswith("mine cannot have a virtual environment") and "EESSI" not in shut


def test_the_doctor_judges_a_new_method(told: dict[str, Any]) -> None:
    assert told["question"]
    assert told["works"] == [["works", "toy-stack can be installed", []]]
    why = "toy-stack cannot be installed: one thing stands in its way"
    assert told["fails"] == [["fails", why, ["There is no toy."]]]
    assert told["unknown"] == [["unknown", "it could not be found out: it hangs", []]]


def test_a_new_method_is_told_of_where_one_is_chosen(told: dict[str, Any]) -> None:
    assert told["lines"] == "method   toy: nothing is built"
    assert told["options"] == [["toy", "--toys"]]
    assert told["last"] == "toy-stack"
    assert told["nothing"].endswith("   -> Play something else.")
