"""A Slurm of shell scripts, for what is said of it; tests/lab has the real one."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.jobs import follow
from envkit.launch import srun_mpi

JOB = """JobId={job} JobName=toy
   UserId=me(1000) GroupId=me(1000) MCS_label=N/A
   Priority=1 Nice=0 Account=(null) QOS=(null)
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code}
   Partition=gpu AllocNode:Sid=login:1
   NodeList={nodes}
   Command=/tmp/a JobState=FAILED ExitCode=9:0
   StdErr={log}
   StdOut={log}
"""


def told(
    state: str, *, reason: str = "None", code: str = "0:0", nodes: str = "n[0-1]", log: str = "", job: str = "7"
) -> str:
    """What scontrol prints of a job."""
    return JOB.format(job=job, state=state, reason=reason, code=code, nodes=nodes, log=log)


class FakeSlurm:
    """Programs in a folder on PATH: scontrol answers with one text after another, the last again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(exist_ok=True)
        self.log = folder / "my log.out"

    def program(self, name: str, body: str) -> None:
        """Make a program, which keeps its words in a file of its name."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "$*" >> {self.folder}/{name}.said\n{body}\n')
        path.chmod(0o755)

    def said(self, name: str) -> list[str]:
        """The words of each call of a program."""
        path = self.folder / f"{name}.said"
        return path.read_text().splitlines() if path.exists() else []

    def states(self, *texts: str) -> None:
        """Have scontrol answer."""
        for number, text in enumerate(texts, 1):
            (self.folder / f"state.{number}").write_text(text)
        self.program(
            "scontrol",
            f'n=$(wc -l < {self.folder}/scontrol.said); [ "$n" -le {len(texts)} ] || n={len(texts)}\n'
            f"cat {self.folder}/state.$n",
        )


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A Slurm that has taken job 7, and is asked often."""
    made = FakeSlurm(tmp_path)
    made.program("sbatch", f'for last; do :; done; cp "$last" {tmp_path}/submitted; echo 7')
    made.program("squeue", "printf '5\\n7\\n8\\n'")
    made.program("scancel", "")
    made.program("srun", "echo pmix")
    monkeypatch.setenv("PATH", f"{made.bin}:{os.environ['PATH']}")
    monkeypatch.setattr(follow, "LOG_S", 0.01)
    monkeypatch.setattr(follow, "PATIENCE_S", 0.2)
    pause: Callable[[float], float] = lambda _since: 0.03  # noqa: E731
    monkeypatch.setattr(follow, "pause_s", pause)
    srun_mpi.listed.cache_clear()
    return made
