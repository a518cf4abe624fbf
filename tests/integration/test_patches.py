"""The series of patches that 'envkit export patches' writes, on Horovod's own source, as its README says."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.planning import patches
from envkit.planning.stack import stacks
from envkit.sources.fetch import Source, fetch
from envkit.system.resources import recipes

pytestmark = pytest.mark.integration

SERIES = {patches.of_stack(stack): stack.name for stack in reversed(stacks())}  # of equal ones, the first stack


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Horovod's source, fetched through the index of this machine and held against its pin."""
    pin = patches.PINNED.search((recipes("containers") / f"horovod-{patches.horovod_of_images()}.txt").read_text())
    assert pin
    folder = tmp_path_factory.mktemp("sdist")
    source = Source(filename=pin["file"], sha256=pin["sha256"], project="horovod", needed_by="horovod.txt")
    fetch([source], folder, offline=False, progress=lambda _: None)
    return folder / pin["file"]


def commands(readme: Path, title: str) -> list[str]:
    """The commands of a part of a README, with the folder of it as it says."""
    part = readme.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    [block] = re.findall(r"```sh\n(.*?)```", part, re.DOTALL)
    return str(block).replace("/path/to/this/folder", f"'{readme.parent}'").splitlines()


@pytest.mark.parametrize("stack", SERIES.values())
def test_a_series_applies_in_its_order_as_its_readme_says(stack: str, sdist: Path, tmp_path: Path) -> None:
    folder = tmp_path / "the series"
    assert run(["export", "patches", str(folder), stack]) == 0
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / sdist.name).hardlink_to(sdist)
    lines = [line for line in commands(folder / "README.md", "Apply them") if not line.startswith("pip ")]
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(lines)],
        cwd=tmp_path / "build", capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"offset|fuzz|FAILED|Reversed", done.stdout), done.stdout
    assert done.stdout.count("patching file") >= len((folder / "series").read_text().split())


def test_a_patch_that_does_not_apply_ends_it(sdist: Path, tmp_path: Path) -> None:
    folder = tmp_path / "series"
    assert run(["export", "patches", str(folder)]) == 0
    (folder / "series").write_text("0001-cxx17.patch\n0001-cxx17.patch\n0002-missing-includes.patch\n")
    os.link(sdist, tmp_path / sdist.name)
    lines = [line for line in commands(folder / "README.md", "Apply them") if not line.startswith("pip ")]
    text = "\n".join(lines).replace("patch -p1", "patch -p1 --forward")
    done = subprocess.run(["bash", "-e", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "common.h" not in done.stdout
