"""Options and arguments that several commands share."""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from envkit.cli import usage
from envkit.commands import complete
from envkit.knowledge import methods
from envkit.knowledge.mpi import FAMILIES, meant

Function = TypeVar("Function", bound=Callable[..., Any])


class FiniteRange(click.FloatRange):
    """A number within bounds; one that is no number, or infinite, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Raises click.BadParameter."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class Family(click.Choice[str]):
    """A family of MPI, in small letters or capitals; one that there is not is refused with what may be meant."""

    def __init__(self) -> None:
        super().__init__([*FAMILIES], case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the family. Raises click.BadParameter."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            near = meant(str(value))
            self.fail(f"{error.message} Did you mean '{near}'?" if near else error.message, param, ctx)


def prefix(function: Function) -> Function:
    """Add ``--prefix``."""
    order = "the first that is set of $ENVKIT_PREFIX, $EBU_USER_PREFIX, your configuration; else ~/.local/share/envkit"
    text = f"Where environments live (several: A:B). Default: {order}."
    return click.option("--prefix", metavar="DIR", help=text, shell_complete=complete.folders)(function)


def name(function: Function) -> Function:
    """Add what names an environment, or a virtual environment on top of one by its folder."""
    offers = complete.environments
    return click.argument("name", required=False, metavar="[NAME|DIR]", shell_complete=offers)(function)


def load(function: Function) -> Function:
    """Add ``--load``."""
    text = "Load this site module before the build and on entering. May be repeated."
    return click.option("--load", metavar="MODULE", multiple=True, callback=modules, help=text)(function)


def family(_context: click.Context, _option: click.Parameter, given: str | None) -> str:
    """Return a family of MPI as machine/host.py names it; nothing where none was given."""
    return FAMILIES.get(given or "", "")


def mpi(function: Function) -> Function:
    """Add ``--mpi`` where Horovod is compiled."""
    text = "Compile Horovod with the machine's MPI of this family. Default: the first on PATH."
    return click.option("--mpi", type=Family(), callback=family, help=text)(function)


def extras(function: Function) -> Function:
    """Add ``--with``."""
    text = "Add these to the stack, such as mpi4py,tutorials: --dry-run names what there is. May be repeated."
    return click.option("--with", "extras", metavar="NAME[,NAME]", multiple=True, callback=separated, help=text)(
        function
    )


def separated(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words between the commas."""
    return tuple(word for value in given for word in value.split(",") if word)


def modules(_context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of an option that names modules. Raises UsageProblem for what cannot be one."""
    from envkit.environments.name_syntax import require_modules

    require_modules(given, option.opts[0])
    return given


def method(function: Function) -> Function:
    """Add ``--method`` where it need not be one."""
    text = "How to install it. Default: the first that works here; the reasons are printed first."
    choice = click.Choice([methods.AUTO, *methods.names()])
    return click.option("--method", type=choice, default=methods.AUTO, help=text)(function)


def named_method(function: Function) -> Function:
    """Add ``--method`` where this machine does not count."""
    text = f"How to provide it. Default: that of STACK, else {methods.usual()}, whatever this machine offers."
    return click.option("--method", type=click.Choice(methods.names()), help=text)(function)


def stack(function: Function) -> Function:
    """Add what chooses a stack, but for the method, and the site modules that it is built with."""
    return what(load(function))


def what(function: Function) -> Function:
    """Add what chooses a stack, but for the method."""
    function = click.option(
        "--accelerator",
        type=click.Choice(["auto", "cpu", "cuda", "rocm"]),
        default="auto",
        show_default=True,
        help="The device to build for.",
    )(function)
    function = click.option(
        "--framework",
        type=click.Choice(["pytorch", "tensorflow"]),
        help="The framework to build Horovod for.",
    )(function)
    return click.argument("stack", required=False, shell_complete=complete.stacks)(function)


def configured(context: click.Context) -> frozenset[str]:
    """Return the names of the parameters that the configuration says, and nobody typed."""
    is_default = ParameterSource.DEFAULT_MAP
    return frozenset(name for name in context.params if context.get_parameter_source(name) is is_default)


def giving_way(context: click.Context, stack: str | None, method: str | None) -> tuple[str | None, str | None, str]:
    """Return method, framework and accelerator: what the configuration says of them gives way to what STACK is.

    ``method`` is the one where none is said.
    """
    from envkit.planning.stack import FRAMEWORKS

    usual = {"method": method, "framework": None, "accelerator": "auto"}
    says = () if stack is None else ("framework",) if stack in FRAMEWORKS else tuple(usual)
    taken_over = context.params.get("source") or context.params.get("dockerfile")
    leave = configured(context) & {*says, *(("method",) if taken_over else ())}
    values = {name: usual[name] if name in leave else context.params.get(name, usual[name]) for name in usual}
    return values["method"], values["framework"], str(values["accelerator"])


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
        metavar="auto|mirror|registry|URL|FILE|IMAGE@sha256:DIGEST",
        default="auto",
        help="What an image starts from: Debian from this host's mirror or that of a URL (.../debian, of a snapshot "
        ".../debian/DATE), or an image by digest. Default: what fits.",
    )(function)


def named(text: str) -> tuple[str, str]:
    """Return NAME=VALUE as a pair; ends with a usage error for anything else."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        usage(f"--build-arg {text!r}: write it as NAME=VALUE.")
    return name, value


def repository(function: Function) -> Function:
    """Add ``--repository`` where its name is one of the parameters."""
    return click.option("--repository", metavar="NAME", shell_complete=complete.repositories, help=REPOSITORY)(function)


REPOSITORY = "Another repository of EESSI's layout: see 'envkit eessi repositories'."
EESSI = (
    click.Option(
        ["--release", "version"], metavar="RELEASE", help="The release. Default: 2023.06, or the repository's."
    ),
    click.Option(["--repository"], metavar="NAME", shell_complete=complete.repositories, help=REPOSITORY),
    click.Option(["--load", "module"], metavar="MODULE", multiple=True, help="Load this module. May be repeated."),
    click.Option(
        ["--access"],
        metavar="auto|native|dir[:FOLDER]|userns|apptainer",
        help="How its repository is reached. Default: the first that fits.",
    ),
    click.Option(["--nvidia"], is_flag=True, help="With this machine's NVIDIA GPUs."),
    click.Option(
        ["--bind"], metavar="SOURCE[:TARGET[:ro]]", multiple=True, help="Show this path there. May be repeated."
    ),
    click.Option(
        ["--host-injections"], metavar="DIR", help="Show this folder where host_injections leads: /opt/eessi."
    ),
    click.Option(["--http-proxy"], metavar="URL", help="The proxy for the servers: CVMFS_HTTP_PROXY and http_proxy."),
    click.Option(["--https-proxy"], metavar="URL", help="The proxy for the image's registry: https_proxy."),
    click.Option(
        ["--resume"],
        metavar="NAME|DIR|FILE",
        shell_complete=complete.sessions,
        help="Enter a session again, as it was; a new name begins one. A DIR or FILE has a / in it: ./FILE.",
    ),
    click.Option(["--save"], metavar="FILE", help="Write what is entered to a file."),
    click.Option(["--writable"], metavar="DIR", help="Let the repository be written to: what is written goes to DIR."),
)


OF_EESSI = {"Options of EESSI": tuple(str(option.name) for option in EESSI)}


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
        usage(f"{words} goes only with the name 'eessi'.")
    return None


def mpi_model(function: Function) -> Function:
    """Add ``--mpi-model``."""
    text = "Of an image: who starts the ranks, with whose MPI library. Default: what fits image and host."
    choice = click.Choice(["hybrid", "bind", "inside"])
    return click.option("--mpi-model", type=choice, help=text)(function)


def example(function: Function) -> Function:
    """Add ``--example``."""
    text = "Run an example of training, instead of a command; its arguments follow after --."
    return click.option("--example", metavar="EXAMPLE", help=text, shell_complete=complete.examples)(function)


class Grouped(click.Command):
    """A command whose help shows its options in groups.

    ``groups``: the names of options by the title of their group, in the order in which help shows them; a name that the
    command lacks is passed over, so that commands can share a group.
    """

    def __init__(self, *words: Any, groups: Mapping[str, Collection[str]] | None = None, **settings: Any) -> None:
        super().__init__(*words, **settings)
        self.groups = groups or {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of no group first."""
        options = {str(option.name): option for option in self.get_params(ctx) if isinstance(option, click.Option)}
        grouped = {name for names in self.groups.values() for name in names}
        sections = {"Options": [name for name in options if name not in grouped], **self.groups}
        for title, names in sections.items():
            records = [options[name].get_help_record(ctx) for name in names if name in options]
            if rows := [record for record in records if record]:
                with formatter.section(title):
                    formatter.write_dl(rows)


class CommandAfterDashes(Grouped):
    """A command line whose words after the first ``--`` belong to another program, or to an example, unchanged.

    ``may_lack``: there need be none, and no ``--``.
    """

    def __init__(self, *words: Any, may_lack: bool = False, **settings: Any) -> None:
        super().__init__(*words, **settings)
        self.may_lack = may_lack

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split at the first ``--``. Ends with a usage error when there is no command after it."""
        if ctx.resilient_parsing:  # a line that is being completed
            ctx.meta["after dashes"] = "--" in args
            return super().parse_args(ctx, args)
        place = args.index("--") if "--" in args else len(args)
        has_example = any(word.partition("=")[0] == "--example" for word in args[:place])
        if not ({"--", "--help", "-h"} & {*args} or has_example or self.may_lack):
            usage(f"Put -- before the command: {ctx.command_path} NAME -- python train.py")
        ctx.meta["command"] = args[place + 1 :]
        if "--" in args and not ctx.meta["command"] and not has_example:
            usage("There is no command after --.")
        return super().parse_args(ctx, args[:place])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Have the shell offer files for what belongs to another program."""
        if ctx.meta.get("after dashes"):
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, incomplete)


def refuse_eessi(verb: str) -> NoReturn:
    """End where the name "eessi" does not go. Raises HostProblem."""
    from envkit.errors import HostProblem

    raise HostProblem(
        what=f"EESSI cannot {verb}.",
        why="A release of EESSI is mounted only for what is started in it.",
        fix="Start what you need inside: 'envkit shell eessi', or 'envkit run eessi -- COMMAND'.",
    )
