"""``envkit repair``."""

import click

from envkit.commands import complete, options


@click.command()
@click.argument("name", shell_complete=complete.environments)
@options.prefix
@click.option("--dry-run", is_flag=True, help="Name every damaged file; change nothing. Ends with 6 if there is one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; all else goes to standard error.")
def repair(name: str, prefix: str | None, dry_run: bool, as_json: bool) -> int:
    """Rebuild the damaged parts of the environment NAME.

    Every file of it is compared with what it was when it was built. The modules of which one is gone, changed or in
    the way of others are built again, and the whole is verified; until that has passed, what was there is kept.
    """
    from envkit.environments import prefix as place
    from envkit.install import repair as work
    from envkit.report.progress import console

    where = place.locate(prefix)
    if not as_json:
        return work.repair(where, name, is_dry=dry_run, console=console(tells=not dry_run))
    from envkit.cli import echo_json
    from envkit.commands import json_types
    from envkit.methods import installed

    _, receipt = installed.placed(where, name)
    damaged, measure = tuple(receipt.damaged()), receipt.measure()
    status = work.repair(where, name, is_dry=dry_run, console=console(err=True, tells=True))
    report = json_types.Repaired(
        name=receipt.name,
        state="kept" if status == 1 else "damaged" if status else "repaired" if damaged else "whole",
        damaged=damaged,
        files=measure.files,
        size=measure.size,
        unlisted=measure.unlisted,
    )
    echo_json(json_types.text(report))
    return status
