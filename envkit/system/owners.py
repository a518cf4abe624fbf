"""Who owns files, and who else can change them, or put others in their place; users, groups, and ids."""

import grp
import os
import pwd
import re
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LINKS = 40  # that the system follows, too
ALL_IDS = ["0", "0", "4294967295"]  # what the first user namespace maps
NOBODY = 65534  # what another one shows for an id that it does not map
NUMBER = re.compile(r"\d{1,10}", re.ASCII)  # an id
ACL, ACL_VERSION = "system.posix_acl_access", 2  # linux/posix_acl_xattr.h: a version, then entries of tag, rights, id
ACL_ENTRY = struct.Struct("<HHI")
ACL_USER, ACL_GROUP_OF_FILE, ACL_GROUP, ACL_MASK = 0x02, 0x04, 0x08, 0x10
ACL_WRITE = 0x02


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


def with_unmapped(known: Trusted) -> Trusted:
    """Return who is trusted, and in a container whoever it does not map, since nobody can tell who that is."""
    if not is_in_user_namespace():
        return known
    return Trusted(users=known.users | {NOBODY}, groups=known.groups | {NOBODY})


def is_in_user_namespace() -> bool:
    """Say whether this process is in a user namespace that may not map every id, as in most containers."""
    with suppress(OSError):
        return Path("/proc/self/uid_map").read_text().split() != ALL_IDS
    return False


def absent(words: Iterable[str]) -> list[str]:
    """Say of each word that names nobody here that there is no such user or group."""
    problems = []
    for word in words:
        name = word.removeprefix("@")
        try:
            _ = NUMBER.fullmatch(name) or (grp.getgrnam(name) if word.startswith("@") else pwd.getpwnam(name))
        except KeyError:
            problems.append(f"there is no {'group' if word.startswith('@') else 'user'} {name!a} here")
    return problems


@dataclass(frozen=True, kw_only=True)
class Writers:
    """The ids of users and of groups who may write to a file besides its owner; ``listed``: by a list of its own."""

    users: frozenset[int] = frozenset()
    groups: frozenset[int] = frozenset()
    listed: bool = False


NONE = Writers()


def stranger(
    state: os.stat_result, path: str | Path | int, known: Trusted, *, is_open: bool = True
) -> tuple[str, str] | None:
    """Return who else can change a file, in words, and as ENVKIT_TRUST names them ("" where it cannot); None if nobody.

    Where others cannot get at it, be it not ``is_open``, its mode does not count.
    """
    if not is_trusted(state.st_uid, known):
        return f"It belongs to {user_name(state.st_uid)}", user_name(state.st_uid)
    if not is_open:
        return None
    if state.st_mode & stat.S_IWOTH:
        return "Everybody may write to it", ""
    writing = writers(state, path)
    how = " (setfacl -b takes its access list away)" if writing.listed else ""
    for uid in sorted(writing.users):
        if not is_trusted(uid, known):
            return f"The user {user_name(uid)} may write to it{how}", user_name(uid)
    for gid in sorted(writing.groups - known.groups):
        if not is_own_group(gid):
            return f"The group {group_name(gid)} may write to it{how}", f"@{group_name(gid)}"
    return None


def writers(state: os.stat_result, path: str | Path | int) -> Writers:
    """Return who may write to a file besides its owner and everybody: its group, and whom its POSIX ACL names.

    The bits of the group are the mask of an ACL: without the right to write there, no entry has it.
    """
    if not state.st_mode & stat.S_IWGRP:
        return NONE
    try:
        content = os.getxattr(path, ACL)
    except OSError:  # it has none (ENODATA), or its file system knows of none (ENOTSUP)
        content = b""
    return listed(content, state.st_gid) or Writers(groups=frozenset((state.st_gid,)))


def listed(content: bytes, gid: int) -> Writers | None:
    """Return who may write to a file of a group by its ACL, as the kernel hands it out; None if this is none."""
    if len(content) % ACL_ENTRY.size != 4 or content[:4] != struct.pack("<I", ACL_VERSION):
        return None
    entries = list(ACL_ENTRY.iter_unpack(content[4:]))
    mask = next((rights for tag, rights, _ in entries if tag == ACL_MASK), ACL_WRITE)
    able = [(tag, holder) for tag, rights, holder in entries if rights & mask & ACL_WRITE]
    groups = {holder for tag, holder in able if tag == ACL_GROUP} | {gid for tag, _ in able if tag == ACL_GROUP_OF_FILE}
    return Writers(
        users=frozenset(holder for tag, holder in able if tag == ACL_USER),
        groups=frozenset(groups),
        listed=len(entries) > 3,
    )


def is_trusted(uid: int, known: Trusted) -> bool:
    """Say whether a user is one of those who are trusted, or in a group of theirs."""
    return uid in known.users or bool(known.groups & set(groups_of(uid)))


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
        if user.pw_gid == gid and group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}:
            return not have_as_first(gid) - {user.pw_uid}
    return False


@cache
def have_as_first(gid: int) -> frozenset[int]:
    """Return the users whose first group, which lists no members, is this one.

    Where users come from a server, this may take seconds, or name those of this machine alone (sssd without
    ``enumerate``): then a group with the name of its user counts as that user's own all the same.
    """
    return frozenset(entry.pw_uid for entry in pwd.getpwall() if entry.pw_gid == gid)


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


def above(place: Path) -> list[Path]:
    """Return the folders above a file or folder and the links on the way to it, from / on, as the system goes that way.

    What lies where others do not get is left out.
    """
    folders = dict[Path, None]()
    here, links = Path("/"), 0
    rest = [*reversed(Path(os.path.abspath(place)).parts)]  # noqa: PTH100  (no link is followed)
    while rest and links < LINKS:
        name = rest.pop()
        if name == "/":
            path = Path("/")
        elif name == "..":
            path = here.parent
        else:
            path = here / name
        try:
            rest += reversed(path.readlink().parts)
            links += 1
        except OSError:  # no link, or nothing that this user can look at
            here = path
        if (rest or path != here) and is_open_to_others(path.parent):
            folders[path] = None
    return list(folders)


def is_open_to_others(folder: Path) -> bool:
    """Say whether others than the owners of a folder and of those above it can get into it."""
    try:
        return all(path.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH) for path in (folder, *folder.parents))
    except OSError:
        return False


def usurper(place: Path, known: Trusted) -> tuple[Path, str, str] | None:
    """Return who else can put another file or folder in the place of one: in which folder, and as ``stranger`` does."""
    for path in above(place):
        if (who := usurper_in(path, known)) is not None:
            return path, *who
    return None


def usurper_in(path: Path, known: Trusted) -> tuple[str, str] | None:
    """Return who else can put something else in the place of what is in a folder, as ``stranger`` does; None if nobody.

    Of a link that is who else can lead it elsewhere: in a sticky folder its owner. In a container the owner of a folder
    may be one whom it does not map, so that nobody can tell who that is.
    """
    try:
        state, around = path.lstat(), path.parent.stat()
    except OSError:
        return None
    is_link = stat.S_ISLNK(state.st_mode)
    if is_link and not around.st_mode & stat.S_ISVTX:
        return None  # who may write to its folder, which is looked at itself
    is_open = not is_link and not state.st_mode & stat.S_ISVTX and bool(state.st_mode & (stat.S_IXGRP | stat.S_IXOTH))
    return stranger(state, path, with_unmapped(known), is_open=is_open)
