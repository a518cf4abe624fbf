"""Is the environment still what was installed and passed?"""

from __future__ import annotations

from pathlib import PurePath

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


def _words(change: Change) -> str:
    """A file and what became of it; a package by its name and version."""
    path = PurePath(change.path)
    name = path.parent.name.removesuffix(".dist-info") if change.kind == "packages" else change.path
    return f"{name} {change.how}"
