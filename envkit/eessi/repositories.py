"""The CernVM-FS repositories of EESSI's layout: EESSI's own, and those of a site, in repositories.toml.

It lies beside each config.toml: the user's, that of this installation of envkit, and the system's.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from envkit.config import configuration as config
from envkit.environments.name_syntax import is_name
from envkit.errors import ConfigInvalid, UsageProblem
from envkit.knowledge.eessi import Repository, known, symptom, symptoms, usual
from envkit.system import record, toml

FILE = "repositories.toml"
NAME = re.compile(r"[a-z0-9][a-z0-9-]*(\.[a-z0-9][a-z0-9-]*)+")
SERVER = re.compile(r"https?://[\w.-]+(:\d+)?(/[\w.@~+-]+)*/?", re.ASCII)
EXPECTED = {
    "release": 'the name of a release in quotes, such as "2023.06"',
    "what": "a text in quotes",
    "servers": 'a list of URLs, such as ["http://cvmfs.example.org/cvmfs/@fqrn@"]',
    "key": "the absolute path of a public key in quotes",
    "copy": "the absolute path of a folder in quotes",
}


@dataclass(frozen=True, kw_only=True)
class KnownRepository:
    """A repository, and the file that has it; None for envkit's own list."""

    repository: Repository
    file: Path | None = None


def everyone(env: Mapping[str, str] = os.environ) -> dict[str, KnownRepository]:
    """Return the repositories by their names, EESSI's own first; the user's file counts more than the system's.

    Raises ConfigInvalid for a file with a mistake in it.
    """
    found = {one.name: KnownRepository(repository=one) for one in (usual(), *known().others)}
    for _, path, trusted in reversed(config.places(env, FILE)):
        try:
            data = config.content(path, trusted)
        except ValueError as error:
            raise mistaken([f"{path}: {error}"]) from error
        if data is not None:
            found |= {one.name: KnownRepository(repository=one, file=path) for one in parsed(data, path)}
    return found


def find(name: str, env: Mapping[str, str] = os.environ) -> Repository:
    """Return a repository by its name, EESSI's own for none. Raises UsageProblem, ConfigInvalid."""
    if name in ("", usual().name):
        return usual()
    there = everyone(env)
    if name in there:
        return there[name].repository
    if f"repository {name}" in symptoms():
        words = symptom(f"repository {name}")
        raise UsageProblem.of(words)
    if "," in name:  # as eessi_container.sh takes it
        raise UsageProblem(
            what=f"--repository {name!a}: it takes one name alone.",
            fix="Leave out what follows the comma. To write below it (access=rw): --writable DIR",
        )
    path = next((str(path) for _, path, _ in config.places(env, FILE)), FILE)
    raise UsageProblem(
        what=f"--repository {name!a}: envkit knows none of that name.",
        why=f"There are: {', '.join(there)}.",
        fix=f'Correct it, or add it to {path}:\n  ["software.example.org"]\n  release = "2024.05"\n'
        "What else it can say is in docs/eessi.md.",
    )


def parsed(data: bytes, path: Path) -> list[Repository]:
    """Return the repositories in a file. Raises ConfigInvalid."""
    try:
        text, tables = toml.parsed(data, str(path))
    except ValueError as error:
        raise mistaken([str(error)]) from error
    if wrong := list(mistakes(tables, text, str(path))):
        raise mistaken(wrong[:10])
    return [record.convert({**table, "name": name}, Repository) for name, table in tables.items()]


def mistaken(wrong: list[str]) -> ConfigInvalid:
    """Return mistakes as a failure."""
    return ConfigInvalid(
        what="The list of repositories has a mistake in it.",
        why="\n".join(wrong),
        fix="Correct it. docs/eessi.md has each key.",
    )


def mistakes(tables: toml.Tables, text: str, path: str) -> Iterator[str]:
    """Yield each mistake in a file, with its line where that can be told."""
    for name, table in tables.items():
        if not isinstance(table, dict):
            yield f'{path}: {name[:60]!a} is no table: write ["NAME"], and its keys below.'
            continue
        if not NAME.fullmatch(name) or name == usual().name:
            yield f'{path}: [{name[:60]!a}] is no name of another repository, such as ["software.example.org"].'
            continue
        if "release" not in table:
            yield f"{path}: [\"{name}\"]: the key 'release' is missing: expected {EXPECTED['release']}."
        for key, value in table.items():
            where = toml.place(path, text, f"{name}.{key}")
            if key not in EXPECTED:
                yield f'{where}: ["{name}"]: there is no key {key[:60]!a}; there are {", ".join(EXPECTED)}.'
            elif not is_right(key, value):
                yield f"{where}: [\"{name}\"]: '{key}': expected {EXPECTED[key]}, found {toml.shown(value)}."


def is_right(key: str, value: Any) -> bool:
    """Say whether a key may have a value."""
    if key == "servers":
        return isinstance(value, list) and all(isinstance(one, str) and SERVER.fullmatch(one) for one in value)
    if not isinstance(value, str) or not value.isprintable():
        return False
    if key == "release":
        return is_name(value)
    return key == "what" or (value.startswith("/") and not re.search(r"[:,'\"]", value))


class ListedRepository(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``envkit eessi repositories``; ``file`` is the file that has it, "" for envkit's own list."""

    name: str
    release: str
    mounted: bool
    what: str
    file: str


def listed(env: Mapping[str, str] = os.environ) -> list[ListedRepository]:
    """Return what there is to say of every repository; nothing below /cvmfs is touched, which may hang."""
    mounts = {line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()}
    return [
        ListedRepository(
            name=one.repository.name,
            release=one.repository.release,
            mounted=one.repository.mount in mounts,
            what=one.repository.what,
            file=str(one.file or ""),
        )
        for one in everyone(env).values()
    ]
