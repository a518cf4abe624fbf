"""``envkit fetch``."""

from pathlib import Path

import click

from envkit.cli import usage
from envkit.commands import options


@click.command()
@options.named_method
@options.stack
@options.prefix
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.tar",
    help="Write the sources into one file, to carry to a machine without a network.",
)
@click.option(
    "--sign",
    metavar="KEY.pem",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Sign the bundle with this private key; the signature lies beside it.",
)
@click.option("--recheck", is_flag=True, help="Hash every file anew, and fetch again what is not as it was.")
def fetch(
    stack: str | None, method: str | None, framework: str | None, accelerator: str, load: tuple[str, ...],
    prefix: str | None, bundle: Path | None, sign: Path | None, recheck: bool,
) -> None:  # fmt: skip
    """Fetch every source of a stack into the cache, checked, through the index that pip is configured for.

    After it 'envkit install STACK --offline' needs no network.
    """
    if sign and not bundle:
        usage("--sign goes with --bundle.")
    from rich.console import Console

    from envkit.environments import prefix as place
    from envkit.install import install as work
    from envkit.planning.request import Request
    from envkit.sources import cache, signature
    from envkit.sources import fetch as sources
    from envkit.system import process, umask

    console = Console()
    request = Request(
        prefix=place.locate(prefix),
        wanted=stack,
        method=method,
        framework=framework,
        accelerator=accelerator,
        load=load,
    )
    prepared = work.prepare(request)
    with process.interruptible(), umask.of(request.prefix.root):
        request.prefix.create()
        if recheck:
            wrong = cache.recheck(request.prefix.sources)
            for line in wrong:
                console.print(f"Damaged: {line}", soft_wrap=True, markup=False, highlight=False)
            console.print(f"Every file was hashed anew: {len(wrong) or 'none'} damaged.", soft_wrap=True)
        wanted = prepared.sources
        sources.fetch(wanted, request.prefix.sources, offline=False, progress=lambda _: None, stack=prepared.stack.name)
        console.print(
            f"{len(wanted)} sources of {prepared.stack.name} are in {request.prefix.sources}, checked.",
            soft_wrap=True,
        )
        besides = prepared.fetch_optional(console)
        if bundle is not None:
            sources.write_bundle([*wanted, *besides], request.prefix.sources, bundle, stack=prepared.stack.name)
            if sign is not None:
                signed = signature.sign(bundle, sign)
                console.print(f"Signature: {signed}. There, with the public key: --signed-by KEY.pub", soft_wrap=True)
            console.print(
                f"Bundle: {bundle}. There: envkit install {prepared.stack.name} --bundle {bundle.name}",
                soft_wrap=True,
            )
