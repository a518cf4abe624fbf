"""``envkit job``: the batch script of a job, printed, written, or submitted."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from envkit.cli import echo, echo_json, usage
from envkit.commands import batch, options
from envkit.errors import UsageProblem
from envkit.jobs.registry import SCHEDULERS
from envkit.jobs.scheduler import Scheduler

if TYPE_CHECKING:
    from envkit.environments.receipt import Receipt
    from envkit.jobs.mpijob import MpiJob
    from envkit.machine.site import Site

Function = TypeVar("Function", bound=Callable[..., Any])
OF_THE_JOB = {"Options of the job": batch.JOB}
AFTER = "The command follows after --, unchanged."


@click.group()
@click.pass_context
def job(context: click.Context) -> None:
    """Write the batch script of a job that verifies an environment on its nodes, and then runs a command in it."""
    context.default_map = dict.fromkeys(job.commands, context.default_map or {})  # the configuration is for each alike


def shape(function: Function) -> Function:
    """Add what says how large a job is, and what becomes of its text."""
    for option in (
        click.option("--force", is_flag=True, help="Overwrite the file of --output."),
        click.option(
            "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE, which must not exist."
        ),
        batch.TIME,
        batch.CPUS,
        batch.GPUS,
        batch.RANKS,
        batch.RANKS_IN_ALL,
        click.option("--nodes", type=click.IntRange(min=1), required=True, metavar="N", help="How many nodes."),
    ):
        function = option(function)
    return function


def system(function: Function) -> Function:
    """Add what a batch system takes."""
    for option in (
        click.option("--submit", is_flag=True, help="Submit it."),
        click.option("--no-verify", is_flag=True, help="Do not verify the environment first."),
        batch.SITE,
        batch.ACCOUNT,
    ):
        function = option(function)
    return function


def image_options(function: Function) -> Function:
    """Add what says which image a job in pods starts from, and how it is used."""
    for option in (
        click.option("--name", "title", metavar="LABEL", help="What the job is called. Default: as NAME."),
        click.option("--home", metavar="DIR", help="The home of that user. Default: /root."),
        click.option(
            "--uid", type=click.IntRange(min=1), metavar="UID", help="The user that the image runs as, if not root."
        ),
        click.option("--mpi", type=options.Family(), callback=options.family, help="Of --image: its MPI."),
        click.option(
            "--image", metavar="IMAGE@sha256:DIGEST", help="The image. Default: what NAME was taken over from."
        ),
    ):
        function = option(function)
    return function


def of(scheduler: Scheduler) -> click.Command:
    """Return the command for a scheduler: it writes the script of a job, submits it, and follows the job."""
    queue = click.option(
        f"--{scheduler.QUEUE}",
        "partition",
        metavar=scheduler.QUEUE[0].upper(),
        help=f"The {scheduler.QUEUE}.",
    )
    task = f"Run it for each index, as in 0-15%4; ${scheduler.TASK} tells which."
    array = click.option("--array", metavar="SPEC", hidden=not scheduler.TASK, help=task)
    follow_help = "With --submit: follow the job until it ends; Ctrl-C cancels it."
    words = {"help": scheduler.HELP, "options_metavar": "[OPTIONS]", "epilog": AFTER, "groups": OF_THE_JOB}

    @click.command(scheduler.NAME, cls=options.CommandAfterDashes, **words)
    @options.name
    @shape
    @system
    @queue
    @array
    @click.option("--follow", is_flag=True, help=follow_help)
    @click.option("--json", "as_json", is_flag=True, help="Print the script and the job's number as JSON.")
    @options.example
    @options.mpi_model
    @options.prefix
    @click.pass_context
    def command(context: click.Context, /, name: str | None, **given: Any) -> int:
        return written(scheduler, context.meta["command"], name, given)

    return command


for each in SCHEDULERS.values():
    job.add_command(of(each))


def written(scheduler: Scheduler, command: Sequence[str], name: str | None, given: dict[str, Any]) -> int:
    """Write the script that is asked for, submit it and follow the job; return the status.

    Raises EnvironmentMissing, UsageProblem, and what submitting and following a job do.
    """
    given = {**given, **batch.sizes(given)}
    if given["follow"] and not given["submit"]:
        usage("--follow goes with --submit.")
    if given["follow"] and given["as_json"]:
        usage("--json goes without --follow, which prints the job's log.")
    if given["array"] and not scheduler.TASK:
        raise no_arrays(scheduler)
    receipt, site = batch.environment(name, given)
    warn_of_gpus(receipt, given)
    words = prepared_example(command, receipt, site, given)
    batch_job = batch.prepared(words, receipt.called, site, (), given, verify=bool(receipt.horovod))
    settings = {"array": given["array"] or "", "is_followed": given["follow"]}
    text = batch.encoded(scheduler.text(batch_job, receipt, site, **settings))
    keep(text, given, printed=not given["submit"] and not given["as_json"])
    taken = scheduler.submit(text) if given["submit"] else None
    if given["as_json"]:
        from envkit.commands import json_types

        echo_json(json_types.text(json_types.job(receipt.called, scheduler.NAME, text, given["output"], taken)))
        return 0
    if taken is None:
        return 0
    if given["follow"]:
        from envkit.jobs import follow

        echo(f"envkit: job {taken.number} is submitted", err=True)
        return follow.follow(taken)
    click.echo(taken.number)
    return 0


def warn_of_gpus(receipt: "Receipt", given: dict[str, Any]) -> None:
    """Say that an environment for CPUs leaves GPUs idle."""
    if given["gpus_per_node"] and receipt.accelerator == "cpu":
        echo(f"envkit: {receipt.called} is for CPUs: it uses no GPU, and --gpus-per-node asks for some", err=True)


def no_arrays(scheduler: Scheduler) -> UsageProblem:
    """Say which schedulers envkit writes arrays for."""
    others = ", ".join(other.TITLE for other in SCHEDULERS.values() if other.TASK)
    return UsageProblem(
        what=f"--array: envkit writes no arrays for {scheduler.TITLE}.",
        why=f"It does so only for {others}.",
        fix="Leave it out, and submit a job for each index.",
    )


@job.command(cls=options.CommandAfterDashes, options_metavar="[OPTIONS]", epilog=AFTER, groups=OF_THE_JOB)
@options.name
@shape
@image_options
@options.prefix
@click.pass_context
def mpijob(context: click.Context, /, name: str | None, **given: Any) -> int:
    """Write an MPIJob for Kubernetes: envkit job mpijob NAME --nodes 2 --gpus-per-node 4 -- python train.py

    For Kubeflow's operator (v2beta1). NAME is an image that was taken over from a registry, or --image names one,
    which needs sshd and its own MPI; envkit is not in it, so nothing is verified first.
    """
    from envkit.jobs import mpijob as engine

    keep(engine.text(in_pods(context.meta["command"], name, given)).encode(), given, printed=True)
    return 0


@job.command(cls=options.CommandAfterDashes, options_metavar="[OPTIONS]", epilog=AFTER, groups=OF_THE_JOB)
@options.name
@shape
@image_options
@options.prefix
@click.pass_context
def trainjob(context: click.Context, /, name: str | None, **given: Any) -> int:
    """Write a TrainJob: envkit job trainjob NAME --nodes 2 --gpus-per-node 4 --uid 1000 --home DIR -- python train.py

    For Kubeflow's Trainer 2 (v1alpha1), with a runtime of its own, in which MPI starts the ranks. NAME is an image that
    was taken over from a registry, or --image names one, which needs Open MPI, sshd and a user who is not root; envkit
    is not in it, so nothing is verified first.
    """
    from envkit.jobs import trainjob as engine

    keep(engine.text(in_pods(context.meta["command"], name, given)).encode(), given, printed=True)
    return 0


@job.command(cls=options.CommandAfterDashes, options_metavar="[OPTIONS]", epilog=AFTER, groups=OF_THE_JOB)
@options.name
@shape
@image_options
@click.option("--project", metavar="P", help="Of Run:ai. Default: the one that is set there.")
@click.option("--cli", type=click.Choice(["1", "2"]), help="The version of runai. Default: what is on PATH, else 2.")
@click.option("--submit", is_flag=True, help="Submit it.")
@options.prefix
@click.pass_context
def runai(context: click.Context, /, name: str | None, **given: Any) -> int:
    """Print the command line for Run:ai: envkit job runai NAME --nodes 2 --gpus-per-node 4 -- python train.py

    NAME is an image that was taken over from a registry, or --image names one, which needs sshd and its own MPI;
    envkit is not in it, so nothing is verified first.
    """
    import shlex

    from envkit.jobs import runai as engine

    mpi_job = in_pods(context.meta["command"], name, given)
    version = int(given["cli"]) if given["cli"] else engine.program_version()
    line = engine.argv(mpi_job, project=given["project"] or "", version=version)
    keep(f"{shlex.join(line)}\n".encode(), given, printed=not given["submit"])
    if given["submit"]:
        echo(engine.run(line), nl=False)
    return 0


def in_pods(command: Sequence[str], name: str | None, given: dict[str, Any]) -> "MpiJob":
    """Return the job in an image that is asked for. Raises EnvironmentMissing, UsageProblem."""
    from envkit.jobs import mpijob as engine
    from envkit.jobs.job import seconds

    if given["uid"] and not given["home"]:
        usage("--uid: say where the home of that user is in the image: --home DIR")
    given = {**given, **batch.sizes(given)}
    receipt = None if given["image"] else batch.environment(name, {**given, "site": None})[0]
    if receipt:
        warn_of_gpus(receipt, given)
    family = receipt.mpi.family if receipt and receipt.mpi else given["mpi"] or "Open MPI"
    source = receipt.source if receipt else ""
    return engine.MpiJob(
        name=given["title"] or engine.label(receipt.name if receipt else name or "horovod"),
        image=given["image"] or source.removeprefix("docker://"),
        shape=batch.shape_of(given, "amd" if receipt and receipt.accelerator == "rocm" else ""),
        command=tuple(command),
        family=family,
        time_s=seconds(given["time"]) if given["time"] else 0,
        uid=given["uid"] or 0,
        home=given["home"] or "/root",
    )


def prepared_example(
    words: Sequence[str], receipt: "Receipt", site: "Site | None", given: dict[str, Any]
) -> Sequence[str]:
    """Return the command, or the arguments of an example; its data are made ready here: nodes often have no network."""
    if not given["example"]:
        return words
    from envkit.environments import prefix as place
    from envkit.training import example

    places = site.data if site else ()
    words, data = example.with_data(
        example.find(given["example"], receipt), words, place.locate(given["prefix"]), places
    )
    if data:
        echo(f"envkit: data: {data.said}", err=True)
    return list(words)


def keep(text: bytes, given: dict[str, Any], *, printed: bool) -> None:
    """Write a script to the file asked for, or else print it, if it is to be. Raises NotWritable, UsageProblem."""
    path: Path | None = given["output"]
    if path is None and printed:
        click.echo(text, nl=False)
    if path is None:
        return
    from envkit.system.files import deliver

    try:
        deliver(path, text, "The job", new=not given["force"])
    except FileExistsError as error:
        raise UsageProblem(
            what=f"{path} is there already.", fix="Name another file, or say --force to write over it."
        ) from error
