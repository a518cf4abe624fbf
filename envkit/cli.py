"""The command line: names the sub-commands, imports the one that is asked for, explains failures."""

import importlib
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import click

from envkit import __version__
from envkit.errors import EnvkitError, of_storage

COMMANDS = {
    "doctor": ("doctor", "Say what this machine offers, and which methods work on it."),
    "compat": ("compat", "Say whether versions go together with Horovod, and what is best here."),
    "install": ("install", "Install a Horovod environment and prove that it works."),
    "fetch": ("fetch", "Fetch every source of a stack, for an installation without a network."),
    "export": ("export", "Write the recipe of an image, for plain 'apptainer build'."),
    "list": ("listing", "List what can be installed and what is."),
    "show": ("listing", "Show an environment: its parts, its paths, its module."),
    "repair": ("repair", "Build again what is damaged of an environment."),
    "remove": ("remove", "Remove an environment."),
    "shell": ("enter", "Start a shell inside an environment."),
    "run": ("enter", "Run a command inside an environment, on one rank or several."),
    "example": ("example", "Print an example of training, to copy."),
    "data": ("example", "Have MNIST in a folder, for the examples."),
    "job": ("job", "Write the batch script of a job, and submit it."),
    "eessi": ("eessi", "List what a release of EESSI has; list and remove sessions of it."),
    "verify": ("verify", "Say in one verdict whether an environment works on this machine."),
    "check-build": ("verify", "Print the block of 'horovodrun --check-build', but true, and quickly."),
    "diagnose": ("diagnose", "Say the first cause of a failed build, launch or run from its log."),
}


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
        command: click.Command = getattr(module, cmd_name.replace("-", "_").replace("list", "list_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command when there is none of that name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            usage(f"There is no command {args[0]!r}." + (f" Did you mean '{near[0]}'?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="envkit")
def envkit() -> None:
    """Get Horovod to run on HPC systems, and prove that it does."""


def run(arguments: list[str] | None = None) -> int:
    """Run one command line; return its exit code (errors.py lists them)."""
    open_streams()
    try:
        status: Any = envkit.main(args=arguments, prog_name="envkit", standalone_mode=False)
        status = status if isinstance(status, int) else 0
        return status or printed()
    except click.ClickException as error:
        error.show()
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
    verb = "read or write" if error.filename else "write"
    problem = of_storage(error, f"envkit could not {verb} {error.filename or 'its output'} to the end.")
    if problem is None:
        raise error
    explain(problem)
    return problem.exit_code


def explain(error: EnvkitError) -> None:
    """Say what happened, why, and what to do, on standard error."""
    from envkit.report.words import plain

    parts = [f"envkit: {error.what}"]
    if error.why:
        parts += ["", *(f"  {line}" for line in error.why.splitlines())]
    if error.fix:
        parts += ["", f"What to do: {error.fix}"]
    with suppress(OSError):  # a terminal that is closed
        print(plain("\n".join(parts)), file=sys.stderr, flush=True)


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a text, be it from whatever file, without anything that a terminal would obey."""
    from envkit.report.words import plain

    click.echo(plain(text), err=err, nl=nl)


def echo_json(text: str, *, nl: bool = True) -> None:
    """Print JSON, what a terminal would obey written as escapes."""
    from envkit.report.words import escaped

    click.echo(escaped(text), nl=nl)


def usage(message: str) -> NoReturn:
    """End with a usage error, exit code 2."""
    raise click.UsageError(message)
