"""Is the environment still what was installed and passed?"""

from __future__ import annotations

from pathlib import PurePath

from envkit.environments.manifest import Damage, is_harmless
from envkit.environments.venv import normalized
from envkit.verify.checks.nodes import all_went_well, listing, warned
from envkit.verify.outcome import FileChange, Ranks, Result


def drift(ranks: Ranks) -> list[Result]:
    """What has changed since the installation, by kind; nothing for an environment that envkit did not install."""
    changes = ranks.expected.drift
    if changes is None:
        return []
    kinds = ("horovod", "packages", "modules", "mpi")
    by_kind = {kind: [_words(change) for change in changes if change.kind == kind] for kind in kinds}
    found = [ranks.outcome("drift", kind, what=listing(what)) for kind, what in by_kind.items() if what]
    return found or [ranks.outcome("drift", "pass")]


def venv(ranks: Ranks) -> list[Result]:
    """What lies in the virtual environment that was named of packages that the environment has, too."""
    if not ranks.expected.venv:
        return []
    there = ranks.expected.in_venv
    found = []
    if others := found_first(ranks):
        found = [ranks.outcome("venv", "first", folder=ranks.expected.venv, what=listing(others))]
    if not there and not found:
        return [ranks.outcome("venv", "pass", folder=ranks.expected.venv)]
    names = " ".join(one.partition(" ")[0] for one in there)
    if there:
        found.insert(0, ranks.outcome("venv", "shadows", folder=ranks.expected.venv, what=listing(there), names=names))
    return [warned(one, harmless=all_went_well(ranks)) for one in found]


def found_first(ranks: Ranks) -> list[str]:
    """What ranks find of other versions than the environment has, and that does not lie in the folder itself."""
    own = {one.partition(" ")[0] for one in ranks.expected.in_venv}
    met = {(normalized(name), version) for facts in ranks.facts for name, version in facts.installed.items()}
    return [
        f"{name} {version} (the environment has {ranks.expected.fixed[name]})"
        for name, version in sorted(met)
        if name in ranks.expected.fixed.keys() - own and normalized(version) != normalized(ranks.expected.fixed[name])
    ]


def damage(ranks: Ranks) -> list[Result]:
    """The files that are not as they were when the environment was built; those that were added if a rank met them."""
    said = "\n".join(ranks.said())
    damage = [one for one in ranks.expected.damage if not is_harmless(one)]
    found = [one for one in damage if one.how != "added" or one.path in said or is_always_run(one)]
    if not found:
        return of_host(ranks)
    modules = list(dict.fromkeys(one.module for one in found))
    what = listing([f"{one.path} ({one.how})" for one in found])
    return [ranks.outcome("damage", "found", what=what, modules=", ".join(modules), count=len(found))]


def of_host(ranks: Ranks) -> list[Result]:
    """The files of the machine's own MPI that are not as they were installed."""
    found = ranks.expected.host_files
    if not found:
        return []
    packages = " ".join(dict.fromkeys(one.package for one in found if one.package))
    values = {"what": listing([str(one) for one in found]), "path": found[0].path, "packages": packages}
    return [ranks.outcome("damage", "mpi-package" if packages else "mpi", **values)]


def broken(ranks: Ranks) -> list[Result]:
    """Where all passed: a program or a library that is not as it was built, which something else may use."""
    found = ranks.expected.broken
    if found is None:
        return []
    return [ranks.outcome("damage", "unused", path=found.path, how=found.how, module=found.module)]


def is_always_run(damage: Damage) -> bool:
    """Whether every Python of the environment runs a file when it starts, and tells nobody."""
    return damage.path.endswith((".pth", "/sitecustomize.py", "/usercustomize.py"))


def _words(change: FileChange) -> str:
    """A file and what became of it; a package by its name and version."""
    path = PurePath(change.path)
    name = path.parent.name.removesuffix(".dist-info") if change.kind == "packages" else change.path
    return f"{name} {change.how}"


CHECKS = (drift, venv)
EXPLAINING = (damage,)
