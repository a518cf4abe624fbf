#!/usr/bin/env python3
"""Try a sample of mutmut's mutants of each group of mutants.toml against the tests of the group: mutate.py [GROUP...].

They are made in a copy of the tree, in a temporary folder: no file of the checkout is changed.
"""

import argparse
import ast
import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GROUPS = tomllib.loads((ROOT / "scripts/mutants.toml").read_text())
MUTMUT = Path(sys.executable).with_name("mutmut")
SETTINGS = {
    "source_paths": ["envkit"],
    "pytest_add_cli_args": ["-n0", "-p", "no:cacheprovider", "-p", "scripts.fresh_caches"],
    "process_isolation": "forkserver",  # no mutant inherits what a test has left in the process that forks it
    "use_git_change_detection": False,
    "track_dependencies": False,
    "timeout_constant": 5.0,  # a mutant is stopped after ten times these seconds and those its tests take
    "timeout_multiplier": 10.0,
}


def undecorated(source: str) -> str:
    """Return a module that decorates its functions in a line below each: mutmut passes over those with a decorator."""
    lines = source.splitlines()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    for node in sorted(functions, key=lambda node: node.lineno, reverse=True):
        told = [ast.unparse(decorator) for decorator in node.decorator_list]
        if not told or {"staticmethod", "classmethod"} & {*told}:
            continue
        indented = " " * node.col_offset
        lines[node.end_lineno : node.end_lineno] = [f"{indented}{node.name} = {one}({node.name})" for one in told[::-1]]
        del lines[node.decorator_list[0].lineno - 1 : node.lineno - 1]
    return "\n".join(lines) + "\n"


def copied(group: str, copy: Path) -> list[Path]:
    """Copy the tree, with mutmut's settings for a group, and return the modules that are mutated."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    given = GROUPS[group]
    modules = [path for pattern in given["modules"] for path in sorted(copy.glob(pattern))]
    for path in modules:
        path.write_text(undecorated(path.read_text()))
    settings = SETTINGS | {
        "only_mutate": [str(path.relative_to(copy)) for path in modules],
        "also_copy": sorted(path.name for path in copy.iterdir() if path.name != "envkit"),
        "pytest_add_cli_args_test_selection": [*given["tests"], "-m", "not integration", "-k", given.get("only", "")],
    }
    with (copy / "pyproject.toml").open("a") as file:
        file.write("\n[tool.mutmut]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    return modules


def mutants(copy: Path, modules: list[Path]) -> list[str]:
    """Return the names of all mutants of some modules."""
    from mutmut.mutation.file_mutation import mutate_file_contents
    from mutmut.utils.format_utils import get_mutant_name

    with contextlib.chdir(copy):  # where its settings are
        return [
            get_mutant_name(path.relative_to(copy), name)
            for path in modules
            for name in mutate_file_contents(str(path), path.read_text()).mutant_names
        ]


def main() -> None:
    """Try a sample of the mutants of each group, print those that are not noticed and how many are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", default=list(GROUPS), help=", ".join(GROUPS))
    parser.add_argument("--sample", type=int, default=30, metavar="MUTANTS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    if not MUTMUT.exists():
        sys.exit(f"There is no {MUTMUT}: pip install '.[mutation]'")
    for group in given.groups:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            copy = Path(folder)
            copy.chmod(0o755)  # some tests run it as another user
            every = mutants(copy, copied(group, copy))
            tried = random.Random(given.seed).sample(every, min(given.sample, len(every)))  # noqa: S311
            run = subprocess.run(
                [MUTMUT, "run", "--max-children", str(given.processes), *tried],
                cwd=copy,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            if run.returncode:
                sys.exit(f"{group}: {run.stdout}")
            told = subprocess.run(
                [MUTMUT, "results", "--all", "1"], cwd=copy, capture_output=True, text=True, check=True
            )
            became = dict(line.strip().rsplit(": ", 1) for line in told.stdout.splitlines())
            for name in tried:
                if became[name] != "killed":
                    print(f"{became[name]}: {name}", flush=True)
                    subprocess.run([MUTMUT, "show", name], cwd=copy, check=True)
            count = {word: sum(became[name] == word for name in tried) for word in sorted({*became.values()})}
        words = ", ".join(f"{number} {word}" for word, number in count.items() if number)
        print(f"{group}: {len(every)} mutants, {len(tried)} tried: {words}", flush=True)


if __name__ == "__main__":
    main()
