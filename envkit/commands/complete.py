"""The words that a shell offers: environments, stacks, examples, sites, rules, checks. If that fails it offers nothing.

A shell runs what is in a word that it has put on the command line: only plain names are offered.
"""

import os
from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

Offer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def offering(names: Callable[[click.Context], Iterable[str]], *, paths: str = "") -> Offer:
    """Return what offers names that begin with a word; ``paths``: "file" or "dir", where a word is a path."""

    def offer(context: click.Context, _parameter: click.Parameter, word: str) -> list[CompletionItem]:
        if context.meta.get("after dashes"):
            return [CompletionItem(word, type="file")]
        if paths and ("/" in word or word.startswith((".", "~"))):
            return [CompletionItem(word, type=paths)]
        from envkit.environments.name_syntax import is_name

        try:
            return [CompletionItem(name) for name in names(context) if name.startswith(word) and is_name(name)]
        except Exception:  # a shell that completes shows no message
            return []

    return offer


def installed(context: click.Context) -> Iterable[str]:
    """Yield the names of the environments that are installed, by their files alone."""
    from envkit.environments import prefix as place

    prefixes = place.locate(context.params.get("prefix")).every
    trees = (tree for prefix in prefixes for tree in prefix.trees(os.uname().machine))
    return sorted({path.stem for tree in trees for path in tree.environments.glob("*.json")})


def can_be_installed(_context: click.Context) -> Iterable[str]:
    """Return the names of stacks, and the frameworks."""
    from envkit.planning.stack import FRAMEWORKS, stacks

    return [*FRAMEWORKS, *(stack.name for stack in stacks())]


def known_examples(_context: click.Context) -> Iterable[str]:
    """Return the names of the examples."""
    from envkit.training.example import everything

    return [example.name for example in everything()]


def known_sites(_context: click.Context) -> Iterable[str]:
    """Return the names of the sites."""
    from envkit.machine import site

    return site.names()


def known_rules(_context: click.Context) -> Iterable[str]:
    """Return the causes that diagnose knows."""
    from envkit.diagnose import rules

    return sorted(rule.id for rule in rules())


def known_checks(_context: click.Context) -> Iterable[str]:
    """Return the checks of verify that can be explained."""
    from envkit.verify.report import explained

    return sorted(explained.explainable())


def known_sessions(_context: click.Context) -> Iterable[str]:
    """Return the sessions of EESSI."""
    from envkit.eessi import sessions

    return sessions.names()


def known_repositories(_context: click.Context) -> Iterable[str]:
    """Return the repositories of EESSI's layout."""
    from envkit.eessi import repositories

    return repositories.everyone()


environments = offering(installed, paths="dir")
with_eessi = offering(lambda context: [*installed(context), "eessi"], paths="dir")
stacks = offering(can_be_installed, paths="file")
examples = offering(known_examples)
sites = offering(known_sites, paths="file")
rules = offering(known_rules)
checks = offering(known_checks)
sessions = offering(known_sessions)
repositories = offering(known_repositories)


def files(_context: click.Context, _parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Have the shell offer files."""
    return [CompletionItem(word, type="file")]


def folders(_context: click.Context, _parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Have the shell offer folders."""
    return [CompletionItem(word, type="dir")]
