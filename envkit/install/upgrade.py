"""Upgrading: what has changed since an environment was installed, and building it as it is planned now.

Modules under new names are built beside the old ones; those that keep their names are built in their place, as by
``--rebuild``, and come back if the new ones do not pass.
"""

import errno
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

import msgspec
from rich.console import Console

from envkit.environments import lockfile, receipt, trust
from envkit.environments.lockfile import Lock, LockedPart
from envkit.environments.prefix import Prefix, Tree, not_writable
from envkit.environments.receipt import Receipt
from envkit.errors import EnvironmentDamaged
from envkit.install import install, listing, repair
from envkit.methods import installed
from envkit.planning.method import Installation
from envkit.planning.request import Request
from envkit.planning.stack import stacks
from envkit.report.progress import say

NAMED = re.compile(r"(?P<framework>[a-z]+)-(?P<version>\d+(\.\d+)*)(?P<rest>-.+)?")


class ModuleChange(msgspec.Struct, frozen=True, kw_only=True):
    """A module or layer that is another one now; ``files`` are the sources and patches of it that have changed."""

    what: Literal["changed", "added", "removed"]
    was: str | None
    now: str | None
    files: tuple[str, ...] = ()


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``envkit upgrade``.

    ``state``: nothing has changed ("current"), something has and was not built ("outdated", of --dry-run), it was built
    and has passed ("upgraded"), or does not pass, so that the old one is as it was ("kept"). ``besides`` is what is
    other on this machine and alone no reason to build again. ``newer`` are stacks of a newer framework, which can be
    installed beside it. ``damaged`` says which file of the environment is damaged, null if none is.
    """

    version: int = 1
    name: str
    state: Literal["current", "outdated", "upgraded", "kept"]
    installed: str
    changes: tuple[ModuleChange, ...]
    besides: tuple[str, ...]
    newer: tuple[str, ...]
    damaged: str | None


def upgrade(prefix: Prefix, name: str | None, asked: Request, *, is_dry: bool, console: Console) -> Upgrade:
    """Build an environment as it is planned now, if that is another than is installed; say what has changed.

    ``asked`` has the options of the build. Raises EnvironmentMissing, EnvironmentDamaged where its receipt cannot be
    read or does not tell how it was made, and what an installation does.
    """
    tree, environment = installed.placed(prefix, name)
    prefix = Prefix(root=tree.root.parent)
    trust.require(
        prefix.root, tree, receipt.path_of(tree, environment.name), [module.name for module in environment.recipes]
    )
    installed.require_in_place(tree, environment)
    work = planned(prefix, tree, environment, asked)
    was, lost = made_of(environment), listing.broken(environment)
    outcome = Upgrade(
        name=environment.name,
        state="outdated",
        installed=environment.created,
        changes=tuple(changes(was, work.lock)),
        besides=tuple(lockfile.differences(environment.lock, work.lock)) if environment.lock else (),
        newer=tuple(newer(environment)),
        damaged=lost or None,
    )
    for line in lines(outcome):
        say(console, line)
    if not outcome.changes:
        return msgspec.structs.replace(outcome, state="current")
    installed.require_idle(tree, environment.name)
    if is_dry:
        say(console, f"Build it with 'envkit upgrade {environment.name} --prefix {prefix.root}'.")
        return outcome
    if not os.access(tree.root, os.W_OK):
        raise not_writable(tree.root, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    with install.stoppable():
        report = install.install_now(work.request, console, environment)
    if report is not None and report.verdict != "pass":
        return msgspec.structs.replace(outcome, state="kept")
    unused = [
        change.was for change in outcome.changes if change.was and change.was != change.now and tree.has(change.was)
    ]
    if unused:
        say(console, f"No longer part of it: {', '.join(unused)}. 'envkit clean modules' removes what nothing uses.")
    return msgspec.structs.replace(outcome, state="upgraded")


def planned(prefix: Prefix, tree: Tree, environment: Receipt, asked: Request) -> Installation:
    """Return what an installation of the same would make now, with the MPI of the same family."""
    own = repair.asked(prefix, tree.root, environment)
    request = replace(own, rebuild=True, accepted_eulas=asked.accepted_eulas, offline=asked.offline, jobs=asked.jobs)
    work = install.prepare(request)
    is_other = bool(environment.mpi and work.host.mpi and work.host.mpi.family != environment.mpi.family)
    if environment.mpi and is_other and not (environment.mpi.embedded or environment.wheel_mpi or environment.is_image):
        return install.prepare(replace(request, mpi=environment.mpi.family))
    return work


def made_of(environment: Receipt) -> Lock | Mapping[str, str]:
    """Return what an environment was made from; of an earlier envkit, its modules with the digests of their recipes."""
    return environment.lock or {module.name: module.sha256 for module in environment.recipes}


def changes(was: Lock | Mapping[str, str], now: Lock) -> Iterator[ModuleChange]:
    """Yield each part that is another one; a module of another version is paired with the one that it was."""
    if isinstance(was, Lock):
        old = {part.name: part for part in was.parts}
    else:
        old = {name: LockedPart(name=name, recipe="", sha256=digest) for name, digest in was.items()}
    new = {part.name: part for part in now.parts}
    gone = [name for name in old if name not in new]
    for name, part in new.items():
        if name in old:
            if old[name].sha256 != part.sha256:
                yield ModuleChange(what="changed", was=name, now=name, files=files(old[name], part))
            continue
        before = next((other for other in gone if other.partition("/")[0] == name.partition("/")[0]), None)
        if before:
            gone.remove(before)
        yield ModuleChange(what="changed" if before else "added", was=before, now=name)
    yield from (ModuleChange(what="removed", was=name, now=None) for name in gone)


def files(was: LockedPart, now: LockedPart) -> tuple[str, ...]:
    """Return the sources and patches that are others, as OLD -> NEW where their names tell."""
    if not was.recipe:  # of an envkit that kept no lock
        return ()
    before, after = ({file.filename: file.sha256 for file in (*part.sources, *part.patches)} for part in (was, now))
    gone, new = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    same = sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
    return (*same, *(f"- {name}" for name in gone), *(f"+ {name}" for name in new))


def newer(environment: Receipt) -> Iterator[str]:
    """Yield the stacks that have a newer version of the same framework, by the same method on the same accelerator."""
    own = NAMED.fullmatch(environment.name)
    like = (environment.method, environment.accelerator)
    for stack in stacks():
        other = NAMED.fullmatch(stack.name)
        if own is None or other is None or (stack.method, stack.accelerator.value) != like:
            continue
        is_same = (own["framework"], own["rest"]) == (other["framework"], other["rest"])
        if is_same and version(other["version"]) > version(own["version"]):
            yield stack.name


def version(text: str) -> tuple[int, ...]:
    """Return a version as numbers."""
    return tuple(map(int, text.split(".")))


def lines(answer: Upgrade) -> Iterator[str]:
    """Yield what has changed, for people."""
    since = f"since it was installed ({answer.installed[:10]})"
    if answer.changes:
        yield f"{answer.name} has changed {since}:"
    else:
        yield f"{answer.name} is up to date: nothing of its recipes and pins has changed {since}."
    for change in answer.changes:
        if change.was != change.now:
            yield f"  {change.what:<8} {' -> '.join(filter(None, (change.was, change.now)))}"
        else:
            yield f"  {change.what:<8} {change.now}: {', '.join(change.files) or 'its recipe'}"
    yield from (
        f"  besides  {text.replace(' in the lock', ' then').replace(' here', ' now')}" for text in answer.besides
    )
    if answer.damaged:
        yield f"It is damaged: {answer.damaged}. Mend it with 'envkit repair {answer.name}'."
    if answer.newer:
        yield f"Of a newer version, beside it: {', '.join(f'envkit install {name}' for name in answer.newer)}"


def status(change: Upgrade) -> int:
    """Return the exit code: 1 where the new one does not pass, 6 where nothing has changed and it is damaged."""
    if change.state == "kept":
        return 1
    return EnvironmentDamaged.exit_code if change.state == "current" and change.damaged else 0
