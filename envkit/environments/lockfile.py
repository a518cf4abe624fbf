"""Locks: what an environment was made from, without anything of the machine that it was made on but what counts.

A lock is a JSON file, its keys sorted: the same environment gives the same bytes wherever it is installed. It has no
paths, no dates, no names of hosts but those in the URLs that recipes state.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit, urlunsplit

import msgspec

from envkit.errors import LockInvalid, Problem
from envkit.system import files, record

VERSION = 1
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class LockedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A source or a patch. ``project`` is its name on the Python package index, if it comes from there."""

    filename: str
    sha256: Sha256 | None
    urls: tuple[str, ...] = ()
    project: str | None = None


class LockedPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A module, and the SHA-256 of its recipe with its patches; or a layer of an image, and the key of it."""

    name: str
    recipe: str
    sha256: Sha256
    sources: tuple[LockedFile, ...] = ()
    patches: tuple[LockedFile, ...] = ()

    @property
    def stands_in(self) -> bool:
        """Whether its recipe stands in for what a host lacks."""
        return self.recipe.startswith("embedded/")


class LockedMachine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts of the machine that count, else empty. ``cpu`` is what was compiled for, not what was there."""

    type: str
    cpu: str = "generic"
    python: str = ""
    compiler: str = ""
    mpi: str = ""
    load: tuple[str, ...] = ()


class Lock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that an environment was made from: its parts in the order of building, and the versions of the ``tools``.

    ``flags`` are the build flags that its Horovod has, as its compiled extension tells them; nccl is a version code.
    ``packages`` are those of Debian in an image, as NAME:ARCHITECTURE, with the version of each, and ``system`` is the
    release that they are of, such as "debian 12": what was there when it was built, which cannot be demanded again.
    """

    version: int = VERSION
    name: str
    method: str
    framework: str
    accelerator: str
    release: str
    machine: LockedMachine
    tools: dict[str, str]
    parts: tuple[LockedPart, ...]
    flags: dict[str, int] = {}
    system: str = ""
    packages: dict[str, str] = {}


def text(lock: Lock) -> str:
    """Return a lock as the text of its file."""
    return msgspec.json.format(msgspec.json.encode(lock, order="sorted"), indent=2).decode() + "\n"


def read(path: Path) -> Lock:
    """Read the file of a lock. Raises LockInvalid."""
    try:
        content = files.read(path, record.LARGEST)
        version = record.decode(content, Versioned).version
        if version > VERSION:
            raise LockInvalid(
                what=f"{path} was written by a newer envkit.",
                why=f"It is a lock of version {version}; this envkit reads version {VERSION}.",
                fix="Use the envkit that wrote it, or a newer one: pip install --upgrade envkit",
            )
        return record.decode(content, Lock)
    except (OSError, msgspec.DecodeError) as error:
        raise LockInvalid(
            what=f"{path} is no lock of envkit, or is damaged.",
            why=str(error),
            fix="Write it again, where the environment is installed: envkit show NAME --lock > FILE",
        ) from error


class Versioned(msgspec.Struct):
    """The field that a lock of any version has."""

    version: int


def file(filename: str, sha256: str | None, urls: Sequence[str] = (), project: str | None = None) -> LockedFile:
    """Return a file as a lock has it: URLs of this machine left out, names and passwords cut off."""
    return LockedFile(filename=filename, sha256=sha256, urls=tuple(filter(None, map(public, urls))), project=project)


def public(url: str) -> str:
    """Return a URL without what is in it of a user and of a session; nothing of one that is a local path."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "ftp"):
        return ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def refusals(locked: Lock, here: Lock) -> Iterator[Problem]:
    """Yield why a lock cannot be honoured by what would be made here."""
    wanted, present = ({part.name: part for part in lock.parts} for lock in (locked, here))
    remedy = remedies(locked)
    for name in wanted.keys() - present.keys():
        yield Problem(what=f"The lock has {name}, which {here.name} does not consist of here.", fix=remedy)
    for name in present.keys() - wanted.keys():
        yield Problem(what=f"{here.name} needs {name} here, which the lock does not have.", fix=remedy)
    for name, part in wanted.items():
        other = present.get(name, part)
        if part.stands_in == other.stands_in and part.sha256 != other.sha256:
            why = f"SHA-256 {part.sha256[:12]}... in the lock, {other.sha256[:12]}... here{changed(part, other)}"
            yield Problem(what=f"{name} is made from something else here than in the lock ({why}).", fix=remedy)


def changed(part: LockedPart, other: LockedPart) -> str:
    """Name the sources and patches whose content is another."""
    present = {source.filename: source.sha256 for source in (*other.sources, *other.patches)}
    names = [
        source.filename
        for source in (*part.sources, *part.patches)
        if present.get(source.filename, source.sha256) != source.sha256
    ]
    return f"; {', '.join(names)}" if names else ""


def remedies(locked: Lock) -> str:
    """Say how a lock could be honoured."""
    tools = ", ".join(f"{name} {version}" for name, version in locked.tools.items())
    own = "the same recipe or, of an image, --base, --build-arg and --from"
    return f"Use what the lock was made with ({tools}; {own}), another --prefix, or leave out --locked."


def differences(locked: Lock, here: Lock) -> Iterator[str]:
    """Yield what will not be the same, though the lock can be honoured."""
    for title, field in TITLES.items():
        was, now = (getattr(lock.machine, field) for lock in (locked, here))
        if was != now:
            yield differs(title, *(", ".join(value) if isinstance(value, tuple) else value for value in (was, now)))
    for name in sorted(locked.tools.keys() | here.tools.keys()):
        if locked.tools.get(name) != here.tools.get(name):
            yield differs(name, locked.tools.get(name, ""), here.tools.get(name, ""))
    others = {part.name: part for part in here.parts}
    for part in locked.parts:
        other = others.get(part.name, part)
        if part.stands_in != other.stands_in:
            yield differs(f"the recipe of {part.name}", part.recipe, other.recipe)
        elif part.sha256 == other.sha256:
            was, now = ({source.filename for source in each.sources} for each in (part, other))
            if was != now:
                yield differs(f"files of {part.name}", ", ".join(sorted(was - now)), ", ".join(sorted(now - was)))


def other_packages(locked: Lock | None, lock: Lock | None) -> Iterator[str]:
    """Yield which packages of a system are others in what was made than in the lock, if both name some."""
    if locked is None or lock is None or not (locked.packages and lock.packages):
        return
    for name in sorted(locked.packages.keys() | lock.packages.keys()):
        was, now = locked.packages.get(name, ""), lock.packages.get(name, "")
        if was != now:
            yield differs(f"package {name}", was, now)


TITLES: Mapping[str, str] = {
    "machine type": "type",
    "CPU target": "cpu",
    "Python": "python",
    "compiler": "compiler",
    "MPI": "mpi",
    "site modules": "load",
}


def differs(title: str, was: str, now: str) -> str:
    """Say in what two locks differ."""
    return f"{title}: {was or 'none'} in the lock, {now or 'none'} here"
