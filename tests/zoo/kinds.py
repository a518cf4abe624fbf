"""The kinds there are: each breaks a world in one way, and knows what is then true."""

from __future__ import annotations

import hashlib
import importlib
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .world import World

__all__ = ["Kind", "World", "combined", "every", "find", "is_held_out"]

Do = Callable[[World], None]
During = Callable[[World, "subprocess.Popen[bytes]"], None]
FAMILIES = sorted(path.stem.removeprefix("kinds_") for path in Path(__file__).parent.glob("kinds_*.py"))
HELD_OUT = 40


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to break a world, or an oddity that breaks nothing.

    ``true`` must be found in the cause that is shown; without it the kind is harmless, and must pass. ``mended``: "run"
    where the commands of the remedy must repair it, "words" where no command can: then ``words`` must be found in the
    remedy, and ``never`` must not. ``either``: a small job is tried first, and where that works the kind is harmless.
    ``rounds``: so many remedies may be needed, one after the other. ``needs`` is a program or library that may not be
    here, as its Debian package has it. ``renames``: not so in a layer of a container, where a folder cannot be renamed.
    """

    name: str
    group: str
    did: str
    do: Do
    true: str = ""
    mended: Literal["run", "words"] = "run"
    words: str = ""
    never: str = r"--rebuild|envkit install|envkit repair"
    options: tuple[str, ...] = ()
    during: During | None = None
    either: bool = False
    rounds: int = 1
    renames: bool = True
    needs: str = ""
    stacks: tuple[str, ...] = ("pytorch", "tensorflow")

    @property
    def harmless(self) -> bool:
        """Whether nothing is broken."""
        return not self.true

    def is_said(self, remedy: str) -> bool:
        """Whether a remedy says what is to be done."""
        told = re.search(self.words, remedy, re.IGNORECASE)
        wrong = self.never and re.search(self.never, remedy, re.IGNORECASE)
        return bool(remedy and told and not wrong)


def every(used: Sequence[str], seed: int) -> list[Kind]:
    """Every kind, for an environment that uses these files."""
    found = [kind for family in FAMILIES for kind in of_family(family, used, seed)]
    names = [kind.name for kind in found]
    twice = {name for name in names if names.count(name) > 1}
    assert not twice, twice
    return found


def of_family(family: str, used: Sequence[str], seed: int) -> Iterator[Kind]:
    """The kinds of one module."""
    yield from importlib.import_module(f"{__package__}.kinds_{family}").kinds(used, seed)


def find(name: str, used: Sequence[str], seed: int) -> Kind:
    """The kind of that name."""
    return next(kind for kind in every(used, seed) if kind.name == name)


def is_held_out(name: str) -> bool:
    """Whether a kind is of those that nobody who works on the verdict is told of: the same ones for ever."""
    return hashlib.sha256(f"zoo {name}".encode()).digest()[0] * 100 // 256 < HELD_OUT


def combined(kinds: Sequence[Kind]) -> Kind:
    """Several at once: each one's cause is a true one."""

    def do(world: World) -> None:
        for kind in kinds:
            kind.do(world)

    return Kind(
        name="&".join(kind.name for kind in kinds),
        group="two at once",
        did="; ".join(kind.did for kind in kinds),
        do=do,
        true="|".join(f"(?:{kind.true})" for kind in kinds if kind.true),
        options=next((kind.options for kind in kinds if kind.options), ()),
        during=next((kind.during for kind in kinds if kind.during), None),
    )
