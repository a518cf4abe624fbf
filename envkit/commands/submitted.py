"""``--submit``: run a command as a job of Slurm, the only scheduler that it knows, and follow the job to its end."""

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from envkit.cli import echo, usage
from envkit.commands import batch, options

if TYPE_CHECKING:
    from rich.console import Console

    from envkit.doctor.report import Report as Examined
    from envkit.jobs.scheduler import Scheduler
    from envkit.jobs.submit import Submitted
    from envkit.planning.method import Installation
    from envkit.planning.request import Request
    from envkit.verify.report import Report

OPTIONS = ("submit", "ranks_per_node", "gpus_per_node", "cpus_per_rank", "time", "account", "partition", "site")
VERIFYING, ASKING = "15", "5"  # minutes
BUILDING, CPUS = "1:00:00", 8
REPORT = "report.json"
Kind = TypeVar("Kind")


def require_submit(given: Mapping[str, Any], names: Iterable[str]) -> None:
    """End with a usage error for options of a job that were typed, where there is none."""
    usual = options.configured(click.get_current_context())
    for option in names:
        if given.get(option) and option not in usual:
            usage(f"--{option.replace('_', '-')} goes with --submit.")


def verification(name: str | None, given: dict[str, Any], words: Sequence[str]) -> "tuple[Report | None, int]":
    """Verify an environment in a job of its own; return the report, if it left one, and the status of the job.

    ``words`` are options of the verification. Raises what submitting and following a job do.
    """
    from envkit.errors import EnvkitError
    from envkit.jobs import slurm
    from envkit.launch import image_launch
    from envkit.verify import session
    from envkit.verify.report import Report

    receipt, site = batch.environment(name, given)
    own = receipt.srun
    if not receipt.horovod:
        usage(f"{receipt.name} has no Horovod, so there is nothing to verify.")
    starts_itself = given["launcher"] != "auto" or given["scale"] or given["upstream_tests"]
    words_of_srun = site.srun if site else own
    speaks, of_srun = image_launch.for_job(receipt.mpi, given["mpi_model"], words_of_srun, is_image=receipt.is_image)
    speaks = "" if starts_itself else speaks
    settings = {**given, **batch.sizes(given), "time": given["time"] or VERIFYING}
    job = batch.prepared((), receipt.called, site, site.job.sbatch if site else (), settings)
    shape = f"--nodes {job.shape.nodes} --ranks-per-node {job.shape.ranks_per_node}"
    require(slurm, f"envkit job {{name}} {receipt.called} {shape} --submit -- true")
    folder = session.of_starter(several_hosts=True, chosen=given["shared"]).shared
    job = replace(job, log=str(folder / "log").replace("%", "%%"))
    try:
        text = slurm.verification(job, words, folder / REPORT, speaks=speaks, srun=of_srun)
        taken = sent(text)
    except EnvkitError:
        shutil.rmtree(folder)
        raise
    status = followed(taken, folder)
    return read(folder / REPORT, Report, taken, status, said=(0, 1)), status


def examination(given: dict[str, Any], words: Sequence[str]) -> "tuple[Examined | None, int]":
    """Ask a node by a job what it offers; return the doctor's report, if there is one, and the status of the job.

    ``words`` are options of the doctor. Raises what submitting and following a job do.
    """
    from envkit.doctor.report import Report
    from envkit.errors import EnvkitError
    from envkit.jobs import slurm
    from envkit.machine import site as sites
    from envkit.verify import session

    require(slurm, "in an interactive job: envkit doctor")
    site = sites.find(given["site"]) if given["site"] else None
    shape = {"nodes": 1, "ranks_per_node": 1, "cpus_per_rank": 0}
    settings = {**given, **shape, "time": given["time"] or ASKING}
    job = batch.prepared(("doctor", *words, "--json"), "doctor", site, site.job.sbatch if site else (), settings)
    folder = session.of_starter(several_hosts=True, chosen=given["shared"]).shared
    try:
        taken = sent(slurm.alone(replace(job, log=str(folder / "log").replace("%", "%%")), folder / REPORT))
    except EnvkitError:
        shutil.rmtree(folder)
        raise
    status = followed(taken, folder)
    return read(folder / REPORT, Report, taken, status, said=(0,)), status


def require(scheduler: "Scheduler", instead: str, option: str = "") -> None:
    """Raise JobRefused where a scheduler is not here; where another is, say what to do ``instead`` ({name}: its own).

    Where one ``option`` is the reason why that other is of no use, UsageProblem is raised, which names it.
    """
    from envkit.errors import JobRefused, UsageProblem
    from envkit.jobs import submit
    from envkit.jobs.registry import SCHEDULERS
    from envkit.system import process

    if process.which(scheduler.SUBMITS):
        return
    other = next((candidate for candidate in SCHEDULERS.values() if process.which(candidate.SUBMITS)), None)
    if other is None:
        raise submit.absent(scheduler.SUBMITS)
    why = f"There is {other.SUBMITS} on PATH, and no {scheduler.SUBMITS}."
    fix = f"With {other.TITLE}: {instead.replace('{name}', other.NAME)}"
    if option:
        raise UsageProblem(what=f"{option} makes only jobs of {scheduler.TITLE}.", why=why, fix=fix)
    what = f"The job is not submitted: envkit does this only in jobs of {scheduler.TITLE}."
    raise JobRefused(what=what, why=why, fix=fix)


def sent(text: str) -> "Submitted":
    """Hand a job to Slurm, and say its number. Raises JobRefused."""
    from envkit.jobs import slurm

    taken = slurm.submit(batch.encoded(text))
    echo(f"envkit: job {taken.number} is submitted", err=True)
    return taken


def followed(taken: "Submitted", folder: Path) -> int:
    """Follow a job, its log going to standard error; return its status. Raises what ``follow`` does."""
    from envkit.errors import Interrupted
    from envkit.jobs import follow

    try:
        return follow.follow(taken, to=sys.stderr)
    except Interrupted as stop:
        if stop.exit_code == 130:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def read(path: Path, kind: type[Kind], taken: "Submitted", status: int, said: Sequence[int]) -> Kind | None:
    """Return the report of a job, None where it ended before it had one, whose log has said why.

    ``said`` are the statuses of those that have one. Raises JobLost.
    """
    import msgspec

    from envkit.errors import JobLost
    from envkit.system import record

    report = None
    try:
        report = record.read(path, kind)
    except (OSError, msgspec.DecodeError) as error:
        if status in said:
            raise JobLost(
                what=f"Job {taken.number} ended with status {status} and left no report.",
                why=f"{path}: {error}",
                fix=f"See its log: {path.with_name('log')}",
            ) from error
    shutil.rmtree(path.parent, ignore_errors=True)
    return report


def installation(request: "Request", given: Mapping[str, Any], words: Sequence[str], console: "Console") -> int:
    """Install in a job on one node, after every source has been fetched here; return the status of the job.

    ``words`` are the options of the installation. With a job per module that job has only what is left to do after
    them. Raises what fetching, submitting and following a job do.
    """
    from envkit.install import install as work
    from envkit.jobs import follow, slurm
    from envkit.machine import site as sites
    from envkit.system import umask

    if (existing := work.find_installed(request)) is not None:
        work.say_already(existing, request.prefix, console)
        return 0
    stack = request.wanted or "STACK"
    alone = "--job-per-module" if given["job_per_module"] else ""
    require(slurm, f"envkit fetch {stack}; and in an interactive job: envkit install {stack} --offline", alone)
    cpus = given["jobs"] or CPUS
    site = sites.find(given["site"]) if given["site"] else None
    settings = {**given, "nodes": 1, "ranks_per_node": 1, "cpus_per_rank": cpus, "time": given["time"] or BUILDING}
    with work.stoppable(), umask.like(request.prefix.root):
        request.prefix.create()
        wanted = work.supplied(request)
        named = (*filter(None, [wanted.request.wanted]), *words, "--method", wanted.stack.method)
        command = ("install", *named, "--offline", "--jobs", str(cpus))
        job = batch.prepared(command, wanted.stack.name, site, site.job.sbatch if site else (), settings)
        text = slurm.alone(replace(job, log=str(request.prefix.logs / "job-%x-%j.log")))
        if given["job_per_module"]:
            work.build_in_jobs(wanted, slurm.words(job), cpus, console)
        else:
            fetch_for(wanted, console)
        return follow.follow(sent(text))


def fetch_for(wanted: "Installation", console: "Console") -> None:
    """Fetch what an installation needs, if there is anything left to build."""
    from envkit.cache import place
    from envkit.methods import registry
    from envkit.sources import progress

    request, kept = wanted.request, place.configured().kept
    if any(build.taken for build in wanted.offered):  # the job asks no server, and so may have to build
        in_job = replace(request, offline=True)
        wanted = registry.method(wanted.stack.method).prepare(in_job, wanted.host, wanted.stack)
    if wanted.missing or request.rebuild:
        progress.fetch_all(wanted.sources, request.prefix.sources, request.offline, wanted.stack.name, console, kept)
        wanted.fetch_optional(console)
