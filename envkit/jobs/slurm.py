"""Slurm: a job as a batch script."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from envkit.errors import UsageProblem
from envkit.jobs.job import Job, called, clock, demand_lines, demand_shape, heading, settings, steps

PLAIN = re.compile(r"[\w@%+=:,./~^-]+", re.ASCII)
ARRAY = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")
VERIFYING = ("--kill-on-bad-exit=0",)


def script(job: Job, *, speaks: str, srun: Sequence[str] = (), array: str = "") -> str:
    """Return the batch script of a job.

    ``speaks`` is the type for ``srun --mpi``, or empty where srun cannot start these ranks; ``srun`` are words for it.
    ``array`` is as for sbatch. Raises UsageProblem for what cannot be written into one.
    """
    start = launcher(job, speaks, srun) if speaks else ()
    place = 'echo "Job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, restarts: ${SLURM_RESTART_COUNT:-0}"'
    # A rank that fails must not leave the others waiting for it; while verifying, each of them says what it found.
    both = steps(job, start, verifying=VERIFYING, running=["--kill-on-bad-exit=1"])
    return batch(job, [place, "", *both], array)


def verification(job: Job, words: Sequence[str], report: Path, *, speaks: str, srun: Sequence[str] = ()) -> str:
    """Return the batch script of a job that verifies, with ``words`` for that, and leaves its JSON in a file."""
    start = launcher(job, speaks, srun) if speaks else ()
    argv = [*called("verify", job, start, VERIFYING), *words, "--json"]
    return batch(job, [f"{shlex.join(argv)} >{shlex.quote(str(report))}"])


def alone(job: Job, output: Path | None = None) -> str:
    """Return the batch script of a job whose command is envkit's own, once, on its first node.

    ``output`` is the file for its standard output. Without one it goes to the log.
    """
    into = f" >{shlex.quote(str(output))}" if output else ""
    return batch(job, [f"exec {shlex.join([*job.envkit, *job.command])}{into}"])


def batch(job: Job, body: Sequence[str], array: str = "") -> str:
    """Return the batch script that does what is in ``body``."""
    demand_shape(job.shape)
    lines = ["#!/bin/bash", *heading(job, "sbatch"), *(f"#SBATCH {word}" for word in directives(job, array))]
    return "\n".join([*lines, "set -euo pipefail", "", *settings(job), *body, ""])


def launcher(job: Job, speaks: str, words: Sequence[str]) -> tuple[str, ...]:
    """Return srun with its words: ranks are bound to as many CPUs as was said, if the site does not bind them.

    Where nothing was said they are not: in a job with whole nodes, each would be bound to one CPU.
    """
    cpus = job.shape.cpus_per_rank
    counts, binds = (any(word.startswith(option) for word in words) for option in ("--cpus-per-task", "--cpu-bind"))
    # srun does not take the number over from the job (since 22.05)
    number = () if counts or not cpus else (f"--cpus-per-task={cpus}",)
    binding = () if binds or not cpus else ("--cpu-bind=cores",)
    return ("srun", f"--mpi={speaks}", "--export=ALL", *number, *binding, *words)


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
    told = {
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
    demand_lines({f"--{name}": value for name, value in told.items()})
    demand_lines({"--site": " ".join(job.words)})
    return {name: value for name, value in told.items() if value}


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
