"""The manual: a page for envkit and one for each command, for man, from what --help says."""

import re
from collections.abc import Iterator

import click

from envkit import __version__, errors
from envkit.cli import COMMANDS, PROGRAM, envkit
from envkit.config.keys import KEYS, variables

BLOCK = "\b\n"  # click's sign for a paragraph that is not wrapped


def pages() -> dict[str, str]:
    """Return the pages by their file names."""
    whole = click.Context(envkit, info_name=PROGRAM, **envkit.context_settings)
    texts = {PROGRAM: page(whole, envkit.help or "", [*of_commands(), *of_exit_codes(), *of_configuration()])}
    for name, (_, text) in COMMANDS.items():
        command = envkit.get_command(whole, name)
        assert command is not None  # noqa: S101
        of_one(texts, click.Context(command, info_name=name, parent=whole), text)
    return {f"{name}.1": text for name, text in texts.items()}


def of_one(made: dict[str, str], context: click.Context, text: str) -> None:
    """Add the page of a command, and those of the commands below it."""
    command = context.command
    below = command.commands.items() if isinstance(command, click.Group) else ()
    listed = [".SH COMMANDS", *(line for name, inner in below for line in item(name, inner.get_short_help_str(200)))]
    made[context.command_path.replace(" ", "-")] = page(context, text, listed if below else [])
    for name, subcommand in below:
        of_one(made, click.Context(subcommand, info_name=name, parent=context), subcommand.get_short_help_str(200))


def page(context: click.Context, text: str, more: list[str]) -> str:
    """Return a page: what a command is called and for, how it is called, what it does, its options, and more."""
    command, name = context.command, context.command_path.replace(" ", "-")
    usage = " ".join(command.collect_usage_pieces(context))
    options = [
        option.get_help_record(context) for option in command.get_params(context) if isinstance(option, click.Option)
    ]
    return "\n".join(
        [
            f'.TH "{escaped(name.upper())}" 1 "" "envkit {__version__}" "envkit"',
            ".SH NAME", f"{escaped(name)} \\- {escaped(text.splitlines()[0].rstrip('.'))}",
            ".SH SYNOPSIS", f".B {escaped(context.command_path)}", escaped(usage),
            ".SH DESCRIPTION", *paragraphs(command.help or text),
            *paragraphs(command.epilog or ""),
            ".SH OPTIONS", *(line for record in options if record for line in item(*record)),
            *more,
            ".SH SEE ALSO", escaped(f"{PROGRAM}(1), {PROGRAM}-config(1), {PROGRAM} help"), "",
        ]
    )  # fmt: skip


def paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of a help text: its paragraphs, and as they are those that are not wrapped."""
    for part in re.split(r"\n\s*\n", text.strip("\n")):
        is_block = part.lstrip(" ").startswith(BLOCK)
        lines = [escaped(line.strip()) for line in part.replace("\b", "").strip().splitlines()]
        yield from (".PP", *([".nf", *lines, ".fi"] if is_block else lines))


def item(name: str, text: str) -> Iterator[str]:
    """Yield the lines of an item of a list."""
    yield from (".TP", f".B {escaped(name)}", escaped(" ".join(text.split())))


def escaped(text: str) -> str:
    """Return a text in which nothing is an order to roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace('"', "\\(dq")
    return f"\\&{text}" if text.startswith(".") else text


def of_commands() -> Iterator[str]:
    """Yield the list of the commands."""
    yield ".SH COMMANDS"
    for name, (_, text) in COMMANDS.items():
        yield from item(f"{PROGRAM}-{name}(1)", text)


def of_exit_codes() -> Iterator[str]:
    """Yield the exit codes."""
    rows = re.findall(r"^(\d+) +(\S.*(?:\n {6,}\S.*)*)", errors.__doc__ or "", re.MULTILINE)
    yield ".SH EXIT STATUS"
    for code, text in rows:
        yield from item(code, text)


def of_configuration() -> Iterator[str]:
    """Yield the variables, and the files."""
    yield ".SH ENVIRONMENT"
    for name, key in KEYS.items():
        yield from item(", ".join(variables(name)), key.text)
    yield from (".SH FILES", *item("envkit.toml, ~/.config/envkit/config.toml, /etc/envkit/config.toml", "see"))
    yield ".BR envkit\\-config (1)"
