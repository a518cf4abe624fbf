"""The files that an installation replaces: set aside until the new ones have passed, and put back if they do not.

An environment cannot be built beside itself, since its paths are in its files. So what is built again is moved away, by
name, and eb builds in its place.

::

    TREE/replaced/NAME.json   what is set aside; nothing is without it
    TREE/replaced/old/NAME/   that, under the paths it has in the tree
    TREE/replaced/new/NAME/   modules that were built before a build failed: the next one goes on from them

Whatever ends an installation, the old one comes back: at once, or with the next envkit that looks into the tree. Who
installs, and what supervises eb, holds a lock, so that nothing is put back under a build that goes on.
"""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote

import msgspec

from envkit.environments import trust
from envkit.environments.name_syntax import is_module, is_name
from envkit.environments.prefix import Tree, listed
from envkit.errors import HostProblem
from envkit.system.files import discard
from envkit.system.record import read

PATIENCE_S = 30.0  # eb ends within seconds of the envkit that started it
POLL_S = 0.1


class Aside(msgspec.Struct, frozen=True, kw_only=True):
    """The modules and files of a tree that are set aside; ``in_jobs``: jobs that outlive envkit build the new ones."""

    modules: tuple[str, ...]
    files: tuple[str, ...]
    in_jobs: bool = False


def lock_path(tree: Tree, name: str) -> Path:
    """Return the file that is locked while an environment is being replaced."""
    return tree.locks / f"replaced-{name}.lock"


def find(tree: Tree, name: str) -> Aside | None:
    """Return what of an environment is set aside, None if nothing is."""
    with suppress(OSError, ValueError, RecursionError):
        aside = read(tree.replaced / f"{name}.json", Aside)
        if is_name(name) and all(map(is_module, (*aside.modules, *aside.files))):
            return aside
    return None


def new(tree: Tree, name: str) -> Tree:
    """Return where modules lie that were built before a build failed, laid out as a tree."""
    return Tree(root=tree.replaced / "new" / name)


def set_aside(tree: Tree, name: str, aside: Aside) -> None:
    """Set modules and files aside, within ``guarded`` unless they are built in jobs.

    Raises HostProblem where something of them lies elsewhere, behind a link, or cannot be moved.
    """
    elsewhere = [path for path in paths(tree.root, aside) if not is_inside(tree.root, path)]
    if elsewhere:
        raise HostProblem(
            what=f"{name} cannot be built again in its place.",
            why=f"{tree.root / elsewhere[0]} lies behind a link, so it cannot be kept until the new one has passed.",
            fix=f"Remove it first, or install into another --prefix: envkit remove {name}",
        )
    require_own(tree, name)
    discard(tree.replaced / "old" / name)
    (tree.replaced / "old" / name).mkdir(parents=True)
    staged = tree.replaced / f".{name}.{os.getpid()}"
    staged.write_bytes(msgspec.json.encode(aside))
    descriptor = os.open(staged, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    staged.replace(tree.replaced / f"{name}.json")
    for path in paths(tree.root, aside):
        try:
            move(tree.root / path, tree.replaced / "old" / name / path)
        except OSError as error:
            put_back(tree, name)
            raise HostProblem(
                what=f"{name} cannot be built again in its place; it is as it was.",
                why=f"{tree.root / path} cannot be moved: {error.strerror}.",
                fix="See what holds it (lsattr -d, findmnt), have it freed, and run this again; "
                "or install into another --prefix.",
            ) from error


def paths(root: Path, aside: Aside) -> list[str]:
    """Return what of all that is set aside lies below a folder: module files first, which tell that a module is."""
    folders = listed(root / "modules")
    candidates = [f"modules/{folder}/{m}{kind}" for m in aside.modules for folder in folders for kind in ("", ".lua")]
    candidates += [
        path for module in aside.modules for path in (record(module), manifest(module), f"software/{module}")
    ]
    return [path for path in (*candidates, *aside.files) if os.path.lexists(root / path)]


def is_inside(root: Path, path: str) -> bool:
    """Say whether a path is one below a folder, and no link on the way to it leads elsewhere."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        return False
    return (root / path).parent.resolve() == root.resolve() / Path(path).parent


def record(module: str) -> str:
    """Return where in a tree it lies what a module was made from."""
    return f"built/{module.replace('/', '--')}.json"


def manifest(module: str) -> str:
    """Return where in a tree it lies what the files of a module were when it was built."""
    return f"built/{module.replace('/', '--')}.files"


def require_own(tree: Tree, name: str) -> None:
    """Require that what is set aside lies in the tree, and not behind a link. Raises HostProblem."""
    for kind in ("old", "new"):
        if not is_inside(tree.root, f"replaced/{kind}/{name}/x") or tree.locks.is_symlink():
            raise HostProblem(
                what=f"What {name} was, before it was built again, is left where it is.",
                why=f"{tree.replaced} has links that lead elsewhere; envkit makes none there.",
                fix=f"Look at what they are, and remove them: ls -l {quote(str(tree.replaced))}",
            )


def move(source: Path, target: Path) -> None:
    """Move a file or a folder within a file system, in the place of what is there; a folder need not be writable."""
    target.parent.mkdir(parents=True, exist_ok=True)
    discard(target)
    if source.is_symlink() or not source.is_dir():
        renamed(source, target)
        return
    mode = source.stat().st_mode
    if mode & 0o700 == 0o700 or source.stat().st_uid != os.geteuid():  # a group's, perhaps, and so open as it is
        renamed(source, target)
        return
    source.chmod(mode | 0o700)
    renamed(source, target)
    target.chmod(mode)


def renamed(source: Path, target: Path) -> None:
    """Rename a file or a folder; where a container's layers do not allow it (EXDEV), copy all and then rename that."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        staged = target.with_name(f".{target.name}.{os.getpid()}")
        discard(staged)
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, staged, symlinks=True)
        else:
            shutil.copy2(source, staged, follow_symlinks=False)
        staged.rename(target)
        discard(source)


def settle(tree: Tree, name: str) -> None:
    """Give up what is set aside: the new one has passed, and its receipt is there."""
    require_own(tree, name)
    (tree.replaced / f"{name}.json").unlink(missing_ok=True)
    for kind in ("old", "new"):
        discard(tree.replaced / kind / name)


def put_back(tree: Tree, name: str) -> bool:
    """Put back what is set aside, and keep the modules that were built in its place; say whether there was any."""
    aside = find(tree, name)
    if aside is None:
        return False
    require_own(tree, name)
    old, built = tree.replaced / "old" / name, new(tree, name).root
    movable = [path for path in paths(old, aside) if is_inside(tree.root, path) and is_inside(old, path)]
    for path in paths(tree.root, aside):
        if path in movable and path not in aside.files:
            with suppress(OSError):  # a full disk has no room for a folder
                move(tree.root / path, built / path)
    for module in aside.modules:
        if not (built / record(module)).is_file():  # it was not built to its end
            for path in paths(built, Aside(modules=(module,), files=())):
                discard(built / path)
    for path in reversed(movable):
        move(old / path, tree.root / path)
    (tree.replaced / f"{name}.json").unlink()
    discard(old)
    return True


def take_up(tree: Tree, name: str, modules: Iterable[str]) -> None:
    """Put in place what was built of these modules before an earlier build failed; give up the rest."""
    require_own(tree, name)
    built = new(tree, name).root
    for path in reversed(paths(built, Aside(modules=tuple(modules), files=()))):
        move(built / path, tree.root / path)
    discard(built)


@contextmanager
def guarded(tree: Tree, name: str, tell: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Keep others from putting back what is set aside in this block; nothing is left aside after it.

    ``tell`` is called when it has been put back.
    What an earlier installation that was killed has left aside is put back first, when nothing of it runs any more;
    what jobs are building in its place is gone on with. Raises HostProblem where that does not end.
    """
    with locked(lock_path(tree, name), fcntl.LOCK_EX, PATIENCE_S) as held:
        if not held:
            raise HostProblem(
                what=f"An earlier build of {name} has not ended.",
                why=f"Something of it still holds {lock_path(tree, name)}.",
                fix="Wait for it, or end it, then run the same command again.",
            )
        if (aside := find(tree, name)) and not aside.in_jobs:
            put_back(tree, name)
    with locked(lock_path(tree, name), fcntl.LOCK_SH, PATIENCE_S):
        try:
            yield
        finally:
            if put_back(tree, name):
                tell()


def recover(tree: Tree) -> None:
    """Put back what installations that were killed have left aside; what this user may not change is left."""
    with suppress(OSError, HostProblem):
        trust.require(tree.root.parent, tree)
        for path in tree.replaced.glob("[!.]*.json"):
            aside = find(tree, path.stem)
            if aside is None or aside.in_jobs or path.lstat().st_uid != os.geteuid():
                continue
            require_own(tree, path.stem)
            with locked(lock_path(tree, path.stem), fcntl.LOCK_EX, 0) as held:
                if held:
                    put_back(tree, path.stem)


@contextmanager
def locked(path: Path, kind: int, patience_s: float) -> Iterator[bool]:
    """Hold a lock, if it can be had in time; yield whether it is held."""
    path.parent.mkdir(mode=0o770, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o660)
    try:
        yield acquired(descriptor, kind, time.monotonic() + patience_s)
    finally:
        os.close(descriptor)


def acquired(descriptor: int, kind: int, deadline: float) -> bool:
    """Take a lock, or give up at a time; return whether it was taken."""
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        else:
            return True
