"""The commands of the documentation that need a cluster, pasted into a shell on its login node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from ..pages import COMMENT, DOCS, Command, commands, pasted, require_all
from .cluster import Cluster
from .conftest import STACK
from .verifying import SHARED_CORES

pytestmark = pytest.mark.integration

PAGE_S = 600
TRAIN = (DOCS / "tutorial.md").read_text().partition("$ cat train.py\n")[2].partition("$ ")[0]
OF_A_CLUSTER = ("srun ", "envkit job slurm ", " --submit")
PAGES: Mapping[str, int] = {"doctor.md": 1, "examples.md": 1, "jobs.md": 4, "verify.md": 1}  # how many commands of each
ENTERED = ("verify.md",)  # pages that name no environment: the one that they are in, as others may be installed

INSTEAD: Mapping[str, str] = {  # what stands for something of the page's own machine
    "pytorch-2.13-cuda": STACK,
    "--gpus-per-node 4": "--ranks-per-node 2",
    "--ntasks-per-node=4": "--ntasks-per-node=2",
    "--cpus-per-rank 16": "--cpus-per-rank 2",
    "--partition cpu --account proj7 ": "",
    "-- --epochs 5": "-- --epochs 1",
    "jq -r .job": "python3 -c 'import json, sys; print(json.load(sys.stdin)[\"job\"])'",
}


def of_a_cluster(page: str) -> Iterator[Command]:
    """Yield the commands of a page that need one."""
    for command in commands(page):
        line = COMMENT.sub("", command.line)
        is_pbs = " pbs " in line  # tests/jobs has a stand-in for that
        if any(mark in f"{line} " for mark in OF_A_CLUSTER) and not is_pbs:
            yield command


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str, cluster: Cluster, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    home = cluster.folder / tmp_path_factory.mktemp("pages").name
    home.mkdir()
    (home / "train.py").write_text(TRAIN)
    todo = [*of_a_cluster(page)]
    assert len(todo) == PAGES[page]
    script = "".join(pasted(number, command, home, INSTEAD) for number, command in enumerate(todo))
    own = {**env, **SHARED_CORES, "HOME": str(home), "NO_COLOR": "1"}
    entering = ["envkit", "run", STACK, "--"] if page in ENTERED else []
    done = cluster.run(["env", f"--chdir={home}", *entering, "bash", "-c", script], env=own, timeout=PAGE_S)
    cluster.run(["scancel", "--user", "root"])  # what a page only submits
    require_all(todo, done.stdout, done.stderr)
