"""Finding what takes room in a prefix and in envkit's own caches, by kind, and removing it.

Only what envkit knows that it made is found: in a folder that has trees of it, by what is recorded, or by what lies in
it, never by a name alone. What an installation under way may use is kept, and none can begin while something is
removed: both hold the lock ``cleaning`` of the tree. What is removed is looked for again once that is held.
"""

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import platformdirs

from envkit.easybuild.removal import remove_module
from envkit.eessi import archives, image, sessions
from envkit.environments import filelocks, receipt, replaced, trust
from envkit.environments.discard import discarded
from envkit.environments.name_syntax import is_module, is_name
from envkit.environments.prefix import Prefix, Tree, listed
from envkit.errors import EnvironmentDamaged, EnvkitError
from envkit.methods import installed
from envkit.sources.source_cache import SourceCache, is_place
from envkit.system import files, owners, record, umask
from envkit.system.temporary import OF_PROCESS, has_ended, left_in, offered, this_node

KINDS: Mapping[str, str] = {
    "sources": "sources, which the next build would fetch again",
    "damaged": "sources that were set aside as damaged, and parts of some",
    "ccache": "the compiler cache, which makes the next build quicker",
    "layers": "layers of images, which the next image would be built on",
    "logs": "logs of installations that nothing refers to",
    "modules": "modules that no environment is made of",
    "replaced": "what failed or killed installations have left beside an environment",
    "sessions": "sessions of EESSI with their caches, and its images",
    "reports": "logs of jobs, and what killed verifications have left",
    "plans": "plans, which EasyBuild would resolve again",
}
LOG = re.compile(r".+-\d{8}-\d{6}(-\d+)?")
LAYER = re.compile(r"[\w.+-]+-[0-9a-f]{20}\.(sif|json)|\.[\w.+-]+-[0-9a-f]{20}\.sif\.\d+")  # also what is half made
BAD = re.compile(r".+\.bad-[0-9a-f]{8}")
PART = re.compile(r".+\.part-(?P<pid>\d+)@(?P<host>[^/]+)")
REPORT = re.compile(r"envkit-verify-\d+-[\w.-]+")
OF_ASIDE = {"software", "modules", "built", "environments", "images", "layers"}  # what a tree has
OF_CCACHE = set("0123456789abcdef") | {"tmp", "lock", "ccache.conf", "CACHEDIR.TAG", "stats"}
A_DAY_S = 24 * 3600  # longer than any fetch
A_MONTH_S = 30 * A_DAY_S  # longer than any job
LARGEST = 64 << 20  # bytes of a log of events


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder that can be removed: how many bytes it takes, when it was last changed (ISO 8601).

    ``kept`` says why it is not removed, if that is so.
    """

    kind: str
    path: str
    size: int
    changed: str
    kept: str = ""
    removed: bool = False

    @property
    def age_s(self) -> float:
        """How long ago it was last changed (s)."""
        return time.time() - datetime.fromisoformat(self.changed).timestamp()


class Cleaning(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``envkit clean``; ``size`` is what was removed, or would be (bytes)."""

    version: int = 1
    prefix: str
    size: int
    items: tuple[Item, ...]


def item(kind: str, path: Path, kept: str = "") -> Item:
    """Return what a file or folder takes; no link in it is followed."""
    size, newest = 0, 0.0
    todo = [path]
    while todo:
        entry = todo.pop()
        with suppress(OSError):
            state = entry.lstat()
            size, newest = size + state.st_blocks * 512, max(newest, state.st_mtime)
            if entry.is_dir() and not entry.is_symlink():
                todo += entry.iterdir()
    changed = datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")
    return Item(kind=kind, path=str(path), size=size, changed=changed, kept=kept)


def find(prefix: Prefix, kinds: Sequence[str]) -> list[Item]:
    """Return what there is of these kinds, the largest first. Raises NotReadable."""
    items = [entry for kind in kinds for entry in FINDERS[kind](prefix)]
    return sorted(items, key=lambda entry: -entry.size)


def trees(prefix: Prefix) -> list[Tree]:
    """Return every tree of a prefix, of whatever machine type."""
    places = [prefix.root / name for name in listed(prefix.root)]
    return [
        Tree(root=path)
        for path in places
        if (path / "locks").is_dir() and not path.is_symlink() and not (path / "locks").is_symlink()
    ]


def known_sources(prefix: Prefix) -> set[str]:
    """Return the places in the cache of what envkit has fetched: verified in it, or recorded with a module."""
    places = set(SourceCache(prefix.sources).stamps)
    for tree in trees(prefix):
        for path in tree.root.glob("built/*.json"):
            with suppress(OSError, msgspec.DecodeError):
                part = record.read(path, receipt.Built).part
                places |= {source.filename for source in part.sources} if part else set()
    return {place for place in places if is_place(place)}


def sources(prefix: Prefix) -> Iterator[Item]:
    """Yield every source that envkit has fetched."""
    for place in sorted(known_sources(prefix)):
        path = prefix.sources / place
        if path.is_file() and replaced.is_inside(prefix.sources, place) and not path.is_symlink():
            yield item("sources", path)


def damaged(prefix: Prefix) -> Iterator[Item]:
    """Yield what was set aside as damaged, and what fetches have left that were killed; of another host after a day."""
    if not trees(prefix):
        return
    for path in prefix.sources.rglob("*.*-*"):
        part = PART.fullmatch(path.name)
        if not path.is_file() or path.is_symlink() or not (part or BAD.fullmatch(path.name)):
            continue
        entry = item("damaged", path)
        is_over = part is None or (part["host"] == os.uname().nodename and has_ended(int(part["pid"])))
        if is_over or entry.age_s > A_DAY_S:
            yield entry


def ccache(prefix: Prefix) -> Iterator[Item]:
    """Yield envkit's own compiler caches, and none that CCACHE_DIR names."""
    own = [platformdirs.user_cache_path("envkit") / "ccache", *([prefix.root / "ccache"] if trees(prefix) else [])]
    named = os.environ.get("CCACHE_DIR", "")
    for path in own:
        is_named = bool(named) and os.path.realpath(named) == os.path.realpath(path)
        if path.is_dir() and not path.is_symlink() and not is_named and {*listed(path)} <= OF_CCACHE:
            yield item("ccache", path)


def layers(prefix: Prefix) -> Iterator[Item]:
    """Yield the layers of images; what says which cache one is from stays as long as another may be built on it."""
    for tree in trees(prefix):
        names = {*listed(tree.layers)}
        is_any = any(name.endswith(".sif") for name in names)
        for name in sorted(names):
            is_needed = is_any and name.endswith(".json")
            if not is_needed and LAYER.fullmatch(name) and not (tree.layers / name).is_symlink():
                yield item("layers", tree.layers / name)


def logs(prefix: Prefix) -> Iterator[Item]:
    """Yield the folders of logs; those that a receipt or an installation that has not ended names are kept."""
    named = set[str]()
    for tree in trees(prefix):
        named |= {
            environment.log
            for _, environment in installed.all_in(tree)
            if not isinstance(environment, EnvironmentDamaged)
        }
        notes = (receipt.unfinished(tree, Path(name).stem) for name in listed(tree.unfinished))
        named |= {note.log for note in notes if note}
    for name in listed(prefix.logs):
        path = prefix.logs / name
        is_log = LOG.fullmatch(name) and is_ours(path) and is_ours(path / "events.jsonl")
        if is_log and trees(prefix) and str(path) not in named:
            yield item("logs", path)


def is_ours(path: Path) -> bool:
    """Say whether something is there, is no link, and nobody can change it who is not trusted."""
    with suppress(OSError):
        state = path.lstat()
        return not stat.S_ISLNK(state.st_mode) and owners.stranger(state, path, trust.trusted()) is None
    return False


def modules(prefix: Prefix) -> Iterator[Item]:
    """Yield the modules of a tree that no environment is made of; all are kept while one cannot be told."""
    for tree in trees(prefix):
        reason = ""
        if any(isinstance(environment, EnvironmentDamaged) for _, environment in installed.all_in(tree)):
            reason = "a receipt cannot be read that may name it"
        elif names := [Path(name).stem for name in listed(tree.unfinished) if name.endswith(".json")]:
            reason = f"the installation of {', '.join(names)} has not ended: go on with it, or 'envkit remove' it"
        used = {module.name for parts in receipt.parts_in(tree) for module in parts.modules}
        for module in made(prefix, tree):
            if not any(f"{other}/".startswith(f"{module}/") or f"{module}/".startswith(f"{other}/") for other in used):
                yield item("modules", tree.software / module, reason)


def made(prefix: Prefix, tree: Tree) -> list[str]:
    """Return the modules in a tree that envkit had built, or begun: by their records, and by its logs."""
    names = set[str]()
    for path in tree.root.glob("built/*.json"):
        with suppress(OSError, msgspec.DecodeError):
            names.add(record.read(path, receipt.Built).module)
    for path in prefix.logs.glob("*/events.jsonl"):
        if is_ours(path.parent) and is_ours(path):
            names |= set(of_log(path.parent, "begin"))
    return sorted(name for name in names if is_module(name) and (tree.software / name).is_dir())


def of_log(folder: Path, event: str) -> list[str]:
    """Return the modules that a log says were begun (``begin``), or planned (``plan``)."""
    names = list[str]()
    with suppress(OSError):
        for line in files.read(folder / "events.jsonl", LARGEST).splitlines():
            with suppress(msgspec.DecodeError, AttributeError, TypeError, RecursionError):
                fields = msgspec.json.decode(line)
                if fields.get("event") == event:
                    names += fields["modules"] if event == "plan" else [fields["module"]]
    return [name for name in names if isinstance(name, str) and is_module(name)]


def left_behind(prefix: Prefix) -> Iterator[Item]:
    """Yield what is kept of builds that failed, and what was being taken from a cache by a process that was killed.

    What is set aside for one under way is not; of another host it is after a day.
    """
    for tree in trees(prefix):
        for path in tree.root.glob("envkit-cache-of-*"):
            match = OF_PROCESS.fullmatch(path.name)
            if match and path.is_dir() and not path.is_symlink():
                entry = item("replaced", path)
                if (match["node"] == this_node() and has_ended(int(match["pid"]))) or entry.age_s > A_DAY_S:
                    yield entry
        for kind in ("new", "old"):
            for name in listed(tree.replaced / kind):
                path = tree.replaced / kind / name
                is_aside = is_name(name) and path.is_dir() and not path.is_symlink() and {*listed(path)} <= OF_ASIDE
                if is_aside and replaced.find(tree, name) is None:
                    yield item("replaced", path)


def of_eessi(prefix: Prefix) -> Iterator[Item]:  # noqa: ARG001
    """Yield the sessions of EESSI, and the images of its client."""
    busy = False
    with suppress(EnvkitError):
        for name in sessions.names():
            in_use = sessions.in_use(name)
            busy = busy or in_use
            yield item("sessions", sessions.root() / name, "it is in use" if in_use else "")
            if (sessions.caches() / name).is_dir():
                yield item("sessions", sessions.caches() / name, "it is in use" if in_use else "")
        for folder in sessions.folders(archives.place()):
            in_use = sessions.is_held(folder)
            busy = busy or in_use
            yield item("sessions", folder, "it is in use" if in_use else "")
    for path in sorted(image.folder().glob("sha256-*.sif")):
        yield item("sessions", path, "a session is in use" if busy else "")


def reports(prefix: Prefix) -> Iterator[Item]:  # noqa: ARG001
    """Yield what jobs and verifications have left in envkit's cache, and here among temporary files.

    Of a job that may run yet it is kept.
    """
    folder = platformdirs.user_cache_path("envkit")
    for name in listed(folder):
        if REPORT.fullmatch(name) and not (folder / name).is_symlink():
            report = item("reports", folder / name)
            young = "its job may not have ended" if report.age_s < A_MONTH_S else ""
            yield msgspec.structs.replace(report, kept=young)
    for place in offered():
        for path in left_in(place):
            yield item("reports", path)


def plans(prefix: Prefix) -> Iterator[Item]:  # noqa: ARG001
    """Yield the plans that EasyBuild has resolved."""
    folder = platformdirs.user_cache_path("envkit") / "plans"
    if folder.is_dir() and not folder.is_symlink():
        yield item("plans", folder)


FINDERS: Mapping[str, Callable[[Prefix], Iterator[Item]]] = {
    "sources": sources, "damaged": damaged, "ccache": ccache, "layers": layers, "logs": logs, "modules": modules,
    "replaced": left_behind, "sessions": of_eessi, "reports": reports, "plans": plans,
}  # fmt: skip
OF_THE_PREFIX = ("sources", "damaged", "ccache", "layers", "logs", "modules", "replaced")
OF_A_BUILD = ("sources", "damaged", "ccache", "layers", "logs", "modules", "replaced", "plans")


def chosen(items: Sequence[Item], older_s: float, larger: int) -> list[Item]:
    """Return those that are old and large enough."""
    return [entry for entry in items if entry.age_s >= older_s and entry.size >= larger]


def remove(prefix: Prefix, items: Sequence[Item]) -> list[Item]:
    """Remove items; return each as it then is. What an installation under way may use is kept, and said why.

    Raises HostProblem for a prefix that somebody who is not trusted can change: with it, what is removed.
    """
    of_prefix = required(prefix, [entry.kind for entry in items])
    with umask.like(prefix.root), ExitStack() as stack:
        busy = next(filter(None, [at_work(tree, stack) for tree in of_prefix]), "")
        elsewhere = at_work_elsewhere(stack)
        current = {entry.path: entry for entry in find(prefix, list(dict.fromkeys(old.kind for old in items)))}
        updated = [current.get(entry.path, msgspec.structs.replace(entry, kept="it is in use now")) for entry in items]
        return [
            removed(
                prefix, entry, (busy if entry.kind in OF_A_BUILD else "") or (elsewhere if is_shared(entry) else "")
            )
            for entry in updated
        ]


def required(prefix: Prefix, kinds: Iterable[str]) -> list[Tree]:
    """Return the trees that something of these kinds is removed from. Raises HostProblem for what others can change."""
    if not {*kinds} & {*OF_THE_PREFIX}:
        return []
    trust.require(prefix.root, use="removed")
    for tree in trees(prefix):
        trust.require(prefix.root, tree, use="removed")
    return trees(prefix)


def at_work(tree: Tree, stack: ExitStack) -> str:
    """Say which installation is under way in a tree; nothing if none is, and then none begins before ``stack`` ends."""
    own = filelocks.cleaning(tree)
    alone = stack.enter_context(replaced.locked(own, fcntl.LOCK_EX, 0))
    held = [path.stem for path in sorted(tree.locks.glob("*.lock")) if path != own and filelocks.is_held(path)]
    if alone and not held:
        return ""
    names = [name.removeprefix("stack-") for name in held if name.startswith("stack-")]
    return f"an installation is under way ({', '.join(names or held) or tree.root.name})"


def at_work_elsewhere(stack: ExitStack) -> str:
    """Say whether an installation is under way in any prefix of this user; else none begins before ``stack`` ends."""
    lock = filelocks.cleaning_caches()
    try:
        if not lock.parent.is_dir() or stack.enter_context(replaced.locked(lock, fcntl.LOCK_EX, 0)):
            return ""
    except OSError as error:
        return f"whether an installation in another prefix uses it cannot be told: {error.strerror}"
    return "an installation is under way in another prefix, which may use it"


def is_shared(entry: Item) -> bool:
    """Say whether installations in all prefixes use something."""
    return entry.kind in OF_A_BUILD and Path(entry.path).is_relative_to(platformdirs.user_cache_path("envkit"))


def removed(prefix: Prefix, entry: Item, busy: str) -> Item:
    """Remove one item, and return it as it then is."""
    path = Path(entry.path)
    if entry.kept or busy:
        return msgspec.structs.replace(entry, kept=entry.kept or busy)
    try:
        is_gone = REMOVERS.get(entry.kind, partial(away, entry.kind))(prefix, path)
    except OSError as error:
        return msgspec.structs.replace(entry, kept=f"it cannot be removed: {error.strerror}")
    except RecursionError:
        return msgspec.structs.replace(entry, kept="it cannot be removed: folders are nested too deep in it")
    why = "" if is_gone else "not all of it could be removed"
    return msgspec.structs.replace(entry, kept=why, removed=is_gone)


def away(kind: str, prefix: Prefix, path: Path) -> bool:
    """Remove a file or folder below the prefix, or in envkit's cache, and nothing behind a link. Raises OSError."""
    root = prefix.root if kind in OF_THE_PREFIX else path.parent
    if kind == "ccache" and not path.is_relative_to(root):
        root = platformdirs.user_cache_path("envkit")
    if not path.is_relative_to(root):
        raise OSError(errno.EXDEV, f"It lies outside of {root}", str(path))
    return discarded_below(root, path)


def discarded_below(root: Path, path: Path) -> bool:
    """Remove what lies below a folder, which itself may be reached over a link."""
    real = root.resolve()
    return discarded(Tree(root=real), real / path.relative_to(root))


def module_away(prefix: Prefix, path: Path) -> bool:
    """Remove a module with its files and records."""
    tree = next(candidate for candidate in trees(prefix) if path.is_relative_to(candidate.software))
    return not remove_module(tree, str(path.relative_to(tree.software))) and not os.path.lexists(path)


def layer_away(prefix: Prefix, path: Path) -> bool:
    """Remove a layer; after the last one, what says which cache each was from."""
    is_gone = away("layers", prefix, path)
    names = [name for name in listed(path.parent) if LAYER.fullmatch(name)]
    notes = [] if any(name.endswith(".sif") for name in names) else [name for name in names if name.endswith(".json")]
    for name in notes:
        is_gone = away("layers", prefix, path.with_name(name)) and is_gone
    return is_gone


def session_away(_prefix: Prefix, path: Path) -> bool:
    """Remove a session, unless it has come into use; its cache with it."""
    if path.suffix == ".sif" or path.parent != sessions.root():
        return discarded_below(path.parent, path)
    with suppress(EnvkitError):
        return sessions.clean(path.name)
    return False


REMOVERS: Mapping[str, Callable[[Prefix, Path], bool]] = {
    "layers": layer_away, "modules": module_away, "sessions": session_away,
}  # fmt: skip
