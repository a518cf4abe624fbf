"""Run:ai: a job as a command line of its program, in version 2 (runai training) or 1 (runai submit-dist)."""

import shlex

from envkit.errors import UsageProblem
from envkit.jobs import mpijob, submit
from envkit.jobs.mpijob import MpiJob
from envkit.system import process

ANSWER_S = 20.0


def program_version() -> int:
    """Return which of the two the program on PATH is: it is asked for what the second alone has. Without one, 2."""
    newer = process.capture(["runai", "training", "mpi", "submit", "--help"], timeout_s=ANSWER_S)
    if newer.status == 127 or (newer.status == 0 and "--master-command" in newer.stdout + newer.stderr):
        return 2
    older = process.capture(["runai", "submit-dist", "mpi", "--help"], timeout_s=ANSWER_S)
    return 1 if older.status == 0 else 2


def argv(job: MpiJob, *, project: str = "", version: int = 2) -> list[str]:
    """Return the command line that submits a job. Raises UsageProblem for what Run:ai cannot be told, or rejects."""
    mpijob.checked(job)
    if job.time_s:
        raise UsageProblem(what="--time: Run:ai takes no limit of time.", fix="Leave it out.")
    if job.uid and version == 1:
        raise UsageProblem(what="--uid: version 1 of runai does not take one.", fix="Use version 2 of runai.")
    return second(job, project) if version == 2 else first(job, project)


def second(job: MpiJob, project: str) -> list[str]:
    """Return the words for version 2, where what follows -- would be the command of the workers, too."""
    words, variables = starting(job)
    cpus = job.shape.cpus_per_rank * job.shape.ranks_per_node
    own = ["--cpu-core-request", str(cpus)] if cpus else []
    own += ["--run-as-uid", str(job.uid)] if job.uid else []
    line = ["runai", "training", "mpi", "submit", job.name, *common(job, project), *own, *variables]
    return [*line, "--master-command", shlex.join(words)]


def first(job: MpiJob, project: str) -> list[str]:
    """Return the words for version 1, where what follows -- is the command of the launcher."""
    words, variables = starting(job)
    cpus = job.shape.cpus_per_rank * job.shape.ranks_per_node
    own = ["--cpu", str(cpus)] if cpus else []
    line = ["runai", "submit-dist", "mpi", "--name", job.name, *common(job, project), *own, *variables]
    return [*line, "--command", "--", *words]


def starting(job: MpiJob) -> tuple[list[str], list[str]]:
    """Return the command that starts the ranks, as Kubernetes leaves it, and the options for its variables."""
    words, variables = mpijob.starting(job)
    options = [word for pair in variables.items() for word in ("--master-environment", "=".join(pair))]
    return [*words, *map(mpijob.as_is, job.command)], options


def common(job: MpiJob, project: str) -> list[str]:
    """Return the options that both versions take. A job that fails is not begun again."""
    shape = job.shape
    resource = mpijob.gpu_resource(shape.gpu_type)
    gpus = ["-g", str(shape.gpus_per_node)]
    if resource != mpijob.GPUS[""]:
        gpus = ["--extended-resource", f"{resource}={shape.gpus_per_node}"]
    return [
        *(["-p", project] if project else []),
        *("-i", job.image, "--workers", str(shape.nodes), "--slots-per-worker", str(shape.ranks_per_node)),
        *(gpus if shape.gpus_per_node else []),
        *("--large-shm", "--clean-pod-policy", "Running", "--backoff-limit", "0"),
    ]


def run(line: list[str]) -> str:
    """Submit a job; return what the program says. Raises JobRefused."""
    done = process.capture(line, timeout_s=submit.ANSWER_S)
    if done.status:
        raise submit.refused("runai", done)
    return done.stdout
