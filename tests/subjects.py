"""Which tests run: those about what takes long where that has changed, and no test twice on one machine.

A *subject* is what takes long to build or to try. Tests about one run where a file of it (subjects.toml) is another
than when all of them passed; after a run with --record, passed.toml says with which files they did. Besides, a test
that passed on this machine runs again only where a file has changed that it may depend on: any, but for other modules
of tests. With --all, and where tests are named, nothing is left out; in CI only what passed.toml says.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import platformdirs
import pytest

from .stacks import KEPT_S

ROOT = Path(__file__).parents[1]
SUBJECTS: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests/subjects.toml").read_text())
PASSED = ROOT / "tests/passed.toml"
TOOLS = ("g++", "mpirun", "cmake", "apptainer", "srun", "ccache")


def subject_of(item: pytest.Item) -> str:
    """The subject that a test is about: by its mark, the stack that it needs, or its module; or none."""
    if item.get_closest_marker("all"):
        return ""  # runs seldom anyway
    if mark := item.get_closest_marker("about"):
        return str(mark.args[0])
    fixtures = {*getattr(item, "fixturenames", ())}
    if fixtures >= {"image", "installed"}:
        return "image"
    call = getattr(item, "callspec", None)
    given = {value for value in (call.params.values() if call else ()) if isinstance(value, str)}
    if fixtures & {"installed", "stacks"} and SUBJECTS["tensorflow"]["stack"] in given:
        return "tensorflow"
    return next((name for name in SUBJECTS if item.path in modules_of(name)), "")


@cache
def modules_of(subject: str) -> set[Path]:
    """The modules all of whose tests are about a subject."""
    return {path for pattern in SUBJECTS[subject].get("tests", ()) for path in ROOT.glob(pattern)}


@cache
def files_of(subject: str) -> set[Path]:
    """The files of a subject, but for those that say what was built from them."""
    found = {path for pattern in SUBJECTS[subject]["files"] for path in ROOT.glob(pattern)} | modules_of(subject)
    return found - {ROOT / "easyconfigs/verified.toml", ROOT / "containers/verified.toml"}


def digest(paths: Iterable[Path], *besides: str) -> str:
    """A SHA-256 of files, by their names and contents, and of what there is besides."""
    files = sorted({path for path in paths if path.is_file() and "__pycache__" not in path.parts})
    read = [(str(path.relative_to(ROOT)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
    return hashlib.sha256(repr((read, besides)).encode()).hexdigest()


def made_of(subject: str) -> str:
    """A SHA-256 of the files of a subject."""
    return digest(files_of(subject))


def passed() -> dict[str, dict[str, str]]:
    """Of each subject with which files its tests passed, and when."""
    return tomllib.loads(PASSED.read_text()) if PASSED.is_file() else {}


def unchanged() -> dict[str, str]:
    """The subjects that are made of what they were made of when their tests passed, and when that was."""
    return {name: told["date"] for name, told in passed().items() if told["made_of"] == made_of(name)}


def record(subjects: Iterable[str]) -> None:
    """Write down that all tests of these subjects have passed with the files as they are."""
    today = time.strftime("%Y-%m-%d")
    now = {**passed(), **{name: {"made_of": made_of(name), "date": today} for name in subjects}}
    text = "# When all tests of each subject passed, and with which files. Written by scripts/test.sh --record.\n"
    for name, told in sorted(now.items()):
        text += f"\n[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in sorted(told.items()))
    PASSED.write_text(text)


@cache
def common() -> str:
    """A SHA-256 of all that any test may depend on: every file but the modules of tests, and the machine's tools."""
    versions = [
        subprocess.run(["sh", "-c", f"{tool} --version"], capture_output=True, check=False).stdout for tool in TOOLS
    ]
    return digest((ROOT / name for name in listed() if not is_module(name)), repr(versions), sys.version)


def listed() -> list[str]:
    """The files of the checkout, those of Git and what has been added to them."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()


@cache
def imported() -> set[str]:
    """The modules of tests from which others import something."""
    wanted = re.compile(r"^from [\w.]*?(test_\w+) import", re.MULTILINE)
    return {name for path in ROOT.glob("tests/**/*.py") for name in wanted.findall(path.read_text())}


def is_module(name: str) -> bool:
    """Say whether a file is a module of tests from which no other imports anything."""
    found = re.fullmatch(r"tests/(?:\w+/)*(test_\w+)\.py", name)
    return found is not None and found[1] not in imported()


def own(file: str) -> str:
    """A SHA-256 of all that the tests of a module may depend on."""
    return digest([ROOT / file], common())


def memory() -> Path:
    """Where it is kept which tests passed on this machine."""
    return platformdirs.user_cache_path("envkit-tests") / "passed.json"


def remembered() -> dict[str, dict[str, Any]]:
    """Of each module the tests that passed here with the files as they are; nothing where Git does not list them."""
    try:
        kept = json.loads(memory().read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(kept, dict):
        return {}
    young = {file: told for file, told in kept.items() if time.time() - told["when"] < KEPT_S}
    return {file: told for file, told in young.items() if (ROOT / file).is_file() and told["digest"] == own(file)}


def remember(tests: Iterable[str]) -> None:
    """Keep that these tests passed here with the files as they are."""
    if not (ROOT / ".git").exists():
        return
    kept = remembered()
    for test in tests:
        file = test.partition("::")[0]
        told = kept.setdefault(file, {"digest": own(file), "when": time.time(), "passed": []})
        told["passed"].append(test)
    for told in kept.values():
        told["passed"] = sorted({*told["passed"]})
    memory().parent.mkdir(parents=True, exist_ok=True)
    new = memory().with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(kept))
    new.replace(memory())
