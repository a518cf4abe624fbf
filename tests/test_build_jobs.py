"""What is said of jobs that failed: the first to fail is the first, and whose fault it was is the kind of failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.easybuild.eb_command import Build, Eb
from envkit.easybuild.in_jobs.failed import UNSEEN, failure
from envkit.easybuild.in_jobs.progress import ModuleJob, blame
from envkit.environments.prefix import Prefix, Tree
from envkit.errors import EnvkitError
from envkit.jobs.scheduler import JobStatus
from envkit.machine.host import Host
from envkit.planning.plan import Plan, Step
from envkit.report.progress import Events


class Jobs:
    """Jobs of the modules a/1, b/1 and c/1, of which c/1 needs b/1."""

    def __init__(self, folder: Path, machine: Host) -> None:
        self.build = Build(
            machine=machine,
            eb=Eb(words=("eb",), env={}, robot=()),
            prefix=Prefix(root=folder),
            tree=Tree(root=folder / "tree"),
            plan=Plan(stack="toy", steps=(), robot=()),
            folder=folder,
            jobs=1,
        )
        self.build.told.mkdir()
        self.all = [
            ModuleJob(
                step=Step(module=f"{name}/1", easyconfig=f"/{name}.eb", dependencies=("b/1",) if name == "c" else ()),
                number=str(number),
                told=Events(folder / f"{number}.jsonl"),
            )
            for number, name in enumerate("abc", 1)
        ]

    def ended(self, name: str, state: str, at: float, printed: str | None = "", reason: str = "None") -> None:
        """Have a job end in a state, at a time, having printed something to its log; None: it has none."""
        one = next(one for one in self.all if one.module == f"{name}/1")
        if printed is not None:
            (self.build.told / f"{name}-1-{one.number}.out").write_text(printed)
        one.ended = at
        one.take(JobStatus(state=state, reason=reason, nodes="node1"))

    def failure(self) -> EnvkitError:
        """What is said in the end."""
        blame(self.all)
        return failure(self.all, self.build)


@pytest.fixture
def jobs(tmp_path: Path, machine: Callable[..., Host]) -> Jobs:
    return Jobs(tmp_path, machine())


def test_the_first_to_fail_is_the_first(jobs: Jobs) -> None:
    jobs.ended("a", "FAILED", 20.0, "the second to fail\n")
    jobs.ended("b", "FAILED", 10.0, "x.c:1:10: fatal error: zlib.h: No such file or directory\n")
    jobs.ended("c", "CANCELLED", 11.0, None)
    said = jobs.failure()
    assert said.exit_code == 5
    assert said.what == ("2 of 3 jobs failed; 1 cancelled because of that, 0 done. The first to fail: b/1.")
    first, second = said.why.split("2. ")
    assert first.startswith("1. b/1 failed (job 2 on node1).") and "zlib.h" in first
    assert first.endswith("Cancelled because of it: c/1 (job 3)\n")
    assert second.startswith("a/1 failed (job 1 on node1).") and "the second to fail" in second
    assert f"Log: {jobs.build.told}/a-1-1.out" in second and "c/1" not in second


def test_what_slurm_has_ended(jobs: Jobs) -> None:
    jobs.ended("a", "COMPLETED", 1.0)
    jobs.ended("b", "TIMEOUT", 2.0, "building\n")
    jobs.ended("c", "CANCELLED", 2.0, None)
    said = jobs.failure()
    assert said.exit_code == 8
    assert "1. b/1: Job 2 ran into its time limit." in said.why and "-> Ask for more --time" in said.why
    assert f"Log: {jobs.build.told}/b-1-2.out" in said.why


@pytest.mark.parametrize(("printed", "reason"), [(None, "NonZeroExitCode"), ("built\n", UNSEEN)])
def test_nodes_that_see_other_files(jobs: Jobs, printed: str | None, reason: str) -> None:
    jobs.ended("a", "FAILED", 1.0, printed, reason)
    jobs.ended("b", "COMPLETED", 1.0)
    jobs.ended("c", "COMPLETED", 1.0)
    said = jobs.failure()
    assert said.exit_code == 3 and "-> Choose a --prefix on a file system that the nodes share" in said.why


def test_a_disk_that_is_full(jobs: Jobs) -> None:
    jobs.ended("b", "FAILED", 1.0, "cc1: error: writing to /x/y.o: No space left on device\n")
    jobs.ended("c", "CANCELLED", 1.0, None)
    assert jobs.failure().exit_code == 7
