"""Broken worlds over the stacks of the tests: no verdict passes what is broken, or fails what is not."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..stacks import ENVKIT, Site

pytestmark = pytest.mark.integration
STACKS = ["pytorch-2.13-cpu", "tensorflow-2.21-cpu"]
HERE = Path(__file__).parents[2]


def records(site: Site, folder: Path, stack: str, *options: str) -> list[dict[str, Any]]:
    """What the zoo finds; skips where no overlay can be mounted."""
    if subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces of one's own")
    file = folder / "zoo.json"
    argv = [sys.executable, "-m", "tests.zoo", "--prefix", str(site.prefix), "--stack", stack, "--envkit", str(ENVKIT)]
    done = subprocess.run([*argv, "--json", str(file), "--quiet", *options], cwd=HERE, capture_output=True, text=True)
    assert file.exists(), done.stdout + done.stderr
    return list(json.loads(file.read_text()))


def bad(found: list[dict[str, Any]]) -> list[str]:
    """The cases in which the verdict is false, or envkit itself fails."""
    worse = ("false pass", "false fail", "defect")
    return [
        f"{record['name']}: {record['score']}"
        for record in found
        if record["score"] in worse or record.get("traceback") or record.get("first", {}).get("hung")
    ]


def test_a_sample(stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    installed(STACKS[0])
    assert not bad(records(stacks, tmp_path, STACKS[0], "--set", "all", "--sample", "12", "--no-repair"))


@pytest.mark.all
@pytest.mark.parametrize("stack", STACKS)
def test_kinds_drawn_anew(stacks: Site, installed: Callable[[str], str], tmp_path: Path, stack: str) -> None:
    """Others in each run: all of them take a day, by hand."""
    installed(stack)
    seed = str(random.randrange(1_000_000))
    found = records(stacks, tmp_path, stack, "--set", "all", "--sample", "24", "--seed", seed)
    assert not bad(found), f"--seed {seed}"
