"""Elastic training for real: a rank dies, a host comes, verify in such a job."""

import os
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ..stacks import ENVKIT, Site

SCRIPTS = Path(__file__).parent / "scripts"
STACK = "pytorch-2.13-cpu"
TWO_HOSTS, ONE_HOST = "localhost:1\n127.0.0.1:1\n", "localhost:2\n"

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("elastic")]


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    """A file with the hosts of a job, one of two names for this one; ``discover`` beside it prints them."""
    script = tmp_path / "discover"
    script.write_text(f"#!/bin/sh\ncat '{tmp_path}/hosts'\n")
    script.chmod(0o755)
    return tmp_path / "hosts"


def words(hosts: Path, *command: str, ranks: int = 2, stack: str = STACK) -> list[str]:
    """An elastic job of a stack, as docs/elastic.md has it."""
    discover = ["--host-discovery-script", str(hosts.with_name("discover")), "--network-interfaces", "lo"]
    elastic = ["horovodrun", "-np", str(ranks), "--min-np", "1", "--max-np", "2", *discover]
    return ["run", stack, "--", *elastic, *command]


def training(hosts: Path, script: str = "elastic.py") -> list[str]:
    return ["python", str(SCRIPTS / script), str(hosts.with_name("died"))]


@pytest.mark.parametrize(("stack", "script"), [(STACK, "elastic.py"), ("tensorflow-2.21-cpu", "elastic_keras.py")])
def test_what_is_left_goes_on_when_a_rank_dies(
    stack: str, script: str, stacks: Site, installed: Callable[[str], str], hosts: Path
) -> None:
    installed(stack)
    hosts.write_text(TWO_HOSTS)
    done = stacks.envkit(*words(hosts, *training(hosts, script), stack=stack))
    assert done.returncode == 0, done.stdout + done.stderr
    steps = re.findall(r"step (\d+): rank (\d) of (\d)", done.stdout)
    assert {(rank, size) for step, rank, size in steps if int(step) <= 5} == {("0", "2"), ("1", "2")}
    assert [int(step) for step, rank, size in steps if size == "1"] == list(range(6, 21))
    assert re.findall(r"end at \d+: rank \d of \d", done.stdout) == ["end at 20: rank 0 of 1"]


def test_a_host_that_is_left_out_is_explained(
    stacks: Site, installed: Callable[[str], str], hosts: Path, tmp_path: Path
) -> None:
    installed(STACK)
    hosts.write_text(ONE_HOST)
    done = stacks.envkit(*words(hosts, *training(hosts)))
    assert done.returncode == 1
    log = tmp_path / "log"
    log.write_text(done.stdout + done.stderr)
    told = stacks.envkit("diagnose", str(log))
    assert told.stdout.startswith("elastic-blacklist (confirmed)"), told.stdout + log.read_text()


def test_a_host_that_comes_later_takes_part(stacks: Site, installed: Callable[[str], str], hosts: Path) -> None:
    installed(STACK)
    hosts.write_text("localhost:1\n")
    hosts.with_name("died").touch()
    said: list[str] = []
    with subprocess.Popen(
        [ENVKIT, *words(hosts, *training(hosts), ranks=1)],
        env={**os.environ, "ENVKIT_PREFIX": str(stacks.prefix), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as job:  # fmt: skip
        assert job.stdout
        limit = threading.Timer(300, job.kill)
        limit.start()
        for line in job.stdout:
            said.append(line)
            if "step 2: rank 0 of 1" in line:
                hosts.write_text(TWO_HOSTS)
        limit.cancel()
    assert job.returncode == 0, "".join(said)
    ends = re.findall(r"end at \d+: rank \d of \d", "".join(said))
    assert sorted(ends) == ["end at 20: rank 0 of 2", "end at 20: rank 1 of 2"]


def test_verify_in_an_elastic_job(stacks: Site, installed: Callable[[str], str], hosts: Path) -> None:
    installed(STACK)
    hosts.write_text(ONE_HOST)
    done = stacks.envkit(*words(hosts, str(ENVKIT), "verify", STACK))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"PASS  {STACK}: 2 ranks in one world on 1 host" in done.stdout
    assert "horovodrun, elastic" in done.stdout  # with its vulnerabilities
