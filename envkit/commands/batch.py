"""The options that commands share which write jobs, or submit themselves as one, and the job that these mean."""

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from envkit.cli import usage
from envkit.commands import complete
from envkit.commands.options import configured

if TYPE_CHECKING:
    from envkit.environments.receipt import Receipt
    from envkit.jobs.job import Job, Shape
    from envkit.machine.site import Site

ONE_OR_MORE = click.IntRange(min=1)
CPUS = click.option("--cpus-per-rank", type=ONE_OR_MORE, metavar="C", help="How many CPUs each rank is bound to.")
GPUS = click.option("--gpus-per-node", metavar="[TYPE:]G", help="How many GPUs each node has for its ranks.")
RANKS = click.option(
    "--ranks-per-node", type=ONE_OR_MORE, metavar="R", help="How many ranks per node. Default: one per GPU."
)
RANKS_IN_ALL = click.option(
    "-n", "--ranks", type=ONE_OR_MORE, metavar="N", help="How many ranks in all, instead of --ranks-per-node."
)
TIME = click.option("--time", metavar="T", help="Time limit: minutes, H:MM:SS or D-HH:MM:SS.")
ACCOUNT = click.option("--account", metavar="A", help="The account to charge.")
SITE = click.option(
    "--site",
    metavar="NAME|FILE.toml",
    help="What this site needs: a name, or a file (docs/sites.md).",
    shell_complete=complete.sites,
)
PARTITION = click.option("--partition", metavar="P", help="The partition.")
JOB = (
    "submit", "follow", "job_per_module", "nodes", "ranks", "ranks_per_node", "gpus_per_node", "cpus_per_rank", "time",
    "account", "partition", "array",
)  # fmt: skip
SUBMITTED = {"Options of the job, with --submit": tuple(name for name in JOB if name not in ("nodes", "ranks"))}


def repeated(context: click.Context, leave: Collection[str]) -> Iterator[str]:
    """Yield the words of the options that were given, but for those named in ``leave``, so that a job gets them too."""
    for option in context.command.params:
        given = context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        if isinstance(option, click.Option) and option.expose_value and given and option.name not in leave:
            values = context.params[str(option.name)]
            for value in values if option.multiple else [values]:
                yield option.opts[-1]
                if not option.is_flag:
                    yield "=".join(value) if isinstance(value, tuple) else str(value)


def environment(name: str | None, given: dict[str, Any]) -> "tuple[Receipt, Site | None]":
    """Return the environment that is named, and the site. Raises EnvironmentMissing, UsageProblem."""
    from envkit.environments import prefix as place
    from envkit.machine import site as sites
    from envkit.methods import installed

    receipt = installed.find(place.locate(given["prefix"]), name)
    return receipt, sites.find(given["site"]) if given["site"] else None


def prepared(
    command: Sequence[str],
    name: str,
    site: "Site | None",
    words: Sequence[str],
    given: dict[str, Any],
    verify: bool = False,
) -> "Job":
    """Return the job that is asked for, of an environment. Raises UsageProblem."""
    from envkit.environments import prefix as place
    from envkit.environments import trust
    from envkit.jobs.job import Job, seconds

    needs = site.job if site else None
    return Job(
        environment=name,
        prefix=str(place.locate(given["prefix"])),
        trusted=",".join(trust.words(os.environ)),
        envkit=this_envkit(),
        shape=shape_of(given),
        command=tuple(command),
        example=given.get("example") or "",
        model=given.get("mpi_model") or "",
        verify=verify and not given["no_verify"],
        time_s=seconds(given["time"]) if given["time"] else 0,
        account=given["account"] or (needs.account if needs else ""),
        partition=given["partition"] or (needs.partition if needs else ""),
        words=tuple(words),
        notes=needs.notes if needs else (),
    )


def sizes(given: Mapping[str, Any]) -> dict[str, int]:
    """Return nodes and ranks per node, where -n says how many ranks there are in all."""
    nodes = given["nodes"] or 1
    if given["ranks"] and given["ranks_per_node"] and "ranks_per_node" not in configured(click.get_current_context()):
        usage("Give one of -n and --ranks-per-node.")
    if given["ranks"] and given["ranks"] % nodes:
        usage(f"-n: {given['ranks']} ranks are not as many on each of {nodes} nodes.")
    return {"nodes": nodes, "ranks_per_node": given["ranks"] // nodes if given["ranks"] else given["ranks_per_node"]}


def shape_of(given: dict[str, Any], gpu_type: str = "") -> "Shape":
    """Return the shape that is asked for; ends with a usage error where it does not say how many ranks there are."""
    from envkit.jobs.job import Shape

    kind, count = gpus(given["gpus_per_node"] or "")
    if not (given["ranks_per_node"] or count):
        usage("Say how many ranks each node has: --ranks-per-node, -n in all, or --gpus-per-node for one per GPU.")
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

    match = re.fullmatch(r"(?:([\w.-]+):)?(\d{1,9})", text, re.ASCII)
    if text and match is None:
        usage(f"--gpus-per-node {text!r}: write it as 4, or with a type as a100:4.")
    return (match[1] or "", int(match[2])) if match else ("", 0)


def this_envkit() -> tuple[str, ...]:
    """Return the argv that calls this envkit on a node."""
    program = Path(sys.executable).with_name("envkit")
    return (str(program),) if program.exists() else (sys.executable, "-P", "-m", "envkit")


def encoded(text: str) -> bytes:
    """Return a script as bytes; words of the command line that are no text in UTF-8 are as they were."""
    return text.encode(errors="surrogateescape")
