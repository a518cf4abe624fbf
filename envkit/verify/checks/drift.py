"""Is the environment still what was installed and passed?"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from pathlib import PurePath

from envkit.environments.manifest import Damage, is_harmless, opening
from envkit.environments.venv import normalized
from envkit.verify.checks.nodes import all_went_well, listing, warned
from envkit.verify.outcome import FileChange, Ranks, Result
from envkit.verify.settings import is_in_search_path

MODULE = re.compile(r"/site-packages/(\w+)(?:\.[\w.-]+)?$")  # a package by its folder, or a file
NAMED = re.compile(r"\b(?:module|named|from) '(\w+)")  # in the words of Python's errors


def drift(ranks: Ranks) -> list[Result]:
    """The changes since the installation, by kind; nothing for an environment that envkit did not install."""
    changes = ranks.expected.drift
    if changes is None:
        return []
    kinds = ("horovod", "packages", "modules", "mpi")
    by_kind = {kind: [words(change) for change in changes if change.kind == kind] for kind in kinds}
    results = [ranks.outcome("drift", kind, what=listing(what)) for kind, what in by_kind.items() if what]
    return results or [ranks.outcome("drift", "pass")]


def venv(ranks: Ranks) -> list[Result]:
    """The packages that the environment has and the virtual environment that was named has, too."""
    if not ranks.expected.venv:
        return []
    packages = ranks.expected.in_venv
    results = []
    if others := found_first(ranks):
        results = [ranks.outcome("venv", "first", folder=ranks.expected.venv, what=listing(others))]
    if not packages and not results:
        return [ranks.outcome("venv", "pass", folder=ranks.expected.venv)]
    names = " ".join(package.partition(" ")[0] for package in packages)
    if packages:
        results.insert(
            0, ranks.outcome("venv", "shadows", folder=ranks.expected.venv, what=listing(packages), names=names)
        )
    return [warned(result, harmless=all_went_well(ranks)) for result in results]


def found_first(ranks: Ranks) -> list[str]:
    """The packages that ranks find in other versions than the environment has, and not in the folder itself."""
    own = {package.partition(" ")[0] for package in ranks.expected.in_venv}
    met = {(normalized(name), version) for facts in ranks.facts for name, version in facts.installed.items()}
    return [
        f"{name} {version} (the environment has {ranks.expected.fixed[name]})"
        for name, version in sorted(met)
        if name in ranks.expected.fixed.keys() - own and normalized(version) != normalized(ranks.expected.fixed[name])
    ]


def damage(ranks: Ranks) -> list[Result]:
    """The files that are not as they were when the environment was built; those that were added if a rank met them."""
    output = "\n".join(ranks.said())
    changed = [file for file in ranks.expected.damage if not is_harmless(file)]
    named = set(NAMED.findall(output))
    files = [file for file in changed if file.how != "added" or is_met(file, output, named)]
    if not files:
        return of_host(ranks)
    if closed := [file for file in files if file.how == "unreadable"]:
        what = listing([f"{file.path} ({file.access})" for file in closed])
        of = ", ".join(dict.fromkeys(file.module for file in closed))
        return [ranks.outcome("damage", "unreadable", what=what, modules=of, command=opening(closed))]
    modules = list(dict.fromkeys(file.module for file in files))
    what = listing([f"{file.path} ({file.how})" for file in files])
    return [ranks.outcome("damage", "found", what=what, modules=", ".join(modules), count=len(files))]


def of_host(ranks: Ranks) -> list[Result]:
    """The files of the machine's own MPI that are not as they were installed."""
    files = ranks.expected.host_files
    if not files:
        return []
    packages = " ".join(dict.fromkeys(file.package for file in files if file.package))
    values = {"what": listing([str(file) for file in files]), "path": files[0].path, "packages": packages}
    if all(is_in_search_path(file, ranks.expected.settings) for file in files):
        return [ranks.outcome("damage", "mpi-search-path", **values)]
    return [ranks.outcome("damage", "mpi-package" if packages else "mpi", **values)]


def broken(ranks: Ranks) -> list[Result]:
    """A program or a library that is not as it was built, which something else may use, though all passed."""
    file = ranks.expected.broken
    if file is None:
        return []
    if file.how == "unreadable":
        what, command = f"{file.path} ({file.access})", opening([file])
        return [ranks.outcome("damage", "unused-unreadable", what=what, module=file.module, command=command)]
    return [ranks.outcome("damage", "unused", path=file.path, how=file.how, module=file.module)]


def is_met(added: Damage, output: str, named: AbstractSet[str]) -> bool:
    """Whether a rank met a file that was added: its path, or the module that it is or is of, was said of a failure.

    Python does not say where a module lies of which it lacks a part.
    """
    module = MODULE.search(added.path)
    return added.path in output or is_always_run(added) or (module is not None and module[1] in named)


def is_always_run(damage: Damage) -> bool:
    """Whether every Python of the environment runs a file when it starts, and tells nobody."""
    return damage.path.endswith((".pth", "/sitecustomize.py", "/usercustomize.py"))


def words(change: FileChange) -> str:
    """A file and what became of it; a package by its name and version."""
    path = PurePath(change.path)
    name = path.parent.name.removesuffix(".dist-info") if change.kind == "packages" else change.path
    return f"{name} {change.how}"


CHECKS = (drift, venv)
EXPLAINING = (damage,)
