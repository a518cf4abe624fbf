"""The facts about EESSI and repositories like it, and what their symptoms mean: eessi.toml, eessi_symptoms.toml."""

from functools import cache
from typing import Any

import msgspec

from envkit.errors import Problem
from envkit.system import record, toml
from envkit.system.resources import data


class Repository(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A CernVM-FS repository of EESSI's layout: its name, the ``release`` that is entered where nobody says another.

    ``servers``, ``key`` (a file) and ``copy`` (a folder) are for where CernVM-FS's configuration does not know it.
    """

    name: str
    release: str
    what: str = ""
    servers: tuple[str, ...] = ()
    key: str = ""
    copy: str = ""

    @property
    def mount(self) -> str:
        """The folder in which it is seen."""
        return f"/cvmfs/{self.name}"

    @property
    def is_usual(self) -> bool:
        """Say whether it is EESSI's own for production."""
        return self.name == known().repository

    @property
    def title(self) -> str:
        """Its name as it stands before the name of a release."""
        return "EESSI" if self.is_usual else self.name

    @property
    def said(self) -> str:
        """The name that a session keeps of it: nothing of the usual one."""
        return "" if self.is_usual else self.name


class Launcher(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MPI by what its 'mpirun --version' says, an extended regular expression."""

    says: str
    family: str
    version: str


class EessiTables(msgspec.Struct, frozen=True, kw_only=True):
    """The repository, where it is seen, the usual release, the module to build on top of one, its servers; ``others``.

    ``reached`` is what entering reads first, the folder that has to be there before all; ``needed`` are the places that
    loading a module reads besides those of the modules; ``driver``, ``licensed``, ``library`` and ``gpu_scripts`` are
    what a site adds for GPUs, where, and by which programs;
    ``injected`` is where host_injections leads. ``cache_mb`` is what the cache of a session may hold where
    nobody says, ``least_cache_mb`` what it has to. ``launcher``, ``one_node`` and ``own_namespace`` are for ranks.
    """

    repository: str
    mount: str
    default: str
    extend: str
    servers: tuple[str, ...]
    reached: tuple[str, ...]
    needed: tuple[str, ...]
    driver: tuple[str, ...]
    licensed: tuple[str, ...]
    library: str
    gpu_scripts: str
    injected: str
    cache_mb: int
    least_cache_mb: int
    configuration: dict[str, tuple[str, ...]]
    one_node: dict[str, str]
    own_namespace: dict[str, str]
    launcher: tuple[Launcher, ...]
    others: tuple[Repository, ...]


class ClientSymptom(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The words of a client that gave up, any of ``says``, and what they mean."""

    id: str
    says: tuple[str, ...]
    what: str
    why: str
    fix: str


class Causes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """cvmfs_client.toml."""

    cause: tuple[ClientSymptom, ...]


@cache
def causes() -> tuple[ClientSymptom, ...]:
    """Return cvmfs_client.toml, which mount_namespace.py reads for itself."""
    return toml.read(data("knowledge/cvmfs_client.toml"), Causes).cause


@cache
def known() -> EessiTables:
    """Return eessi.toml."""
    return toml.read(data("knowledge/eessi.toml"), EessiTables)


@cache
def usual() -> Repository:
    """Return EESSI's own repository for production."""
    return Repository(
        name=known().repository,
        release=known().default,
        what="EESSI, in production",
        servers=known().servers,
    )


@cache
def symptoms() -> dict[str, dict[str, Any]]:
    """Return eessi_symptoms.toml."""
    return toml.read(data("knowledge/eessi_symptoms.toml"), toml.Tables)


def symptom(name: str, **values: object) -> Problem:
    """Return a symptom with its values put in."""
    words = {key: text.format_map(values) for key, text in symptoms()[name].items()}
    return record.convert({"id": name, **words}, Problem)
