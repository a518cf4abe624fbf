"""``envkit list`` and ``envkit show``."""

import click

from envkit.cli import echo, echo_json, usage
from envkit.commands import options


@click.command(name="list")
@options.prefix
@click.option(
    "--installed",
    "is_short",
    is_flag=True,
    help="Only what is installed or being installed; the machine is not examined.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(prefix: str | None, is_short: bool, as_json: bool) -> None:
    """List what is installed, what can be installed here, and what this machine lacks for the rest.

    It does not check whether sources can be downloaded: 'envkit doctor' and 'envkit install STACK --dry-run' do.
    """
    import sys

    from envkit.environments import prefix as place
    from envkit.install import listing, needs
    from envkit.planning.stack import stacks
    from envkit.report.paper import Paper

    where = place.locate(prefix)
    entries = listing.entries(where, None if is_short else needs.lacking(where, stacks()))
    if is_short:
        entries = [entry for entry in entries if entry.prefix]
    if as_json:
        echo_json(listing.to_json(entries))
    elif is_short and not entries:
        echo(f"Nothing is installed in {where.shown}.", err=True)
    else:
        paper = Paper.of(sys.stdout)
        lines = [*paper.paragraph("Prefix", "bold", where.shown), "", listing.text(entries, where, paper)]
        sys.stdout.write("\n".join(lines) + "\n")


@click.command()
@options.name
@options.prefix
@click.option("--json", "as_json", is_flag=True, help="Print the receipt as JSON.")
@click.option("--lock", "as_lock", is_flag=True, help="Print its lock, for 'envkit install --locked' elsewhere.")
@click.option("--sbom", "as_sbom", is_flag=True, help="Print its bill of materials, as CycloneDX JSON.")
def show(name: str | None, prefix: str | None, as_json: bool, as_lock: bool, as_sbom: bool) -> None:
    """Show the environment NAME: its parts, its paths, and how its module is loaded by hand."""
    from envkit.environments import prefix as place
    from envkit.install import listing
    from envkit.methods import installed

    if as_json + as_lock + as_sbom > 1:
        usage("Give one of --json, --lock and --sbom.")
    receipt = installed.find(place.locate(prefix), name)
    if as_sbom:
        from envkit.install import sbom

        echo_json(sbom.text(receipt, installed.lock_of(receipt)), nl=False)
    elif as_lock:
        from envkit.environments import lockfile

        echo_json(lockfile.text(installed.lock_of(receipt)), nl=False)
    elif as_json:
        echo_json(listing.receipt_json(receipt))
    else:
        echo(listing.describe(receipt))
