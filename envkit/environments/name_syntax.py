"""Which words can be names of environments and of modules: they become file names and words of shells.

What is refused here is never given to any of them. Every name in EasyBuild's own collection passes.
"""

import re
from collections.abc import Iterable

from envkit.errors import UsageProblem

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,149}")
MODULE = re.compile(r"(?=.{1,200}\Z)\.?[A-Za-z0-9_][A-Za-z0-9_.+@=~-]*(/\.?[A-Za-z0-9_][A-Za-z0-9_.+@=~-]*)*")


def is_name(text: str) -> bool:
    """Say whether a text can be the name of an environment: ASCII letters, digits and _ . + -, none of . + - first."""
    return NAME.fullmatch(text) is not None


def is_module(text: str) -> bool:
    """Say whether a text can be a module as a modules tool lists it, such as gcc/13.2 or partition/G."""
    return MODULE.fullmatch(text) is not None


def shown(text: str) -> str:
    """Return a text as it can be printed: one with characters that a terminal obeys as Python writes it."""
    return text if text.isprintable() else ascii(text)


def require_modules(words: Iterable[str], option: str) -> None:
    """Raise UsageProblem for a word of an option that no modules tool should be given."""
    for word in words:
        if not is_module(word):
            raise UsageProblem(
                what=f"{option} {word!a}: that cannot be a module.",
                why="Modules tools hand what they are given to a shell.",
                fix="Name it as 'module avail' lists it: letters, digits and _ . + - @ = ~ between slashes.",
            )
