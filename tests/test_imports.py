"""Imports point one way: each folder may see those below it, never those above; within a folder nothing goes round."""

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import envkit

pytestmark = pytest.mark.xdist_group("imports")  # one worker reads all modules

PACKAGE = Path(envkit.__file__).parent
# Top to bottom: each folder may import from those after it, and from no other.
ORDER = (
    "__main__",
    "commands",
    "cli",
    "ticket",
    "integrations",
    "api",
    "install",
    "doctor",
    "verify",
    "methods",
    "apptainer",
    "eessi",
    "easybuild",
    "cache",
    "jobs",
    "training",
    "planning",
    "compat",
    "launch",
    "environments",
    "config",
    "sources",
    "diagnose",
    "machine",
    "knowledge",
    "report",
    "inside",
    "binary",
    "system",
    "errors",
)
STARTS_PROGRAMS = {"__main__", "system.process", "system.supervise", "system.mount_namespace", "inside.probe.watch"}
LOOKED_AT = {"torch", "tensorflow", "horovod", "keras", "tf_keras", "mpi4py"}
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
    if (path.name != "__init__.py" or "\nfrom " in path.read_text()) and "recipes" not in path.parts
}
IMPORTING = re.compile(r"^(import|from) \w", re.MULTILINE)
PROBE = sorted(name for name in FILES if name.startswith("inside.probe."))
MODULES = sorted(set(FILES) - set(PROBE))
FOREIGN = [name for name in FILES if name.startswith("inside.")]
FOREIGN += ["system.supervise", "system.mount_namespace", "system.cvmfs_messages", "integrations.reframe_tests"]


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """Every node of the syntax tree of a module."""
    return tuple(ast.walk(ast.parse(FILES[module].read_text())))


@cache
def imported(module: str) -> frozenset[str]:
    """Every module that one imports, anywhere in it, by its whole name."""
    found = set[str]()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or module in PROBE, f"relative import in {module}"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return frozenset(found)


def own(module: str) -> set[str]:
    """The modules of the package that one imports."""
    return {name.removeprefix("envkit.") for name in imported(module)} & set(FILES) - {module}


def calls(module: str) -> Iterator[ast.Call]:
    """Every call in a module."""
    return (node for node in nodes(module) if isinstance(node, ast.Call))


@pytest.mark.integration
def test_of_the_probe_only_what_starts_nothing_is_used_outside() -> None:
    used = {name for module in MODULES for name in own(module) & set(PROBE)}
    assert used == {f"inside.probe.{name}" for name in ("node", "process", "shared_object", "started")}


def folder(module: str) -> str:
    """The folder that a module lies in, or the module itself where it lies in none."""
    return module.partition(".")[0]


def test_the_order_names_every_folder() -> None:
    assert sorted(ORDER) == sorted({folder(module) for module in FILES})


def test_the_list_of_folders_is_this_order() -> None:
    """That of CONTRIBUTING; it names each module but those of ``commands/`` and ``knowledge/``, and what is there."""
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text().partition("In `envkit/`, from top to bottom:")[2]
    items = text.partition("\nBeside `envkit/`:")[0].split("\n* ")[1:]
    heads = [re.findall(r"`([\w.]+?)/?`", item.partition(":")[0]) for item in items]
    assert [name.removesuffix(".py") for names in heads for name in names] == list(ORDER)
    wrong = []
    for names, item in zip(heads, items, strict=True):
        folders = [PACKAGE / name for name in names if (PACKAGE / name).is_dir()]
        named = set(re.findall(r"`([\w/]+\.(?:py|toml|json|md|txt))`", item))
        places = [place for root in (*folders, PACKAGE, PACKAGE.parent) for place in (root, *root.glob("*/"))]
        wrong += [f"there is no {name}" for name in named if not any((place / name).exists() for place in places)]
        modules = {path.name for folder in folders for path in folder.glob("*.py")} - {"__init__.py"}
        modules -= {name.rpartition("/")[2] for name in named}
        wrong += [f"{names[0]}/{name} is not named" for name in modules if not {*names} & {"commands", "knowledge"}]
    assert wrong == []


def test_imports_point_down() -> None:
    place = {name: number for number, name in enumerate(ORDER)}
    up = [
        f"{module} imports {name}"
        for module in MODULES
        for name in sorted(own(module))
        if folder(name) != folder(module) and place[folder(name)] < place[folder(module)]
    ]
    assert up == []


def test_nothing_goes_round() -> None:
    graph = {module: own(module) for module in FILES}
    TopologicalSorter(graph).prepare()


def test_checks_do_not_measure_and_the_probe_does_not_judge() -> None:
    measures = {"system.process", "launch.launcher", "verify.launch", "binary.elf", "binary.loader", *PROBE}
    checks = [module for module in MODULES if module.startswith("verify.checks.")]
    assert checks
    assert [module for module in checks if own(module) & measures] == []
    assert own("verify.facts") == {"errors", "system.record"}
    data = {"knowledge.methods", "system.resources", "system.toml"}
    assert own("doctor.rules") == {"doctor.facts", "doctor.report", "errors", *data}
    assert own("compat.judge") == {"compat.evidence", "errors"}
    assert own("compat.complete") == {"compat.judge", "compat.evidence"}


def test_what_runs_elsewhere_imports_the_standard_library_and_what_it_looks_at() -> None:
    foreign = []
    for module in FOREIGN:
        absolute = {
            (alias.name if isinstance(node, ast.Import) else str(node.module)).partition(".")[0]
            for node in nodes(module)
            if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level)
            for alias in node.names
        }
        allowed = {*sys.stdlib_module_names, *(LOOKED_AT if module in PROBE else ())}
        allowed |= {"envkit"} if module == "inside.image_facts" else set()  # how flags are read, where Python is 3.10
        allowed |= (
            {"envkit"} if module == "system.mount_namespace" else set()
        )  # what a client's words mean, of the same kind
        allowed |= {"pytest"} if module == "inside.upstream_rank" else set()
        allowed |= {"reframe"} if module == "integrations.reframe_tests" else set()
        foreign += [f"{module} imports {name}" for name in sorted(absolute - allowed)]
    assert foreign == []


def test_no_program_for_another_interpreter_is_a_string() -> None:
    """It is a file of ``inside/``, which the tests can read, run and check as any other."""
    strings = []
    for module in FILES:
        for node in nodes(module):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and IMPORTING.search(node.value):
                with suppress(SyntaxError):
                    if len(ast.parse(node.value).body) > 1:
                        strings.append(f"{module}, line {node.lineno}")
    assert strings == []


def test_programs_are_started_in_one_place() -> None:
    starting = ("exec", "fork", "spawn", "posix_spawn", "system", "popen")
    elsewhere = []
    for module in FILES.keys() - STARTS_PROGRAMS:
        roots = {name.partition(".")[0] for name in imported(module)}
        elsewhere += [f"{module} imports {name}" for name in {"subprocess", "pty", "multiprocessing"} & roots]
        elsewhere += [
            f"{module} calls os.{node.attr}"
            for node in nodes(module)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
            if node.attr.startswith(starting)
        ]
    assert sorted(elsewhere) == []


def test_types_meet_msgspec_in_one_place() -> None:
    """Two threads that have it look at a type at the same time crash: ``system.record`` has one look at a time."""
    elsewhere = []
    for module in FILES.keys() - {"system.record"}:
        for node in nodes(module):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            is_typed = any(keyword.arg == "type" for keyword in node.keywords) or len(node.args) > 1
            if called.endswith(("msgspec.convert", "json.Decoder")) or (called.endswith("json.decode") and is_typed):
                elsewhere.append(f"{module}, line {node.lineno}: {ast.unparse(node)}")
    assert sorted(elsewhere) == []


def test_no_shell_reads_a_command() -> None:
    assert [
        f"{module}:{call.lineno}" for module in FILES for call in calls(module) for keyword in call.keywords
        if keyword.arg == "shell"
    ] == []  # fmt: skip


def test_the_own_process_is_left_as_it_is() -> None:
    changing = {"os.chdir", "os.umask", "os.putenv", "os.environ.update"}
    changed = []
    for module in FILES.keys() - {
        "system.mount_namespace",
        "system.umask",
        "inside.upstream_rank",
    }:  # a process of its own
        changed += [f"{module}:{call.lineno}" for call in calls(module) if ast.unparse(call.func) in changing]
        changed += [
            f"{module}:{node.lineno}"
            for node in nodes(module)
            if isinstance(node, ast.Assign)
            if any(ast.unparse(target).startswith("os.environ") for target in node.targets)
        ]
    assert sorted(changed) == []
