#!/usr/bin/env python3
"""Mutants of the pure modules, each against the unit tests of its module: python scripts/mutate.py GROUP... [options].

A mutant is one small change (a comparison, a number, a text, two neighbours in a list that change places, ...). It is put
in the place of its module at the import, in a process of its own; no file is changed.
"""

import argparse
import ast
import copy
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHECKS = (
    "checks build_checks fabric_checks gpu_checks machine_checks security_checks world_checks speed_checks values drift"
)
GROUPS = {
    "checks": (
        "envkit/verify/checks/*.py",
        [*(f"tests/verify/test_{name}.py" for name in CHECKS.split()), "-k", "not what_the_ranks_send"],
    ),
    "compat": (
        "envkit/compat/[cjk]*.py",
        ["tests/compat/test_judge.py", "-k", "not joint and not exit_codes and not put_in"],
    ),
    "diagnose": ("envkit/diagnose/[jsk][ucn]*.py", ["tests/test_diagnose.py", "-k", "not large and not compressed"]),
    "launcher": ("envkit/launch/launcher.py", ["tests/test_launcher.py"]),
    "receipt": ("envkit/environments/receipt.py", ["tests/test_receipt.py"]),
    "installed": ("envkit/methods/installed.py", ["tests/test_receipt.py"]),
    "terminal": ("envkit/verify/report/terminal.py", ["tests/verify/test_report.py", "-k", "not thousands"]),
}
OTHER: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip
NAMES = {"any": "all", "all": "any", "min": "max", "max": "min", "sorted": "list", "sum": "len"}


def changes(node: ast.AST) -> Iterator[Callable[[], object]]:
    """Yield what can be changed of one node, as functions that do it."""
    fields: list[list[ast.expr]] = []
    match node:
        case ast.Compare(ops=[op]) | ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OTHER:
            new = OTHER[type(op)]()
            yield lambda: setattr(node, "ops", [new]) if isinstance(node, ast.Compare) else setattr(node, "op", new)
        case ast.Constant(value=bool()):
            yield lambda: setattr(node, "value", not node.value)
        case ast.Constant(value=int() | float() as number):
            yield lambda: setattr(node, "value", number + 1)
            yield lambda: setattr(node, "value", number - 1)
        case ast.Constant(value=str() as text) if text.count(" ") < 2:  # the words of a message are not the behaviour
            yield lambda: setattr(node, "value", f"{text}~" if text else "~")
        case ast.Name(id=name, ctx=ast.Load()) if name in NAMES:
            yield lambda: setattr(node, "id", NAMES[name])
        case ast.If(test=test) | ast.IfExp(test=test):
            yield lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), test))
        case ast.comprehension(ifs=[_, *_]):
            yield node.ifs.clear
        case ast.Slice(lower=None, upper=ast.expr() as upper):
            yield lambda: (setattr(node, "lower", ast.UnaryOp(ast.USub(), upper)), setattr(node, "upper", None))
        case ast.Slice(lower=ast.expr() as lower, upper=None):
            yield lambda: (setattr(node, "upper", lower), setattr(node, "lower", None))
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield lambda: setattr(node, "value", ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield lambda: setattr(node, "value", ast.Constant(None))
        case ast.Tuple(elts=elements, ctx=ast.Load()) | ast.List(elts=elements, ctx=ast.Load()):
            fields.append(elements)
        case ast.Dict(values=elements):
            fields.append(elements)
        case ast.Call(func=called, args=elements) if ast.unparse(called) not in {"max", "min"}:
            fields.append(elements)
    for elements in fields:
        for at in range(len(elements) - 1):
            if ast.dump(elements[at]) != ast.dump(elements[at + 1]):
                yield lambda elements=elements, at=at: elements.insert(at, elements.pop(at + 1))


def nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below one, without annotations and docstrings."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and name not in {"annotation", "returns"} and not docstring:
                yield child
                yield from nodes(child)


def mutant(tree: ast.Module, index: int) -> tuple[ast.Module, str]:
    """Return a module with one change, and what it is."""
    tree = copy.deepcopy(tree)
    statements = [node for node in nodes(tree) if isinstance(node, ast.stmt)]
    node, change = [(node, change) for node in nodes(tree) for change in changes(node)][index]
    line = max((one.lineno for one in statements if node in {one, *nodes(one)}), default=0)
    before = ast.unparse(tree).splitlines()
    change()
    after = ast.unparse(ast.fix_missing_locations(tree)).splitlines()
    differ = [(old.strip(), new.strip()) for old, new in zip(before, after, strict=False) if old != new]
    return tree, f"{line}: " + "  ->  ".join(differ[0] if differ else ("", ""))


class Instead(SourceFileLoader):
    """What loads one module from a tree, also as the finder of it."""

    tree: ast.Module

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the tree."""
        return compile(self.tree, self.path, "exec", dont_inherit=True)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Find the module, and no other."""
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None


def passes(path: Path, tree: ast.Module, tests: Sequence[str], limit: float) -> bool:
    """Say whether the tests pass with a tree in the place of a module, in a process of its own."""
    child = os.fork()
    if not child:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        parts = path.relative_to(ROOT).with_suffix("").parts
        loader = Instead(".".join(parts[:-1] if parts[-1] == "__init__" else parts), str(path))
        loader.tree = tree
        sys.meta_path.insert(0, loader)
        os._exit(pytest.main(["-x", "-q", "-n0", "-p", "no:cacheprovider", "-m", "not integration", *tests]))
    end = time.monotonic() + limit
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.02)
    if not done[0]:
        os.killpg(child, signal.SIGKILL)
        done = os.waitpid(child, 0)
    return done[1] == 0


def main() -> None:
    """Try a sample of the mutants of each group, print those that survive and how many were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], default=list(GROUPS))
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    for group in given.groups:
        pattern, tests = GROUPS[group]
        trees = {path: ast.parse(path.read_text()) for path in sorted(ROOT.glob(pattern))}
        every = [
            (path, index)
            for path, tree in trees.items()
            for index in range(sum(1 for node in nodes(tree) for _ in changes(node)))
        ]
        start = time.monotonic()
        path, tree = next(iter(trees.items()))
        if not passes(path, tree, tests, 600):
            sys.exit(f"{group}: the tests fail without a mutant")
        limit = 10 + 5 * (time.monotonic() - start)
        tried = random.Random(given.seed).sample(every, min(given.sample, len(every)))  # noqa: S311
        survived = 0
        for path, index in tried:
            tree, what = mutant(trees[path], index)
            if passes(path, tree, tests, limit):
                survived += 1
                print(f"{path.relative_to(ROOT)}:{what}", flush=True)
        print(f"{group}: {len(every)} mutants, {len(tried)} tried, {len(tried) - survived} killed", flush=True)


if __name__ == "__main__":
    main()
