"""``envkit job``: the batch script of a job, printed, written, or submitted."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from envkit.cli import usage
from envkit.commands import options

if TYPE_CHECKING:
    from envkit.jobs.job import Job, Shape
    from envkit.receipt import Installed
    from envkit.site import Site

Function = TypeVar("Function", bound=Callable[..., Any])
AFTER = "The command follows after --, unchanged."


@click.group()
def job() -> None:
    """Write the batch script of a job that verifies an environment on its nodes, and then runs a command in it."""


def shape(function: Function) -> Function:
    """Add what says how large a job is, and what becomes of its text."""
    one_or_more = click.IntRange(min=1)
    for option in (
        click.option("--force", is_flag=True, help="Write over the file of --output."),
        click.option("--output", type=click.Path(path_type=Path), metavar="FILE", help="Write to FILE, a new one."),
        click.option("--time", metavar="T", help="The limit: minutes, H:MM:SS or D-HH:MM:SS."),
        click.option("--cpus-per-rank", type=one_or_more, metavar="C", help="How many CPUs each rank is bound to."),
        click.option("--gpus-per-node", metavar="[TYPE:]G", help="How many GPUs each node has for its ranks."),
        click.option(
            "--ranks-per-node", type=one_or_more, metavar="R", help="How many ranks per node. Default: one per GPU."
        ),
        click.option("--nodes", type=one_or_more, required=True, metavar="N", help="How many nodes."),
    ):
        function = option(function)
    return function


def batch(function: Function) -> Function:
    """Add what a batch system takes."""
    for option in (
        click.option("--submit", is_flag=True, help="Submit it."),
        click.option("--no-verify", is_flag=True, help="Do not verify the environment first."),
        click.option("--site", metavar="NAME|FILE.toml", help="What this site needs; see envkit/sites."),
        click.option("--account", metavar="A", help="Who is charged for it."),
    ):
        function = option(function)
    return function


@job.command(cls=options.CommandAfterDashes, options_metavar="[OPTIONS]", epilog=AFTER)
@click.argument("name", required=False)
@shape
@batch
@click.option("--partition", metavar="P", help="Where in the cluster.")
@click.option("--array", metavar="SPEC", help="Run it for each index, as in 0-15%4; $SLURM_ARRAY_TASK_ID tells which.")
@click.option("--follow", is_flag=True, help="Tell of it until it ends, with --submit; Ctrl-C cancels it.")
@options.example
@options.mpi_model
@options.prefix
@click.pass_context
def slurm(context: click.Context, /, name: str | None, **given: Any) -> int:
    """Write a batch script for Slurm: envkit job slurm NAME --nodes 2 --gpus-per-node 4 -- python train.py

    Each rank enters the environment by itself. The status of the command is that of the job, and with --follow that
    of this command, too: the log goes to standard output, and why the job waits to standard error.
    """
    from envkit import launcher
    from envkit.jobs import slurm as engine
    from envkit.receipt import ImageReceipt

    if given["follow"] and not given["submit"]:
        usage("--follow goes with --submit.")
    found, site = environment(name, given)
    own = found.srun if isinstance(found, ImageReceipt) else ()
    made = prepared(context.meta["command"], found, site, site.job.sbatch if site else (), given)
    speaks = launcher.job_srun_type(found.mpi.family) if found.mpi and made.model != "inside" else ""
    text = encoded(engine.script(made, speaks=speaks, srun=site.srun if site else own, array=given["array"] or ""))
    keep(text, given, printed=not given["submit"])
    if not given["submit"]:
        return 0
    from envkit.jobs import follow, submit

    taken = submit.sbatch(text)
    if given["follow"]:
        click.echo(f"envkit: job {taken.number} is submitted", err=True)
        return follow.follow(taken)
    click.echo(taken.number)
    return 0


@job.command(cls=options.CommandAfterDashes, options_metavar="[OPTIONS]", epilog=AFTER)
@click.argument("name", required=False)
@shape
@batch
@click.option("--queue", "partition", metavar="Q", help="In which queue.")
@options.example
@options.mpi_model
@options.prefix
@click.pass_context
def pbs(context: click.Context, /, name: str | None, **given: Any) -> int:
    """Write a batch script for PBS: envkit job pbs NAME --nodes 2 --gpus-per-node 4 --site polaris -- python train.py

    Where the site says that its mpiexec is that of PALS, each rank enters the environment by itself; elsewhere the
    environment's own launcher starts them. The status of the command is that of the job.
    """
    from envkit.jobs import pbs as engine

    found, site = environment(name, given)
    needs = site.job if site else None
    made = prepared(context.meta["command"], found, site, needs.qsub if needs else (), given)
    speaks = found.mpi is not None and found.mpi.family == engine.PALS_STARTS and made.model != "inside"
    pals = needs.mpiexec if needs and speaks else None
    text = encoded(engine.script(made, pals=pals, select=needs.select if needs else ()))
    keep(text, given, printed=not given["submit"])
    if given["submit"]:
        from envkit.jobs import submit

        click.echo(submit.qsub(text).number)
    return 0


@job.command(cls=options.CommandAfterDashes, options_metavar="[OPTIONS]", epilog=AFTER)
@click.argument("name", required=False)
@shape
@click.option("--image", metavar="IMAGE@sha256:DIGEST", help="The image. Default: what NAME was taken over from.")
@click.option("--mpi", type=click.Choice(["Open MPI", "MPICH", "Intel MPI"]), help="Of --image: its MPI.")
@click.option("--uid", type=click.IntRange(min=1), metavar="UID", help="The user that the image runs as, if not root.")
@click.option("--home", metavar="DIR", help="The home of that user. Default: /root.")
@click.option("--name", "title", metavar="LABEL", help="What the job is called. Default: as NAME.")
@options.prefix
@click.pass_context
def mpijob(context: click.Context, /, name: str | None, **given: Any) -> int:
    """Write an MPIJob for Kubernetes: envkit job mpijob NAME --nodes 2 --gpus-per-node 4 -- python train.py

    For Kubeflow's operator (v2beta1). NAME is an image that was taken over from a registry, or --image names one,
    which needs sshd and its own MPI; envkit is not in it, so nothing is verified first.
    """
    from envkit.jobs import mpijob as engine
    from envkit.jobs.job import seconds
    from envkit.receipt import ImageReceipt

    if given["uid"] and not given["home"]:
        usage("--uid: say where the home of that user is in the image: --home DIR")
    found = None if given["image"] else environment(name, {**given, "site": None})[0]
    family = found.mpi.family if found and found.mpi else given["mpi"] or "Open MPI"
    source = found.source if isinstance(found, ImageReceipt) else ""
    size = shape_of(given, "amd" if found and found.accelerator == "rocm" else "")
    made = engine.MpiJob(
        name=given["title"] or engine.label(found.name if found else name or "horovod"),
        image=given["image"] or source.removeprefix("docker://"),
        shape=size,
        command=tuple(context.meta["command"]),
        family=family,
        time_s=seconds(given["time"]) if given["time"] else 0,
        uid=given["uid"] or 0,
        home=given["home"] or "/root",
    )
    keep(engine.text(made).encode(), given, printed=True)
    return 0


def environment(name: str | None, given: dict[str, Any]) -> "tuple[Installed, Site | None]":
    """Return the environment that is named, and the site. Raises EnvironmentMissing, UsageProblem."""
    from envkit import prefix as place
    from envkit import receipt
    from envkit import site as sites

    found = receipt.find(place.locate(given["prefix"]), name)
    return found, sites.find(given["site"]) if given["site"] else None


def prepared(
    command: Sequence[str], found: "Installed", site: "Site | None", words: Sequence[str], given: dict[str, Any]
) -> "Job":
    """Return the job that is asked for. Raises UsageProblem."""
    from envkit import prefix as place
    from envkit.jobs.job import Job, seconds

    needs = site.job if site else None
    if given["example"]:
        command = prepared_example(command, found, site, given)
    return Job(
        environment=found.name,
        prefix=str(place.locate(given["prefix"]).root.absolute()),
        envkit=this_envkit(),
        shape=shape_of(given),
        command=tuple(command),
        example=given["example"] or "",
        model=given["mpi_model"] or "",
        verify=bool(found.horovod) and not given["no_verify"],
        time_s=seconds(given["time"]) if given["time"] else 0,
        account=given["account"] or (needs.account if needs else ""),
        partition=given["partition"] or (needs.partition if needs else ""),
        words=tuple(words),
        notes=needs.notes if needs else (),
    )


def prepared_example(words: Sequence[str], found: "Installed", site: "Site | None", given: dict[str, Any]) -> list[str]:
    """Return the arguments of an example; its data are made ready here, since nodes often have no network."""
    from envkit import example
    from envkit import prefix as place

    places = site.data if site else ()
    words, data = example.with_data(example.find(given["example"], found), words, place.locate(given["prefix"]), places)
    if data:
        click.echo(f"envkit: data: {data.said}", err=True)
    return list(words)


def shape_of(given: dict[str, Any], gpu_type: str = "") -> "Shape":
    """Return the shape that is asked for; ends with a usage error where it does not say how many ranks there are."""
    from envkit.jobs.job import Shape

    kind, count = gpus(given["gpus_per_node"] or "")
    if not (given["ranks_per_node"] or count):
        usage("Say how many ranks each node has: --ranks-per-node, or --gpus-per-node for one rank per GPU.")
    return Shape(
        nodes=given["nodes"],
        ranks_per_node=given["ranks_per_node"] or count,
        gpus_per_node=count,
        gpu_type=kind or gpu_type,
        cpus_per_rank=given["cpus_per_rank"] or 0,
    )


def gpus(text: str) -> tuple[str, int]:
    """Read [TYPE:]NUMBER; ends with a usage error for anything else."""
    import re

    match = re.fullmatch(r"(?:([\w.-]+):)?(\d+)", text, re.ASCII)
    if text and match is None:
        usage(f"--gpus-per-node {text!r}: write it as 4, or with a type as a100:4.")
    return (match[1] or "", int(match[2])) if match else ("", 0)


def this_envkit() -> tuple[str, ...]:
    """Return the argv that calls this envkit on a node."""
    program = Path(sys.executable).with_name("envkit")
    return (str(program),) if program.exists() else (sys.executable, "-m", "envkit")


def encoded(text: str) -> bytes:
    """Return a script as bytes; words of the command line that are no text in UTF-8 are as they were."""
    return text.encode(errors="surrogateescape")


def keep(text: bytes, given: dict[str, Any], *, printed: bool) -> None:
    """Write a script to the file asked for, or else print it, if it is to be. Raises NotWritable, UsageProblem."""
    path: Path | None = given["output"]
    if path is None and printed:
        click.echo(text, nl=False)
    if path is None:
        return
    from envkit.errors import NotWritable, UsageProblem

    try:
        with path.open("wb" if given["force"] else "xb") as stream:
            stream.write(text)
        path.chmod(0o644)
    except FileExistsError as error:
        raise UsageProblem(
            what=f"{path} is there already.", fix="Name another file, or say --force to write over it."
        ) from error
    except OSError as error:
        raise NotWritable(
            what=f"The job could not be written to {path}.",
            why=str(error.strerror),
            fix="Name a file in a folder that you may write to.",
        ) from error
