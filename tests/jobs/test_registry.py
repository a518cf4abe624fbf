"""What names schedulers: a table and the modules for its rows, and nothing else; a new one needs no more."""

import ast
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

import envkit
from envkit.commands import job as command
from envkit.easybuild.receipt import ModuleReceipt
from envkit.jobs import follow, registry
from envkit.jobs.scheduler import JobReason, JobStatus, Scheduler
from envkit.jobs.submit import Submitted
from envkit.knowledge.known import known
from envkit.system.resources import data

PACKAGE = Path(envkit.__file__).parent
NAMES = {name.lower() for one in registry.KNOWN for name in (one.NAME, one.TITLE)}
OWN = {PACKAGE / "jobs" / f"{name}.py" for name in registry.SCHEDULERS}


def compared(path: Path) -> list[str]:
    """Where a module compares something with the name of a scheduler."""
    text = path.read_text()
    if not any(name in text.lower() for name in NAMES):
        return []
    return [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Compare | ast.MatchValue)
        if any(isinstance(one, ast.Constant) and str(one.value).lower() in NAMES for one in ast.walk(node))
    ]


def test_no_other_module_asks_which_scheduler_it_is() -> None:
    assert [place for path in sorted({*PACKAGE.rglob("*.py")} - OWN) for place in compared(path)] == []


@pytest.mark.parametrize("scheduler", registry.KNOWN, ids=list(registry.SCHEDULERS))
def test_each_has_a_module_a_file_and_a_command(scheduler: Scheduler) -> None:
    assert data(f"jobs/{scheduler.NAME}.toml").is_file()
    assert known("schedulers")[scheduler.NAME]["title"] == scheduler.TITLE
    assert known("schedulers")[scheduler.NAME]["submit"] == scheduler.SUBMITS
    assert isinstance(command.job.commands[scheduler.NAME], click.Command)
    assert scheduler.HELP.startswith(f"Write a batch script for {scheduler.TITLE}: envkit job {scheduler.NAME} NAME")


def test_every_row_of_the_table_is_whole() -> None:
    needed = {
        "title",
        "job",
        "tasks",
        "client",
        "version",
        "try",
        "submit",
        "ask_time",
        "ask_gpus",
        "ask_memory",
        "job_states",
    }
    for name, row in known("schedulers").items():
        assert needed <= row.keys() <= needed | {"hosts", "asked", "nodes", "tasks_per_node", "gpus", "of_a_job"}, name
    assert {path.stem for path in (PACKAGE / "jobs").glob("*.toml")} == set(registry.SCHEDULERS)


class Toy:
    """A scheduler whose jobs wait once, and end with 3."""

    def __init__(self, log: Path) -> None:
        self.log = str(log)
        self.cancelled = list[str]()

    def poll(self, job: Submitted, last: Sequence[JobStatus]) -> Sequence[JobStatus]:
        """Let it wait, and end."""
        return [
            JobStatus(state="FAILED", status=3, log=self.log) if last else JobStatus(state="PENDING", reason="Rain")
        ]

    def module(self) -> Scheduler:
        """What stands for its module."""
        return SimpleNamespace(
            NAME="toy", TITLE="Toy", HELP="Write a toy.", SUBMITS="tsub", CANCELS="tdel", QUEUE="lane", TASK="",
            text=lambda job, _found, _site, **_more: f"#{job.partition}\n",
            submit=lambda script: Submitted(number=script.decode().strip("#\n"), scheduler="toy"),
            poll=self.poll,
            explain=lambda number, found: JobReason(said=found.reason, cause="It rains.", remedy="Wait."),
            position=lambda job, found: None,
            cancel=lambda job: self.cancelled.append(job.number),
        )  # fmt: skip


def test_a_new_scheduler_is_a_module(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    install: Callable[..., ModuleReceipt],
    capfd: pytest.CaptureFixture[str],
) -> None:
    install(horovod="/h")
    log = tmp_path / "log"
    log.write_text("said\n")
    toy = Toy(log).module()
    monkeypatch.setitem(registry.SCHEDULERS, "toy", toy)
    monkeypatch.setattr(follow, "pause_s", lambda since: 0.01)
    words = ["toy-cpu", "--nodes", "1", "--ranks-per-node", "2", "--lane", "7", "--prefix", str(tmp_path / "prefix")]
    status = command.of(toy).main([*words, "--submit", "--follow", "--", "true"], standalone_mode=False)
    assert status == 3
    said = capfd.readouterr()
    assert said.out == "said\n"
    assert said.err.splitlines() == [
        "envkit: job 7 is submitted",
        "envkit: job 7 waits: Rain. It rains. Wait.",
        "envkit: job 7 ended with status 3",
    ]
