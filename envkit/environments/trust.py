"""Whose a prefix is, looked at before anything in it is run: as ssh looks at its own files.

It may belong to this user, to root, and to whom ENVKIT_TRUST or the configuration names: users, and groups with an @
before them. Nobody
else may be able to change it, nor to put another folder in its place: the same holds for each folder above it, but that
a sticky one, such as /tmp, may be open to all.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Literal

from envkit.config import configuration as config
from envkit.environments.prefix import Prefix, Tree
from envkit.errors import HostProblem, NotReadable, NotWritable
from envkit.system import owners
from envkit.system.owners import Trusted, Writers, stranger, writers

TRUST = "ENVKIT_TRUST"
WRITTEN = ("*", "software/*", "software/*/*", "modules/*", "modules/*/*", "ebfiles_repo/*")  # folders in a tree


def words(env: Mapping[str, str]) -> list[str]:
    """Return the names in ENVKIT_TRUST, else in the configuration."""
    return list(config.read(env).get("trust") or ())


def strangers_in(env: Mapping[str, str]) -> list[str]:
    """Return those names that stand for nobody here."""
    return [word for word in words(env) if owners.absent([word])]


def trusted(env: Mapping[str, str] = os.environ) -> Trusted:
    """Return who is trusted. A name that is unknown here stands for nobody."""
    return owners.known(words(env))


Use = Literal["run", "removed"]


def require(
    prefix: Path, tree: Tree | None = None, file: Path | None = None, modules: Iterable[str] = (), use: Use = "run"
) -> None:
    """Require that nobody but those who are trusted can change a prefix, what lies in a tree of it, and a file of that.

    Nor may anybody else be able to replace the prefix, or a folder above it. Of modules it is required of the module
    file, of the folder of each, and of those that these lie in.
    Raises HostProblem. What is not there, or cannot be looked at, is for who uses it.
    """
    allowed = trusted()
    if (found := owners.usurper(prefix, allowed)) is not None:
        raise refused(prefix, *found, use)
    is_open = True
    for path in places(prefix, tree, file, modules):
        try:
            state = path.stat()
        except OSError:
            continue
        if path == prefix:
            is_open = bool(state.st_mode & (stat.S_IXGRP | stat.S_IXOTH))
        if (who := stranger(state, path, allowed, is_open=is_open)) is not None:
            raise refused(prefix, path, *who, use)


def require_place(prefix: Prefix) -> None:
    """Require it of a prefix that is built into, with all its trees for this machine type, and folders in them.

    Raises HostProblem, NotWritable.
    """
    require(prefix.root)
    require_folders(prefix)
    with suppress(NotReadable):
        for tree in prefix.trees(os.uname().machine):
            require(prefix.root, tree)


def require_folders(prefix: Prefix) -> None:
    """Require of the folders of a prefix, and of those of its trees, that none is a link. Raises NotWritable.

    What is written, replaced and removed below one would be where it leads to, in a prefix that was copied, too. That
    of the sources may be one: several prefixes can share them, and nothing is removed there through a link.
    """
    with suppress(NotReadable):
        for tree in prefix.trees(os.uname().machine):
            for path in (tree.root, *(found for pattern in WRITTEN for found in tree.root.glob(pattern))):
                require_no_link(path)
    require_no_link(prefix.logs)


def require_no_link(path: Path) -> None:
    """Require of a folder that is written to that it is no link. Raises NotWritable."""
    if path.is_symlink():
        raise NotWritable(
            what=f"{path} is a link, and envkit writes nothing through one.",
            why=f"It leads to {os.path.realpath(path)}.",
            fix=f"Remove the link: rm {quote(str(path))}",
        )


def require_files(prefix: Path, tree: Tree, name: str, modules: Iterable[str]) -> None:
    """Require of every file and folder of an environment's modules that nobody else can change it. Raises HostProblem.

    This takes as long as looking at the state of each.
    """
    exposed = list(open_below(prefix, tree, modules))
    if not exposed:
        return
    _, path, (who, word) = exposed[0]
    raise HostProblem(
        what=f"Nothing of {name} is run: others can change it.",
        why=f"{path}: {who}. "
        + (f"There are {len(exposed) - 1} more such files and folders. " if len(exposed) > 1 else "")
        + "What they put there would run as you.",
        fix=f"Have what others can change built again: envkit repair {name} --prefix {prefix}"
        + (f"\nIf you trust them: {export(word)}" if word else ""),
    )


def open_below(prefix: Path, tree: Tree, modules: Iterable[str]) -> Iterator[tuple[str, str, tuple[str, str]]]:
    """Yield each file and folder of modules that somebody else can change: module, path and who, as ``stranger`` does.

    No link is followed; of one it counts whose it is.
    """
    who = watcher(prefix)
    for module in modules:
        todo = [f"{tree.software}/{module}"]
        for path in (*todo, f"{tree.modulepath}/{module}.lua", f"{tree.modulepath}/{module}"):
            with suppress(OSError):
                if (somebody := who(os.stat(path), path)) is not None:  # noqa: PTH116  (paths are text, for speed)
                    yield module, path, somebody
        while todo:
            with suppress(OSError), os.scandir(todo.pop()) as entries:
                for entry in entries:
                    with suppress(OSError):
                        if (somebody := who(entry.stat(follow_symlinks=False), entry.path)) is not None:
                            yield module, entry.path, somebody
                        if entry.is_dir(follow_symlinks=False):
                            todo.append(entry.path)


def watcher(prefix: Path) -> Callable[[os.stat_result, str], tuple[str, str] | None]:
    """Return what says who else can change a file in a prefix, as ``stranger`` does, at little cost for many files."""
    allowed, is_open = trusted(), True
    with suppress(OSError):
        is_open = bool(prefix.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH))
    judged = dict[tuple[int, Writers | None, int], tuple[str, str] | None]()

    def who(state: os.stat_result, path: str) -> tuple[str, str] | None:
        counts = is_open and not stat.S_ISLNK(state.st_mode)
        writing = writers(state, path) if counts else None
        alike = (state.st_uid, writing, state.st_mode & (stat.S_IFLNK | stat.S_IWGRP | stat.S_IWOTH))
        if alike not in judged:
            judged[alike] = stranger(state, path, allowed, is_open=counts)
        return judged[alike]

    return who


def places(prefix: Path, tree: Tree | None, file: Path | None, modules: Iterable[str] = ()) -> Iterator[Path]:
    """Yield what is looked at: folders of a prefix and of a tree down to where names lie, modules, and the file."""
    yield from (prefix, prefix / "sources", prefix / "logs")
    if tree is not None:
        yield tree.root
        with suppress(OSError):
            yield from sorted(path for path in tree.root.iterdir() if path.is_dir())
        yield tree.modulepath
        for module in modules:
            for place in (tree.modulepath / f"{module}.lua", tree.modulepath / module, tree.software / module):
                yield from (place.parent, place)
    if file is not None:
        yield file


def export(word: str) -> str:
    """Return the command that trusts somebody besides those who are trusted already."""
    unknown = strangers_in(os.environ)
    return f"export {TRUST}={','.join((*(name for name in words(os.environ) if name not in unknown), word))}"


def refused(prefix: Path, path: Path, who: str, word: str, use: Use = "run") -> HostProblem:
    """Say that a prefix is not used, since somebody else can change it."""
    unknown = strangers_in(os.environ)
    fix = f"If you trust them: {export(word)}"
    is_above = path in prefix.absolute().parents or path in prefix.resolve().parents
    closed = f"chmod {'g' if word else 'o'}-w {quote(str(path))}"
    keep = f"; or chmod +t {quote(str(path))}, so that each can change only their own" if is_above else ""
    if word.startswith("@"):
        fix = f"{fix}\nIf nobody else is to change it: {closed}{keep}"
    if unknown:
        where = config.read().values["trust"].where
        fix = f"Nobody here is called {', '.join(unknown)}, as {where} says.\n{fix}"
    return HostProblem(
        what=f"Nothing in the prefix {prefix} is {use}: others can change it.",
        why=f"{path}: {who}. "
        + ("Another folder could be put in the prefix's place, and " if is_above else "What they put there ")
        + ("would run as you." if use == "run" else "would be removed with your rights."),
        fix=fix if word else f"Have its owner close it ({closed}{keep}), and look at what is in it.",
    )
