"""``envkit list`` and ``envkit show``."""

import click

from envkit.cli import echo, echo_json, usage
from envkit.commands import options


@click.command(name="list")
@options.prefix
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(prefix: str | None, as_json: bool) -> None:
    """List what can be installed and what is, with its state."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from envkit.environments import prefix as place
    from envkit.install import catalogue
    from envkit.report.words import plain

    entries = catalogue.entries(place.locate(prefix))
    if as_json:
        echo_json(catalogue.to_json(entries))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("NAME", "METHOD", "FRAMEWORK", "FOR", "STATE"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "STATE")
    for entry in entries:
        words = (entry.name, entry.method, entry.framework, entry.accelerator, entry.state)
        table.add_row(*(Text(plain(word)) for word in words))  # a bracket in one is no mark-up
    Console().print(table)
    echo("Any recipe of EasyBuild's own collection can be installed by its file name (.eb), too.")


@click.command()
@click.argument("name", required=False)
@options.prefix
@click.option("--json", "as_json", is_flag=True, help="Print the receipt as JSON.")
@click.option("--lock", "as_lock", is_flag=True, help="Print its lock, for 'envkit install --locked' elsewhere.")
@click.option("--sbom", "as_sbom", is_flag=True, help="Print its bill of materials, as CycloneDX JSON.")
def show(name: str | None, prefix: str | None, as_json: bool, as_lock: bool, as_sbom: bool) -> None:
    """Show the environment NAME: its parts, its paths, and how its module is loaded by hand."""
    from envkit.environments import prefix as place
    from envkit.install import catalogue
    from envkit.methods import installed

    if as_json + as_lock + as_sbom > 1:
        usage("Give one of --json, --lock and --sbom.")
    found = installed.find(place.locate(prefix), name)
    if as_sbom:
        from envkit.install import sbom

        echo_json(sbom.text(found, installed.lock_of(found)), nl=False)
    elif as_lock:
        from envkit.environments import lockfile

        echo_json(lockfile.text(installed.lock_of(found)), nl=False)
    elif as_json:
        echo_json(catalogue.receipt_json(found))
    else:
        echo(catalogue.describe(found))
