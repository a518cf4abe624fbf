"""Options and arguments that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from envkit.cli import usage

Function = TypeVar("Function", bound=Callable[..., Any])


def prefix(function: Function) -> Function:
    """Add ``--prefix``."""
    text = "Where environments live. Default: $ENVKIT_PREFIX, $EBU_USER_PREFIX, or your data folder."
    return click.option("--prefix", metavar="DIR", help=text)(function)


def stack(function: Function) -> Function:
    """Add what chooses a stack."""
    function = click.option(
        "--load",
        metavar="MODULE",
        multiple=True,
        help="Load this site module before the build and on entering. May be repeated.",
    )(function)
    function = click.option(
        "--accelerator",
        type=click.Choice(["auto", "cpu", "cuda", "rocm"]),
        default="auto",
        show_default=True,
        help="What computes.",
    )(function)
    function = click.option(
        "--framework",
        type=click.Choice(["pytorch", "tensorflow"]),
        help="The framework to build Horovod for.",
    )(function)
    function = click.option(
        "--method",
        metavar="METHOD",
        default="easybuild",
        show_default=True,
        help="How to provide it: easybuild.",
    )(function)
    return click.argument("stack", required=False)(function)


class CommandAfterDashes(click.Command):
    """A command line whose words after the first ``--`` belong to another program, unchanged."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first ``--``. Ends with a usage error when there is no command after it."""
        if ctx.resilient_parsing:  # a line that is being completed
            return super().parse_args(ctx, args)
        if "--" not in args and "--help" not in args and "-h" not in args:
            usage("Put -- before the command: envkit run NAME -- python train.py")
        place = args.index("--") if "--" in args else len(args)
        ctx.meta["command"] = args[place + 1 :]
        if "--" in args and not ctx.meta["command"]:
            usage("There is no command after --.")
        return super().parse_args(ctx, args[:place])
