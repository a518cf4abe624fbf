"""Slurm: a job as a batch script, submitted, asked for, explained and cancelled."""

import functools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.errors import JobRefused, UsageProblem
from envkit.jobs.job import Job, Shape, called, clock, heading, require_lines, require_shape, settings, steps
from envkit.jobs.scheduler import JobReason, JobStatus, NoAnswer
from envkit.jobs.submit import ANSWER_S, Submitted
from envkit.jobs.submit import submit as hand_over
from envkit.knowledge.known import known
from envkit.system import process, toml
from envkit.system.resources import data

if TYPE_CHECKING:
    from envkit.environments.receipt import Receipt
    from envkit.machine.site import Site

NAME, TITLE = "slurm", "Slurm"
SUBMITS, CANCELS = "sbatch", "scancel"
QUEUE, TASK = "partition", "SLURM_ARRAY_TASK_ID"
HELP = """Write a batch script for Slurm: envkit job slurm NAME --nodes 2 --gpus-per-node 4 -- python train.py

Each rank enters the environment by itself. The status of the command is that of the job, and with --follow that
of this command, too: the log goes to standard output, and why the job waits to standard error.
"""
PLAIN = re.compile(r"[\w@%+=:,./~^-]+", re.ASCII)
ARRAY = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")
VERIFYING = ("--kill-on-bad-exit=0",)
FIELD = re.compile(r"^\s*(JobState|Reason|ExitCode|StdOut|Partition|NodeList|ArrayTaskId)=(.*)$")
INLINE = re.compile(r"\b(JobState|Reason|ExitCode|ArrayTaskId)=(\S*)")


def text(job: Job, environment: "Receipt", site: "Site | None", *, array: str, is_followed: bool) -> str:  # noqa: ARG001
    """Return the batch script of a job in an environment. Raises UsageProblem for what cannot be written into one."""
    from envkit.launch import image_launch

    own = site.srun if site else environment.srun
    speaks, words = image_launch.for_job(environment.mpi, job.model, own, is_image=environment.is_image)
    job = replace(job, words=site.job.sbatch if site else ())
    return script(job, speaks=speaks, srun=words, array=array)


def script(job: Job, *, speaks: str, srun: Sequence[str] = (), array: str = "") -> str:
    """Return the batch script of a job.

    ``speaks`` is the type for ``srun --mpi``, or empty where srun cannot start these ranks; ``srun`` are words for it.
    ``array`` is as for sbatch. Raises UsageProblem for what cannot be written into one.
    """
    start = launcher(job, speaks, srun) if speaks else ()
    place = 'echo "Job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restarts: ${SLURM_RESTART_COUNT:-0}"'
    # A rank that fails must not leave the others waiting for it; while verifying, each of them says what it found.
    both = steps(job, start, verifying=VERIFYING, running=["--kill-on-bad-exit=1"])
    return batch(job, [threads(job.shape), place, "", *both], array)


def verification(job: Job, words: Sequence[str], report: Path, *, speaks: str, srun: Sequence[str] = ()) -> str:
    """Return the batch script of a job that verifies, with ``words`` for that, and leaves its JSON in a file."""
    start = launcher(job, speaks, srun) if speaks else ()
    argv = [*called("verify", job, start, VERIFYING), *words, "--json"]
    return batch(job, [threads(job.shape), f"{shlex.join(argv)} >{shlex.quote(str(report))}"])


def alone(job: Job, output: Path | None = None) -> str:
    """Return the batch script of a job whose command is envkit's own, once, on its first node.

    ``output`` is the file for its standard output. Without one it goes to the log.
    """
    into = f" >{shlex.quote(str(output))}" if output else ""
    return batch(job, [f"exec {shlex.join([*job.envkit, *job.command])}{into}"])


def batch(job: Job, body: Sequence[str], array: str = "") -> str:
    """Return the batch script that does what is in ``body``."""
    require_shape(job.shape)
    lines = ["#!/bin/bash", *heading(job, "sbatch"), *(f"#SBATCH {word}" for word in directives(job, array))]
    return "\n".join([*lines, "set -euo pipefail", "", *settings(job), *body, ""])


def launcher(job: Job, speaks: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return srun with its words: ranks are bound to as many CPUs as was said, if the site does not bind them.

    Where nothing was said they are not: in a job with whole nodes, each would be bound to one CPU.
    """
    cpus = job.shape.cpus_per_rank
    counts, binds = (any(word.startswith(option) for word in words) for option in ("--cpus-per-task", "--cpu-bind"))
    # srun does not take the number over from the job (from 22.05 to 23.02)
    number = () if counts or not cpus else (f"--cpus-per-task={cpus}",)
    binding = () if binds or not cpus else ("--cpu-bind=cores",)
    exported = () if any(word.startswith("--export=") for word in words) else ("--export=ALL",)
    return ("srun", f"--mpi={speaks}", *exported, *number, *binding, *words)


def threads(shape: Shape) -> str:
    """Return the line that gives each rank as many threads of OpenMP as it has CPUs; the caller may say how many."""
    cpus = shape.cpus_per_rank or f"$((SLURM_CPUS_ON_NODE / {shape.ranks_per_node}))"
    return f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{cpus}}}"'


def directives(job: Job, array: str) -> list[str]:
    """Return what stands after #SBATCH, line by line; the site's own words come last, and so win."""
    return [f"--{name}={quoted(value)}" for name, value in options(job, array).items()] + [
        quoted(word) for word in job.words
    ]


def words(job: Job) -> list[str]:
    """Return the words for sbatch of jobs that another program names, each with a log of its own."""
    named = {name: value for name, value in options(job, "").items() if name not in {"job-name", "output"}}
    return ["--export=ALL", *(f"--{name}={value}" for name, value in named.items()), *job.words]


def options(job: Job, array: str) -> dict[str, str]:
    """Return what sbatch is told of a job, by the names of its options. Raises UsageProblem."""
    shape = job.shape
    values = {
        "job-name": job.name,
        "nodes": str(shape.nodes),
        "ntasks-per-node": str(shape.ranks_per_node),
        "gpus-per-node": ":".join(filter(None, (shape.gpu_type, str(shape.gpus_per_node or "")))),
        "cpus-per-task": str(shape.cpus_per_rank or ""),
        "time": limit(job.time_s) if job.time_s else "",
        "account": job.account,
        "partition": job.partition,
        "array": checked_array(array) if array else "",
        "output": job.log or ("%x-%A_%a.out" if array else "%x-%j.out"),
        "open-mode": "append",  # so that a job that is queued again keeps what it said before
    }
    require_lines({f"--{name}": value for name, value in values.items()})
    require_lines({"--site": " ".join(job.words)})
    return {name: value for name, value in values.items() if value}


def limit(time_s: int) -> str:
    """Return a time as sbatch reads it."""
    days = time_s // 86400
    return f"{days}-{clock(time_s % 86400)}" if days else clock(time_s)


def quoted(value: str) -> str:
    """Return a value as sbatch reads it after #SBATCH: in quotes of either kind a backslash escapes."""
    if PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def checked_array(text: str) -> str:
    """Return the indices of an array. Raises UsageProblem for what is none."""
    if not ARRAY.fullmatch(text):
        raise UsageProblem(what=f"--array: {text!r} names no tasks.", fix="Write it as 0-15, 0-15%4 or 1,3,5.")
    return text


def submit(script: bytes) -> Submitted:
    """Submit a batch script. From within a job, nothing of that goes on to the new one. Raises JobRefused."""
    in_job, of_job = "SLURM_JOB_ID" in os.environ, re.compile(known("schedulers")[NAME]["of_a_job"])
    env = {name: value for name, value in os.environ.items() if not in_job or not of_job.match(name)}
    number, _, cluster = hand_over([SUBMITS, "--parsable"], script, table()["refusal"], env).partition(";")
    return Submitted(number=number, scheduler=NAME, cluster=cluster)


def place(job: Submitted) -> tuple[str, ...]:
    """Return the words that tell Slurm's commands which cluster."""
    return ("-M", job.cluster) if job.cluster else ()


def poll(job: Submitted, last: Sequence[JobStatus] = ()) -> Sequence[JobStatus] | NoAnswer:  # noqa: ARG001
    """Ask Slurm for a job; its accounting, where the controller has forgotten it."""
    done = process.capture(["scontrol", *place(job), "show", "job", job.number], timeout_s=ANSWER_S)
    if done.status == 0 and (statuses := records(done.stdout)):
        return statuses
    gone = "Invalid job id" in done.stderr
    if gone and (statuses := accounted(job)):
        return statuses
    problem = JobRefused(
        what=f"Slurm does not say any more how job {job.number} is.",
        why=done.stderr.strip(),
        fix=f"See with 'squeue -j {job.number}', or 'sacct -j {job.number}', and in its log.",
    )
    return NoAnswer(outcome=problem, final=gone)


def records(text: str) -> list[JobStatus]:
    """Read what ``scontrol show job`` prints."""
    return [record(block) for block in re.split(r"\n\s*\n", text) if "JobState=" in block]


def record(block: str) -> JobStatus:
    """Read what is said of one job. Values with spaces stand alone on their lines, but for the first."""
    values = dict[str, str]()
    for line in block.splitlines():
        if match := FIELD.match(line):
            values.setdefault(match[1], match[2] if match[1] == "StdOut" else match[2].partition(" ")[0])
        if not line.lstrip().startswith(("Command=", "WorkDir=", "Std", "Comment=")):
            for name, value in INLINE.findall(line):
                values.setdefault(name, value)
    return JobStatus(
        state=values.get("JobState", ""),
        reason=values.get("Reason", ""),
        status=status(values.get("ExitCode", "")),
        log=values.get("StdOut", ""),
        partition=values.get("Partition", ""),
        nodes=values.get("NodeList", "").replace("(null)", ""),
        task=values.get("ArrayTaskId", ""),
    )


def status(exit_code: str) -> int:
    """Return the status that Slurm writes as STATUS:SIGNAL."""
    number, _, signal_number = exit_code.partition(":")
    if signal_number.isdigit() and int(signal_number):
        return 128 + int(signal_number)
    return int(number) if number.isdigit() else 0


def accounted(job: Submitted) -> list[JobStatus]:
    """Ask Slurm's accounting, which not every cluster has, for a job that the controller has forgotten."""
    argv = ["sacct", *place(job), "-nPX", "-j", job.number, "-o", "State,ExitCode"]
    rows = [line.split("|") for line in process.capture(argv, timeout_s=ANSWER_S).stdout.splitlines()]
    return [JobStatus(state=row[0].split()[0], status=status(row[1])) for row in rows if len(row) == 2 and row[0]]


def explain(number: str, job_status: JobStatus) -> JobReason:
    """Say why a job waits, or how one ended that is lost."""
    if job_status.is_lost:
        row = table()["ended"][job_status.state]
        reason = f", {job_status.reason}" if job_status.reason not in {"", "None"} else ""
        return JobReason(
            said=f"{job_status.state}{reason}", cause=row["what"], remedy=row["fix"].replace("{job}", number)
        )
    row = why_waiting(job_status.reason)
    cause, remedy = (row.get(key, "").replace("{job}", number) for key in ("cause", "remedy"))
    never = bool(row.get("never_starts"))
    return JobReason(said=job_status.reason or job_status.state, cause=cause, remedy=remedy, never_starts=never)


def why_waiting(reason: str) -> Mapping[str, Any]:
    """Return what the table says of a reason to wait; nothing where it is not in it."""
    return next((row for row in table()["reason"] if re.match(row["match"], reason)), {})


def position(job: Submitted, job_status: JobStatus) -> str | None:
    """Return where a job stands in the queue of its partition, where only that keeps it waiting."""
    if job_status.reason not in {"Priority", "Resources"}:
        return None
    words = ["--noheader", "--states=PENDING", f"--partition={job_status.partition}", "--sort=-p,i", "--format=%A"]
    queue = process.capture(["squeue", *place(job), *words], timeout_s=ANSWER_S).stdout.split()
    if job.number not in queue:
        return ""
    return f"{queue.index(job.number) + 1} of {len(queue)} in the queue of {job_status.partition}"


def cancel(job: Submitted) -> str | None:
    """Cancel a job; return what Slurm says if it did not, None if it did."""
    done = process.capture([CANCELS, *place(job), job.number], timeout_s=ANSWER_S)
    return done.stderr.strip() if done.status else None


@functools.cache
def table() -> Mapping[str, Any]:
    """Return slurm.toml."""
    return toml.read(data("jobs/slurm.toml"), toml.Tables)
