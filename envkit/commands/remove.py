"""``envkit remove``."""

import click

from envkit.commands import options


@click.command()
@click.argument("name")
@options.prefix
@click.option("--dependencies", is_flag=True, help="Remove the modules that no other environment uses, too.")
def remove(name: str, prefix: str | None, dependencies: bool) -> None:
    """Remove the environment NAME.

    The framework and the other modules it was built on stay for the next installation, unless
    --dependencies is given; sources and the compiler cache stay in any case.
    """
    from rich.console import Console

    from envkit.environments import prefix as place
    from envkit.install import removal

    removal.remove(place.locate(prefix), name, dependencies=dependencies, console=Console())
