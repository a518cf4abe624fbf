"""The files of a module as they were when it was built, and which of them are not that any more.

A list lies beside the record of its module, ``TREE/built/MODULE.files``: all of its folder of software but for what
EasyBuild notes of the build itself, and its module file in every category. One that names anything else is damaged. No
link is followed, and what lies behind one that leads out of the tree is not compared.

Python writes compiled files (.pyc) whenever it likes: one counts that it would take for its source and cannot read.
Of what was added only that counts which takes the place of something, or is loaded: packages and libraries. What
somebody else can change who is not trusted counts as damaged, too, whatever it is now.
"""

import hashlib
import os
import pwd
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import msgspec

from envkit.binary import bytecode
from envkit.environments import replaced, trust
from envkit.environments.prefix import Tree
from envkit.environments.replaced import Aside
from envkit.system import files, record

MOST = 64_000_000  # bytes of a list, and of a compiled file; the list of PyTorch has 4 million
LONGEST = 4096  # a path
AT_ONCE, BATCH = 4, 16  # threads, and how many files one takes at a time
READ = 1 << 20
NOTES = "easybuild"  # where eb keeps the recipe and the log in a module: written after all else, and never loaded
CACHE = "__pycache__"
ODD = re.compile(r"\0|/\.{0,2}(/|\Z)")  # no name of a file, or a folder that may be another
LIBRARY = re.compile(r"\.so(\.\d+)*$")
EXECUTABLE = 0o111
READABLE = 0o444

Found = tuple[str, os.stat_result]


class StoredFile(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A file as it was: bytes, time of change in ns, SHA-256; of a link, where it leads."""

    size: int
    changed: int
    sha256: str = ""
    link: str = ""
    is_program: bool = False


class FileManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a module, by their paths in the tree."""

    module: str
    files: dict[str, StoredFile]


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a module that is not as it was when that was built, or is open to others.

    One that is ``unreadable`` may be as it was: this user may not read it, or the folder that ``path`` is. ``access``
    says whose it is, and its mode.
    """

    module: str
    path: str
    how: Literal["gone", "changed", "added", "open to others", "unreadable"]
    access: str = ""


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """How much is compared, and which modules are not: ``unlisted`` have no list, ``behind`` lie behind a link."""

    modules: int
    files: int
    size: int
    unlisted: tuple[str, ...]
    behind: tuple[str, ...]


def path_of(tree: Tree, module: str) -> Path:
    """Return where the list of a module lies."""
    return tree.root / replaced.manifest(module)


def write(tree: Tree, module: str, digests: Mapping[str, str] | None = None) -> None:
    """List the files of a module as they are now; of one that lies behind a link there is no list.

    ``digests`` are the SHA-256 of files that were just written, by their names: they are not read.
    """
    path = path_of(tree, module)
    path.unlink(missing_ok=True)
    if is_behind(tree, module):
        return
    states, known = scanned(tree, module), digests or {}
    to_read = [name for name in states if name not in known]
    read_now = dict(zip(to_read, at_once(lambda name: kept(states[name]), to_read), strict=True))
    stored = {name: read_now[name] if name in read_now else kept(states[name], known[name]) for name in states}
    by_name = {name: file for name, file in stored.items() if file is not None}
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, msgspec.json.encode(FileManifest(module=module, files=by_name)), own=True)


def read(tree: Tree, module: str) -> FileManifest | None:
    """Return the list of a module, None without one. Raises ValueError for one that is damaged itself."""
    path = path_of(tree, module)
    try:
        if path.lstat().st_size > MOST:
            raise ValueError(f"It is larger than {MOST // 1_000_000} MB.")
        manifest = record.decode(files.read(path), FileManifest)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if manifest.module != module or not all(is_own(module, name) for name in manifest.files):
        raise ValueError(f"It is no list of files of {module}.")
    return manifest


HARMLESS = re.compile(
    r"\.dist-info/(RECORD|INSTALLER|REQUESTED|WHEEL|direct_url\.json|licenses/.*)$|/share/(doc|man)/|\.(md|rst)$|/LICENSE[^/]*$"
)


def is_harmless(damage: Damage) -> bool:
    """Say whether nothing that runs reads a file: the notes of packages, documentation, licences."""
    return HARMLESS.search(damage.path) is not None


def damage(tree: Tree, modules: Sequence[str], *, digests: bool = True, every: bool = False) -> list[Damage]:
    """Return the files of modules that are not as they were when the modules were built, in the order of the modules.

    With ``digests`` a file whose time alone differs is read; with ``every`` each is; else presence and size count. A
    list that is damaged itself counts as a file of its module. What has no list, or lies behind a link, gives nothing.
    """
    changed = [item for module in modules for item in damage_of(tree, module, digests=digests, every=every)]
    paths = {item.path for item in changed}
    others = trust.open_below(tree.root.parent, tree, modules)
    return [
        *changed,
        *(Damage(module=module, path=path, how="open to others") for module, path, _ in others if path not in paths),
    ]


def damage_of(tree: Tree, module: str, *, digests: bool, every: bool) -> Iterator[Damage]:
    """Yield what is damaged of a module."""
    try:
        manifest = None if is_behind(tree, module) else read(tree, module)
    except ValueError:
        yield unreadable(tree, module, replaced.manifest(module)) or Damage(
            module=module, path=str(path_of(tree, module)), how="changed"
        )
        return
    if manifest is None:
        return
    present = scanned(tree, module, has_cached=digests or every)
    both = [name for name in manifest.files if name in present]

    def differs(name: str) -> bool:
        return is_other(manifest.files[name], *present[name], is_read=True)

    def is_touched(name: str) -> bool:
        return present[name][1].st_mtime_ns != manifest.files[name].changed

    others = {name for name in both if is_other(manifest.files[name], *present[name], is_read=False)}
    read_too = [name for name in both if name not in others and (every or (digests and is_touched(name)))]
    others |= {name for name, is_changed in zip(read_too, at_once(differs, read_too), strict=True) if is_changed}
    closed = set[str]()
    for name, file in manifest.files.items():
        found = present.get(name)
        is_other_size = found is not None and found[1].st_size != file.size
        is_in_doubt = name in others or ((found is None or is_private(found[1])) and not is_cached(name))
        if not is_in_doubt:
            continue
        if not is_other_size and (shut := unreadable(tree, module, name)):
            if shut.path not in closed:
                closed.add(shut.path)
                yield shut
        elif name in others or found is None:
            yield Damage(module=module, path=str(tree.root / name), how="changed" if found else "gone")
    for name in sorted(added(manifest, present)):
        yield Damage(module=module, path=str(tree.root / name), how="added")


def is_private(state: os.stat_result) -> bool:
    """Say whether some users may not read a plain file."""
    return stat.S_ISREG(state.st_mode) and state.st_mode & READABLE != READABLE


def unreadable(tree: Tree, module: str, name: str) -> Damage | None:
    """Return the file of a tree, or the first folder above it in the tree, that is there and this user may not read."""
    path = tree.root
    for part in Path(name).parts:
        path /= part
        try:
            state = path.lstat()
        except OSError:
            return None
        if stat.S_ISLNK(state.st_mode):
            return None
        wanted = os.R_OK | os.X_OK if stat.S_ISDIR(state.st_mode) else os.R_OK
        if not os.access(path, wanted, effective_ids=True):
            access = f"mode {stat.S_IMODE(state.st_mode):03o}, owner {owner(state.st_uid)}"
            return Damage(module=module, path=str(path), how="unreadable", access=access)
    return None


def opening(closed: Sequence[Damage]) -> str:
    """Return the command with which the owner of files lets everybody read them; of several, all of their folder."""
    if len(closed) == 1:
        path = closed[0].path  # that of a program or a library may have lost more
        return f"chmod {'a+rx' if '/bin/' in path or LIBRARY.search(path) else 'a+rX'} {quote(path)}"
    return f"chmod -R a+rX {quote(os.path.commonpath([file.path for file in closed]))}"


def owner(number: int) -> str:
    """Return the name of a user; the number of one that has none here."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def broken(tree: Tree, modules: Iterable[str]) -> Damage | None:
    """Return the first library, program or module file that has gone, has another size or is open to others; quick.

    None if all fit.
    """
    who = trust.watcher(tree.root.parent)
    for module in modules:
        try:
            manifest = None if is_behind(tree, module) else read(tree, module)
        except ValueError:
            shut = unreadable(tree, module, replaced.manifest(module))
            return shut or Damage(module=module, path=str(path_of(tree, module)), how="changed")
        for name, file in manifest.files.items() if manifest else ():
            if file.is_program or "/bin/" in name or name.startswith("modules/") or LIBRARY.search(name):
                path = f"{tree.root}/{name}"
                try:
                    state = os.lstat(path)
                except OSError:
                    return unreadable(tree, module, name) or Damage(module=module, path=path, how="gone")
                if is_other(file, path, state, is_read=False):
                    shut = unreadable(tree, module, name) if state.st_size == file.size else None
                    return shut or Damage(module=module, path=path, how="changed")
                if is_private(state) and (shut := unreadable(tree, module, name)):
                    return shut
                if who(state, path) is not None:
                    return Damage(module=module, path=path, how="open to others")
                if stat.S_ISLNK(state.st_mode) and "/bin/" in name and is_dangling(path):
                    return Damage(module=module, path=str(Path(path).resolve()), how="gone")
    return None


def is_dangling(path: str) -> bool:
    """Say whether a link leads to nothing. What this user cannot look at is not taken for gone."""
    try:
        return not Path(path).exists()
    except OSError:
        return False


def measure(tree: Tree, modules: Sequence[str]) -> Measure:
    """Return how much of some modules can be compared."""
    manifests, unlisted, behind = list[FileManifest](), list[str](), list[str]()
    for module in modules:
        manifest = None
        with suppress(ValueError):
            manifest = read(tree, module)
        if manifest is None:
            unlisted.append(module)
        elif is_behind(tree, module):
            behind.append(module)
        else:
            manifests.append(manifest)
    sizes = [file.size for entry in manifests for file in entry.files.values()]
    return Measure(
        modules=len(manifests), files=len(sizes), size=sum(sizes), unlisted=tuple(unlisted), behind=tuple(behind)
    )


def is_behind(tree: Tree, module: str) -> bool:
    """Say whether the folder of a module is a link, or lies behind one."""
    return (tree.software / module).is_symlink() or not replaced.is_inside(tree.root, f"software/{module}")


def is_own(module: str, name: str) -> bool:
    """Say whether a path can be that of a file of a module: below its folder, or its module file in a category."""
    if len(name) > LONGEST or ODD.search(name):
        return False
    if name.startswith(f"software/{module}/"):
        return True
    top, _, rest = name.partition("/")
    return top == "modules" and rest.partition("/")[2] in (module, f"{module}.lua")


def scanned(tree: Tree, module: str, *, has_cached: bool = True) -> dict[str, Found]:
    """Return the files of a module, by their paths in the tree as they can be written: path, and state.

    What Python writes anew is left out unless it ``has_cached``.
    """
    states = dict[str, Found]()
    todo = list[str]()
    for name in replaced.paths(tree.root, Aside(modules=(module,), files=())):
        if name.startswith("modules/"):
            with suppress(OSError):
                states[name] = (f"{tree.root}/{name}", os.lstat(tree.root / name))
        elif name.startswith("software/"):
            todo.append(name)
    notes = f"software/{module}/{NOTES}"
    while todo:
        folder = todo.pop()
        with suppress(OSError), os.scandir(f"{tree.root}/{folder}") as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    if name != notes and (has_cached or entry.name != CACHE):
                        todo.append(name)
                else:
                    with suppress(OSError):
                        states[plain(name)] = (entry.path, entry.stat(follow_symlinks=False))
    return states


def plain(name: str) -> str:
    """Return a path as it can be written: bytes that are no text are spelled out."""
    return name if name.isascii() else os.fsencode(name).decode(errors="backslashreplace")


def kept(candidate: Found, digest: str = "") -> StoredFile | None:
    """Return what is to be known of a file; None of a pipe, a device or one that has gone meanwhile.

    It is not read if its SHA-256 is known.
    """
    path, state = candidate
    try:
        if stat.S_ISLNK(state.st_mode):
            return StoredFile(size=state.st_size, changed=state.st_mtime_ns, link=plain(os.readlink(path)))  # noqa: PTH115
        if not stat.S_ISREG(state.st_mode):
            return None
        is_program = bool(state.st_mode & EXECUTABLE)
        digest = digest or sha256(path)
        return StoredFile(size=state.st_size, changed=state.st_mtime_ns, sha256=digest, is_program=is_program)
    except OSError:
        return None


def is_other(known: StoredFile, path: str, state: os.stat_result, *, is_read: bool) -> bool:
    """Say whether a file is not what it was, by its state and, with ``is_read``, all of it; one that cannot be is."""
    try:
        if stat.S_ISLNK(state.st_mode):
            return plain(os.readlink(path)) != known.link  # noqa: PTH115
        if known.link or not stat.S_ISREG(state.st_mode):
            return True
        if is_cached(path):
            return is_read and is_unreadable(known, Path(path), state)
        if state.st_size != known.size or not state.st_mode & READABLE:
            return True
        if known.is_program and not state.st_mode & EXECUTABLE:
            return True
        return is_read and sha256(path) != known.sha256
    except OSError:
        return True


def is_cached(name: str) -> bool:
    """Say whether a file is one that Python writes anew when it lacks it."""
    return name.endswith(".pyc") and f"/{CACHE}/" in name


def is_unreadable(known: StoredFile, path: Path, state: os.stat_result) -> bool:
    """Say whether Python takes a compiled file for its source and cannot read it, or nobody has written it anew."""
    if state.st_size > MOST:
        return True
    data = files.read(path)
    if hashlib.sha256(data).hexdigest() == known.sha256 or not bytecode.is_taken(path, data[: bytecode.HEADER]):
        return False
    return state.st_mtime_ns == known.changed or not bytecode.is_whole(data)


def added(known: FileManifest, installed_files: dict[str, Found]) -> set[str]:
    """Return what was added that takes the place of something or is loaded: files, and packages by their folder."""
    unknown = [name for name in installed_files if name not in known.files and not name.endswith(".pyc")]
    if not unknown:
        return set()
    packages = {package for name in known.files if (package := package_of(name))}
    names = set[str]()
    for name in unknown:
        folder, file = name.rpartition("/")[::2]
        place, package = folder.rpartition("/")[2], package_of(name)
        is_code = file.endswith((".py", ".so"))
        if name.startswith("modules/") or (place == "site-packages" and (is_code or file.endswith(".pth"))):
            names.add(name)
        elif package and package not in packages and is_code:
            names.add(package)
        elif LIBRARY.search(file) and (place in ("lib", "lib64") or place.endswith(".libs")):
            names.add(name)
    return names


def package_of(name: str) -> str:
    """Return the folder directly in site-packages that a file lies in, if that can be imported."""
    before, middle, after = name.partition("/site-packages/")
    package, below, _ = after.partition("/")
    return f"{before}{middle}{package}" if below and package.isidentifier() else ""


def sha256(path: str) -> str:
    """Return the SHA-256 of a plain file. Raises OSError, for a link or a pipe as well."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        digest, size = hashlib.sha256(), os.fstat(descriptor).st_size
        while chunk := os.read(descriptor, min(READ, size + 1)):
            digest.update(chunk)
        return digest.hexdigest()
    finally:
        os.close(descriptor)


def at_once(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Return what a function makes of each item, by some threads; what is not begun is dropped when it is stopped."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Event

    items, pool, is_stopped = iter(items), ThreadPoolExecutor(AT_ONCE), Event()
    batches = iter(lambda: [*islice(items, BATCH)], [])

    def made_of(batch: list[Any]) -> list[Any]:
        return [function(item) for item in batch if not is_stopped.is_set()]

    try:
        return [made for batch in pool.map(made_of, batches) for made in batch]
    finally:
        is_stopped.set()
        pool.shutdown(cancel_futures=True)
