"""``envkit venv``."""

import os
from pathlib import Path

import click

from envkit.cli import echo, usage
from envkit.commands import complete, options


@click.command()
@click.argument("name", shell_complete=complete.environments)
@click.argument("folder", metavar="DIR", shell_complete=complete.folders)
@click.option(
    "--requirement", "-r", "requirements", type=click.Path(path_type=Path), metavar="FILE", multiple=True,
    help="Have pip install what FILE requires. May be repeated.",
)  # fmt: skip
@options.prefix
def venv(name: str, folder: str, requirements: tuple[Path, ...], prefix: str | None) -> None:
    """Make a virtual environment in DIR, for packages of your own on top of the environment NAME.

    pip in it takes nothing that would replace what NAME has (framework, NumPy, Horovod, MPI), now or later: their
    versions are constraints in DIR. Later, PIP_CONSTRAINT or PIP_CONFIG_FILE in a shell may put others in their place;
    'envkit verify DIR' names what then shadows NAME's. NAME is an environment by EasyBuild.

    Use DIR in the place of a name: envkit run DIR -- python train.py, envkit shell DIR, envkit verify DIR; or enter it
    with 'source DIR/bin/activate'. Delete it with rm -r.
    """
    from envkit.commands import batch
    from envkit.environments import prefix as place
    from envkit.install import venv_creation as making
    from envkit.methods import installed
    from envkit.system import files

    if name == "eessi":
        options.refuse_eessi("have a virtual environment on top of it")
    if not folder.strip():
        usage("DIR is empty: name the folder that is to be made.")
    receipt = installed.find(place.locate(prefix), name)
    where = files.at_home(folder).absolute()
    if ".." in where.parts:  # it is to stay what it is when a folder on the way has gone
        where = Path(os.path.realpath(where))
    result = making.make(receipt, where, requirements, batch.this_envkit())
    echo(f"Made {where} on top of {result.name}; {len(result.fixed)} packages of that are fixed (constraints.txt).")
    echo(f"Enter it with 'source {where}/bin/activate' or 'envkit shell {where}', and use pip there.")
    echo(f"Check it with 'envkit verify {where}'.")
