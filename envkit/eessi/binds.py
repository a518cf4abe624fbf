"""Folders and files of the host to be seen elsewhere inside: --bind, and the variables of Apptainer and Singularity."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envkit.errors import UsageProblem

VARIABLES = ("SINGULARITY_BIND", "SINGULARITY_BINDPATH", "APPTAINER_BIND", "APPTAINER_BINDPATH")
OPTION = re.compile(r"ro|rw|(image-src|id)=.*")
NEW_PARTS = 3  # mount_namespace.py makes a target that is new where it is at most two folders deep


@dataclass(frozen=True, kw_only=True)
class Bind:
    """What of the host is seen where inside; ``told`` is the variable that says so, nothing for the command line.

    ``options`` are Apptainer's, for what lies in an image.
    """

    source: Path
    target: Path
    read_only: bool = False
    options: str = ""
    told: str = ""

    def __str__(self) -> str:
        words = ",".join(filter(None, ("ro" if self.read_only else "", self.options)))
        return f"{self.source}:{self.target}{':' if words else ''}{words}"


def asked(
    words: Iterable[str], env: Mapping[str, str] = os.environ, say: Callable[[str], None] = lambda _: None
) -> tuple[Bind, ...]:
    """Return the binds of the caller's variables and of the command line; of two at one target the later one counts.

    What a variable says may be the site's, for its images: what cannot be is told of, and left out. Raises
    UsageProblem for a --bind that cannot be understood, or whose source is not there.
    """
    found = {}
    for name in VARIABLES:
        for word in of_variable(env.get(name, "")):
            try:
                bind = replace(parsed(word, f"{name}: {word}"), told=name)
            except UsageProblem as error:
                say(f"{error.what} {error.why or error.fix} It is left out.")
                continue
            found[bind.target] = bind
    for word in words:
        bind = parsed(word, f"--bind {word}")
        if bind.options:
            raise UsageProblem(what=f"--bind {word}: it cannot be understood.", fix="Write SOURCE:TARGET[:ro].")
        found[bind.target] = bind
    return tuple(found.values())


def of_variable(text: str) -> Iterator[str]:
    """Yield the binds of a variable, in which commas stand between binds and between the options of one."""
    held = ""
    for word in filter(None, text.split(",")):
        if held and OPTION.fullmatch(word):
            held += f",{word}"
            continue
        if held:
            yield held
        held = word
    if held:
        yield held


def parsed(word: str, given: str) -> Bind:
    """Return one bind. Raises UsageProblem."""
    source, _, rest = word.partition(":")
    target, colon, last = rest.partition(":")
    options = last.split(",") if colon else []
    target = target or ("" if ":" in word else source)
    if not source or not target or not all(map(OPTION.fullmatch, options)) or "," in source + target:
        is_long = "," in source + target or bool(options)
        raise UsageProblem(
            what=f"{given}: it cannot be understood.",
            why="A comma or a colon can be in neither path: Apptainer takes them for its own."
            if is_long
            else "A path is missing.",
            fix="Write SOURCE:TARGET[:ro], one at a time; give a folder of such a name another one by a symbolic link.",
        )
    if not target.startswith("/") or ".." in Path(target).parts or target == "/":
        raise UsageProblem(what=f"{given}: {target} is no absolute path below /.", fix="Write SOURCE:/TARGET.")
    path = Path(source).absolute()
    try:
        path.stat()
    except OSError as error:
        raise UsageProblem(
            what=f"{given}: there is no {source} on this machine that can be used ({error.strerror}).",
            fix="Correct it, or leave it out.",
        ) from error
    return Bind(
        source=path,
        target=Path(target),
        read_only="ro" in options,
        options=",".join(one for one in options if "=" in one),
    )


def fitting(binds: Iterable[Bind], say: Callable[[str], None], *, has_namespace: bool = True) -> tuple[Bind, ...]:
    """Return the binds to be shown without a container; those of variables that cannot be are told of, and left out."""
    fit = []
    for bind in binds:
        reason = unfit(bind, has_namespace=has_namespace) if bind.told else ""
        if reason:
            say(f"{bind.told}: {bind} is left out, which {reason}")
        else:
            fit.append(bind)
    return tuple(fit)


def unfit(bind: Bind, *, has_namespace: bool) -> str:
    """Say why a bind can be shown by a container alone; nothing if it needs none."""
    if bind.options:
        return "is of an image, for a container"
    if bind.source == bind.target:
        return ""
    if not has_namespace:
        return "needs a user namespace, of which this user can make none here"
    if not bind.target.exists():
        return "" if len(bind.target.parts) <= NEW_PARTS else "has a place that is not there outside of a container"
    if bind.source.is_dir() != bind.target.is_dir():
        return "would put a folder in the place of a file, or a file in that of a folder"
    return ""


def for_namespace(binds: Iterable[Bind]) -> list[str]:
    """Return the words that mount_namespace.py takes, of what is not there already."""
    words = []
    for bind in binds:
        if bind.source != bind.target:
            words += ["bind-ro" if bind.read_only else "bind", str(bind.source), str(bind.target)]
    return words
