"""``envkit shell`` and ``envkit run``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from envkit.commands import options

if TYPE_CHECKING:
    from envkit.environment import Environment


@options.eessi
@click.command()
@click.argument("name", required=False)
@options.prefix
@click.pass_context
def shell(context: click.Context, name: str | None, prefix: str | None) -> None:
    """Start an interactive bash inside the environment NAME, or in a release of EESSI: envkit shell eessi

    It reads your ~/.bashrc first. Leave it with 'exit'; its status is the shell's own.
    """
    import os

    if (asked := options.asked_of_eessi(context, name)) is not None:
        enter_eessi(asked)
    from envkit import prefix as place
    from envkit import process, receipt

    inside = receipt.find(place.locate(prefix), name).environment
    process.become(inside.shell(), inside.variables(os.environ))


def enter_eessi(asked: dict[str, Any], command: Sequence[str] = (), number: int | None = None) -> NoReturn:
    """Become a command in EESSI, on one rank or several, or a shell."""
    import os

    from envkit import launcher, process
    from envkit.eessi import entry, ranks

    words = {"modules": asked.pop("module", ()), "binds": asked.pop("bind", ()), **asked}
    inside = entry.enter(entry.Asked(**words), keep=not command)
    if not command:
        process.become(inside.shell(), inside.variables(os.environ))
    if number is None:
        process.become(inside.command(command), inside.variables(os.environ))
    env = inside.variables(ranks.on_one_node(launcher.variables(os.environ)))
    process.become(ranks.command(inside, number, command, env), env)


@options.eessi
@click.command(
    cls=options.CommandAfterDashes,
    options_metavar="[OPTIONS]",
    epilog="The command follows after --, unchanged.",
)
@click.argument("name", required=False)
@click.option("-n", "--ranks", type=click.IntRange(min=1), help="Start this many ranks with the environment's MPI.")
@options.mpi_model
@options.prefix
@click.pass_context
def run(context: click.Context, name: str | None, ranks: int | None, mpi_model: str | None, prefix: str | None) -> None:
    """Run a command inside the environment NAME: envkit run NAME -n 2 -- python train.py

    NAME eessi is a release of EESSI: envkit run eessi --module PyTorch/2.1.2-foss-2023a -- python train.py

    Arguments, signals and exit status are the command's own, and so is all of standard output.
    """
    import os

    from envkit import prefix as place
    from envkit import process, receipt

    command = context.meta["command"]
    if (asked := options.asked_of_eessi(context, name)) is not None:
        enter_eessi(asked, command, ranks)
    found = receipt.find(place.locate(prefix), name)
    inside: Environment = found.environment
    if ranks is None:
        process.become(inside.command(command), inside.variables(os.environ))
    from envkit import launcher
    from envkit import mpi_model as meeting
    from envkit.environment import MpiModel

    model = MpiModel(mpi_model) if mpi_model else None
    inside, launch = meeting.meet(inside, found.mpi, launcher.Wanted(ranks=ranks), model=model)
    env = inside.variables(launcher.variables(os.environ))
    process.become(inside.command(command, launch.argv, remote=launch.remote), env)
