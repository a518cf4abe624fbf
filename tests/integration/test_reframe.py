"""The tests for ReFrame, by real ReFrame, which starts the ranks or leaves that to envkit."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envkit.system.resources import data

from ..stacks import ENVKIT, Site

STACK = "pytorch-2.13-cpu"
AS_ROOT = [["OMPI_ALLOW_RUN_AS_ROOT", "1"], ["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"]]
PARTITIONS = [
    {"name": launcher, "scheduler": "local", "launcher": launcher, "environs": ["plain"], "env_vars": AS_ROOT}
    for launcher in ("local", "mpirun")
]
SITE = {
    "systems": [{"name": "here", "hostnames": [".*"], "partitions": PARTITIONS}],
    "environments": [{"name": "plain"}],
}

pytestmark = pytest.mark.integration


def reframe(stacks: Site, folder: Path, *settings: str, system: str = "here") -> dict[str, dict[str, Any]]:
    """Run the test, and return what ReFrame reports of each partition."""
    (folder / "settings.py").write_text(f"site_configuration = {SITE}\n")
    tests = data("integrations/reframe_tests.py")
    words = [word for setting in settings for word in ("-S", f"EnvkitVerify.{setting}")]
    report = folder / "report.json"
    place = ["--system", system, "--prefix", str(folder / "out"), "-C", "settings.py", "-c", str(tests)]
    done = subprocess.run(
        [str(ENVKIT.with_name("reframe")), "--nocolor", *place, "-r", "--report-file", str(report), *words],
        cwd=folder,
        env={**os.environ, "HOME": str(folder), "TMPDIR": str(folder), "ENVKIT_PREFIX": str(stacks.prefix)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert report.exists(), done.stdout + done.stderr
    cases = json.loads(report.read_text())["runs"][0]["testcases"]
    return {case["partition"]: case for case in cases}


def test_it_passes_by_envkits_launcher_and_by_reframes(
    stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed(STACK)
    found = reframe(stacks, tmp_path, f"environment={STACK}", "bench=yes")
    assert found.keys() == {"local", "mpirun"}
    for case in found.values():
        assert case["result"] == "pass", case["fail_reason"]
        measured = {name.rpartition(":")[2]: value[0] for name, value in case["perfvalues"].items()}
        assert measured.keys() == {"bus_bandwidth", "latency"}
        assert all(value > 0 for value in measured.values())
    pages = list((tmp_path / "out" / "output").rglob("envkit.html"))
    assert len(pages) == 2


def test_it_says_why_it_fails(stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    installed(STACK)
    case = reframe(stacks, tmp_path, f"environment={STACK}", "require=nccl", system="here:local")["local"]
    assert case["result"] == "fail"
    assert "flag-required" in case["fail_reason"]
    case = reframe(stacks, tmp_path, "environment=nothing", system="here:local")["local"]
    assert "There is no environment 'nothing'" in case["fail_reason"]
