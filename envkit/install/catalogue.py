"""What can be installed and what is, as values and as text."""

import os
import pwd
from contextlib import suppress
from pathlib import Path

import msgspec

from envkit.environments import filelocks, receipt, trust
from envkit.environments.names import is_name, shown
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import Receipt
from envkit.errors import EnvironmentDamaged, HostProblem
from envkit.machine.host import Platform
from envkit.methods.installed import every
from envkit.planning.stack import stacks

SAID = {"gone": "has gone", "changed": "has changed", "added": "was added"}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``envkit list``; ``state``: installed, damaged, begun, to be installed, or not for this machine."""

    name: str
    method: str
    framework: str
    accelerator: str
    state: str


def unfinished(tree: Tree, note: Path) -> str:
    """Say how far an installation is that has begun; somebody else's cannot be asked."""
    with suppress(OSError, KeyError):
        if (uid := note.lstat().st_uid) != os.geteuid():
            return f"begun by {pwd.getpwuid(uid).pw_name}"
    lock = tree.locks / f"stack-{note.stem}.lock"
    if lock.exists() and filelocks.is_held(lock):
        return "being installed now"
    return "begun, not finished: 'envkit install' resumes it"


def entries(prefix: Prefix) -> list[Entry]:
    """Return an entry for each stack and each installed environment. Raises NotReadable."""
    here = Platform.own()
    there = {name: entry(name, found, tree, prefix) for tree, name, found in reversed(list(every(prefix)))}
    found = list(there.values())
    trees = [prefix.tree(here, release) for release in {stack.release for stack in stacks()}]
    begun = {
        path.stem: unfinished(tree, path)
        for tree in trees
        for path in tree.unfinished.glob("[!.]*.json")
        if is_name(path.stem)
    }
    known = {stack.name: stack for stack in stacks()}
    for name in [*known, *sorted(begun.keys() - known.keys())]:
        if name in there:
            continue
        stack = known.get(name)
        if name in begun:
            state = begun[name]
        elif stack is not None and not stack.runs_on(here):
            state = f"not for Python {here.python} on {here.machine}"
        else:
            state = "can be installed"
        found.append(
            Entry(
                name=name,
                method=stack.method if stack else "easybuild",
                framework=stack.framework if stack else "none",
                accelerator=stack.accelerator.value if stack else "cpu",
                state=state,
            )
        )
    return found


def entry(name: str, found: Receipt | EnvironmentDamaged, tree: Tree, prefix: Prefix) -> Entry:
    """Return the line of an environment that is there, or of a receipt that cannot be read."""
    if isinstance(found, EnvironmentDamaged):
        state = f"damaged: {found.what} {found.why}"
        return Entry(name=shown(name), method="unknown", framework="unknown", accelerator="unknown", state=state)
    where = "" if tree.root.parent == prefix.root else f" in {tree.root.parent}"
    proven = f", verified {found.verified}" if found.horovod else f" {found.verified}, no Horovod in it"
    state = f"installed{where}{proven}"
    if found.copied_from:
        state = f"damaged: it was copied or moved here from {found.copied_from}"
    elif lost := damage(found):
        state = f"damaged: {lost}"
    elif refused := distrust(tree, found):
        state = f"not used: {refused}"
    return Entry(
        name=found.name,
        method=found.method,
        framework=found.framework,
        accelerator=found.accelerator,
        state=state,
    )


def distrust(tree: Tree, found: Receipt) -> str:
    """Say why an environment is not entered that somebody else can change; nothing if nobody can."""
    try:
        trust.require(tree.root.parent, tree, receipt.path_of(tree, found.name))
    except HostProblem as error:
        return error.why
    return ""


def damage(found: Receipt) -> str:
    """Say which file of an environment is damaged, as far as sizes tell it, and what mends it; nothing if none is."""
    lost = found.broken()
    return f"{shown(lost.path)} {SAID[lost.how]}; mend it with 'envkit repair {found.name}'" if lost else ""


def to_json(found: list[Entry]) -> str:
    """Return the entries as versioned JSON."""
    return msgspec.json.format(msgspec.json.encode({"version": 1, "environments": found})).decode()


def receipt_json(found: Receipt) -> str:
    """Return a receipt as JSON."""
    return msgspec.json.format(msgspec.json.encode(found)).decode()


def came_with(found: Receipt) -> str:
    """Say where the MPI of an environment is from, and what that means; nothing of the machine's own."""
    if found.wheel_mpi:
        return " (of a wheel: TCP alone between nodes, no fast network)"
    return " (came with it)" if found.mpi and found.mpi.embedded else ""


def describe(found: Receipt) -> str:
    """Return a receipt for people."""
    mpi = f"{found.mpi.family} {found.mpi.version}{came_with(found)}" if found.mpi else "none"
    lines = {
        "Name": found.name,
        "Method": found.method,
        "Framework": f"{found.framework} on {found.accelerator}",
        "Python": found.python,
        "MPI": mpi,
        "Verified": found.verified if found.horovod else "no: there is no Horovod in it",
        "Horovod": found.horovod or "none",
        "Tree": found.tree,
        "Log": found.log,
        **found.described(),
    }
    if lost := damage(found):
        lines["Damaged"] = lost
    return "\n".join(f"{key + ':':<11} {value}" for key, value in lines.items())
