"""One rank: asked for, or nearly taken for granted because of variables that are left over."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.launch import launcher

from ..stacks import ENVKIT, Site
from ..verify.test_started import STRAY, told

pytestmark = pytest.mark.integration
STACK = "pytorch-2.13-cpu"
ONE = "1 rank: nothing between ranks was tested"


@pytest.mark.parametrize("of", sorted(STRAY.keys() - {"srun"}))
def test_variables_that_are_left_over_make_no_rank(of: str, stacks: Site, installed: Callable[[str], str]) -> None:
    installed(STACK)
    done = stacks.envkit("verify", STACK, "--json", env=told(STRAY[of]))
    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"], len(report["ranks"])) == (0, "pass", 2), done.stderr
    status = {result["id"]: result["status"] for result in report["results"]}
    assert status["training-truth-torch"] == "pass" and "one-rank" not in status
    [warning] = [result for result in report["results"] if result["status"] == "warn"]
    assert warning["id"] == "leftover" and set(told(STRAY[of])) <= set(warning["remedy"].split())
    script = "import os; import horovod.torch as hvd; hvd.init(); os.write(1, b'%d %d\\n' % (hvd.rank(), hvd.size()))"
    ran = stacks.envkit("run", STACK, "-n", "2", "--", "python", "-c", script, env=told(STRAY[of]))
    assert sorted(ran.stdout.splitlines()) == ["0 2", "1 2"], ran.stderr
    assert "envkit: left over from another launch, and kept from the ranks: " in ran.stderr


@pytest.mark.parametrize("start", ["mpirun -np 1", "-n 1"])
def test_one_rank_that_is_asked_for(start: str, stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    installed(STACK)
    before, words = (start.split(), []) if start.startswith("mpirun") else ([], start.split())
    env = launcher.variables({**os.environ, "ENVKIT_PREFIX": str(stacks.prefix)})
    files = ["--junit", str(tmp_path / "junit.xml"), "--html", str(tmp_path / "page.html")]
    for form in ([], ["--json", *files]):
        argv = [*before, str(ENVKIT), "verify", STACK, *words, *form]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert ONE in done.stdout and "envkit verify -n 2" in " ".join(done.stdout.split())
    report = json.loads(done.stdout)
    assert report["verdict"] == "pass"
    [warning] = [result for result in report["results"] if result["status"] == "warn"]
    assert (warning["id"], warning["message"]) == ("one-rank", ONE) and warning["cause"] and warning["remedy"]
    for name in ("junit.xml", "page.html"):
        assert ONE in (tmp_path / name).read_text()
