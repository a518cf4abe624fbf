"""What is known of EESSI, and what its symptoms mean: eessi.toml and eessi_symptoms.toml."""

from functools import cache
from typing import Any

import msgspec

from envkit.errors import Problem
from envkit.system import toml
from envkit.system.resources import data


class Launcher(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MPI by what its 'mpirun --version' says, an extended regular expression."""

    says: str
    family: str
    version: str


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The repository, where it is seen, the usual release, the module to build on top of one, its servers.

    ``reached`` is what entering reads first, the folder that has to be there before all; ``needed`` are the places that
    loading a module reads besides those of the modules; ``driver``, ``licensed``, ``library`` and ``gpu_scripts`` are
    what a site adds for GPUs, where, and by which programs. ``cache_mb`` is what the cache of a session may hold where
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
    cache_mb: int
    least_cache_mb: int
    configuration: dict[str, tuple[str, ...]]
    one_node: dict[str, str]
    own_namespace: dict[str, str]
    launcher: tuple[Launcher, ...]


class Cause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client that gave up has said, any of ``says``, and what that means."""

    id: str
    says: tuple[str, ...]
    what: str
    why: str
    fix: str


class Causes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """cvmfs_client.toml."""

    cause: tuple[Cause, ...]


@cache
def causes() -> tuple[Cause, ...]:
    """Return cvmfs_client.toml, which namespace.py reads for itself."""
    return toml.read(data("knowledge/cvmfs_client.toml"), Causes).cause


@cache
def known() -> Known:
    """Return eessi.toml."""
    return toml.read(data("knowledge/eessi.toml"), Known)


@cache
def symptoms() -> dict[str, dict[str, Any]]:
    """Return eessi_symptoms.toml."""
    return toml.read(data("knowledge/eessi_symptoms.toml"), toml.Tables)


def symptom(name: str, **values: object) -> Problem:
    """Return a symptom with its values put in."""
    words = {key: text.format_map(values) for key, text in symptoms()[name].items()}
    return msgspec.convert({"id": name, **words}, Problem)
