"""Horovod's own tests give in each stack what envkit/knowledge/upstream_known.toml says."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit import cli
from envkit.knowledge.known import known
from envkit.verify import upstream, upstream_run

from ..stacks import Site
from .test_stacks import SELDOM, SELDOM_GROUP

STACK = "pytorch-2.13-cpu"
STACKS = [
    pytest.param(name, marks=SELDOM_GROUP if name == SELDOM else []) for name in known("upstream_known")["stacks"]
]

pytestmark = pytest.mark.integration


SMALL = """
import unittest

import horovod.torch as hvd
import torch


class SmallTests(unittest.TestCase):
    def setUp(self):
        hvd.init()

    def test_sum(self):
        assert hvd.size() == 2
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [2.0] * 3

    def test_known(self):
        assert hvd.size() == 3, "three ranks are not there"

    def test_rank(self):
        assert hvd.rank() == 0, "this is rank %d" % hvd.rank()

    @unittest.skip("no GPU")
    def test_gpu(self):
        raise AssertionError
"""
FILE = "parallel/test_small.py"


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that name tests of our own in the place of Horovod's, whose repository not every machine reaches.

    One of them is known to fail, one fails in one rank.
    """
    (tmp_path / "test" / "parallel").mkdir(parents=True)
    (tmp_path / "test" / FILE).write_text(SMALL)
    row = {"file": FILE, "passed": 1, "skipped": 1, "failed": {"SmallTests::test_known": "three"}}
    tables = {
        "upstream_tests": {
            **known("upstream_tests"),
            "files": {FILE: {"framework": "torch", "sha256": hashlib.sha256(SMALL.encode()).hexdigest()}},
            "support": {},
        },
        "upstream_known": {
            "causes": {"three": "it takes three ranks"},
            "stacks": {STACK: {"runs": [{**row, "over": over} for over in ("MPI", "Gloo")]}},
        },
    }
    for module in (upstream, upstream_run):
        monkeypatch.setattr(module, "known", tables.__getitem__)
    return ["--upstream-tests", "--tests-from", str(tmp_path)]


def test_ranks_run_tests_over_mpi_and_gloo(
    stacks: Site,
    installed: Callable[[str], str],
    small: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    installed(STACK)
    page = tmp_path / "page.html"
    monkeypatch.setenv("ENVKIT_PREFIX", str(stacks.prefix))
    status = cli.run(["verify", STACK, "-n", "2", "--json", "--html", str(page), *small])
    out, said = capfd.readouterr()
    report = json.loads(out)
    assert (status, report["verdict"]) == (1, "fail"), out + said
    for one, over in zip(report["tests"], ("MPI", "Gloo"), strict=True):
        assert (one["file"], one["over"], one["ranks"]) == (FILE, over, 2)
        assert (one["passed"], one["failed"], one["skipped"]) == (1, 2, 1)
        assert [(each["test"], each["cause"]) for each in one["failures"]] == [
            ("SmallTests::test_known", "it takes three ranks")
        ]
        [unexpected] = one["unexpected"]
        assert (unexpected["test"], unexpected["error"]) == ("SmallTests::test_rank", "AssertionError: this is rank 1")
        assert unexpected["text"].startswith("rank 1:")
    assert "envkit: tests 2 of 2: parallel/test_small.py over Gloo, once more" in said
    assert "<td>Gloo</td>" in page.read_text()


@pytest.fixture(scope="session")
def tests_from(stacks: Site) -> list[str]:
    """The options that name the tests: a folder of Horovod's repository, or none where the archive is or can be had.

    ENVKIT_HOROVOD names such a folder, on a machine that does not reach Horovod's repository.
    """
    if folder := os.environ.get("ENVKIT_HOROVOD"):
        return ["--tests-from", folder]
    source = known("upstream_tests")["source"]
    if not (stacks.prefix / "sources" / source["folder"] / source["filename"]).exists():
        pytest.skip("Horovod's archive is not here, and ENVKIT_HOROVOD names no clone of its repository")
    return []


@pytest.mark.all
def test_a_quick_file_over_mpi_and_gloo(
    stacks: Site, installed: Callable[[str], str], tests_from: list[str], tmp_path: Path
) -> None:
    installed(STACK)
    page = tmp_path / "page.html"
    words = ["--upstream-tests", "--tests-only", "test_adasum_pytorch,test_util", *tests_from]
    done = stacks.envkit("verify", STACK, "-n", "2", "--json", "--html", str(page), *words)
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (0, "pass"), done.stdout[-2000:] + done.stderr
    ran = {(one["file"], one["over"]): (one["passed"], one["failed"], one["skipped"]) for one in report["tests"]}
    assert ran == {
        ("parallel/test_adasum_pytorch.py", "MPI"): (2, 0, 2),
        ("parallel/test_adasum_pytorch.py", "Gloo"): (0, 0, 4),
        ("single/test_util.py", "one process"): (10, 0, 0),
    }
    assert "envkit: tests 3 of 3: single/test_util.py in one process" in done.stderr
    assert "<td>Gloo</td>" in page.read_text()


@pytest.mark.all
def test_a_file_that_fails_here_is_shown_with_its_error(
    stacks: Site, installed: Callable[[str], str], tests_from: list[str], tmp_path: Path
) -> None:
    """The user's PYTHONPATH has a package that the tests import, and the verification does not."""
    installed(STACK)
    (tmp_path / "mock.py").write_text("raise ImportError('this mock is broken')\n")
    words = ["--upstream-tests", "--tests-only", "test_elastic_discovery", *tests_from]
    done = stacks.envkit("verify", STACK, *words, env={"COLUMNS": "300", "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1, done.stdout
    failure = r"FAIL upstream-tests .* single/test_elastic_discovery.py, one process: 1 failed, .*: this mock is"
    assert re.search(failure, " ".join(done.stdout.split())), done.stdout
    assert re.search(r"^test_elastic_discovery  one process  0 +1, 1 unknown +0$", done.stdout, re.MULTILINE)
    assert "tests 1 of 1: single/test_elastic_discovery.py in one process, once more" in done.stderr


@pytest.mark.all
@pytest.mark.parametrize("stack", STACKS)
def test_all_of_them_give_what_is_known(
    stack: str, stacks: Site, installed: Callable[[str], str], tests_from: list[str]
) -> None:
    installed(stack)
    done = stacks.envkit("verify", stack, "-n", "2", "--json", "--upstream-tests", *tests_from, timeout_s=7200)
    report = json.loads(done.stdout)
    told = [one["message"] for one in report["results"] if one["id"] == "upstream-tests" and one["case"] != "as-known"]
    assert (done.returncode, told) == (0, []), done.stderr
