"""``envkit verify`` and ``envkit check-build``."""

import click

from envkit.commands import options


@click.command()
@click.argument("name", required=False)
@click.option(
    "-n", "--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="How many ranks to start."
)
@click.option(
    "--require",
    metavar="FLAG[,FLAG]",
    default="",
    help="Build flags that must hold: rocm, cuda, nccl, mpi, gloo, ddl, ccl.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@options.prefix
def verify(name: str | None, ranks: int, require: str, as_json: bool, prefix: str | None) -> int:
    """Say in one verdict whether the environment NAME works on this machine.

    Starts the ranks inside it; ends with 0 only if everything required holds, otherwise with 1.
    """
    from rich.console import Console

    from envkit import prefix as place
    from envkit import receipt
    from envkit.verify import flags, launch, report

    found = receipt.find(place.locate(prefix), name)
    made = launch.verify(found, ranks=ranks, require=flags.parse(require))
    if as_json:
        click.echo(report.to_json(made))
    else:
        report.render(made, Console())
    return 0 if made.verdict == "pass" else 1


@click.command(name="check-build")
@click.argument("name", required=False)
@options.prefix
def check_build(name: str | None, prefix: str | None) -> int:
    """Print the block of 'horovodrun --check-build' for the environment NAME, read from its compiled extensions.

    No framework is imported. Ends with 1 if an extension is missing or cannot load.
    """
    from pathlib import Path

    from envkit import prefix as place
    from envkit import receipt
    from envkit.verify import build_block, build_flags

    found = receipt.find(place.locate(prefix), name)
    flags = build_flags.read_extensions(
        Path(found.horovod), [Path(p) for p in found.library_path], [Path(p) for p in found.site_packages]
    )
    click.echo(build_block.check_build_block(flags))
    return 0 if build_flags.sound(flags, found.framework) else 1
