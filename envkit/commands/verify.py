"""``envkit verify`` and ``envkit check-build``."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envkit.cli import echo, usage
from envkit.commands import batch, options, submitted

if TYPE_CHECKING:
    from envkit.environments.receipt import Receipt
    from envkit.inside.probe.started import Started
    from envkit.launch.launcher import Wanted
    from envkit.verify.report import Report
    from envkit.verify.target import Target

LAUNCHERS = ("auto", "srun", "mpirun", "mpiexec", "horovodrun")
OF_THE_JOB = (*submitted.OPTIONS, "ranks", "nodes", "mpi_model", "as_json", "junit", "html", "prefix")
FLAGS = ("rocm", "cuda", "nccl", "mpi", "gloo", "ddl", "ccl")


@click.command()
@click.argument("name", required=False)
@click.option(
    "-n", "--ranks", type=click.IntRange(min=1), help="How many ranks. Default: what the job was granted, else 2."
)
@click.option(
    "--launcher", type=click.Choice(LAUNCHERS), default="auto", help="What starts the ranks. Default: what fits."
)
@click.option("--nodes", type=click.IntRange(min=1), metavar="K", help="On how many nodes of the job.")
@click.option("--hosts", metavar="HOST:SLOTS,...", help="On which hosts, outside of a scheduler.")
@options.mpi_model
@click.option("--shared", type=click.Path(path_type=Path), metavar="DIR", help="A folder that all nodes see.")
@click.option("--timeout", type=click.FloatRange(min=1), metavar="S", help="How long any one step may take (s).")
@click.option("--framework", type=click.Choice(["pytorch", "tensorflow"]), help="Which, where Horovod has both.")
@click.option("--require", metavar="FLAG[,FLAG]", default="", help=f"Build flags that must hold: {', '.join(FLAGS)}.")
@click.option("--bench", is_flag=True, help="Measure latency and bus bandwidth of allreduce, beside the raw library's.")
@click.option("--sizes", metavar="FROM:TO", help="Sizes of the messages for --bench. Default: 1K:256M.")
@click.option(
    "--baseline", type=click.Path(path_type=Path), metavar="FILE", help="Hold --bench against FILE, or save it."
)
@click.option(
    "--tolerance", type=click.FloatRange(0, 1), help="How much slower than FILE is still right. Default: 0.2."
)
@click.option("--scale", metavar="N,N,...", help="Measure how training scales over these numbers of ranks.")
@click.option("--with", "beside", type=click.Choice(["ddp"]), help="Measure PyTorch's DDP beside it, with --scale.")
@click.option("--quick", is_flag=True, help="Where it fails, do not try what passes otherwise.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JUnit XML.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as one HTML file.")
@click.option("--submit", is_flag=True, help="Verify in a job of Slurm on --nodes of the cluster, and wait for it.")
@batch.RANKS
@batch.GPUS
@batch.CPUS
@batch.TIME
@batch.ACCOUNT
@batch.PARTITION
@batch.SITE
@options.prefix
@click.pass_context
def verify(context: click.Context, /, name: str | None, **given: Any) -> int:
    """Say in one verdict whether the environment NAME works on this machine.

    Starts the ranks inside it. Started as the ranks themselves (srun envkit verify), each enters the environment,
    and one report comes out. Without NAME: the environment that this is called in, if it has Horovod; else the only
    one installed. Ends with 0 only if everything required holds, otherwise with 1, in every rank; with 7 if it holds
    and a report or the baseline could not be written.

    From a login node: envkit verify NAME --nodes 2 --gpus-per-node 4 --submit. The report comes from the nodes of a
    job, a quarter of an hour long at most, if --time says nothing else; what is told of the job goes to standard
    error, and Ctrl-C cancels it. The options from --ranks-per-node to --site are those of that job.
    """
    from envkit.environments.environment import MpiModel
    from envkit.inside.probe.started import detect
    from envkit.methods import installed
    from envkit.verify import launch
    from envkit.verify.options import Options

    asked = Options(
        require=tuple(flags(given["require"])),
        limit_s=given["timeout"],
        shared=given["shared"],
        mpi_model=MpiModel(given["mpi_model"]) if given["mpi_model"] else None,
        quick=given["quick"],
        **measured(given),
    )
    for path in filter(None, (given["junit"], given["html"])):
        require_folder(path)
    if given["submit"]:
        return submitted_one(context, name, given)
    submitted.require_submit(given, submitted.OPTIONS)
    target = find_target(name, given["prefix"], given["framework"])
    started = detect(os.environ)

    def show(made: "Report") -> int:
        return shown(made, given)

    if started is not None:
        from envkit.verify import as_rank

        return as_rank.verify_as_rank(target, started, world_size(started, given), asked, show)
    start = wanted(given, asked.scale)
    if target.receipt is not None:
        installed.require_same_image(target.receipt)
    if not sys.stderr.isatty():
        return show(launch.verify(target, start, asked, tell=tell))
    from envkit.verify.waiting import Waiting

    waiting = Waiting(sys.stderr, start.ranks)
    try:
        made = launch.verify(target, start, asked, watch=waiting.look, tell=lambda text: tell(text, waiting.wipe))
    finally:
        waiting.wipe()
    return show(made)


def tell(text: str, before: Callable[[], None] = lambda: None) -> None:
    """Say something on standard error while a verification goes on."""
    before()
    from envkit.report.words import plain

    print(f"envkit: {plain(text)}", file=sys.stderr, flush=True)


def submitted_one(context: click.Context, name: str | None, given: dict[str, Any]) -> int:
    """Verify in a job, and show its report here; return the status that it means, or that of a job without one."""
    if given["hosts"]:
        usage("--hosts does not go with --submit: Slurm chooses the nodes.")
    words = list(batch.repeated(context, leave=OF_THE_JOB))
    made, status = submitted.verification(name, given, words)
    return status if made is None else shown(made, given) or status


def shown(made: "Report", given: Mapping[str, Any]) -> int:
    """Print a report, then write it to the files asked for; return the status that it means.

    A verdict is 1 whatever becomes of the report; one that passes is 7, or 141, where a part of it is lost.
    """
    from envkit.cli import explain, printed
    from envkit.errors import NotWritable
    from envkit.report.words import escaped
    from envkit.system.files import deliver
    from envkit.verify import report

    lost = printed(escaped(report.to_json(made).decode()) if given["as_json"] else report.to_text(made, sys.stdout))
    for path, form in ((given["junit"], as_junit), (given["html"], as_html)):
        try:
            if path:
                deliver(path, form(made), "The report")
        except NotWritable as error:
            explain(error)
            lost = error.exit_code
    if given["baseline"] and not given["baseline"].exists():  # the report says why
        lost = NotWritable.exit_code
    return lost if made.verdict == "pass" else 1


def as_junit(made: "Report") -> bytes:
    """Return a report as JUnit XML."""
    from envkit.verify.report.junit import junit

    return junit(made)


def as_html(made: "Report") -> bytes:
    """Return a report as one HTML file."""
    from envkit.verify.report.page import html

    return html(made).encode()


def require_folder(path: Path) -> None:
    """End with a usage error for a file that cannot be written, before anything is started."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        usage(f"{path} cannot be written: " + ("it is a folder." if path.is_dir() else f"see {path.parent}."))


def measured(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to be measured; ends with a usage error for what makes no sense."""
    if given["sizes"] and not given["bench"]:
        usage("--sizes goes with --bench.")
    if given["tolerance"] is not None and not given["baseline"]:
        usage("--tolerance goes with --baseline.")
    if given["beside"] and not given["scale"]:
        usage("--with ddp goes with --scale.")
    if not (given["bench"] or given["baseline"] or given["scale"]):
        return {}
    from envkit.knowledge.known import known
    from envkit.verify import speed

    limits = known("speed")["bandwidth"]
    sizes = given["sizes"] or f"{limits['from']}:{limits['to']}"
    try:
        bench = speed.message_sizes(sizes, limits["factor"]) if given["bench"] or given["baseline"] else ()
    except ValueError as error:
        usage(f"--sizes {sizes}: {error}. Write them as 1K:256M.")
    tolerance = limits["tolerance"] if given["tolerance"] is None else given["tolerance"]
    scale = worlds(given["scale"] or "")
    return {
        "bench": bench,
        "scale": scale,
        "ddp": bool(given["beside"]),
        "baseline": given["baseline"],
        "tolerance": tolerance,
    }


def worlds(text: str) -> tuple[int, ...]:
    """Return the numbers of ranks named in an option, ascending; ends with a usage error for what is none."""
    from envkit.inside.probe.started import whole

    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if not whole(word):
            usage(f"--scale: {word!r} is no number of ranks. Write them as 1,2,4,8.")
    return tuple(sorted({int(word) for word in words}))


def wanted(given: Mapping[str, Any], scale: tuple[int, ...]) -> "Wanted":
    """Return what is to be started; the largest of the worlds to scale over, if -n does not say another."""
    from envkit.launch import launcher

    hosts = launcher.parse_hosts(given["hosts"] or "")
    default = max(scale, default=0) or sum(slots for _, slots in hosts) or launcher.ranks_here(os.environ)
    return launcher.Wanted(
        ranks=given["ranks"] or default, nodes=given["nodes"], hosts=hosts, launcher=given["launcher"]
    )


def world_size(started: "Started", given: Mapping[str, Any]) -> int:
    """Return how many ranks there should be; ends with a usage error where the options say how to start them."""
    if given["launcher"] != "auto" or given["hosts"] or given["nodes"] or given["scale"]:
        usage(
            f"This process is rank {started.rank} of {started.title}: leave out --launcher, --nodes, --hosts and "
            "--scale, or call envkit verify outside of a launcher."
        )
    size = given["ranks"] or started.size
    if size is None:
        usage(f"{started.title} does not tell how many ranks it started: say so with -n.")
    return int(size)


def find_target(name: str | None, prefix: str | None, framework: str | None) -> "Target":
    """Return what is to be verified. Raises EnvironmentMissing."""
    from envkit.errors import EnvironmentMissing
    from envkit.verify import target

    if name is not None:
        found = with_horovod(prefix, name)
        return target.installed(found, found.environment, framework, prefix)
    here = target.standing(os.environ, framework)
    if here is not None:
        return here
    try:
        found = with_horovod(prefix, None)
        return target.installed(found, found.environment, framework, prefix)
    except EnvironmentMissing as error:
        raise EnvironmentMissing(
            what="There is no Horovod here: neither python nor python3 on PATH has it.",
            why=f"{error.what} {error.why}",
            fix="Name an installed environment ('envkit list'), or enter the one to verify first "
            "(module load, conda activate).",
        ) from error


def with_horovod(prefix: str | None, name: str | None) -> "Receipt":
    """Return the receipt of an environment; ends with a usage error if it has no Horovod."""
    from envkit.environments import prefix as place
    from envkit.methods import installed

    found = installed.find(place.locate(prefix), name)
    if not found.horovod:
        usage(f"{found.name} has no Horovod, so there is nothing to verify.")
    return found


def flags(text: str) -> list[str]:
    """Return the build flags named in an option; ends with a usage error for an unknown one."""
    named = [word.strip().lower() for word in text.split(",") if word.strip()]
    for unknown in set(named) - set(FLAGS):
        usage(f"--require: there is no build flag {unknown!r}. There are: {', '.join(FLAGS)}.")
    return named


@click.command(name="check-build")
@click.argument("name", required=False)
@options.prefix
def check_build(name: str | None, prefix: str | None) -> int:
    """Print the block of 'horovodrun --check-build', read from the compiled extensions.

    No framework is imported. Ends with 1 if the extension of the environment NAME is missing or cannot load.
    """
    from envkit.binary.build_block import check_build_block
    from envkit.verify import target
    from envkit.verify.target import PACKAGES

    found = with_horovod(prefix, name)
    flags = target.installed(found, found.environment).built
    if flags is None:
        usage(f"The Python of {found.name} is older than 3.10, so its flags were not read: use 'envkit verify'.")
    echo(check_build_block(flags))
    wanted = [one for one in flags.extensions if one.framework == PACKAGES[found.framework]]
    return 0 if wanted and all(one.loads and not one.has_drifted for one in wanted) else 1
