"""Several jobs at once: what squeue prints, read; which of them keep others from being built, and how long it takes."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from envkit.easybuild.in_jobs.progress import JobsProgress, ModuleJob, blame, left_s, state
from envkit.jobs import several
from envkit.jobs.scheduler import JobStatus
from envkit.planning.plan import Step
from envkit.report.progress import Events

NEEDS = {"a/1": (), "b/1": ("a/1",), "c/1": ("a/1",), "d/1": ("b/1",), "e/1": ("c/1", "d/1")}


def jobs(tmp_path: Path, **states: str) -> list[ModuleJob]:
    """Jobs 1, 2, ... of the modules a/1, b/1, ..., in these states; those that are not named wait."""
    made = [
        ModuleJob(
            step=Step(module=module, easyconfig=f"/{module[0]}.eb", dependencies=needs),
            number=str(number),
            told=Events(tmp_path / f"{number}.jsonl"),
        )
        for number, (module, needs) in enumerate(NEEDS.items(), 1)
    ]
    for one in made:
        told = states.get(one.module[0], "PENDING")
        one.take(JobStatus(state=told, reason="Dependency", seconds=65 if told != "PENDING" else 0, nodes="node3"))
    blame(made)
    return made


def test_what_squeue_prints() -> None:
    told = several.records("4|RUNNING|None|1-02:03:04|node[1-2]\n5|PENDING|Dependency|0:00|\nslurm says something\n")
    assert told == {
        "4": JobStatus(state="RUNNING", reason="None", seconds=93784, nodes="node[1-2]"),
        "5": JobStatus(state="PENDING", reason="Dependency", seconds=0, nodes=""),
    }
    assert several.records("6|FAILED|NonZeroExitCode|INVALID|n\n")["6"].seconds == 0


def test_each_failure_has_its_own_victims(tmp_path: Path) -> None:
    assert {one.culprit for one in jobs(tmp_path, a="COMPLETED", b="RUNNING")} == {""}
    found = jobs(tmp_path, a="COMPLETED", b="FAILED", c="TIMEOUT", d="CANCELLED")
    assert [one.culprit for one in found] == ["", "b/1", "c/1", "b/1", "c/1"]
    assert [one.is_settled for one in found] == [True] * 5
    assert [one.culprit for one in jobs(tmp_path, a="NODE_FAIL")] == ["a/1"] * 5


def test_the_time_left_is_the_longest_way(tmp_path: Path) -> None:
    seconds = {"a/1": 100, "b/1": 70, "c/1": 400, "d/1": 50, "e/1": 10}
    assert left_s(jobs(tmp_path), seconds) == 100 + 400 + 10
    assert left_s(jobs(tmp_path, a="COMPLETED", b="RUNNING", c="COMPLETED"), seconds) == 5 + 50 + 10
    assert left_s(jobs(tmp_path, a="COMPLETED", b="FAILED", c="RUNNING"), seconds) == 335
    assert left_s(jobs(tmp_path, a="RUNNING"), {**seconds, "a/1": 64}) is None
    assert left_s(jobs(tmp_path), {}) is None


def test_what_is_said_of_each(tmp_path: Path) -> None:
    found = jobs(tmp_path, a="COMPLETED", b="OUT_OF_MEMORY", c="RUNNING")
    assert [state(one, found) for one in found] == [
        "is done after 1:05",
        "used more memory than it was given after 1:05",
        "runs on node3",
        "is not built: it needs b/1",
        "is not built: it needs b/1",
    ]
    found = jobs(tmp_path)
    assert state(found[0], found) == "waits" and state(found[4], found) == "waits for c/1, d/1"


def test_a_terminal_shows_what_is_not_done(tmp_path: Path) -> None:
    found = jobs(tmp_path, a="COMPLETED", b="RUNNING", c="PENDING")
    found[1].doing = "configure"
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=5)
    shown = JobsProgress(console, found, {"b/1": 70, "c/1": 90})
    shown.tell()
    first, *rows = shown.screen().plain.splitlines()
    assert first == "1 completed, 3 pending, 1 running; 0:00 elapsed, about 1:35 left"
    assert rows == [
        "  b/1: job 2 runs on node3 for 1:05, step configure",
        "  c/1: job 3 waits",
        "  and 2 more",
    ]
