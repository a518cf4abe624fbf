"""``envkit shell`` and ``envkit run``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NoReturn

import click

from envkit.cli import echo, usage
from envkit.commands import batch, complete, options

if TYPE_CHECKING:
    from envkit.eessi.entry import EntryOptions
    from envkit.environments.environment import Environment
    from envkit.environments.prefix import Prefix
    from envkit.environments.receipt import Receipt

Start = Callable[[Sequence[str], Mapping[str, str]], int | None]


@options.eessi
@click.command(
    cls=options.CommandAfterDashes,
    groups=options.OF_EESSI,
    may_lack=True,
    options_metavar="[OPTIONS]",
    epilog="Of EESSI a command may follow after --, unchanged.",
)
@click.argument("name", required=False, metavar="[NAME|DIR]", shell_complete=complete.with_eessi)
@options.prefix
@click.pass_context
def shell(context: click.Context, name: str | None, prefix: str | None) -> None:
    """Start an interactive bash inside the environment NAME, or in a release of EESSI: envkit shell eessi

    DIR is a virtual environment on top of one ('envkit venv'). Without either it is the only environment, or the
    default of your configuration.

    It reads your ~/.bashrc first. Leave it with 'exit'; its status is the shell's own.

    With a command, the shell of EESSI runs it and ends with its status: envkit shell eessi -- python

    That is for a person at a terminal: ~/.bashrc counts, functions in it can be called, and the session is kept, for
    --resume. 'envkit run eessi -- CMD' is for scripts: nothing of the person's is read, no session is kept that nobody
    has named, and the command takes the place of envkit, so that signals reach it and its death by one is seen.
    """
    import os

    command = context.meta.get("command", [])
    if (asked := options.asked_of_eessi(context, name)) is not None:
        enter_shell(asked, command)
    if command:
        usage(f"A command goes only with the name 'eessi': envkit run {name or 'NAME'} -- {command[0]}")
    from envkit.environments import prefix as place
    from envkit.methods import installed
    from envkit.system import process

    inside = installed.find(place.locate(prefix), name).environment
    process.exec_into(inside.shell(), inside.variables(os.environ))


OF_PROXIES = {"http_proxy": ("CVMFS_HTTP_PROXY", "http_proxy"), "https_proxy": ("https_proxy",)}


def asked_for(given: Mapping[str, Any]) -> "EntryOptions":
    """Return what the options of EESSI ask for; those for proxies stand for the variables."""
    import os

    from envkit.eessi import servers
    from envkit.eessi.entry import EntryOptions
    from envkit.knowledge.eessi import known

    fields = dict(given)
    for option, variables in OF_PROXIES.items():
        if url := fields.pop(option, ""):
            if url != "DIRECT" and not servers.is_address(url):
                usage(f"--{option.replace('_', '-')} {servers.hidden(url)}: write it as http://HOST:PORT.")
            os.environ |= dict.fromkeys(variables, url)
    if folder := fields.pop("host_injections", ""):
        fields["bind"] = (*fields.get("bind", ()), f"{folder}:{known().injected}")
    words = {"module": "modules", "bind": "binds"}
    return EntryOptions(**{words.get(name, name): value for name, value in fields.items()})


def enter_shell(asked: dict[str, Any], command: Sequence[str]) -> NoReturn:
    """Become a shell in EESSI, which runs a command if there is one; its session is kept."""
    import os

    from envkit.eessi import entry
    from envkit.system import process

    inside = entry.enter(asked_for(asked), keep=True)
    process.exec_into(inside.shell(command), inside.variables(os.environ))


def enter_eessi(asked: dict[str, Any], command: Sequence[str], number: int | None) -> NoReturn:
    """Become a command in EESSI, on one rank or several."""
    import os

    from envkit.eessi import entry
    from envkit.system import process

    inside = entry.enter(asked_for(asked), keep=False)
    if number is None:
        process.exec_into(inside.command(command), inside.variables(os.environ))
    from envkit.eessi import ranks
    from envkit.launch import launcher

    say_leftovers()
    own = launcher.threads(launcher.LaunchRequest(ranks=number, nodes=1))
    env = inside.variables(ranks.on_one_node({**launcher.variables(os.environ), **own}))
    process.exec_into(ranks.command(inside, number, command), env)


@options.eessi
@click.command(
    cls=options.CommandAfterDashes,
    groups=options.OF_EESSI,
    options_metavar="[OPTIONS]",
    epilog="The command follows after --, unchanged.",
)
@click.argument("name", required=False, metavar="[NAME|DIR]", shell_complete=complete.with_eessi)
@click.option(
    "-n", "--ranks", type=batch.ONE_OR_MORE, metavar="N", help="Start this many ranks with the environment's MPI."
)
@click.option("--nodes", type=click.IntRange(min=1), metavar="K", help="On how many nodes of the job, with -n.")
@click.option("--print", "print_", is_flag=True, help="Print the command line instead of running it, and why that one.")
@options.example
@click.option(
    "--timeline",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Have Horovod write what it does, and sum it up.",
)
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Write the sum of --timeline as one HTML file, too."
)
@options.mpi_model
@options.prefix
@click.pass_context
def run(
    context: click.Context, name: str | None, ranks: int | None, nodes: int | None, print_: bool,
    example: str | None, timeline: Path | None, html: Path | None, mpi_model: str | None, prefix: str | None,
) -> int | None:  # fmt: skip
    """Run a command inside the environment NAME: envkit run NAME -n 2 -- python train.py

    DIR is a virtual environment on top of one ('envkit venv'). Without either it is the only environment, or the
    default of your configuration.

    With --example it is an example of training: envkit run NAME -n 2 --example pytorch-mnist -- --epochs 5

    NAME eessi is a release of EESSI: envkit run eessi --load PyTorch/2.1.2-foss-2023a -- python train.py

    Arguments, signals and exit status are the command's own, and so is all of standard output.
    """
    command = context.meta["command"]
    require_program(command, name)
    if (asked := options.asked_of_eessi(context, name)) is not None:
        enter_eessi(asked, command, ranks)
    import os

    from envkit.environments import prefix as place
    from envkit.methods import installed
    from envkit.system import process

    if nodes and ranks is None:
        usage("--nodes goes with -n.")
    if html and timeline is None:
        usage("--html goes with --timeline.")
    if html and timeline and html.absolute() == timeline.absolute():
        usage("--html and --timeline name the same file.")
    where = place.locate(prefix)
    receipt = installed.find(where, name)
    visible = tuple[Path, ...]()
    if example:
        command, visible = of_example(example, command, receipt, where, is_dry=print_)
    env: Mapping[str, str] = os.environ
    start: Start = show if print_ else process.exec_into
    if timeline:
        env, start = timed(timeline, html, start)
        visible = (*visible, timeline.absolute().parent)
    inside: Environment = receipt.environment
    if ranks is None and mpi_model is None:
        return start(inside.command(command, visible=visible), inside.variables(env))
    from envkit.environments.environment import MpiModel
    from envkit.launch import image_launch as models
    from envkit.launch import launcher

    model = MpiModel(mpi_model) if mpi_model else None
    if ranks is None:  # a rank of somebody's launcher
        rank = models.enter_as_rank(inside, receipt.mpi, env, model)
        return start(rank.command(command, visible=visible), rank.variables(env))
    wanted = launcher.LaunchRequest(ranks=ranks, nodes=nodes, ends_together=True)
    mpi = receipt.mpi if receipt.horovod or receipt.mpi else launcher.mpi_of(inside, os.environ)
    inside, launch = models.plan_launch(inside, mpi, wanted, model=model)
    if print_:
        echo(f"envkit: {launch.launcher}: {launch.why}", err=True)
    say_leftovers()
    own = launcher.threads(wanted, env)
    if launch.remote:
        command = ["env", *(f"{variable}={value}" for variable, value in own.items()), *command]
    words = inside.command(command, launch.argv, remote=launch.remote, visible=visible)
    return start(words, inside.variables({**launcher.variables(env), **own}))


def require_program(command: Sequence[str], name: str | None) -> None:
    """End with a usage error for a script of Python that no shell could start."""
    import os
    import shutil

    script = Path(command[0]) if command else Path()
    if script.suffix == ".py" and script.is_file() and not os.access(script, os.X_OK) and not shutil.which(command[0]):
        usage(f"{script} is a script, not a program: envkit run {name or 'NAME'} -- python {quote(str(script))}")


def say_leftovers() -> None:
    """Say which variables of another launch the ranks are started without."""
    import os

    from envkit.inside.probe.started import outlived

    if names := outlived(os.environ):
        echo(f"envkit: left over from another launch, and kept from the ranks: {', '.join(names)}", err=True)


def of_example(
    name: str, words: Sequence[str], receipt: "Receipt", where: "Prefix", *, is_dry: bool
) -> tuple[list[str], tuple[Path, ...]]:
    """Return the command that an example is, and the folders that it must see."""
    from envkit.training import example

    script = example.find(name, receipt)
    words, data = example.with_data(script, words, where, is_dry=is_dry)
    if data:
        echo(f"envkit: data: {data.said}", err=True)
    return example.command(script, words), example.visible(script, words)


def timed(path: Path, page: Path | None, start: "Start") -> "tuple[Mapping[str, str], Start]":
    """Return the variables that have Horovod write a timeline, and what starts a command and then sums it up."""
    import os

    from envkit.inside.probe.started import detect
    from envkit.system import process
    from envkit.training import timeline

    env = timeline.variables(path, os.environ)
    if page:
        timeline.require_writable(page, "The page")
    rank = detect(os.environ)
    if start is not process.exec_into or (rank and rank.rank):  # rank 0 alone writes one
        return env, start

    def watched(argv: Sequence[str], env: Mapping[str, str]) -> int:
        before = timeline.state(path)
        status = process.run_foreground(argv, env)
        sum_up(path, page, before)
        return process.end_alike(status)

    return env, watched


def sum_up(path: Path, page: Path | None, before: tuple[int, int, int] | None) -> None:
    """Say what is in a timeline, and write it as a page; what keeps it from that is said, too."""
    from envkit.cli import explain
    from envkit.errors import NotWritable
    from envkit.system import files
    from envkit.training import timeline

    summary, message = timeline.read(path, before)
    echo(message, err=True)
    if page is None:
        return
    if summary is None:
        echo(f"envkit: so {page} was not written.", err=True)
        return
    from envkit.verify.report.timeline_page import html

    try:
        files.deliver(page, html(summary, path.name).encode(), "The page")
    except NotWritable as error:
        explain(error)


def show(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Print a command as a line for a shell, with the variables that it needs besides those of this process."""
    import os
    import shlex

    dropped = [word for name in sorted(os.environ.keys() - env.keys()) for word in ("-u", name)]
    changed = {name: value for name, value in sorted(env.items()) if os.environ.get(name) != value}
    settings = [f"{name}={value}" for name, value in changed.items() if not name.startswith("ENVKIT_")]
    click.echo(shlex.join([*(["env"] if dropped or settings else []), *dropped, *settings, *argv]))
