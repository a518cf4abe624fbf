"""``envkit verify`` and ``envkit check-build``."""

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from envkit.cli import echo, usage
from envkit.commands import batch, complete, options, submitted
from envkit.launch import hosts as of_job
from envkit.launch import launcher
from envkit.verify.options import FLAGS

if TYPE_CHECKING:
    from envkit.environments.receipt import Receipt
    from envkit.inside.probe.started import Started
    from envkit.verify.options import Options
    from envkit.verify.report import Report
    from envkit.verify.target import Target

OF_THE_JOB = (*submitted.OPTIONS, "ranks", "nodes", "mpi_model", "as_json", "junit", "html", "github", "prefix")


@click.command(
    cls=options.Grouped,
    groups={
        "Options of measuring": ("bench", "sizes", "baseline", "tolerance", "scale", "beside"),
        "Options of Horovod's own tests": ("upstream_tests", "tests_from", "tests_only"),
        "Options of the report": ("as_json", "junit", "html", "github"),
        **batch.SUBMITTED,
    },
)
@options.name
@click.option(
    "-n",
    "--ranks",
    type=batch.ONE_OR_MORE,
    metavar="N",
    help="How many ranks. Default: what the job was granted, else 2.",
)
@click.option(
    "--launcher", type=click.Choice(launcher.names()), default="auto", help="What starts the ranks. Default: what fits."
)
@click.option("--nodes", type=click.IntRange(min=1), metavar="K", help="On how many nodes of the job.")
@click.option("--hosts", metavar="HOST:SLOTS,...", help="On which hosts, outside of a scheduler.")
@options.mpi_model
@click.option("--shared", type=click.Path(path_type=Path), metavar="DIR", help="A folder that all nodes see.")
@click.option("--timeout", type=options.FiniteRange(min=1), metavar="S", help="The longest that one step may take (s).")
@click.option("--framework", type=click.Choice(["pytorch", "tensorflow"]), help="Which, where Horovod has both.")
@click.option("--require", metavar="FLAG[,FLAG]", default="", help=f"Build flags that must hold: {', '.join(FLAGS)}.")
@click.option("--bench", is_flag=True, help="Measure latency and bus bandwidth of allreduce, beside the raw library's.")
@click.option("--sizes", metavar="FROM:TO", help="Sizes of the messages for --bench. Default: 1K:256M.")
@click.option(
    "--baseline", type=click.Path(path_type=Path), metavar="FILE", help="Compare --bench with FILE, or save it there."
)
@click.option(
    "--tolerance", type=options.FiniteRange(0, 1), help="How much slower than FILE is accepted. Default: 0.2."
)
@click.option("--scale", metavar="N,N,...", help="Measure how training scales over these numbers of ranks.")
@click.option("--compare", "beside", type=click.Choice(["ddp"]), help="Measure PyTorch's DDP beside it, with --scale.")
@click.option("--upstream-tests", is_flag=True, help="Run Horovod's own tests as well, once all else has passed.")
@click.option(
    "--tests-from",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Take them from this folder of Horovod's repository. Default: they are fetched.",
)
@click.option("--tests-only", metavar="NAME,...", help="Only these files of them, such as test_torch.")
@click.option("--quick", is_flag=True, help="If it fails, do not start ranks again to find out why.")
@click.option("--explain", metavar="CHECK", help="Explain a check; verify nothing.", shell_complete=complete.checks)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JUnit XML.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as one HTML file.")
@click.option("--github", is_flag=True, help="Annotate the job of GitHub Actions, and write to its summary.")
@click.option("--submit", is_flag=True, help="Verify in a Slurm job on --nodes of the cluster, and wait for it.")
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
    """Verify that the environment NAME works on this machine.

    Starts the ranks inside it. Started as the ranks themselves (srun envkit verify), each enters the environment,
    and one report comes out. DIR is a virtual environment on top of NAME ('envkit venv'). Without either: the
    environment that this is called in, if it has Horovod; else the default of your configuration; else the only one
    installed. Ends with 0 only if everything required holds, otherwise with 1, in every rank; with 7 if it holds
    and a report or the baseline could not be written.

    From a login node: envkit verify NAME --nodes 2 --gpus-per-node 4 --submit. The report comes from the nodes of a
    job, a quarter of an hour long at most, if --time says nothing else; what is told of the job goes to standard
    error, and Ctrl-C cancels it.
    """
    if given["explain"] is not None:
        typed = {one for one in context.params if context.get_parameter_source(one) is ParameterSource.COMMANDLINE}
        if typed != {"explain"}:
            usage("--explain CHECK goes alone: it verifies nothing.")
        from envkit.verify.report.explained import explained

        echo(explained(given["explain"], sys.stdout))
        return 0
    from envkit.inside.probe.started import detect_unless_shell
    from envkit.methods import installed
    from envkit.verify import launch, target
    from envkit.verify import options as verification

    settings = verification.asked(
        require=given["require"].split(","),
        timeout_s=given["timeout"],
        shared=given["shared"],
        mpi_model=given["mpi_model"],
        quick=given["quick"],
        bench=given["bench"],
        sizes=given["sizes"] or "",
        baseline=given["baseline"],
        tolerance=given["tolerance"],
        scale=(given["scale"] or "").split(","),
        ddp=bool(given["beside"]),
        upstream_tests=given["upstream_tests"],
        tests_from=given["tests_from"],
        tests_only=(given["tests_only"] or "").split(","),
    )
    for path in filter(None, (given["junit"], given["html"])):
        require_folder(path)
    if given["submit"]:
        return submitted_one(context, name, given)
    submitted.require_submit(given, submitted.OPTIONS)
    goal = target.find(name, given["prefix"], given["framework"])
    started = detect_unless_shell(os.environ, given["ranks"] or max(settings.scale, default=1))

    def show(report: "Report") -> int:
        status = shown(report, given)
        keep(report, goal.receipt)
        return status

    if started is not None:
        if given["upstream_tests"]:
            usage(
                f"This process is rank {started.rank} of {started.title}: leave out --upstream-tests, which starts "
                "ranks itself, or call envkit verify outside of a launcher."
            )
        from envkit.verify import as_rank

        return as_rank.verify_as_rank(goal, started, world_size(started, given), settings, show)
    start = wanted(given, settings.scale)
    if goal.receipt is not None:
        installed.require_files(goal.receipt)
    if settings.upstream_tests:
        get_tests(goal, settings)
    from envkit.report.paper import is_quiet
    from envkit.verify.progress_line import Reminder, Waiting

    if is_quiet() or not sys.stderr.isatty():
        reminder = Reminder(tell, start.ranks)
        return show(launch.verify(goal, start, settings, watch=reminder.look, tell=tell, tests=titles()))
    waiting = Waiting(sys.stderr, start.ranks)
    try:
        report = launch.verify(
            goal, start, settings, watch=waiting.look, tell=lambda text: tell(text, waiting.wipe), tests=waiting.at
        )
    finally:
        waiting.wipe()
    return show(report)


def tell(text: str, before: Callable[[], None] = lambda: None) -> None:
    """Say something on standard error while a verification goes on."""
    from envkit.report.paper import is_quiet

    if is_quiet():
        return
    before()
    from envkit.report.words import shown

    print(shown(f"envkit: {text}"), file=sys.stderr, flush=True)


def get_tests(target: "Target", asked: "Options") -> None:
    """Fetch what Horovod's own tests need and is not there, before anything is started."""
    from envkit.report.progress import console
    from envkit.sources import fetch
    from envkit.sources.progress import fetch_all
    from envkit.verify import upstream, upstream_run

    upstream.asked(target.framework, (), only=asked.tests_only)
    cache, needed = upstream_run.gathered(target, asked.tests_from)
    if fetch.missing(needed, cache):
        fetch_all(needed, cache, False, target.name, console(err=True, tells=True))


def titles() -> Callable[[str, str], None]:
    """Return what tells, once for each, which of Horovod's own tests run."""
    seen = set[str]()

    def each(title: str, _far: str) -> None:
        if title not in seen:
            seen.add(title)
            tell(title)

    return each


def submitted_one(context: click.Context, name: str | None, given: dict[str, Any]) -> int:
    """Verify in a job, and show its report here; return the status that it means, or that of a job without one."""
    if given["hosts"]:
        usage("--hosts does not go with --submit: Slurm chooses the nodes.")
    words = list(batch.repeated(context, leave=OF_THE_JOB))
    report, status = submitted.verification(name, given, words)
    if report is None:
        return status
    from envkit.errors import EnvkitError
    from envkit.verify import target

    receipt = None
    with suppress(EnvkitError):  # it may be on the nodes alone
        receipt = target.with_horovod(name, given["prefix"])
    shown_status = shown(report, given)
    keep(report, receipt)
    return shown_status or status


def keep(report: "Report", receipt: "Receipt | None") -> None:
    """Keep a report for 'envkit report'; that of a virtual environment is not one of what it lies on."""
    from envkit.verify import last

    last.keep(report, receipt.called if receipt else report.environment, receipt.tree if receipt else "")


def shown(full_report: "Report", given: Mapping[str, Any]) -> int:
    """Print a report, then write it to the files asked for; return the status that it means.

    A verdict is 1 whatever becomes of the report; one that passes is 7, or 141, where a part of it is lost.
    """
    from envkit.cli import explain, printed
    from envkit.config import configuration
    from envkit.errors import NotWritable
    from envkit.report import words
    from envkit.system.files import deliver
    from envkit.verify import report

    if given["as_json"]:
        text = words.inert_json(words.escaped(report.to_json(full_report).decode()))
    else:
        text = report.to_text(full_report, sys.stdout)
        if full_report.verdict != "pass" and (line := configuration.message()):
            text += f"\n{line}\n"
        text = words.inert(text) if given["github"] or words.on_github() else text
    lost = printed(text)
    for path, form in ((given["junit"], as_junit), (given["html"], as_html)):
        try:
            if path:
                deliver(path, form(full_report), "The report")
        except NotWritable as error:
            explain(error)
            lost = error.exit_code
    if given["github"]:
        lost = annotated(full_report) or lost
    if given["baseline"] and not given["baseline"].exists():  # the report says why
        lost = NotWritable.exit_code
    return lost if full_report.verdict == "pass" else 1


def annotated(report: "Report") -> int:
    """Say the report to GitHub's runner, which reads standard error, too, and add it to the summary of the job.

    Returns 7 where that cannot be written, else 0.
    """
    from envkit.cli import explain
    from envkit.errors import NotWritable
    from envkit.verify.report import github

    echo(github.workflow_commands(report), err=True, nl=False)
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    try:
        if path:
            with Path(path).open("a", encoding="utf-8") as stream:
                stream.write(github.summary(report))
    except OSError as error:
        explain(
            NotWritable(
                what=f"The summary of the job, {path}, could not be written.",
                why=error.strerror or str(error),
                fix="Leave --github out, or free some room there. The verdict above stands.",
            )
        )
        return NotWritable.exit_code
    return 0


def as_junit(report: "Report") -> bytes:
    """Return a report as JUnit XML."""
    from envkit.verify.report.junit import junit

    return junit(report)


def as_html(report: "Report") -> bytes:
    """Return a report as one HTML file."""
    from envkit.verify.report.page import html

    return html(report).encode()


def require_folder(path: Path) -> None:
    """End with a usage error for a file that cannot be written, before anything is started."""
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        usage(f"{path} cannot be written: " + ("it is a folder." if path.is_dir() else f"see {path.parent}."))


def wanted(given: Mapping[str, Any], scale: tuple[int, ...]) -> "launcher.LaunchRequest":
    """Return what is to be started; the largest of the worlds to scale over, if -n does not say another."""
    from envkit.config import configuration as config

    hosts = of_job.parse(given["hosts"] or "")
    usual = config.read().get("ranks") or 2
    named = max(scale, default=0) or sum(slots for _, slots in hosts)
    default = named or of_job.ranks(os.environ, usual, given["nodes"])
    return launcher.LaunchRequest(
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


@click.command(name="check-build")
@options.name
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@options.prefix
def check_build(name: str | None, as_json: bool, prefix: str | None) -> int:
    """Print the block of 'horovodrun --check-build', read from the compiled extensions.

    No framework is imported. Ends with 1 if the extension of the environment NAME is missing or cannot load.
    """
    from envkit.binary.build_block import check_build_block
    from envkit.verify import target
    from envkit.verify.target import PACKAGES

    receipt = target.with_horovod(name, prefix)
    flags = target.installed(receipt, receipt.environment).built
    if flags is None:
        usage(f"The Python of {receipt.name} is older than 3.10, so its flags were not read: use 'envkit verify'.")
    wanted = [extension for extension in flags.extensions if extension.framework == PACKAGES[receipt.framework]]
    works = bool(wanted) and all(extension.loads and not extension.has_drifted for extension in wanted)
    if as_json:
        from envkit.cli import echo_json
        from envkit.commands import json_types

        echo_json(json_types.text(json_types.BuildCheck(name=receipt.name, works=works, build=flags)))
    else:
        echo(check_build_block(flags))
    return 0 if works else 1
