"""Receipts: what was installed, from what, and how to get in. An environment exists when its receipt does."""

import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from envkit.environments import replaced
from envkit.environments.eessi import EessiEnvironment
from envkit.environments.environment import ContainerEnvironment, ModuleEnvironment
from envkit.environments.lockfile import Lock, Part
from envkit.environments.names import is_module, is_name, shown
from envkit.environments.prefix import Prefix, Tree, listed
from envkit.errors import EnvironmentDamaged, EnvironmentMissing
from envkit.machine.modules_tool import ModulesTool
from envkit.system import files
from envkit.system.files import sha256

VERSION = 1


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """A module of the environment and the recipe it was made from: path, and SHA-256 with its patches."""

    name: str
    easyconfig: str
    sha256: str


class Mpi(msgspec.Struct, frozen=True, kw_only=True):
    """The MPI library that Horovod was built against; ``embedded`` if it came with the environment."""

    family: str
    version: str
    embedded: bool = False


class Receipt(msgspec.Struct, frozen=True, kw_only=True, tag_field="method"):
    """What envkit needs of any environment. Paths of Horovod and its libraries are those inside it.

    ``lock`` is what it was made from, ``suffix`` how its Python names compiled extensions; receipts of earlier envkits
    have neither. ``tree`` is where it was installed, and where its receipt lies; ``copied_from`` is where it was
    installed if that is another place, and only ever read.
    """

    version: int = VERSION
    name: str
    framework: str
    accelerator: str
    requires: tuple[str, ...]
    machine: str
    python: str
    tree: str
    mpi: Mpi | None
    horovod: str
    site_packages: tuple[str, ...]
    library_path: tuple[str, ...]
    verified: str
    log: str
    created: str
    envkit: str
    lock: Lock | None = None
    suffix: str = ""
    copied_from: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def method(self) -> str:
        """How it was provided."""
        return str(self.__struct_config__.tag)


class ModuleReceipt(Receipt, frozen=True, kw_only=True, tag="easybuild"):
    """An environment of modules that EasyBuild made."""

    module: str
    modules: tuple[Module, ...]
    modules_tool: str
    modules_command: str
    load: tuple[str, ...]
    easybuild: str

    @property
    def environment(self) -> ModuleEnvironment:
        """The way in."""
        tree = Tree(root=Path(self.tree))
        tool = ModulesTool(kind=self.modules_tool, command=Path(self.modules_command))
        return ModuleEnvironment(
            name=self.name, tool=tool, modulepath=tree.modulepath, modules=(self.module,), load=self.load
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What the user may call it."""
        return self.name, self.module

    def damage(self) -> str:
        """Say what of it has gone; nothing if all is there."""
        tree = Tree(root=Path(self.tree))
        there = tree.has(self.module)
        return "" if there else f"its module {self.module} has gone. It was in {tree.modulepath}"


class EessiReceipt(Receipt, frozen=True, kw_only=True, tag="eessi"):
    """An environment of modules that EESSI's EasyBuild made on top of a ``release``.

    ``copy`` is the local copy of the repository that it was made with, where it was one.
    """

    release: str
    module: str
    modules: tuple[Module, ...]
    copy: str = ""

    @property
    def environment(self) -> EessiEnvironment:
        """The way in, as this machine has it now. Raises HostProblem where it has none."""
        from envkit.eessi import entry

        tree = Tree(root=Path(self.tree))
        copy = Path(self.copy) if self.copy else None
        entered = entry.enter(entry.Asked(version=self.release, copy=copy, visible=(tree.root,)), keep=False)
        return replace(entered, name=self.name, modulepath=tree.modulepath, modules=(self.module,))

    @property
    def names(self) -> tuple[str, ...]:
        """What the user may call it."""
        return self.name, self.module

    def damage(self) -> str:
        """Say what of it has gone, its module or its release, as far as that can be seen; nothing if all is there."""
        from envkit.eessi import entry

        tree = Tree(root=Path(self.tree))
        if not tree.has(self.module):
            return f"its module {self.module} has gone. It was in {tree.modulepath}"
        gone = entry.gone(self.release, Path(self.copy) if self.copy else None)
        return f"its release of EESSI has gone: {gone}" if gone else ""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of an image: what it is called, and the SHA-256 of all that it was made from."""

    name: str
    key: str


class ImageReceipt(Receipt, frozen=True, kw_only=True, tag="apptainer"):
    """An image that Apptainer made, or took over from ``source``.

    ``sha256``, ``size`` (bytes) and ``changed`` (time in ns) are those of the file; of a sandbox they are empty.
    ``built`` are the build flags, read when it was made.
    ``binds``, ``settings`` (variables inside) and ``srun`` (words for it) are what the site needs.
    ``pmix`` is the version of the image's PMIx library, ``libc`` that of its C library, as in "2.36".
    """

    image: str
    sha256: str
    size: int
    changed: int
    runtime: str
    interpreter: str
    source: str
    layers: tuple[Layer, ...]
    built: msgspec.Raw
    pmix: str
    libc: str
    apptainer: str
    binds: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    srun: tuple[str, ...] = ()

    @property
    def environment(self) -> ContainerEnvironment:
        """The way in."""
        return ContainerEnvironment(
            name=self.name,
            runtime=Path(self.runtime),
            image=Path(self.image),
            accelerator=self.accelerator,
            binds=self.binds,
            settings=tuple(self.settings.items()),
            srun=self.srun,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """What the user may call it."""
        return self.name, self.image

    def damage(self) -> str:
        """Say in what it is not what was installed; nothing if it is. The file is hashed only if it has changed."""
        try:
            state = Path(self.image).stat()
        except OSError:
            return f"its image {self.image} has gone"
        if not self.sha256 or (state.st_size, state.st_mtime_ns) == (self.size, self.changed):
            return ""
        if state.st_size == self.size and sha256(Path(self.image)) == self.sha256:
            return ""
        return f"its image {self.image} is not the one that was installed (SHA-256 {self.sha256})"


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """A module of a tree: the recipe it was made from, how long that took (s), and the part of a lock that it is."""

    module: str
    easyconfig: str
    sha256: str
    seconds: float
    part: Part | None = None


class Kept(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What a file was when it was installed; ``changed`` is a time in ns."""

    size: int
    changed: int
    sha256: str


class KeptFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of an environment that matter; paths in its tree start there."""

    files: dict[str, Kept]


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """An installation that has begun and not ended; ``stage`` says how far it came."""

    stack: str
    stage: str
    pid: int
    node: str
    began: str
    log: str


def path_of(tree: Tree, name: str) -> Path:
    """Return where the receipt of an environment lies."""
    return tree.environments / f"{name}.json"


def built_path(tree: Tree, module: str) -> Path:
    """Return where the record of a module lies."""
    return tree.root / "built" / f"{module.replace('/', '--')}.json"


def built(tree: Tree, module: str) -> Built | None:
    """Return the record of a module, None if there is none."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(files.read(built_path(tree, module)), type=Built)
    return None


def kept_path(tree: Tree, name: str) -> Path:
    """Return where it lies what the files of an environment were."""
    return tree.kept / f"{name}.json"


def kept(tree: Tree, name: str) -> dict[str, Kept] | None:
    """Return what the files of an environment were, None if that was not kept."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(files.read(kept_path(tree, name)), type=KeptFiles).files
    return None


def begin(tree: Tree, name: str, stage: str, log: Path) -> None:
    """Note that an installation is under way, and how far."""
    now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    note = Unfinished(stack=name, stage=stage, pid=os.getpid(), node=platform.node(), began=now, log=str(log))
    write(tree.unfinished / f"{name}.json", note)


def unfinished(tree: Tree, name: str) -> Unfinished | None:
    """Return the note of an installation that has not ended, None if there is none."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(files.read(tree.unfinished / f"{name}.json"), type=Unfinished)
    return None


def end(tree: Tree, name: str) -> None:
    """Drop the note of an installation."""
    (tree.unfinished / f"{name}.json").unlink(missing_ok=True)


def waiting(tree: Tree, name: str) -> str:
    """Return what to say while another process installs the same."""
    note = unfinished(tree, name)
    if note is None:
        return f"Another process is installing {name}; waiting for it."
    return f"Process {note.pid} on {note.node} is installing {name} (log: {note.log}); waiting for it."


def write(path: Path, record: msgspec.Struct) -> None:
    """Write a record so that readers see all of it or nothing; no file or link that lies in its way is followed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n", own=True)


Installed = ModuleReceipt | EessiReceipt | ImageReceipt


def read(path: Path) -> Installed:
    """Read a receipt. Its tree is where it lies, whatever it says. Raises EnvironmentDamaged."""
    try:
        found: Installed = msgspec.json.decode(files.read(path), type=Installed)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise damaged(path, str(getattr(error, "strerror", "") or error)) from error
    if odd := oddity(path, found):
        raise damaged(path, odd)
    tree = Tree(root=path.parent.parent)
    if is_same(Path(found.tree), tree.root):
        return msgspec.structs.replace(found, copied_from=msgspec.UNSET)
    own = {"image": str(tree.images / Path(found.image).name)} if isinstance(found, ImageReceipt) else {}
    return msgspec.structs.replace(found, tree=str(tree.root), copied_from=found.tree, **own)


def gone(found: Installed) -> list[str]:
    """Return which of the modules that an environment was made of have gone, those for building alone included."""
    modules = () if isinstance(found, ImageReceipt) else found.modules
    return [module.name for module in modules if not Tree(root=Path(found.tree)).has(module.name)]


def damaged(path: Path, why: str) -> EnvironmentDamaged:
    """Say that a receipt cannot be read, or holds what none of envkit's does."""
    again = f"Put it back with 'envkit install {path.stem}', or delete it" if is_name(path.stem) else "Delete it"
    return EnvironmentDamaged(
        what=f"The receipt {shown(str(path))} cannot be read.",
        why=shown(why),
        fix=f"{again}; what is built already is kept.",
    )


def oddity(path: Path, found: Installed) -> str:
    """Say what in a receipt cannot be: each of its words ends in a path, a shell or a terminal. Nothing if all can."""
    if not is_name(found.name) or found.name != path.stem:
        return f"Its name is {found.name!r}, that of its file {path.stem!r}."
    if not found.tree.startswith("/"):
        return f"Its tree is {found.tree!r}."
    if isinstance(found, ImageReceipt):
        places = [str(Path(found.tree) / "images" / f"{found.name}{kind}") for kind in ("", ".sif")]
        if found.image not in places:
            return f"Its image is {found.image!r}, which is not {places[1]}."
        words = [layer.name for layer in found.layers]
        odd = [layer.key for layer in found.layers if not re.fullmatch("[0-9a-f]{64}", layer.key)]
    else:
        words = [found.module, *(module.name for module in found.modules), *getattr(found, "load", ())]
        odd = [found.release] if isinstance(found, EessiReceipt) and not is_name(found.release) else []
    texts = [text for value in msgspec.structs.asdict(found).values() for text in strings(value)]
    odd += [*(word for word in words if not is_module(word)), *(text for text in texts if not text.isprintable())]
    return f"It names {odd[0]!r}." if odd else ""


def strings(value: object) -> Iterator[str]:
    """Yield the texts in a field of a receipt, as far as they are shown."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        yield from (one for one in value if isinstance(one, str))


def is_same(one: Path, other: Path) -> bool:
    """Say whether two paths are one folder."""
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def there(tree: Tree, name: str) -> Installed | None:
    """Return the receipt of an environment in a tree; None without one, with one that cannot be read or was copied."""
    replaced.recover(tree)
    try:
        found = read(path_of(tree, name))
    except EnvironmentDamaged:
        return None
    return None if found.copied_from else found


def all_in(tree: Tree) -> Iterator[tuple[str, Installed | EnvironmentDamaged]]:
    """Yield the name of each environment in a tree, and its receipt, or what is wrong with that. Raises NotReadable."""
    replaced.recover(tree)
    for file in listed(tree.environments):
        if file.endswith(".json") and not file.startswith("."):
            path = tree.environments / file
            try:
                yield path.stem, read(path)
            except EnvironmentDamaged as error:
                yield path.stem, error


def every(prefix: Prefix) -> Iterator[tuple[Tree, str, Installed | EnvironmentDamaged]]:
    """Yield the environments for this machine type, newest Python first: tree, name, receipt or what is wrong with it.

    Raises NotReadable.
    """
    for tree in prefix.trees(os.uname().machine):
        yield from ((tree, name, found) for name, found in all_in(tree))


def installed(prefix: Prefix) -> Iterator[Installed]:
    """Yield the receipts for this machine type that can be read, newest Python first. Raises NotReadable."""
    yield from (found for _, _, found in every(prefix) if not isinstance(found, EnvironmentDamaged))


def find(prefix: Prefix, name: str | None) -> Installed:
    """Return the receipt of an environment; the name may be left out where there is only one.

    Raises EnvironmentMissing, or EnvironmentDamaged when its modules or its image have gone or lie elsewhere.
    """
    found = named(prefix, name)
    if found.copied_from:
        raise EnvironmentDamaged(
            what=f"The environment {found.name} does not work where it lies.",
            why=f"It was installed in {found.copied_from} and was copied or moved to {found.tree}; "
            "the paths in its files are still those.",
            fix=f"Move it back; or remove it here, which leaves {found.copied_from} alone, and install it again:\n"
            f"  envkit remove {found.name} --dependencies --prefix {prefix.root}\n"
            f"  envkit install {found.name} --prefix {prefix.root}",
        )
    if damage := found.damage():
        raise EnvironmentDamaged(
            what=f"The environment {found.name} is damaged: {damage}.",
            fix=f"Put it back with 'envkit install {found.name} --prefix {prefix.root}'.",
        )
    return found


def lock_of(made: Installed) -> Lock:
    """Return the lock of an environment. Raises EnvironmentMissing for one that an earlier envkit installed."""
    if made.lock is None:
        raise EnvironmentMissing(
            what=f"The environment {made.name} has no lock.",
            why=f"It was installed by envkit {made.envkit}, before there were locks.",
            fix=f"Install it again: envkit install {made.name} --rebuild",
        )
    return made.lock


def named(prefix: Prefix, name: str | None) -> Installed:
    """Find the receipt of an environment, whether its modules are there or not. Raises what ``placed`` does."""
    return placed(prefix, name)[1]


def placed(prefix: Prefix, name: str | None) -> tuple[Tree, Installed]:
    """Find an environment, whether its modules are there or not: its tree and its receipt.

    Raises EnvironmentMissing, EnvironmentDamaged where its receipt cannot be read.
    """
    there = list(every(prefix))
    fitting = [(tree, one) for tree, called, one in there if name is None or name in names_of(called, one)]
    if not fitting or (name is None and len({called for _, called, _ in there}) > 1):
        raise missing(prefix, name, [called for _, called, _ in there])
    tree, found = fitting[0]
    if isinstance(found, EnvironmentDamaged):
        raise found
    return tree, found


def names_of(called: str, found: Installed | EnvironmentDamaged) -> tuple[str, ...]:
    """Return what the user may call an environment."""
    return (called,) if isinstance(found, EnvironmentDamaged) else found.names


def missing(prefix: Prefix, name: str | None, there: Sequence[str]) -> EnvironmentMissing:
    """Say that no environment fits."""
    names = ", ".join(map(shown, dict.fromkeys(there)))
    if name is None and there:
        return EnvironmentMissing(
            what="Which environment? There is more than one.",
            why=f"Installed in {prefix.root}: {names}.",
            fix="Name one of them.",
        )
    if name and any(replaced.of(tree, name) for tree in prefix.trees(os.uname().machine)):
        return EnvironmentMissing(
            what=f"The environment {name} is being built again.",
            why="It is offered again when the new one has passed, or as it was before if that fails.",
            fix=f"Wait for the installation. If none is running any more: envkit install {name} --prefix {prefix.root}",
        )
    return EnvironmentMissing(
        what=f"There is no environment {name!r}." if name else "No environment is installed.",
        why=f"Installed in {prefix.root}: {names or 'none'}.",
        fix="See with 'envkit list' what there is and what can be installed.",
    )
