"""``envkit shell`` and ``envkit run``."""

import click

from envkit.commands import options


@click.command()
@click.argument("name", required=False)
@options.prefix
def shell(name: str | None, prefix: str | None) -> None:
    """Start an interactive bash inside the environment NAME.

    It reads your ~/.bashrc first. Leave it with 'exit'; its status is the shell's own.
    """
    import os

    from envkit import prefix as place
    from envkit import process, receipt

    inside = receipt.find(place.locate(prefix), name).environment
    process.become(inside.shell(), inside.variables(os.environ))


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

    Arguments, signals and exit status are the command's own, and so is all of standard output.
    """
    import os

    from envkit import prefix as place
    from envkit import process, receipt

    found = receipt.find(place.locate(prefix), name)
    command = context.meta["command"]
    if ranks is None:
        process.become(found.environment.command(command), found.environment.variables(os.environ))
    from envkit import launcher
    from envkit import mpi_model as meeting
    from envkit.environment import MpiModel

    model = MpiModel(mpi_model) if mpi_model else None
    inside, launch = meeting.meet(found.environment, found.mpi, launcher.Wanted(ranks=ranks), model=model)
    env = inside.variables(launcher.variables(os.environ))
    process.become(inside.command(command, launch.argv, remote=launch.remote), env)
