"""Real users of this machine, for what depends on who somebody is. Their tests are in the group ``users``."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .integration.site import SYSTEM_PATH, TOYS, needs

REPOSITORY = Path(__file__).parents[1]
LIMIT_S = 240
# Python may lie in root's home, where others do not get: it is shown at the same place, with nothing else of that home
SHOWN = """
closed=$1; count=$2; shift 2
mount -t tmpfs none /mnt
number=0
for path in "$@"; do
    [ $number -lt $count ] || break
    mkdir /mnt/$number; mount --bind "$path" /mnt/$number; number=$((number+1))
done
for folder in $closed; do mount -t tmpfs -o mode=755 none "$folder"; done
number=0
while [ $number -lt $count ]; do
    (umask 022; mkdir -p "$1"); mount --bind /mnt/$number "$1"; number=$((number+1)); shift
done
umount -l /mnt
exec "$@"
"""


class Person:
    """A user, who calls envkit with a home of their own."""

    def __init__(self, name: str) -> None:
        entry = pwd.getpwnam(name)
        self.name, self.uid, self.gid, self.home = name, entry.pw_uid, entry.pw_gid, Path(entry.pw_dir)
        self.home.chmod(0o700)

    def run(
        self, *argv: str | Path, umask: int = 0o022, limit_s: float = LIMIT_S, **settings: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as this user."""
        env = {"HOME": str(self.home), "USER": self.name, "LANG": "C.UTF-8", "TMPDIR": str(self.home), "COLUMNS": "300"}
        env |= {"PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}", **{k: str(v) for k, v in settings.items()}}
        become = ["setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups"]
        words = [*shown(), *become, *map(str, argv)]
        return subprocess.run(
            words, env=env, cwd=self.home, umask=umask, capture_output=True, text=True, timeout=limit_s, check=False
        )

    def envkit(
        self, *words: str | Path, umask: int = 0o022, limit_s: float = LIMIT_S, **settings: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run envkit as this user."""
        argv = (sys.executable, "-m", "envkit", *words)
        return self.run(*argv, umask=umask, limit_s=limit_s, PYTHONPATH=REPOSITORY, **settings)

    def owns(self, *paths: Path) -> None:
        """Give these folders, with all in them, or files to this user."""
        for path in paths:
            for one in (path, *path.rglob("*")):
                os.chown(one, self.uid, self.gid, follow_symlinks=False)


def closed(path: Path) -> Path | None:
    """The first folder on the way to a path where other users do not get; None where they do."""
    return next((one for one in reversed((path, *path.parents)) if one.stat().st_mode & 0o001 == 0), None)


def shown(hidden: Path | None = None) -> list[str]:
    """What stands before a command of another user, so that it finds this Python and this envkit.

    A folder that is ``hidden`` is empty but for them.
    """

    def within(path: Path) -> Path | None:
        return hidden if hidden and path.is_relative_to(hidden) else closed(path)

    paths = [path for path in (Path(sys.base_prefix), Path(sys.prefix), REPOSITORY) if within(path)]
    folders = dict.fromkeys(str(folder) for folder in (hidden, *map(within, paths)) if folder)
    return ["unshare", "--mount", "sh", "-ec", SHOWN, "sh", " ".join(folders), str(len(paths)), *map(str, paths)]


@contextmanager
def people(*names: str, group: str = "", members: tuple[str, ...] = ()) -> Iterator[dict[str, Person]]:
    """Have these users, and a group of some of them, for a while; needs root."""
    needs("useradd", "setpriv", "unshare", "mount")
    full = {name: f"envkit-{name}" for name in names}
    forget(*full.values(), group=group)
    if group:
        subprocess.run(["groupadd", group], check=True)
    for name in names:
        more = [f"--groups={group}"] if name in members else []
        subprocess.run(["useradd", "--create-home", "--no-log-init", "--user-group", *more, full[name]], check=True)
    try:
        yield {name: Person(full[name]) for name in names}
    finally:
        forget(*full.values(), group=group)


def forget(*names: str, group: str = "") -> None:
    """Remove users with their homes, and a group, if they are there."""
    for name in names:
        subprocess.run(["userdel", "--remove", name], check=False, capture_output=True)
    if group:
        subprocess.run(["groupdel", group], check=False, capture_output=True)


def recipes_of_toys(folder: Path, *persons: Person) -> Path:
    """Put the recipes of the toys where every user can read them, and in homes what their builds look for."""
    made = folder / "recipes"
    shutil.copytree(TOYS, made)
    for recipe in made.glob("*.eb"):
        recipe.write_text(recipe.read_text().replace("/toy-sources", str(made)))
    for person in persons:
        shutil.copy(TOYS / "step.sh", person.home)
        (person.home / "more-sources").touch()
        person.owns(person.home / "step.sh", person.home / "more-sources")
    return made


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that every user can read, which pytest's are not."""
    folder = Path(tempfile.mkdtemp(prefix="envkit-people-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
