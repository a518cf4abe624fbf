"""Virtual environments on top of an environment: folders of a user's own, each with a record of what it is on top of.

::

    DIR/envkit.json         on top of what, and which packages of that are fixed; written last
    DIR/constraints.txt     the same for pip, which reads it when it installs into DIR (DIR/pip.conf), if no
                            PIP_CONSTRAINT or PIP_CONFIG_FILE says otherwise
    DIR/bin/activate        enters the modules, too
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote

import msgspec

from envkit.environments import trust
from envkit.environments.name_syntax import is_name, shown
from envkit.environments.prefix import Tree
from envkit.errors import EnvironmentDamaged, HostProblem
from envkit.system import owners, record

RECORD = "envkit.json"
DISTRIBUTION = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>\d[^-]*)\.(?:dist|egg)-info$")


class Venv(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual environment in ``folder``, on top of the environment ``name`` in ``tree``.

    ``fixed`` are the versions of that environment's packages, by normalized name; ``absent`` are names of packages that
    would take the place of its MPI or framework.
    """

    folder: str
    name: str
    tree: str
    fixed: dict[str, str]
    absent: tuple[str, ...]
    envkit: str


def named(word: str | None) -> Path | None:
    """Return the folder that a word names, as an absolute path, if it is such a virtual environment; else None.

    A folder is named by a path with a slash, as programs are: what lies where one happens to be, such as in somebody's
    repository, never takes the place of an environment.
    """
    if not word or "/" not in word:
        return None
    with suppress(OSError, ValueError):
        if (Path(word) / RECORD).is_file():
            return Path(word).absolute()
    return None


def read(folder: Path) -> Venv:
    """Return what a virtual environment is on top of. Raises EnvironmentDamaged, HostProblem for a stranger's."""
    require_place(folder)
    allowed = trust.trusted()
    try:
        for path in (folder, folder / RECORD, folder / "bin"):
            if (who := owners.stranger(path.stat(), path, allowed)) is not None:
                raise HostProblem(
                    what=f"Nothing in {folder} is run: others can change it.",
                    why=f"{path}: {who[0]}. What they put there would run as you.",
                    fix="Make one of your own with 'envkit venv', or let nobody else write to it: "
                    f"chmod go-w {quote(str(path))}",
                )
        venv = record.read(folder / RECORD, Venv)
    except (OSError, msgspec.DecodeError) as error:
        raise damaged(folder, shown(str(error))) from error
    odd = next((text for text in (venv.folder, venv.name, venv.tree) if not text.isprintable()), "")
    relative = next((place for place in (venv.folder, venv.tree) if not place.startswith("/")), None)
    if odd or relative is not None or venv.tree.startswith("/proc/") or not is_name(venv.name):
        named = odd or (f"{venv.name}, {venv.tree}" if relative is None else relative)
        raise damaged(folder, f"Its record names {named!r}.")
    if not os.path.isdir(venv.folder) or not folder.samefile(venv.folder):  # noqa: PTH112  (raises nothing)
        raise damaged(folder, f"It was made as {venv.folder}, and the paths in its files are still those.")
    if not (folder / "bin" / "python").exists():
        raise damaged(folder, f"Its Python has gone: {folder / 'bin' / 'python'}.")
    return venv


def require_place(folder: Path) -> None:
    """Require that nobody who is not trusted can put another folder in the place of one. Raises HostProblem."""
    if (found := owners.usurper(folder, trust.trusted())) is not None:
        path, who, word = found
        raise HostProblem(
            what=f"Nothing in {folder} is run: others can put another folder in its place.",
            why=f"{path}: {who}. What they put there would run as you.",
            fix=f"Use a folder below your home, or have the owner close that one: chmod o-w {quote(str(path))}; or "
            f"chmod +t {quote(str(path))}, so that each changes their own alone."
            + (f"\nIf you trust them: {trust.export(word)}" if word else ""),
        )


def damaged(folder: Path, why: str) -> EnvironmentDamaged:
    """Say that a virtual environment cannot be used any more."""
    return EnvironmentDamaged(
        what=f"The virtual environment {folder} cannot be used.",
        why=why,
        fix="Make it again: keep what it has with "
        f"'{quote(str(folder / 'bin/python'))} -m pip freeze --local', delete the folder, and "
        "use 'envkit venv NAME DIR --requirement FILE'.",
    )


def site_packages(folder: Path) -> Iterator[Path]:
    """Yield the folders of a virtual environment that hold its packages."""
    yield from sorted(folder.glob("lib/python3*/site-packages"))


def installed(folder: Path) -> dict[str, str]:
    """Return the versions of the packages that lie in a virtual environment itself, by normalized name."""
    return in_folders(site_packages(folder))


def in_folders(folders: Iterable[Path]) -> dict[str, str]:
    """Return the versions of the packages that lie in some folders, by normalized name."""
    names = (path.name for place in folders if place.is_dir() for path in place.iterdir())
    matches = (match for name in names if (match := DISTRIBUTION.fullmatch(name)))
    return {normalized(match["name"]): match["version"] for match in matches}


def linked(folder: Path) -> set[str]:
    """Return the normalized names of packages that a virtual environment only links to, as older tools do."""
    return {normalized(path.stem) for place in site_packages(folder) for path in place.glob("*.egg-link")}


def normalized(name: str) -> str:
    """Return the name of a package as the index has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def shadowing(folder: Path) -> list[str]:
    """Say which packages in a virtual environment have the name of one that is fixed, or are not to be there."""
    venv, versions = read(folder), installed(folder)
    return [
        said(name, version, venv.fixed) for name, version in versions.items() if name in {*venv.fixed, *venv.absent}
    ]


def said(name: str, version: str, fixed: Mapping[str, str]) -> str:
    """Say of a package what the environment has in its place."""
    return f"{name} {version} (the environment has {fixed[name]})" if name in fixed else f"{name} {version}"


def tree_of(venv: Venv) -> Tree:
    """Return the tree of the environment that a virtual environment is on top of."""
    return Tree(root=Path(venv.tree))
