"""PBS (OpenPBS, PBS Professional): a job as a batch script."""

import re
from collections.abc import Sequence

from envkit.errors import UsageProblem
from envkit.jobs.job import Job, clock, demand_lines, demand_shape, heading, settings, steps

PALS_STARTS = "MPICH"
WORD = re.compile(r"[\w.,:/+=@%^~-]+", re.ASCII)


def script(job: Job, *, pals: Sequence[str] | None = None, select: Sequence[str] = ()) -> str:
    """Return the batch script of a job.

    ``pals`` are the words for mpiexec where it is that of PALS and can start these ranks; ``select`` are resources of
    each chunk. Raises UsageProblem for what cannot be written into one.
    """
    demand_shape(job.shape)
    chunk = chunk_words(job, select, whole_nodes=pals is not None)
    lines = ["#!/bin/bash", *heading(job, "qsub"), *(f"#PBS {line}" for line in directives(job, chunk))]
    lines += ["set -euo pipefail", 'cd "$PBS_O_WORKDIR"', "", *settings(job)]
    lines += ['echo "Job $PBS_JOBID on $(uniq "$PBS_NODEFILE" | xargs)"', ""]
    lines += steps(job, launcher(job, pals) if pals is not None else ())
    return "\n".join(lines) + "\n"


def launcher(job: Job, words: Sequence[str]) -> tuple[str, ...]:
    """Return PALS's mpiexec with its words; which CPUs a rank has is the site's to say, if it does."""
    shape = job.shape
    says = any(word.startswith(("--depth", "-d")) for word in words)
    own = ("--cpu-bind", "depth", f"--depth={shape.cpus_per_rank}") if shape.cpus_per_rank and not says else ()
    return ("mpiexec", "-n", str(shape.ranks), "--ppn", str(shape.ranks_per_node), *own, *words)


def chunk_words(job: Job, select: Sequence[str], *, whole_nodes: bool) -> list[str]:
    """Return what each node is asked for: nothing in particular where a job has whole nodes."""
    shape = job.shape
    if whole_nodes:
        return [*select]
    cpus = shape.ranks_per_node * (shape.cpus_per_rank or 1)
    gpus = [f"ngpus={shape.gpus_per_node}"] if shape.gpus_per_node else []
    kind = [f"gpu_type={shape.gpu_type}"] if shape.gpu_type else []
    return [f"ncpus={cpus}", f"mpiprocs={shape.ranks_per_node}", *gpus, *kind, *select]


def directives(job: Job, chunk: Sequence[str]) -> list[str]:
    """Return what stands after #PBS, line by line; the site's own come last."""
    options = {
        "-N": job.name,
        "-l select": "=" + ":".join([str(job.shape.nodes), *chunk]),
        "-l place": "=scatter",
        "-l walltime": f"={clock(job.time_s)}" if job.time_s else "",
        "-A": job.account,
        "-q": job.partition,
    }
    demand_words({**options, **{f"--site ({line})": word for line in job.words for word in line.split(" ")}})
    # PBS gives the script to the login shell, whatever its first line says
    own = ["-S /bin/bash", "-j oe"]
    given = [name + (value if value.startswith("=") else f" {value}") for name, value in options.items() if value]
    return [*own, *given, *job.words]


def demand_words(values: dict[str, str]) -> None:
    """Raise UsageProblem for values that would not reach PBS as one word, for it has no sure way to quote them."""
    demand_lines(values)
    for what, value in values.items():
        if value and not WORD.fullmatch(value):
            raise UsageProblem(
                what=f"{what}: {value!r} cannot be written on a line of #PBS.",
                why="Only letters, digits and . , : / + = @ % ^ ~ _ - are sure to be read as they are.",
                fix="Use another name, or give it to qsub on its command line.",
            )
