"""The series of patches that 'envkit export patches' writes, on Horovod's own source, as its README says."""

import re
import shutil
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


def applied(stack: str, folder: Path, sdist: Path) -> "subprocess.CompletedProcess[str]":
    """Write a series, and run the commands of its README beside a source, but for those of pip."""
    if not folder.exists():
        assert run(["export", "patches", str(folder), stack]) == 0
    part = (folder / "README.md").read_text().partition("## Apply them\n")[2].partition("\n## ")[0]
    [block] = re.findall(r"```sh\n(.*?)```", part, re.DOTALL)
    lines = [line for line in block.replace("/path/to/this/folder", f"'{folder}'").splitlines() if line[:4] != "pip "]
    text = "\n".join(lines).replace("patch -p1", "patch --forward -p1")  # which asks nothing
    return subprocess.run(["bash", "-c", text], cwd=sdist.parent, capture_output=True, text=True, check=False)


@pytest.fixture
def source(sdist: Path, tmp_path: Path) -> Path:
    """The source in a folder of its own, with nothing beside it."""
    (tmp_path / "build").mkdir()
    return Path(shutil.copy(sdist, tmp_path / "build"))


@pytest.mark.parametrize("stack", SERIES.values())
def test_a_series_applies_in_its_order_as_its_readme_says(stack: str, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "the series"
    done = applied(stack, folder, source)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"offset|fuzz|FAILED|Reversed", done.stdout), done.stdout
    assert done.stdout.count("patching file") >= len((folder / "series").read_text().split())


def test_a_patch_that_does_not_apply_ends_it(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "series"
    assert run(["export", "patches", str(folder), "pytorch"]) == 0
    (folder / "series").write_text("0001-cxx17.patch\n0001-cxx17.patch\n0002-missing-includes.patch\n")
    done = applied("pytorch", folder, source)
    assert done.returncode and "patching file CMakeLists.txt" in done.stdout
    assert "common.h" not in done.stdout


def test_a_source_with_another_content_is_not_unpacked(source: Path, tmp_path: Path) -> None:
    with source.open("ab") as stream:
        stream.write(b"\0")
    done = applied("pytorch", tmp_path / "series", source)
    assert done.returncode and f"{source.name}: FAILED" in done.stdout
    assert [path.name for path in source.parent.iterdir()] == [source.name]
