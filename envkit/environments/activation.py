"""Entering an environment in a shell that runs already: what its variables are inside, as text for bash, zsh or fish.

The modules are loaded in a shell of envkit's own; what they have changed is printed, and a function that undoes it.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping

from envkit.environments.environment import Environment
from envkit.errors import HostProblem
from envkit.machine.modules_tool import require_entered
from envkit.system import process

SHELLS = ("bash", "zsh", "fish")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OF_A_SHELL = {"_", "SHLVL", "PWD", "OLDPWD", "ENV", "BASH_ENV", "ENVKIT_BASH_ENV", "ENVKIT_WORDS"}
ODD = re.compile(r"[^A-Za-z0-9_.+/-]")  # in a prompt, where shells run or replace what they find


def shell_of(env: Mapping[str, str], parent: str) -> str:
    """Return which shell asks: the parent of this process if it is one that is known, else $SHELL; else bash."""
    words = (parent.lstrip("-"), os.path.basename(env.get("SHELL", "")))  # noqa: PTH119
    return next((word for word in words if word in SHELLS), "bash")


def line(shell: str, command: str) -> str:
    """Return what is typed into a shell so that it evaluates what a command prints."""
    return f"{command} | source" if shell == "fish" else f'eval "$({command})"'


def parent() -> str:
    """Return the name of the program that has started this one; nothing where that is not to be seen."""
    try:
        with open(f"/proc/{os.getppid()}/comm") as stream:  # noqa: PTH123
            return stream.read().strip()
    except OSError:
        return ""


def changed(inside: Environment, env: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that differ inside, None for one that is not there. Raises ModuleNotLoaded, HostProblem."""
    answer = require_entered(process.capture(inside.command(["env", "-0"]), env=inside.variables(env), timeout_s=300))
    if answer.status:
        raise HostProblem(what=f"{inside.name} cannot be entered.", why=answer.stderr.strip()[-2000:])
    pairs = (entry.partition("=") for entry in answer.stdout.split("\0") if "=" in entry)
    after = {name: value for name, _, value in pairs}
    names = sorted(name for name in after.keys() | env.keys() if IDENTIFIER.fullmatch(name) and name not in OF_A_SHELL)
    return {name: after.get(name) for name in names if after.get(name) != env.get(name)}


def text(shell: str, name: str, variables: Mapping[str, str | None], env: Mapping[str, str]) -> str:
    """Return what a shell is to evaluate so that it has those variables; ``env`` are those it has now.

    In a shell that has evaluated it already it does nothing; one that has only inherited the variables, as a job has,
    does it again.
    """
    shown = ODD.sub("?", name)
    if shell == "fish":
        lines = ["if not functions -q envkit_deactivate", *fish(variables, env), "end"]
    else:
        lines = ["if ! typeset -f envkit_deactivate >/dev/null; then", *bourne(shown, variables, env), "fi"]
    return "".join(f"{line}\n" for line in lines)


def bourne(name: str, variables: Mapping[str, str | None], env: Mapping[str, str]) -> Iterator[str]:
    """Yield it for bash and zsh."""

    def put(key: str, value: str | None) -> str:
        return f"unset {key}" if value is None else f"export {key}={shlex.quote(value)}"

    yield from (put(key, value) for key, value in variables.items())
    yield f"if [ -n \"${{PS1-}}\" ]; then ENVKIT_PS1=$PS1; PS1='(envkit {name}) '$PS1; fi"
    yield "envkit_deactivate() {"
    yield from (put(key, env.get(key)) for key in variables)
    yield 'if [ -n "${ENVKIT_PS1-}" ]; then PS1=$ENVKIT_PS1; unset ENVKIT_PS1; fi'
    yield "unset -f envkit_deactivate"
    yield "hash -r 2>/dev/null || true"
    yield "}"
    yield "hash -r 2>/dev/null || true"


def fish(variables: Mapping[str, str | None], env: Mapping[str, str]) -> Iterator[str]:
    """Yield it for fish, whose prompt is a function of the user's and stays."""

    def put(key: str, value: str | None) -> str:
        return f"set -e {key}" if value is None else f"set -gx {key} {fish_quoted(value)}"

    yield from (put(key, value) for key, value in variables.items())
    yield "function envkit_deactivate"
    yield from (put(key, env.get(key)) for key in variables)
    yield "functions -e envkit_deactivate"
    yield "end"


def fish_quoted(value: str) -> str:
    """Return a value as fish reads it back."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
