"""Options and arguments that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from envkit.cli import usage
from envkit.methods import registry

Function = TypeVar("Function", bound=Callable[..., Any])


def prefix(function: Function) -> Function:
    """Add ``--prefix``."""
    text = "Where environments live, or several places. Default: $ENVKIT_PREFIX, $EBU_USER_PREFIX, or your data folder."
    return click.option("--prefix", metavar="DIR", help=text)(function)


def load(function: Function) -> Function:
    """Add ``--load``."""
    text = "Load this site module before the build and on entering. May be repeated."
    return click.option("--load", metavar="MODULE", multiple=True, callback=modules, help=text)(function)


MPI = {"openmpi": "Open MPI", "mpich": "MPICH", "intelmpi": "Intel MPI"}


def family(_context: click.Context, _option: click.Parameter, given: str | None) -> str:
    """Return a family of MPI as machine/host.py names it; nothing where none was given."""
    return MPI.get(given or "", "")


def mpi(function: Function) -> Function:
    """Add ``--mpi`` where Horovod is compiled."""
    text = "Of EasyBuild: compile Horovod with the machine's MPI of this family. Default: the first on PATH."
    return click.option("--mpi", type=click.Choice([*MPI]), callback=family, help=text)(function)


def modules(_context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of an option that names modules. Raises UsageProblem for what cannot be one."""
    from envkit.environments.names import require_modules

    require_modules(given, option.opts[0])
    return given


def method(function: Function) -> Function:
    """Add ``--method`` where it need not be one."""
    text = "How to provide it. Default: the first that can, which is told with its reasons before anything begins."
    choice = click.Choice(["auto", *registry.NAMES])
    return click.option("--method", type=choice, default="auto", help=text)(function)


def named_method(function: Function) -> Function:
    """Add ``--method`` where this machine does not count."""
    text = "How to provide it. Default: easybuild, unless STACK is by another."
    return click.option("--method", type=click.Choice(registry.NAMES), help=text)(function)


def stack(function: Function) -> Function:
    """Add what chooses a stack, but for the method."""
    function = load(function)
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
    return click.argument("stack", required=False)(function)


def image(function: Function) -> Function:
    """Add what chooses how the recipe of an image is filled in."""
    function = click.option(
        "--build-arg",
        "build_args",
        metavar="NAME=VALUE",
        multiple=True,
        callback=lambda _context, _option, given: tuple(map(named, given)),
        help="An argument of an image's recipe. May be repeated.",
    )(function)
    return click.option(
        "--base",
        metavar="auto|mirror|registry|FILE|IMAGE@sha256:DIGEST",
        default="auto",
        help="What an image starts from: Debian from this host's mirror, or an image by digest. Default: what fits.",
    )(function)


def named(text: str) -> tuple[str, str]:
    """Return NAME=VALUE as a pair; ends with a usage error for anything else."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        usage(f"--build-arg {text!r}: write it as NAME=VALUE.")
    return name, value


EESSI = (
    click.Option(["--release", "version"], metavar="RELEASE", help="Of EESSI: the release. Default: 2023.06."),
    click.Option(
        ["--load", "module"], metavar="MODULE", multiple=True, help="Of EESSI: load this module. May be repeated."
    ),
    click.Option(
        ["--access"],
        metavar="auto|native|dir[:FOLDER]|userns|apptainer",
        help="Of EESSI: how its repository is reached. Default: the first that fits.",
    ),
    click.Option(["--nvidia"], is_flag=True, help="Of EESSI: with this machine's NVIDIA GPUs."),
    click.Option(
        ["--bind"], metavar="SOURCE:TARGET", multiple=True, help="Of EESSI: show this path there. May be repeated."
    ),
    click.Option(
        ["--resume"], metavar="NAME|DIR", help="Of EESSI: enter a session again, as it was; a new name begins one."
    ),
    click.Option(["--save"], metavar="FILE", help="Of EESSI: write what is entered to a file."),
)


def eessi(command: click.Command) -> click.Command:
    """Add the options that the name "eessi" alone takes."""
    command.params += EESSI
    for option in EESSI:
        option.expose_value = False
        option.callback = keep
    return command


def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    """Keep an option of EESSI for the command."""
    if option.name == "module":
        modules(context, option, value)
    if option.name and value:
        context.meta.setdefault("eessi", {})[option.name] = value


def asked_of_eessi(context: click.Context, name: str | None) -> dict[str, Any] | None:
    """Return the options of EESSI if it is what is named; ends with a usage error for those of the other names."""
    given: dict[str, Any] = context.meta.get("eessi", {})
    if name == "eessi":
        for option in ("prefix", "mpi_model", "nodes", "print_", "example", "timeline", "html"):
            if context.params.get(option):
                usage(f"--{option.rstrip('_').replace('_', '-')} does not go with the name 'eessi'.")
        return given
    if given:
        words = next(option.opts[0] for option in EESSI if option.name in given)
        usage(f"{words} goes with the name 'eessi' alone.")
    return None


def mpi_model(function: Function) -> Function:
    """Add ``--mpi-model``."""
    text = "Of an image: who starts the ranks, with whose MPI library. Default: what fits image and host."
    choice = click.Choice(["hybrid", "bind", "inside"])
    return click.option("--mpi-model", type=choice, help=text)(function)


def example(function: Function) -> Function:
    """Add ``--example``."""
    text = "Run an example of training, instead of a command; its arguments follow after --."
    return click.option("--example", metavar="EXAMPLE", help=text)(function)


class CommandAfterDashes(click.Command):
    """A command line whose words after the first ``--`` belong to another program, or to an example, unchanged.

    ``may_lack``: there need be none, and no ``--``.
    """

    def __init__(self, *words: Any, may_lack: bool = False, **settings: Any) -> None:
        super().__init__(*words, **settings)
        self.may_lack = may_lack

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first ``--``. Ends with a usage error when there is no command after it."""
        if ctx.resilient_parsing:  # a line that is being completed
            return super().parse_args(ctx, args)
        place = args.index("--") if "--" in args else len(args)
        has_example = any(word.partition("=")[0] == "--example" for word in args[:place])
        if not ({"--", "--help", "-h"} & {*args} or has_example or self.may_lack):
            usage(f"Put -- before the command: {ctx.command_path} NAME -- python train.py")
        ctx.meta["command"] = args[place + 1 :]
        if "--" in args and not ctx.meta["command"] and not has_example:
            usage("There is no command after --.")
        return super().parse_args(ctx, args[:place])
