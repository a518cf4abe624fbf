"""Stacks that need what is not here, or hours: eb resolves them, and the preflight tells what is lacking."""

import subprocess
from pathlib import Path

import pytest

from envkit.easybuild import eb_command
from envkit.environments.prefix import Prefix
from envkit.machine import host
from envkit.planning.stack import REFERENCE, select
from envkit.sources.source_cache import distinct
from envkit.system.resources import recipes

from ..stacks import Site

EULAS = {"", "CUDA", "cuDNN"}
PLANNED = {
    "pytorch-2.13-cuda": {""},
    "pytorch-2.9-foss-2024a-cuda": EULAS,
    "pytorch-2.1-foss-2023a-cuda": EULAS,
    "tensorflow-2.15-foss-2023a-cuda": EULAS,
    "tensorflow-2.13-rocm": {""},
    REFERENCE: EULAS,
}

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", PLANNED)
def test_eb_resolves_it_with_every_source_pinned(name: str, tmp_path: Path) -> None:
    machine = host.detect()
    stack = select(name, platform=machine.platform)
    made = eb_command.plan(eb_command.bundled_eb(machine, stack, Prefix(root=tmp_path).tree(machine.platform)), stack)
    assert made.steps[-1].module == stack.module
    assert {step.eula for step in made.steps} == PLANNED[name]
    assert [source.filename for source in distinct(made.sources) if source.sha256 is None] == []


def test_sources_of_parts_of_a_bundle_and_whole_urls(tmp_path: Path) -> None:
    machine = host.detect()
    found: dict[str, tuple[str, ...]] = {}
    for name in ("pytorch-2.9-foss-2024a-cuda", "pytorch-2.1-foss-2023a-cuda"):
        stack = select(name, platform=machine.platform)
        eb = eb_command.bundled_eb(machine, stack, Prefix(root=tmp_path).tree(machine.platform))
        found |= {source.place: source.urls for source in eb_command.plan(eb, stack).sources}
    assert found["p/PyYAML/6.0.2.tar.gz"] == ("https://github.com/yaml/pyyaml/archive/refs/tags",)
    assert "https://xcb.freedesktop.org/dist/" in found["x/X11/libpthread-stubs-0.4.tar.gz"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--accelerator", "cuda"], 0, ["Stack:    pytorch-2.13-cuda ("]),
        (
            ["--method", "easybuild", "--accelerator", "rocm"],
            3,
            ["Stack:    tensorflow-2.13-rocm (", "is missing: hipcc or hip-devel."],
        ),
        (
            ["tensorflow", "--accelerator", "cuda"],
            3,
            [
                "Stack:    tensorflow-2.15-foss-2023a-cuda (",
                "CUDA 12.1.1 makes no code for Blackwell",
                "The licence of CUDA has to be accepted.",
                "The licence of cuDNN has to be accepted.",
            ],
        ),
        (
            [REFERENCE, "--accept-eula", "CUDA", "--accept-eula", "cuDNN"],
            0,
            ["CUDA 11.7.0 makes no code for Hopper (sm_90: H100, H200, GH200) and Blackwell", "will not run there."],
        ),
    ],
    ids=["cuda", "rocm", "tensorflow", "reference"],
)
def test_a_dry_run_tells_what_the_machine_lacks(words: list[str], status: int, said: list[str], tmp_path: Path) -> None:
    done = Site(tmp_path / "prefix").envkit("install", *words, "--dry-run")
    problems = [line for line in done.stdout.splitlines() if line.startswith("Problem:")]
    if REFERENCE in words and problems:  # its sources are on hosts that may be out of reach
        assert [line for line in problems if " sources cannot be fetched from any place " not in line] == []
        status = 4
    assert (done.returncode, bool(problems)) == (status, status != 0), done.stdout + done.stderr
    assert [part for part in said if part not in done.stdout] == []
    assert not (tmp_path / "prefix").exists()


def test_eb_finds_nothing_wrong_with_the_style_and_the_checksums_of_the_recipes(tmp_path: Path) -> None:
    machine = host.detect()
    eb = eb_command.bundled_eb(
        machine, select("pytorch", platform=machine.platform), Prefix(root=tmp_path).tree(machine.platform)
    )
    files = sorted(map(str, Path(recipes("easyconfigs")).rglob("*.eb")))
    done = subprocess.run(
        [*eb.words, f"--robot={eb.robot[-2]}", "--check-contrib", *files],
        env=eb.settings(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert done.stdout.count("[PASS]") == 2 * len(files)
