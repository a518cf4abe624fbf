"""``envkit verify`` and ``envkit check-build``."""

from typing import TYPE_CHECKING

import click

from envkit.cli import usage
from envkit.commands import options

if TYPE_CHECKING:
    from envkit.receipt import Receipt

FLAGS = ("rocm", "cuda", "nccl", "mpi", "gloo", "ddl", "ccl")


@click.command()
@click.argument("name", required=False)
@click.option(
    "-n", "--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="How many ranks to start."
)
@click.option("--require", metavar="FLAG[,FLAG]", default="", help=f"Build flags that must hold: {', '.join(FLAGS)}.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@options.prefix
def verify(name: str | None, ranks: int, require: str, as_json: bool, prefix: str | None) -> int:
    """Say in one verdict whether the environment NAME works on this machine.

    Starts the ranks inside it; ends with 0 only if everything required holds, otherwise with 1.
    """
    required = flags(require)
    found = with_horovod(prefix, name)
    from rich.console import Console

    from envkit.verify import launch, report

    made = launch.verify(found, ranks=ranks, require=required)
    if as_json:
        click.echo(report.to_json(made), nl=False)
    else:
        report.render(made, Console())
    return 0 if made.verdict == "pass" else 1


def with_horovod(prefix: str | None, name: str | None) -> "Receipt":
    """Return the receipt of an environment; ends with a usage error if it has no Horovod."""
    from envkit import prefix as place
    from envkit import receipt

    found = receipt.find(place.locate(prefix), name)
    if not found.horovod:
        usage(f"{found.name} has no Horovod, so there is nothing to verify.")
    return found


def flags(text: str) -> list[str]:
    """Return the build flags named in an option; ends with a usage error for an unknown one."""
    named = [word.strip().lower() for word in text.split(",") if word.strip()]
    for unknown in set(named) - set(FLAGS):
        usage(f"--require: there is no build flag {unknown!r}. There are: {', '.join(FLAGS)}.")
    return named


@click.command(name="check-build")
@click.argument("name", required=False)
@options.prefix
def check_build(name: str | None, prefix: str | None) -> int:
    """Print the block of 'horovodrun --check-build', read from the compiled extensions.

    No framework is imported. Ends with 1 if the extension of the environment NAME is missing or cannot load.
    """
    from pathlib import Path

    from envkit.verify.build_block import check_build_block
    from envkit.verify.build_flags import PACKAGES, read_extensions

    found = with_horovod(prefix, name)
    flags = read_extensions(
        Path(found.horovod), [Path(p) for p in found.library_path], [Path(p) for p in found.site_packages]
    )
    click.echo(check_build_block(flags))
    wanted = [one for one in flags.extensions if one.framework == PACKAGES[found.framework]]
    return 0 if wanted and all(one.loads and not one.has_drifted for one in wanted) else 1
