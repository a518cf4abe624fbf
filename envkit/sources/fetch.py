"""Gets every source of a plan into one checked cache, so that a build needs no network.

``missing`` looks, ``ask`` asks, ``fetch`` downloads; ``write_bundle`` and ``read_bundle`` carry sources to a
machine without a network. EasyBuild's sourcepath points at the cache.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from envkit.errors import ChecksumMismatch, SourcesMissing
from envkit.sources.availability import Answers, ask
from envkit.sources.bundle import BundleManifest, admit, contradictions, read_bundle, read_manifest, write_bundle
from envkit.sources.download import Download, FetchEvent, FetchState, Unavailable
from envkit.sources.index import Candidate, FileStore
from envkit.sources.source_cache import Source, SourceCache, distinct

__all__ = [
    "Answers",
    "BundleManifest",
    "FetchEvent",
    "FetchState",
    "FileStore",
    "Source",
    "admit",
    "ask",
    "contradictions",
    "damaged",
    "fetch",
    "missing",
    "place",
    "read_bundle",
    "read_manifest",
    "write_bundle",
]

UNPINNED = "its recipe pins no SHA-256, so that no download of it can be trusted"
WRONG_CONTENT = (
    "What is offered is damaged, or not what the author of the recipe saw. Get the right file from a site "
    "that has it and put it into PREFIX/sources; change the checksum in the recipe only if you know why."
)
NOT_FETCHED = (
    "Check the network, the proxy and pip's configuration (python -m pip config list), then repeat the "
    "command: what is complete is kept. Files that you put into PREFIX/sources under these names are used, too."
)


def missing(sources: Sequence[Source], cache: Path) -> list[Source]:
    """Return the sources that a build would lack, each file once. A file is hashed only if it changed.

    Changes nothing.
    """
    here = SourceCache(cache)
    return [source for source in distinct(sources) if not here.holds(source)]


def damaged(sources: Sequence[Source], cache: Path) -> list[str]:
    """Return what to say of each source that is in the cache with another content than is pinned. Changes nothing."""
    here = SourceCache(cache)
    absent = [source for source in distinct(sources) if not here.holds(source)]
    return [f"{place}: {note}" for place, note in wrong(absent, here).items()]


def fetch(
    sources: Sequence[Source],
    cache: Path,
    *,
    offline: bool,
    progress: Callable[[FetchEvent], None],
    stack: str = "STACK",
    kept: Sequence[FileStore] = (),
    known: Mapping[Source, Candidate] | None = None,
) -> None:
    """Get what is missing into ``cache``; offline, only say what is missing, and change nothing.

    What is in the cache with another content is set aside, which is told as SET_ASIDE.

    ``progress`` is called from several threads, one at a time. ``stack`` is named in what to do next. What is
    ``kept`` somewhere is taken from there before it is sought in an index, and there first where it is ``known`` to be.

    Raises one SourcesMissing or ChecksumMismatch for all sources together, DiskFull, NotWritable, and
    HostProblem if pip's configuration is unusable.
    """
    wanted = distinct(sources)
    here = SourceCache(cache)
    if not offline:
        here.prepare()
    try:
        absent = [source for source in wanted if not here.holds(source)]
        history = wrong(absent, here) if offline else set_wrong_aside(absent, here, progress)
        unpinned = [source for source in absent if source.sha256 is None]
        pinned = [source for source in absent if source.sha256 is not None]
        problems = [Unavailable(source=source, reasons=[UNPINNED]) for source in unpinned]
        if offline:
            problems += [Unavailable(source=source, reasons=[]) for source in pinned]
        elif pinned:
            problems += Download(here, progress, pinned, kept, known).all()
    finally:
        if not offline:
            here.save_stamps()
    if problems:
        raise all_in_one(problems, len(wanted), history, cache, offline=offline, stack=stack)


def place(cache: Path, name: str, content: bytes, sha256: str) -> None:
    """Put a file that comes from elsewhere into the cache, checked. Raises DiskFull and NotWritable."""
    here = SourceCache(cache)
    if here.sha256(name) != sha256:
        here.store(name, [content], sha256)
    here.save_stamps()


def wrong(absent: Sequence[Source], here: SourceCache) -> dict[str, str]:
    """Return what to say of each source that the cache has with another content, by its place."""
    hashes = {source: here.sha256(source.place) for source in absent}
    return {
        source.place: f"sources/ has it with SHA-256 {actual} instead of {source.sha256}"
        for source, actual in hashes.items()
        if actual
    }


def set_wrong_aside(
    absent: Sequence[Source], here: SourceCache, progress: Callable[[FetchEvent], None]
) -> dict[str, str]:
    """Set aside what the cache has with another content; return what to say of it, by its place."""
    history = {}
    for number, source in enumerate(absent, 1):
        if actual := here.sha256(source.place):
            bad = here.set_aside(source.place, actual)
            note = f"sources/ had it with SHA-256 {actual} instead of {source.sha256}; now {bad.name}"
            history[source.place] = note
            progress(
                FetchEvent(
                    state=FetchState.SET_ASIDE,
                    filename=source.filename,
                    number=number,
                    count=len(absent),
                    note=note,
                )
            )
    return history


def all_in_one(
    problems: Sequence[Unavailable],
    count: int,
    history: dict[str, str],
    cache: Path,
    *,
    offline: bool,
    stack: str,
) -> SourcesMissing | ChecksumMismatch:
    """Say in one error what became of all sources that could not be had."""
    number = f"{len(problems)} of {count} sources"
    why = "\n".join(line(problem, history) for problem in problems)
    unpinned = [problem.source for problem in problems if problem.source.sha256 is None]
    advice = [
        f"{source.place}: add its SHA-256 to {source.needed_by}, or put the file into PREFIX/sources yourself."
        for source in unpinned
    ]
    if all(problem.wrong_content or problem.source.place in history for problem in problems):
        advice += [elsewhere(stack)] if offline else [WRONG_CONTENT]
        return ChecksumMismatch(
            what=f"The content of {number} is not what the recipe pins.", why=why, fix="\n".join(advice)
        )
    if len(unpinned) < len(problems):
        advice += [elsewhere(stack)] if offline else [NOT_FETCHED]
    what = f"missing from {cache}" if offline else f"could not be fetched into {cache}"
    return SourcesMissing(what=f"{number} {what}.", why=why, fix="\n".join(advice))


def line(problem: Unavailable, history: dict[str, str]) -> str:
    """Return one source that could not be had, with the reasons below it."""
    source = problem.source
    earlier = [history[source.place]] if source.place in history else []
    return "\n    ".join([f"{source.place} (for {source.needed_by})", *earlier, *problem.reasons])


def elsewhere(stack: str) -> str:
    """Say how sources come from a machine that has a network."""
    return (
        f"Where there is a network and this prefix: envkit fetch {stack}\n"
        f"Or carry them over. There: envkit fetch {stack} --bundle FILE.tar\n"
        f"and here: envkit install {stack} --bundle FILE.tar"
    )
