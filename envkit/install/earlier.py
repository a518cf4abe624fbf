"""The remains of an earlier installation: what is to be resumed, and why it failed, which the next plan says."""

import os
from collections.abc import Iterator

import msgspec
from rich.console import Console

from envkit.environments import receipt
from envkit.errors import BuildFailed
from envkit.methods.installed import named_apart
from envkit.planning.method import Installation
from envkit.report.progress import say


def remember(work: Installation, error: BuildFailed) -> None:
    """Write down why a build failed, and with what, beside the note that it has begun."""
    note = receipt.unfinished(work.tree, work.stack.name)
    if note is not None:
        why = next(iter(error.why.splitlines()), "")
        updated = msgspec.structs.replace(note, failed=f"{error.what} {why}".strip(), made_of=made_of(work))
        receipt.write(work.tree.unfinished / f"{work.stack.name}.json", updated)


def made_of(work: Installation) -> dict[str, str]:
    """Return what a build depends on, by what it is called."""
    machine, last = work.lock.machine, work.lock.parts[-1]
    named = {"Python": machine.python, "compiler": machine.compiler, "MPI": machine.mpi}
    return {**named, "loaded modules": " ".join(machine.load), "recipe": f"{last.recipe} {last.sha256[:12]}"}


def failed(work: Installation) -> Iterator[str]:
    """Yield what failed here, and whether anything has changed since."""
    note = receipt.unfinished(work.tree, work.stack.name)
    if note is None or not note.failed:
        return
    yield f"Failed:   {note.began}: {note.failed}"
    current = made_of(work)
    changed = [f"{name} {was or 'none'}" for name, was in note.made_of.items() if current.get(name, "") != was]
    since = f"That was with {', '.join(changed)}." if changed else "Nothing that counts has changed since."
    yield f"          {since} Log: {note.log}"


def beside(work: Installation) -> Iterator[str]:
    """Yield which environments of the same name other Pythons have, and what they are called from then on."""
    name = work.stack.name
    for tree in work.request.prefix.trees(os.uname().machine):
        apart = named_apart(tree, name)
        if tree.root != work.tree.root and apart != name and receipt.path_of(tree, name).is_file():
            yield f"Beside:   another Python's {name} stays as it is, and is called {apart}"


def say_resumed(work: Installation, console: Console) -> None:
    """Say what an earlier installation that did not end has left to do."""
    note = receipt.unfinished(work.tree, work.stack.name)
    if note is None:
        return
    for line in failed(work):
        say(console, line)
    missing = work.missing
    done, remaining = len(work.steps) - len(missing), ", ".join(missing) or "the verification"
    say(console, f"Resuming what began {note.began} and ended while {note.stage} (log: {note.log}).")
    say(console, f"{done} of {len(work.steps)} {work.unit} are in place; left: {remaining}.")
