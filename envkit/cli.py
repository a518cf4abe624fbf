"""The command line: names the sub-commands, imports the one that is asked for, explains failures."""

import importlib
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import click

from envkit import __version__
from envkit.errors import EnvkitError, of_handles, of_path, of_storage

PROGRAM = "envkit"
COMMANDS = {
    "doctor": ("doctor", "Show what this machine offers and which methods work on it."),
    "compat": ("compat", "Check whether versions work together with Horovod."),
    "install": ("install", "Install a Horovod environment and verify it."),
    "fetch": ("fetch", "Download the sources of a stack, to install without a network."),
    "export": ("export", "Write the recipe of an image, or the patches of Horovod."),
    "list": ("listing", "List what is installed and what can be."),
    "show": ("listing", "Show an environment: its parts, its paths, its module."),
    "upgrade": ("upgrade", "Rebuild an environment if its recipes have changed."),
    "repair": ("repair", "Rebuild the damaged parts of an environment."),
    "remove": ("remove", "Remove an environment."),
    "clean": ("clean", "Show what uses disk space, and remove what is not needed."),
    "cache": ("cache", "Share Horovod builds that have passed, and list what is shared."),
    "shell": ("enter", "Start a shell inside an environment."),
    "run": ("enter", "Run a command inside an environment, on one rank or several."),
    "activate": ("activate", "Print shell code that enters an environment in the current shell."),
    "venv": ("venv", "Make a folder for your own packages on top of an environment."),
    "kernel": ("kernel", "Make a Jupyter kernel that runs in an environment."),
    "example": ("example", "Print an example training script."),
    "data": ("example", "Download MNIST for the examples."),
    "job": ("job", "Write the batch script of a job, and submit it."),
    "eessi": ("eessi", "List what a release of EESSI has; list and remove sessions of it."),
    "verify": ("verify", "Verify that an environment works on this machine."),
    "check-build": ("verify", "Print what 'horovodrun --check-build' should, from the compiled files."),
    "diagnose": ("diagnose", "Find the first cause of a failed build, launch or run in its log."),
    "report": ("report", "Write one file to attach to a ticket, without secrets and names."),
    "config": ("config", "Show the configuration and where each value comes from."),
    "completion": ("completion", "Print the completion script for bash, zsh or fish."),
    "help": ("help", "Show the help of a command."),
}


UNCONFIGURED = ("compat", "completion", "config", "diagnose", "example", "help")  # nothing can be configured for them


class Defaults(dict[str, Any]):
    """The values that the configuration has for the options of each command, read when a command begins.

    A mistake in it ends every command but the doctor, who tells of it.
    """

    def get(self, name: str, default: Any = None) -> Any:
        """Return the values for a command by its parameters. Raises ConfigInvalid."""
        from envkit.config import configuration

        settings = configuration.read() if name == "doctor" else configuration.required()
        notes = configuration.notes(settings)
        if notes and is_first_rank():
            for note in notes:
                echo(f"envkit: {note}", err=True)
        return settings.defaults().get(name, default)


def is_first_rank() -> bool:
    """Whether this process is no rank of a launcher, or its first one, which tells for all."""
    from envkit.inside.probe.started import detect

    started = detect(os.environ)
    return started is None or started.rank == 0


def colour(context: click.Context, _option: click.Parameter, chosen: str | None) -> None:
    """Say of all that is printed whether it is in colours."""
    while chosen and context:
        context.color = {"always": True, "never": False}.get(chosen)
        context = context.parent  # type: ignore[assignment]


def quiet(context: click.Context, _option: click.Parameter, chosen: bool) -> None:
    """Keep it for all that tells something."""
    if chosen:
        context.meta["envkit.quiet"] = True


def verbose(context: click.Context, _option: click.Parameter, chosen: bool) -> None:
    """Have the programs that are started told on standard error, as ``set -x`` of a shell does, without secrets."""
    if not chosen or context.meta.get("envkit.verbose"):
        return
    import logging

    from envkit.report.words import shown
    from envkit.ticket.secrets import Secrets

    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return shown(private.without(super().format(record)))

    private, logger, handler = Secrets(os.environ), logging.getLogger("envkit"), logging.StreamHandler()
    handler.setFormatter(Formatter())
    context.meta["envkit.verbose"] = True
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    context.find_root().call_on_close(lambda: logger.removeHandler(handler))


def general(*, hidden: bool) -> list[click.Option]:
    """Return the options that every command takes, before and after its name."""
    options = [
        click.Option(["-v", "--verbose"], is_flag=True, callback=verbose, help="Show which programs are started."),
        click.Option(["-q", "--quiet"], is_flag=True, callback=quiet, help="Show only results and errors."),
        click.Option(
            ["--color"],
            type=click.Choice(["auto", "always", "never"]),
            callback=colour,
            help="Print in colours. Default: on a terminal, unless $NO_COLOR is set, and where $FORCE_COLOR is.",
        ),
    ]
    for option in options:
        option.expose_value, option.hidden = False, hidden
    return options


GENERAL = general(hidden=True)


class Commands(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"envkit.commands.{COMMANDS[cmd_name][0]}")
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(module, f"{name}_", None) or getattr(module, name)
        for member in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
            if member.params[-len(GENERAL) :] != [*GENERAL]:
                member.params += GENERAL
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command when there is none of that name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            usage(f"There is no command {args[0]!r}. {instead(args[0])}".strip())
        words = args[: args.index("--")] if "--" in args else args
        if not (ctx.resilient_parsing or {"-h", "--help"} & {*words} or words[0] in UNCONFIGURED):
            ctx.default_map = Defaults()
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=Commands,
    params=general(hidden=False),
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="-v, -q and --color can follow the command as well. 'envkit help COMMAND' explains each command.",
)
@click.version_option(__version__, prog_name="envkit")
def envkit() -> None:
    """Get Horovod to run on HPC systems, and prove that it does."""


def run(arguments: list[str] | None = None) -> int:
    """Run one command line; return its exit code (errors.py lists them)."""
    open_streams()
    try:
        status: Any = envkit.main(args=arguments, prog_name=PROGRAM, standalone_mode=False)
        status = status if isinstance(status, int) else 0
        lost = printed()  # whatever the status is: the program ends without another look at what is left to print
        return status or lost
    except click.ClickException as error:
        explain_usage(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        print("envkit: stopped by Ctrl-C.", file=sys.stderr)
        return 130
    except EnvkitError as error:
        explain(error)
        return error.exit_code
    except BrokenPipeError:
        return 141
    except SystemExit as end:  # completion ends with 0; with 1, click and rich say that the reader has gone
        return 141 if end.code == 1 else int(end.code or 0) or printed()
    except OSError as error:
        return explain_storage(error)


def instead(name: str) -> str:
    """Return what to type instead of a command that there is not; nothing where none is near."""
    import difflib

    from envkit.knowledge import foreign

    near = difflib.get_close_matches(name, COMMANDS, 1)
    return foreign.command(name) or (f"Did you mean 'envkit {near[0]}'?" if near else "")


def advice(error: click.ClickException) -> str:
    """Return what users of other tools have meant by what cannot be understood; nothing where that is not known."""
    from envkit.knowledge import foreign

    context = error.ctx if isinstance(error, click.UsageError) else None
    command = (context.info_name or "") if context else ""
    if isinstance(error, click.NoSuchOption):
        return foreign.option(error.option_name, command)
    if isinstance(error, click.NoSuchCommand) and context and isinstance(context.command, click.Group):
        meant = foreign.command(f"{command} {error.command_name}")
        return meant or f"Name one of {', '.join(context.command.list_commands(context))}."
    if isinstance(error, click.BadParameter) and isinstance(error.param, click.Option):
        given = error.message.split("'")[1:2]
        meant = foreign.value(given[0], error.param.opts[0]) if given else ""
        return f"Write it as {error.param.opts[0]} {meant}." if meant else ""
    if command in foreign.ENTERING and error.message.startswith("Got unexpected extra argument"):
        return foreign.option("--nvidia", command) if "--nvidia" in sys.argv else ""
    is_second = command == "install" and error.message.startswith("Got unexpected extra argument")
    return "Name one STACK of 'envkit list'." if is_second else ""


def open_streams() -> None:
    """Have each stream that was closed from the start lead to nowhere: no file may come by its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def printed(text: str = "") -> int:
    """Print the rest, and a text, on standard output; return 0, 7 where that is full, 141 where its reader has gone.

    What could not be printed is dropped.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        status = 141
    except OSError as error:
        status = explain_storage(error)
    else:
        return 0
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return status


def explain_storage(error: OSError) -> int:
    """Say what has failed of the storage of a file or of standard output; return the exit code. Raises all else."""
    from envkit.system import temporary

    verb = "read or write" if error.filename else "write"
    what = f"envkit could not {verb} {error.filename or 'its output'} to the end."
    of_limit = of_handles(error, "envkit could not open a file, or start a program.")
    problem = of_limit or of_storage(error, what) or of_path(error) or temporary.of_nowhere(error)
    if problem is None:
        raise error
    explain(problem)
    return problem.exit_code


def explain(error: EnvkitError) -> None:
    """Say what happened, why, and what to do, on standard error, without passwords of addresses."""
    from envkit.report.words import shown
    from envkit.system.addresses import without_logins

    parts = folded(f"envkit: {error.what}")
    if error.why:
        parts += ["", *(part for line in error.why.splitlines() for part in folded(line, "  "))]
    if error.fix:
        parts += ["", *folded(f"What to do: {error.fix}")]
    with suppress(OSError):  # a terminal that is closed
        print(shown(without_logins("\n".join(parts), sys.argv)), file=sys.stderr, flush=True)


def explain_usage(error: click.ClickException) -> None:
    """Say what click has not understood, which quotes the command line, on standard error, without passwords."""
    import io

    from envkit.report.words import shown
    from envkit.system.addresses import without_logins

    stream = io.StringIO()
    error.show(stream)
    hint = f"What to do: {meant}\n" if (meant := advice(error)) else ""
    with suppress(OSError):  # a terminal that is closed
        print(shown(without_logins(stream.getvalue() + hint, sys.argv)), end="", file=sys.stderr, flush=True)


def folded(text: str, indent: str = "") -> list[str]:
    """Return the lines of a text; on a terminal those that are too wide are broken between words.

    What is indented already, such as commands and tables, is left as it is; so is a line without a blank.
    """
    import shutil
    import textwrap

    lines = [f"{indent}{line}" for line in text.splitlines() or [""]]
    if not sys.stderr.isatty():
        return lines
    width = max(shutil.get_terminal_size().columns, 40)
    return [
        part
        for line in lines
        for part in (
            [line]
            if len(line) <= width or line.removeprefix(indent).startswith(" ")
            else textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        )
    ]


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text, be it from whatever file, without anything that a terminal would obey; with --quiet no notes."""
    from envkit.report.paper import is_quiet
    from envkit.report.words import shown

    if err and is_quiet():
        return
    click.echo(shown(text), err=err, nl=nl)


def echo_json(text: str, *, nl: bool = True) -> None:
    """Print JSON, what a terminal or GitHub's runner would obey written as escapes."""
    from envkit.report.words import escaped, inert_json

    click.echo(inert_json(escaped(text)), nl=nl)


def usage(message: str) -> NoReturn:
    """End with a usage error, exit code 2."""
    raise click.UsageError(message)
