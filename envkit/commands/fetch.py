"""``envkit fetch``."""

from pathlib import Path
from shlex import quote

import click

from envkit.cli import usage
from envkit.commands import complete, options


@click.command()
@options.named_method
@options.stack
@options.prefix
@options.extras
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.tar",
    help="Write the sources into one file, to carry to a machine without a network.",
)
@click.option(
    "--to",
    metavar="PLACE",
    shell_complete=complete.folders,
    help="Put the sources into a cache of builds as well: a folder, s3://BUCKET/FOLDER, or oci://HOST/NAME.",
)
@click.option(
    "--sign",
    metavar="KEY.pem",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Sign the bundle with this private key; the signature lies beside it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; all else goes to standard error.")
@click.option(
    "--recheck", is_flag=True, help="Check the SHA-256 of every file again, and download those that have changed."
)
@click.pass_context
def fetch(
    context: click.Context, stack: str | None, method: str | None, framework: str | None, accelerator: str,
    load: tuple[str, ...], prefix: str | None, bundle: Path | None, to: str | None, sign: Path | None,
    recheck: bool, as_json: bool, extras: tuple[str, ...],
) -> None:  # fmt: skip
    """Fetch every source of a stack into the cache, checked, through the index that pip is configured for.

    After it 'envkit install STACK --offline' needs no network. The caches that your configuration names ('cache.from')
    are asked before the index; --to puts the sources into one, for everybody else.
    """
    method, framework, accelerator = options.giving_way(context, stack, None)
    if sign and not bundle:
        usage("--sign goes with --bundle.")
    if bundle is not None:
        require_free(bundle)
    from envkit.cache.place import Place, configured
    from envkit.environments import prefix as place
    from envkit.install import cache_push
    from envkit.install import install as work
    from envkit.planning.request import Request
    from envkit.report.progress import console as console_of
    from envkit.sources import fetch as sources
    from envkit.sources import signature, source_cache
    from envkit.sources.progress import fetch_all
    from envkit.system import process, umask

    console, wrong = console_of(err=as_json, tells=True), list[str]()
    if sign is not None:
        signature.require_signs(sign)
    target, sent = Place(named=to) if to else None, 0
    if target is not None:
        cache_push.require(target)
    request = Request(
        prefix=place.locate(prefix),
        wanted=stack,
        method=method,
        framework=framework,
        accelerator=accelerator,
        load=load,
        extras=extras,
        configured=options.configured(context),
    )
    prepared = work.prepare(request)
    with process.interruptible(), umask.like(request.prefix.root):
        request.prefix.create()
        if recheck:
            wrong = source_cache.recheck(request.prefix.sources)
            for line in wrong:
                console.print(f"Damaged: {line}", soft_wrap=True, markup=False, highlight=False)
            console.print(f"Every file was hashed anew: {len(wrong) or 'none'} damaged.", soft_wrap=True)
        wanted = prepared.sources
        fetch_all(wanted, request.prefix.sources, False, prepared.stack.name, console, configured().kept)
        console.print(
            f"{len(wanted)} sources of {prepared.stack.name} are in {request.prefix.sources}, checked.",
            soft_wrap=True,
        )
        besides = prepared.fetch_optional(console)
        if target is not None:
            every = source_cache.distinct([*wanted, *besides])
            sent = cache_push.push_sources(target, every, request.prefix.sources)
            text = f"{sent} of {len(every)} files were sent to {target.shown}; the others were there already."
            console.print(text, soft_wrap=True, markup=False, highlight=False)
        if bundle is not None:
            sources.write_bundle([*wanted, *besides], request.prefix.sources, bundle, stack=prepared.stack.name)
            added = f" --with {','.join(prepared.stack.extras)}" if prepared.stack.extras else ""
            if sign is not None:
                signed = signature.sign(bundle, sign)
                console.print(f"Signature: {signed}. There, with the public key: --signed-by KEY.pub", soft_wrap=True)
            console.print(
                f"Bundle: {bundle}. There: envkit install {prepared.stack.name}{added} --bundle {quote(bundle.name)}",
                soft_wrap=True,
            )
    if as_json:
        from envkit.cli import echo_json
        from envkit.commands import json_types

        echo_json(
            json_types.text(
                json_types.Fetched(
                    name=prepared.stack.name,
                    cache=str(request.prefix.sources),
                    sources=tuple(
                        json_types.ListedSource(name=source.place, sha256=source.sha256, there=True)
                        for source in wanted
                    ),
                    damaged=tuple(wrong),
                    bundle=str(bundle) if bundle else None,
                    to=target.shown if target else None,
                    sent=sent,
                )
            )
        )


def require_free(bundle: Path) -> None:
    """End with a usage error where a bundle cannot be written, or would take the place of what is none."""
    if not bundle.parent.is_dir():
        usage(f"--bundle: there is no folder {bundle.parent}.")
    if bundle.is_file() and bundle.stat().st_size:
        from envkit.sources.bundle import is_bundle

        if not is_bundle(bundle):
            usage(f"--bundle: {bundle} is there, and is no bundle. Name another file.")
