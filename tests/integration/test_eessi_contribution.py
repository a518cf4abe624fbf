"""What docs/eessi.md says EESSI's software layer takes as a contribution, held against eb itself; no network."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from envkit.machine import host
from envkit.system.resources import data, easybuild_collection, recipes

from .site import needs

pytestmark = pytest.mark.integration
PAGE = Path(__file__).parents[2] / "docs" / "eessi.md"


@pytest.fixture
def entry() -> str:
    """The entry of the easystack, as the page has it."""
    [text] = map(str, re.findall(r"```yaml\n(easyconfigs:\n.*?)```", PAGE.read_text(), re.DOTALL))
    return text


def eb(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run eb with the recipes here and those of its collection."""
    tool = host.detect().modules_tool
    assert tool is not None
    env = {name: value for name, value in os.environ.items() if not name.startswith("EASYBUILD_")}
    env |= {"LMOD_CMD": str(tool.command), "EASYBUILD_PREFIX": str(folder), "TERM": "dumb", "COLUMNS": "300"}
    env |= {"EASYBUILD_ROBOT_PATHS": f"{recipes('easyconfigs')}:{easybuild_collection()}"}
    env |= {"EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES": "1"}
    env |= {"EB_SCRIPT_PATH": str(easybuild_collection().parents[1] / "bin" / "eb")}
    argv = [sys.executable, "-m", "easybuild.main", "--output-style=no_color", *words]
    return subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def named(entry: str) -> list[str]:
    """The recipes that an easystack names."""
    return re.findall(r"^  - ([\w.-]+\.eb):?$", entry, re.MULTILINE)


def test_the_recipes_are_those_of_the_stacks_on_eessi(entry: str) -> None:
    stacks = tomllib.loads(data("planning/stacks.toml").read_text())
    assert set(named(entry)) == {one["easyconfig"] for name, one in stacks.items() if name.endswith("-eessi")}


def test_eb_takes_the_entry_as_an_easystack(entry: str, tmp_path: Path) -> None:
    """But for the commits, which are fetched."""
    needs("lmod")
    (tmp_path / "x.yml").write_text(re.sub(r":\n      options:\n(        .*\n)+", "\n", entry))
    done = eb(tmp_path, "--easystack", "x.yml", "--dry-run", "--robot")
    told = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for recipe in named(entry):
        version = recipe.removeprefix("Horovod-").removesuffix(".eb")
        assert f"easyconfigs/{recipe} (module: Horovod/{version})" in told, told[-3000:]


def test_the_recipes_pass_the_checks_for_contributions(entry: str, tmp_path: Path) -> None:
    """Style and checksums, as eb demands them; a recipe that lacks a checksum fails."""
    needs("lmod")
    pytest.importorskip("pycodestyle")
    own = [recipes("easyconfigs") / recipe for recipe in named(entry)]
    done = eb(tmp_path, "--check-contrib", *map(str, own))
    assert (done.returncode, "All contribution checks PASSed" in done.stdout) == (0, True), done.stdout[-2000:]
    bad = tmp_path / own[0].name
    bad.write_text(re.sub(r"\n *\{'[^']+\.patch': '[0-9a-f]{64}'\},", "", own[0].read_text(), count=1))
    failing = eb(tmp_path, "--check-contrib", str(bad))
    assert failing.returncode != 0 and "[FAIL]" in failing.stdout, failing.stdout[-2000:]
