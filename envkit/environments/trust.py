"""Whose a prefix is, looked at before anything in it is run: as ssh looks at its own files.

It may belong to this user, to root, and to whom ENVKIT_TRUST names: users, and groups with an @ before them. Nobody
else may be able to change it.
"""

import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envkit.environments.prefix import Prefix, Tree
from envkit.errors import HostProblem, NotReadable

TRUST = "ENVKIT_TRUST"


@dataclass(frozen=True, kw_only=True)
class Trusted:
    """Who may change what is run: the ids of users and of groups."""

    users: frozenset[int]
    groups: frozenset[int]


def words(env: Mapping[str, str]) -> list[str]:
    """Return the names in ENVKIT_TRUST."""
    return env.get(TRUST, "").replace(",", " ").split()


def strangers_in(env: Mapping[str, str]) -> list[str]:
    """Return the names in ENVKIT_TRUST that stand for nobody here."""
    found = []
    for word in words(env):
        name = word.removeprefix("@")
        try:
            _ = name.isdecimal() or (grp.getgrnam(name) if word.startswith("@") else pwd.getpwnam(name))
        except KeyError:
            found.append(word)
    return found


def trusted(env: Mapping[str, str] = os.environ) -> Trusted:
    """Return who is trusted. A name that is unknown here stands for nobody."""
    users, groups = {0, os.geteuid()}, {0}
    for word in words(env):
        name = word.removeprefix("@")
        with suppress(KeyError):
            if word.startswith("@"):
                groups.add(int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid)
            else:
                users.add(int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid)
    return Trusted(users=frozenset(users), groups=frozenset(groups))


def require(prefix: Path, tree: Tree | None = None, file: Path | None = None, modules: Iterable[str] = ()) -> None:
    """Require that nobody but those who are trusted can change a prefix, what lies in a tree of it, and a file of that.

    Of modules it is required of the module file, of the folder of each, and of those that these lie in.
    Raises HostProblem. What is not there, or cannot be looked at, is for who uses it.
    """
    known = trusted()
    is_open = True
    for path in places(prefix, tree, file, modules):
        try:
            found = path.stat()
        except OSError:
            continue
        if path == prefix:
            is_open = bool(found.st_mode & (stat.S_IXGRP | stat.S_IXOTH))
        if (who := stranger(found, known, is_open=is_open)) is not None:
            raise refused(prefix, path, *who)


def require_place(prefix: Prefix) -> None:
    """Require it of a prefix that is built into, with all its trees for this machine type. Raises HostProblem."""
    require(prefix.root)
    with suppress(NotReadable):
        for tree in prefix.trees(os.uname().machine):
            require(prefix.root, tree)


def places(prefix: Path, tree: Tree | None, file: Path | None, modules: Iterable[str] = ()) -> Iterator[Path]:
    """Yield what is looked at: folders of a prefix and of a tree down to where names lie, modules, and the file."""
    yield from (prefix, prefix / "sources")
    if tree is not None:
        yield tree.root
        with suppress(OSError):
            yield from sorted(path for path in tree.root.iterdir() if path.is_dir())
        yield tree.modulepath
        for module in modules:
            for one in (tree.modulepath / f"{module}.lua", tree.modulepath / module, tree.software / module):
                yield from (one.parent, one)
    if file is not None:
        yield file


def stranger(found: os.stat_result, known: Trusted, *, is_open: bool = True) -> tuple[str, str] | None:
    """Return who else can change a file, in words, and as ENVKIT_TRUST names them ("" where it cannot); None if nobody.

    Where others cannot get at it, be it not ``is_open``, its mode does not count.
    """
    if found.st_uid not in known.users and not known.groups & set(groups_of(found.st_uid)):
        return f"It belongs to {user_name(found.st_uid)}", user_name(found.st_uid)
    if not is_open:
        return None
    if found.st_mode & stat.S_IWOTH:
        return "Everybody may write to it", ""
    if found.st_mode & stat.S_IWGRP and found.st_gid not in known.groups and not is_own_group(found.st_gid):
        return f"The group {group_name(found.st_gid)} may write to it", f"@{group_name(found.st_gid)}"
    return None


def groups_of(uid: int) -> list[int]:
    """Return the groups that a user is in, but for root's."""
    with suppress(KeyError, OSError):
        entry = pwd.getpwuid(uid)
        return [gid for gid in os.getgrouplist(entry.pw_name, entry.pw_gid) if gid]
    return []


def is_own_group(gid: int) -> bool:
    """Say whether a group is that of this user alone, as many systems make one for each user."""
    with suppress(KeyError):
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
        return user.pw_gid == gid and group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}
    return False


def user_name(uid: int) -> str:
    """Return the name of a user, the number where it has none."""
    with suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def group_name(gid: int) -> str:
    """Return the name of a group, the number where it has none."""
    with suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)


def refused(prefix: Path, path: Path, who: str, word: str) -> HostProblem:
    """Say that a prefix is not used, since somebody else can change it."""
    unknown = strangers_in(os.environ)
    there = ",".join(one for one in words(os.environ) if one not in unknown)
    fix = f"If you trust them: export {TRUST}={f'{there},' if there else ''}{word}"
    closed = f"chmod {'g' if word else 'o'}-w {path}"
    if word.startswith("@"):
        fix = f"{fix}\nIf nobody else is to change it: {closed}"
    if unknown:
        fix = f"Nobody here is called {', '.join(unknown)}, as {TRUST} says.\n{fix}"
    return HostProblem(
        what=f"Nothing in the prefix {prefix} is run: others can change it.",
        why=f"{path}: {who}. What they put there would run as you.",
        fix=fix if word else f"Have its owner close it ({closed}), and look at what is in it.",
    )
