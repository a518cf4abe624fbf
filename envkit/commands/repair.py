"""``envkit repair``."""

import click

from envkit.commands import options


@click.command()
@click.argument("name")
@options.prefix
@click.option("--dry-run", is_flag=True, help="Name every damaged file; change nothing. Ends with 6 if there is one.")
def repair(name: str, prefix: str | None, dry_run: bool) -> int:
    """Build again what is damaged of the environment NAME.

    Every file of it is compared with what it was when it was built. The modules of which one is gone, changed or in
    the way of others are built again, and the whole is verified; until that has passed, what was there is kept.
    """
    from rich.console import Console

    from envkit.environments import prefix as place
    from envkit.install import repair as work

    return work.repair(place.locate(prefix), name, is_dry=dry_run, console=Console())
