"""Is the environment still what was installed and passed?"""

from __future__ import annotations

from pathlib import PurePath

from envkit.environments.manifest import Damage, is_harmless
from envkit.verify.checks.nodes import listing
from envkit.verify.outcome import Change, Ranks, Result


def drift(ranks: Ranks) -> list[Result]:
    """What has changed since the installation, by kind; nothing for an environment that envkit did not install."""
    changes = ranks.expected.drift
    if changes is None:
        return []
    kinds = ("horovod", "packages", "modules", "mpi")
    by_kind = {kind: [_words(change) for change in changes if change.kind == kind] for kind in kinds}
    found = [ranks.outcome("drift", kind, what=listing(what)) for kind, what in by_kind.items() if what]
    return found or [ranks.outcome("drift", "pass")]


def damage(ranks: Ranks) -> list[Result]:
    """The files that are not as they were when the environment was built; those that were added if a rank met them."""
    said = "\n".join(ranks.said())
    damage = [one for one in ranks.expected.damage if not is_harmless(one)]
    found = [one for one in damage if one.how != "added" or one.path in said or is_always_run(one)]
    if not found:
        cut = ranks.expected.cut
        return [ranks.outcome("damage", "mpi", what=listing(cut), path=cut[0])] if cut else []
    modules = list(dict.fromkeys(one.module for one in found))
    what = listing([f"{one.path} ({one.how})" for one in found])
    return [ranks.outcome("damage", "found", what=what, modules=", ".join(modules), count=len(found))]


def broken(ranks: Ranks) -> list[Result]:
    """Where all passed: a program or a library that is not as it was built, which something else may use."""
    found = ranks.expected.broken
    if found is None:
        return []
    return [ranks.outcome("damage", "unused", path=found.path, how=found.how, module=found.module)]


def is_always_run(damage: Damage) -> bool:
    """Whether every Python of the environment runs a file when it starts, and tells nobody."""
    return damage.path.endswith((".pth", "/sitecustomize.py", "/usercustomize.py"))


def _words(change: Change) -> str:
    """A file and what became of it; a package by its name and version."""
    path = PurePath(change.path)
    name = path.parent.name.removesuffix(".dist-info") if change.kind == "packages" else change.path
    return f"{name} {change.how}"
