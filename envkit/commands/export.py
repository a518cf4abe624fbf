"""``envkit export``: the recipe of an image, the patches of Horovod."""

from pathlib import Path
from shlex import quote

import click

from envkit.commands import options


class Kinds(click.Group):
    """A group in which a first word that names none of its commands is the file of an image's recipe."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command of images first where none is named."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["image", *args]
        return super().parse_args(ctx, args)


@click.group(cls=Kinds, context_settings={"help_option_names": ["-h", "--help"]})
def export() -> None:
    """Write the recipe of an image, or the patches that Horovod is built with.

    'envkit export FILE.def [STACK]' is 'envkit export image FILE.def [STACK]'.
    """


@export.command(short_help="Write the recipe of an image, for plain 'apptainer build'.")
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
def image(
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
    machine = host.detect(load)
    chosen = select(
        stack,
        method=None if stack else of_method,  # of one that is no image it is said that it is none
        framework=framework,
        accelerator=accelerator,
        platform=machine.platform,
    )
    text = apptainer.rendered(request, chosen, machine)
    deliver(deffile, text.encode(), "The recipe")
    click.echo(
        f"{deffile}: the recipe of {chosen.name}. Build it: apptainer build {chosen.name}.sif {quote(str(deffile))}"
    )


@export.command(short_help="Write the patches that Horovod is built with, as a series.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@options.what
@click.pass_context
def patches(
    context: click.Context, folder: Path, stack: str | None, framework: str | None, accelerator: str
) -> None:  # fmt: skip
    """Write the patches that the Horovod of STACK is built with into DIR, for those who build it themselves.

    DIR, which is new or empty, gets the patches by number, 'series' with their order (patch -p1, quilt), and
    README.md: how they are applied to Horovod's own source and built with pip, what each is for, what upstream says,
    how it was tested, and which go together for which framework.

    Without STACK, --framework and --accelerator choose it; the usual one is for PyTorch on CPUs.
    """
    from envkit.machine.host import Platform
    from envkit.planning import patches as found
    from envkit.planning.stack import select

    _, framework, accelerator = options.giving_way(context, stack, None)
    chosen = select(stack, framework=framework, accelerator=accelerator, platform=Platform.own())
    files = found.series(chosen)
    found.write(folder, files)
    click.echo(f"{folder}: the {len(files) - 2} patches of {chosen.name}. README.md says how to apply them.")
