"""scripts/mutate.py, but for mutmut itself: what is given to it."""

import ast
import tomllib
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
GROUPS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "scripts/mutants.toml").read_text())
undecorated: Callable[[str], str] = run_path(str(ROOT / "scripts/mutate.py"))["undecorated"]

SOURCE = """from functools import cache, lru_cache

calls = []


def noted(function):
    calls.append(function.__name__)
    return function


@noted
@lru_cache(
    maxsize=4,
)
def twice(n):
    return 2 * n


@noted
class Toy:
    @property
    def one(self):
        return 1

    @staticmethod
    def two():
        return 2

    def three(self):
        return 3


@cache
def last(): return "last"
"""


def test_what_decorates_a_function_stands_below_it() -> None:
    changed = undecorated(SOURCE)
    functions = [node for node in ast.walk(ast.parse(changed)) if isinstance(node, ast.FunctionDef)]
    assert {node.name: len(node.decorator_list) for node in functions if node.decorator_list} == {"two": 1}
    assert "    one = property(one)\n" in changed
    made: dict[str, Any] = {}
    exec(changed, made)
    assert (made["twice"](2), made["twice"].cache_info().maxsize, made["last"]()) == (4, 4, "last")
    toy = made["Toy"]()
    assert (toy.one, toy.two(), toy.three()) == (1, 2, 3)
    assert sorted(made["calls"]) == ["Toy", "twice"]
    assert undecorated("x = 1\n") == "x = 1\n"


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_names_modules_and_tests_that_there_are(group: str) -> None:
    for pattern in GROUPS[group]["modules"]:
        paths = [*ROOT.glob(pattern)]
        assert paths, pattern
        for path in paths:
            compile(undecorated(path.read_text()), str(path), "exec")
    assert all((ROOT / test).is_file() for test in GROUPS[group]["tests"])
