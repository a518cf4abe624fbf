"""``envkit export``."""

from pathlib import Path

import click

from envkit.commands import options


@click.command()
@click.argument("deffile", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--method",
    "of_method",
    type=click.Choice(["apptainer"]),
    default="apptainer",
    help="Images only.",
)
@options.stack
@options.image
@click.pass_context
def export(
    context: click.Context, deffile: Path, stack: str | None, of_method: str, framework: str | None,
    accelerator: str, load: tuple[str, ...], base: str, build_args: tuple[tuple[str, str], ...],
) -> None:  # fmt: skip
    """Write the recipe of an image into DEFFILE, with every argument filled in, for plain 'apptainer build'.

    What it copies from this installation of envkit is named by its whole path.
    """
    from envkit.apptainer import method as apptainer
    from envkit.environments import prefix as place
    from envkit.machine import host
    from envkit.planning.request import Request
    from envkit.planning.stack import select
    from envkit.system.files import deliver

    _, framework, accelerator = options.giving_way(context, stack, of_method)
    request = Request(prefix=place.locate(None), base=base, build_args=build_args, load=load)
    machine = host.look(load)
    chosen = select(
        stack,
        method=None if stack else of_method,  # of one that is no image it is said that it is none
        framework=framework,
        accelerator=accelerator,
        platform=machine.platform,
    )
    text = apptainer.rendered(request, chosen, machine)
    deliver(deffile, text.encode(), "The recipe")
    click.echo(f"{deffile}: the recipe of {chosen.name}. Build it: apptainer build {chosen.name}.sif {deffile}")
