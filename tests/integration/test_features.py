"""What becomes of each feature of Horovod, by framework and library, is what docs/features.toml says."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from ..stacks import Site

SCRIPTS = Path(__file__).parent / "scripts"
TOLD = tomllib.loads((Path(__file__).parents[2] / "docs" / "features.toml").read_text())
CASES = {
    "pytorch-2.13-cpu": ("pytorch", "features_torch.py"),
    "tensorflow-2.21-cpu": ("tensorflow", "features_tensorflow.py"),
}

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("library", ["mpi", "gloo"])
@pytest.mark.parametrize("stack", CASES)
def test_features_do_what_the_table_says(
    stack: str, library: str, stacks: Site, installed: Callable[[str], str]
) -> None:
    installed(stack)
    framework, script = CASES[stack]
    words = ["-n", "2", "--"] if library == "mpi" else ["--", "horovodrun", "--gloo", "-np", "2"]
    done = stacks.envkit("run", stack, *words, "python", str(SCRIPTS / script), timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = re.findall(r"FOUND (\{.*\})", done.stdout)
    found = json.loads(line)
    told = {name: row[framework] for name, row in TOLD.items() if framework in row}
    assert found.keys() == told.keys()
    wrong = {name: said for name, said in found.items() if not is_told(told[name], library, said)}
    assert wrong == {}


def is_told(told: dict[str, str], library: str, said: str) -> bool:
    """Whether what became of a feature is what the table says of it."""
    error = told.get("over_gloo" if library == "gloo" and "over_gloo" in told else "error")
    return bool(re.search(error, said)) if error else said == "works"
