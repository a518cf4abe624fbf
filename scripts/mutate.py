#!/usr/bin/env python3
"""Mutants of the groups of modules in mutants.toml, each against the tests named there: scripts/mutate.py GROUP...

A mutant is a module with one small change, put in its place at the import, in a process of its own; no file is changed.
"""

import argparse
import ast
import copy
import importlib.util
import os
import random
import signal
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).resolve().parents[1]
GROUPS = tomllib.loads((ROOT / "scripts/mutants.toml").read_text())
LIMIT = 180  # seconds for the tests of one mutant: it may not end
OTHER: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip
NAMES = {"any": "all", "all": "any", "min": "max", "max": "min", "sorted": "list", "sum": "len"}


def changes(node: ast.AST) -> Iterator[dict[str, object]]:
    """Yield what can be changed of one node: its fields as they would be."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in OTHER:
            yield {"ops": [OTHER[type(op)]()]}
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OTHER:
            yield {"op": OTHER[type(op)]()}
        case ast.Constant(value=bool() as value):
            yield {"value": not value}
        case ast.Constant(value=int() | float() as number):
            yield {"value": number + 1}
            yield {"value": number - 1}
        case ast.Constant(value=str() as text) if text.count(" ") < 2:  # the words of a message are not the behaviour
            yield {"value": f"{text}~"}
        case ast.Name(id=name, ctx=ast.Load()) if name in NAMES:
            yield {"id": NAMES[name]}
        case ast.If(test=test) | ast.IfExp(test=test):
            yield {"test": ast.UnaryOp(ast.Not(), test)}
        case ast.comprehension(ifs=[_, *_]):
            yield {"ifs": []}
        case ast.Slice(lower=lower, upper=upper) if (lower is None) != (upper is None):
            yield {"lower": ast.UnaryOp(ast.USub(), upper) if upper else None, "upper": lower}
        case ast.Return(value=ast.expr() as told) | ast.Expr(value=ast.Call() as told) if (
            type(told) is not ast.Constant
        ):
            yield {"value": ast.Constant(None)}
        case ast.Tuple(ctx=ast.Load()) | ast.List(ctx=ast.Load()) | ast.Dict() | ast.Call():
            field = {ast.Dict: "values", ast.Call: "args"}.get(type(node), "elts")
            many = getattr(node, field)
            for at in range(len(many) - 1 if ast.unparse(getattr(node, "func", node)) not in {"max", "min"} else 0):
                if ast.dump(many[at]) != ast.dump(many[at + 1]):
                    yield {field: [*many[:at], many[at + 1], many[at], *many[at + 2 :]]}


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
    node, change = [(node, change) for node in nodes(tree) for change in changes(node)][index]
    before = ast.unparse(tree).splitlines()
    for name, value in change.items():
        setattr(node, name, value)
    after = ast.unparse(ast.fix_missing_locations(tree)).splitlines()
    differ = [f"{old.strip()}  ->  {new.strip()}" for old, new in zip(before, after, strict=False) if old != new]
    return tree, f"{getattr(node, 'lineno', '')}: {''.join(differ[:1])}"


class Instead(SourceFileLoader):
    """What loads one module from a tree, also as the finder of it."""

    tree: ast.Module

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        """Return the code of the tree."""
        return compile(self.tree, self.path, "exec", dont_inherit=True)

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Find the module, and no other."""
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None


def passes(path: Path, tree: ast.Module, tests: Sequence[str]) -> bool:
    """Say whether the tests pass with a tree in the place of a module, in a process of its own."""
    child = os.fork()
    if not child:
        signal.alarm(LIMIT)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        parts = path.relative_to(ROOT).with_suffix("").parts
        loader = Instead(".".join(parts[:-1] if parts[-1] == "__init__" else parts), str(path))
        loader.tree = tree
        sys.meta_path.insert(0, loader)
        os._exit(pytest.main(["-x", "-q", "-n0", "-p", "no:cacheprovider", "-m", "not integration", *tests]))
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    """Try a sample of the mutants of each group, print those that survive and how many were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", default=list(GROUPS), help=", ".join(GROUPS))
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    for group in given.groups:
        tests = [*GROUPS[group]["tests"], "-k", GROUPS[group].get("only", "")]
        paths = [path for pattern in GROUPS[group]["modules"] for path in sorted(ROOT.glob(pattern))]
        trees = {path: ast.parse(path.read_text()) for path in paths}
        counts = {path: sum(1 for node in nodes(tree) for _ in changes(node)) for path, tree in trees.items()}
        every = [(path, index) for path, count in counts.items() for index in range(count)]
        if not passes(paths[0], trees[paths[0]], tests):
            sys.exit(f"{group}: the tests fail without a mutant")
        tried = random.Random(given.seed).sample(every, min(given.sample, len(every)))  # noqa: S311
        survived = 0
        for path, index in tried:
            tree, what = mutant(trees[path], index)
            if passes(path, tree, tests):
                survived += 1
                print(f"{path.relative_to(ROOT)}:{what}", flush=True)
        print(f"{group}: {len(every)} mutants, {len(tried)} tried, {len(tried) - survived} killed", flush=True)


if __name__ == "__main__":
    main()
