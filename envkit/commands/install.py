"""``envkit install``."""

from pathlib import Path

import click

from envkit.commands import options
from envkit.errors import UnknownMethod

METHODS = ("easybuild",)


@click.command()
@options.stack
@options.prefix
@click.option("--dry-run", is_flag=True, help="Print the plan and what stands in its way; change nothing.")
@click.option("--offline", is_flag=True, help="Use no network: every source must be in the cache.")
@click.option(
    "--bundle",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the sources from this file, made by 'envkit fetch --bundle'. Implies --offline.",
)
@click.option(
    "--accept-eula",
    "eulas",
    metavar="NAME",
    multiple=True,
    help="Accept this licence, such as CUDA. May be repeated.",
)
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    help="Compile this many files at a time. Default: the cores there are.",
)
@click.option("--rebuild", is_flag=True, help="Build again what has changed, and what depends on it.")
def install(
    stack: str | None, method: str, framework: str | None, accelerator: str, load: tuple[str, ...], prefix: str | None,
    dry_run: bool, offline: bool, bundle: Path | None, eulas: tuple[str, ...], jobs: int | None, rebuild: bool,
) -> int:  # fmt: skip
    """Install a Horovod environment and prove that it works.

    STACK is a name from 'envkit list', 'pytorch' or 'tensorflow', or the file name of any recipe (.eb) of
    EasyBuild's own collection; it may be left out. What is left of an interrupted installation is resumed.
    """
    check_method(method)
    from rich.console import Console

    from envkit import install as work
    from envkit import prefix as place
    from envkit.commands import plans

    request = work.Request(
        prefix=place.locate(prefix), wanted=stack, framework=framework, accelerator=accelerator, load=load,
        accepted_eulas=eulas, bundle=bundle, offline=offline or bundle is not None, rebuild=rebuild, jobs=jobs or 0,
    )  # fmt: skip
    console = Console()
    if dry_run:
        return plans.show(work.prepare(request), console)
    report = work.install(request, console)
    return 0 if report is None or report.verdict == "pass" else 1


def check_method(method: str) -> None:
    """Refuse a method that does not exist. Raises UnknownMethod."""
    if method not in METHODS:
        raise UnknownMethod(
            what=f"There is no method {method!r}.",
            why=f"Methods: {', '.join(METHODS)}.",
            fix="Use --method easybuild, or leave --method out.",
        )
