"""Receipts: what was installed, from what, and how to get in. An environment exists when its receipt does."""

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from envkit.environment import ModuleEnvironment, ModulesTool
from envkit.errors import EnvironmentDamaged, EnvironmentMissing
from envkit.prefix import Prefix, Tree

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


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Everything envkit needs to enter, check and remove an environment."""

    version: int = VERSION
    name: str
    method: str
    framework: str
    accelerator: str
    requires: tuple[str, ...]
    machine: str
    python: str
    tree: str
    module: str
    modules: tuple[Module, ...]
    modules_tool: str
    modules_command: str
    load: tuple[str, ...]
    mpi: Mpi | None
    horovod: str
    site_packages: tuple[str, ...]
    library_path: tuple[str, ...]
    verified: str
    log: str
    created: str
    envkit: str
    easybuild: str

    @property
    def environment(self) -> ModuleEnvironment:
        """The way in."""
        tree = Tree(root=Path(self.tree))
        tool = ModulesTool(kind=self.modules_tool, command=Path(self.modules_command))
        return ModuleEnvironment(
            name=self.name, tool=tool, modulepath=tree.modulepath, modules=(self.module,), load=self.load
        )


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """A module of a tree: the recipe it was made from, and how long that took (s)."""

    module: str
    easyconfig: str
    sha256: str
    seconds: float


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
        return msgspec.json.decode(built_path(tree, module).read_bytes(), type=Built)
    return None


def begin(tree: Tree, name: str, stage: str, log: Path) -> None:
    """Note that an installation is under way, and how far."""
    now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    note = Unfinished(stack=name, stage=stage, pid=os.getpid(), node=platform.node(), began=now, log=str(log))
    write(tree.unfinished / f"{name}.json", note)


def unfinished(tree: Tree, name: str) -> Unfinished | None:
    """Return the note of an installation that has not ended, None if there is none."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((tree.unfinished / f"{name}.json").read_bytes(), type=Unfinished)
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
    """Write a record so that readers see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    with staged.open("wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    staged.replace(path)


def read(path: Path) -> Receipt:
    """Read a receipt. Raises EnvironmentDamaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Receipt)
    except (OSError, msgspec.DecodeError) as error:
        raise EnvironmentDamaged(
            what=f"The receipt {path} cannot be read.",
            why=str(error),
            fix=f"Remove the file and run 'envkit install {path.stem}' again; what is built already is kept.",
        ) from error


def installed(prefix: Prefix) -> Iterator[Receipt]:
    """Yield the receipts for this machine type, newest Python first."""
    for tree in prefix.trees(os.uname().machine):
        for path in sorted(tree.environments.glob("[!.]*.json")):
            yield read(path)


def find(prefix: Prefix, name: str | None) -> Receipt:
    """Return the receipt of an environment; the name may be left out where there is only one.

    Raises EnvironmentMissing, or EnvironmentDamaged when its modules have gone.
    """
    receipt = named(prefix, name)
    if not Tree(root=Path(receipt.tree)).has(receipt.module):
        raise EnvironmentDamaged(
            what=f"The environment {receipt.name} is damaged: its module {receipt.module} has gone.",
            why=f"It was in {Tree(root=Path(receipt.tree)).modulepath}.",
            fix=f"Put it back with 'envkit install {receipt.name} --prefix {prefix.root}'.",
        )
    return receipt


def named(prefix: Prefix, name: str | None) -> Receipt:
    """Find the receipt of an environment, whether its modules are there or not. Raises EnvironmentMissing."""
    there = list(installed(prefix))
    fitting = [one for one in there if name in (None, one.name, one.module)]
    if not fitting or (name is None and len({one.name for one in there}) > 1):
        raise missing(prefix, name, there)
    return fitting[0]


def missing(prefix: Prefix, name: str | None, there: list[Receipt]) -> EnvironmentMissing:
    """Say that no environment fits."""
    names = ", ".join(dict.fromkeys(one.name for one in there))
    if name is None and there:
        return EnvironmentMissing(
            what="Which environment? There is more than one.",
            why=f"Installed in {prefix.root}: {names}.",
            fix="Name one of them.",
        )
    return EnvironmentMissing(
        what=f"There is no environment {name!r}." if name else "No environment is installed.",
        why=f"Installed in {prefix.root}: {names or 'none'}.",
        fix="See with 'envkit list' what there is and what can be installed.",
    )
