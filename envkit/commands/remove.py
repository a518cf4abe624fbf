"""``envkit remove``."""

import click

from envkit.commands import complete, options


@click.command()
@click.argument("name", shell_complete=complete.environments)
@options.prefix
@click.option("--dependencies", is_flag=True, help="Also remove the modules that no other environment uses.")
@click.option("--dry-run", is_flag=True, help="List what would be removed; remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; all else goes to standard error.")
def remove(name: str, prefix: str | None, dependencies: bool, dry_run: bool, as_json: bool) -> None:
    """Remove the environment NAME, or what an interrupted installation of it has left.

    The framework and the other modules it was built on stay for the next installation, unless
    --dependencies is given; sources and the compiler cache stay in any case.
    """
    from envkit.environments import prefix as place
    from envkit.install import removal
    from envkit.report.progress import console

    where = place.locate(prefix)
    called, gone, kept = removal.remove(
        where, name, dependencies=dependencies, dry_run=dry_run, console=console(err=as_json, tells=True)
    )
    if as_json:
        from envkit.cli import echo_json
        from envkit.commands import json_types

        echo_json(json_types.text(json_types.Removed(name=called, removed=gone, kept=kept)))
