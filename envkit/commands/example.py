"""``envkit example`` and ``envkit data``."""

from pathlib import Path

import click

from envkit.cli import echo, usage
from envkit.commands import complete, options


@click.command()
@click.argument("name", required=False, shell_complete=complete.examples)
def example(name: str | None) -> None:
    """Print the script of the example NAME, to copy: it needs no envkit. Without a NAME, list the examples.

    'envkit run ENVIRONMENT -n 2 --example NAME' runs it, and 'envkit job slurm ENVIRONMENT --example NAME' in a job.
    """
    from envkit.training import example as examples

    click.echo(examples.find(name).path.read_text() if name else f"{examples.listing()}\n", nl=False)


@click.command()
@click.argument("name", type=click.Choice(["mnist"]))
@click.option("--from", "source", type=click.Path(path_type=Path), metavar="DIR", help="Copy it from this folder.")
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder to write to. Default: PREFIX/data.",
)
@click.option("--generated", is_flag=True, help="Generate the stand-in; do not use the network.")
@click.option(
    "--site", metavar="NAME|FILE.toml", help="Look in the folders of this site first.", shell_complete=complete.sites
)
@options.prefix
def data(
    name: str,  # noqa: ARG001  (the only one there is)
    source: Path | None,
    target: Path | None,
    generated: bool,
    site: str | None,
    prefix: str | None,
) -> None:
    """Have MNIST in a folder, and print which: fetched once, checked, and from then on taken from there.

    A copy that $ENVKIT_DATA or the site has is used where it lies. Where there is no network it is a small stand-in
    that is generated, and labelled so: drawn digits, in files like those of MNIST.
    """
    from envkit.environments import prefix as place
    from envkit.machine import site as sites
    from envkit.training import mnist

    if source and generated:
        usage("--from and --generated contradict each other.")
    folder = target.absolute() if target else place.locate(prefix).root / "data"
    if generated:
        dataset = mnist.made(folder)
    elif source:
        dataset = mnist.take(source, folder, mnist.pinned())
    else:
        places = sites.find(site).data if site else ()
        dataset = mnist.get(folder, mnist.pinned(), places=places, anew=True)
    echo(f"envkit: {dataset.said}", err=True)
    click.echo(dataset.folder)
