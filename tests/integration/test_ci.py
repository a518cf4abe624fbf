"""The lines that GitHub's and GitLab's runners would run, with a real environment."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from ..stacks import ENVKIT, Site
from ..test_ci import gitlab, steps

STACK = "pytorch-2.13-cpu"

pytestmark = pytest.mark.integration


def bash(stacks: Site, folder: Path, lines: str, env: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run lines as a runner does, in a folder, with envkit on PATH."""
    path = os.pathsep.join([str(ENVKIT.parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", lines],
        cwd=folder,
        env={**os.environ, "PATH": path, "ENVKIT_PREFIX": str(stacks.prefix), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_the_action_installs_and_verifies(stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    installed(STACK)
    files = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    env = {**files, "RUNNER_TEMP": str(tmp_path), "STACK": STACK, "RANKS": "2", "REQUIRE": "mpi"}
    done = bash(stacks, tmp_path, steps()["Install the environment"]["run"], env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{STACK} is installed already" in done.stdout

    done = bash(stacks, tmp_path, steps()["Verify"]["run"], env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "::notice title=envkit verify%3A PASS::" in done.stderr
    assert "### envkit verify: PASS" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    told = dict(line.split("=", 1) for line in (tmp_path / "GITHUB_OUTPUT").read_text().splitlines())
    assert Path(told["page"]).read_text().rstrip().endswith("</html>")
    assert ElementTree.parse(told["report"]).getroot().attrib["failures"] == "0"

    done = bash(stacks, tmp_path, steps()["Verify"]["run"], {**env, "REQUIRE": "nccl"})
    assert done.returncode == 1
    assert "::error title=envkit verify%3A flag-required (torch)::" in done.stderr


def test_the_job_of_gitlab_verifies(stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    installed(STACK)
    job = gitlab(environment=STACK, options="--quick")
    done = bash(stacks, tmp_path, "\n".join([*job["before_script"], *job["script"]]), job["variables"])
    assert done.returncode == 0, done.stdout + done.stderr
    report = tmp_path / job["artifacts"]["reports"]["junit"]
    assert ElementTree.parse(report).getroot().attrib["failures"] == "0"
    assert all((tmp_path / path).is_file() for path in job["artifacts"]["paths"])
