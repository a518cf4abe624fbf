"""``envkit fetch``."""

from pathlib import Path

import click

from envkit.commands import options
from envkit.commands.install import check_method


@click.command()
@options.stack
@options.prefix
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.tar",
    help="Write the sources into one file, to carry to a machine without a network.",
)
def fetch(
    stack: str | None, method: str, framework: str | None, accelerator: str, load: tuple[str, ...],
    prefix: str | None, bundle: Path | None,
) -> None:  # fmt: skip
    """Fetch every source of a stack into the cache, checked, through the index that pip is configured for.

    After it 'envkit install STACK --offline' needs no network.
    """
    check_method(method)
    from rich.console import Console

    from envkit import fetch as sources
    from envkit import install as work
    from envkit import prefix as place
    from envkit import process

    console = Console()
    request = work.Request(
        prefix=place.locate(prefix), wanted=stack, framework=framework, accelerator=accelerator, load=load
    )
    prepared = work.prepare(request)
    request.prefix.create()
    wanted = prepared.plan.sources
    with process.interruptible():
        sources.fetch(wanted, request.prefix.sources, offline=False, progress=lambda _: None, stack=prepared.stack.name)
        console.print(
            f"{len(wanted)} sources of {prepared.stack.name} are in {request.prefix.sources}, checked.",
            soft_wrap=True,
        )
        if bundle is not None:
            sources.write_bundle(wanted, request.prefix.sources, bundle, stack=prepared.stack.name)
            console.print(
                f"Bundle: {bundle}. There: envkit install {prepared.stack.name} --bundle {bundle.name}",
                soft_wrap=True,
            )
