"""Who owns files, and who else can change them: users and groups by their ids and names."""

import grp
import os
import pwd
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

NUMBER = re.compile(r"\d{1,10}", re.ASCII)  # an id


@dataclass(frozen=True, kw_only=True)
class Trusted:
    """Who may change what is run: the ids of users and of groups."""

    users: frozenset[int]
    groups: frozenset[int]


def known(words: Iterable[str]) -> Trusted:
    """Return this user, root, and whom words name: users, and groups with an @. Of who is unknown here it is nobody."""
    users, groups = {0, os.geteuid()}, {0}
    for word in words:
        name = word.removeprefix("@")
        with suppress(KeyError):
            if word.startswith("@"):
                groups.add(int(name) if NUMBER.fullmatch(name) else grp.getgrnam(name).gr_gid)
            else:
                users.add(int(name) if NUMBER.fullmatch(name) else pwd.getpwnam(name).pw_uid)
    return Trusted(users=frozenset(users), groups=frozenset(groups))


def absent(words: Iterable[str]) -> list[str]:
    """Say of each word that names nobody here that there is no such user or group."""
    said = []
    for word in words:
        name = word.removeprefix("@")
        try:
            _ = NUMBER.fullmatch(name) or (grp.getgrnam(name) if word.startswith("@") else pwd.getpwnam(name))
        except KeyError:
            said.append(f"there is no {'group' if word.startswith('@') else 'user'} {name!a} here")
    return said


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
