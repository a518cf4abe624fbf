"""``envkit upgrade``."""

import click

from envkit.cli import echo_json
from envkit.commands import options


@click.command()
@click.argument("name", required=False)
@options.prefix
@click.option("--dry-run", is_flag=True, help="Say what has changed; build nothing.")
@click.option("--offline", is_flag=True, help="Use no network: every source must be in PREFIX/sources.")
@click.option("--accept-eula", "eulas", metavar="NAME", multiple=True, help="Accept this licence. May be repeated.")
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    metavar="N",
    help="Compile this many files at a time. Default: the cores there are.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; all else goes to standard error.")
def upgrade(
    name: str | None, prefix: str | None, dry_run: bool, offline: bool, eulas: tuple[str, ...], jobs: int | None,
    as_json: bool,
) -> int:  # fmt: skip
    """Rebuild the environment NAME if its recipes or pins have changed since it was installed.

    What has changed is said first. The new one is built beside the old one as far as names allow, verified, and takes
    over only when it has passed; else the old one is as it was. Another version of the framework is another stack, and
    is installed beside it: 'envkit install STACK'.
    """
    from rich.console import Console

    from envkit.environments import prefix as place
    from envkit.install import upgrade as work
    from envkit.planning.request import Request

    where = place.locate(prefix)
    request = Request(prefix=where, accepted_eulas=eulas, offline=offline, jobs=jobs or 0)
    done = work.upgrade(where, name, request, is_dry=dry_run, console=Console(stderr=as_json))
    if as_json:
        import msgspec

        echo_json(msgspec.json.format(msgspec.json.encode(done)).decode())
    return work.status(done)
