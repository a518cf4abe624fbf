"""Folders and files of the host to be seen elsewhere inside: --bind, and the variables of Apptainer and Singularity."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envkit.errors import UsageProblem

VARIABLES = ("SINGULARITY_BIND", "SINGULARITY_BINDPATH", "APPTAINER_BIND", "APPTAINER_BINDPATH")


@dataclass(frozen=True, kw_only=True)
class Bind:
    """What of the host is seen where inside."""

    source: Path
    target: Path
    read_only: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.target}{':ro' if self.read_only else ''}"


def asked(words: Iterable[str], env: Mapping[str, str] = os.environ) -> tuple[Bind, ...]:
    """Return the binds of the caller's variables and of the command line; of two at one target the later one counts.

    Raises UsageProblem for one that cannot be understood, or whose source is not there.
    """
    found = {}
    for name in VARIABLES:
        for word in filter(None, env.get(name, "").split(",")):
            bind = parsed(word, f"{name}={env[name]}", ("ro", "rw"))
            found[bind.target] = bind
    for word in words:
        bind = parsed(word, f"--bind {word}", ())
        found[bind.target] = bind
    return tuple(found.values())


def parsed(word: str, told: str, modes: Sequence[str]) -> Bind:
    """Return one bind. Raises UsageProblem."""
    source, *rest = word.split(":")
    mode = rest.pop() if len(rest) == 2 and rest[1] in modes else ""
    target = rest[0] if rest else source
    if len(rest) > 1 or not source or not target or "," in word:
        raise UsageProblem(
            what=f"{told}: it cannot be understood.",
            why="A comma or a colon can be in neither path: Apptainer takes them for its own."
            if "," in word or len(rest) > 1
            else "A path is missing.",
            fix="Write SOURCE:TARGET, one at a time; give a folder with such a name another one by a symbolic link.",
        )
    if not target.startswith("/") or ".." in Path(target).parts or target == "/":
        raise UsageProblem(what=f"{told}: {target} is no absolute path below /.", fix="Write SOURCE:/TARGET.")
    path = Path(source).absolute()
    if not path.exists():
        raise UsageProblem(what=f"{told}: there is no {source} on this machine.", fix="Correct it, or leave it out.")
    return Bind(source=path, target=Path(target), read_only=mode == "ro")


def for_namespace(binds: Iterable[Bind]) -> list[str]:
    """Return the words that namespace.py takes, of what is not there already."""
    words = []
    for bind in binds:
        if bind.source != bind.target:
            words += ["bind-ro" if bind.read_only else "bind", str(bind.source), str(bind.target)]
    return words
