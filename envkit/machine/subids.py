"""Subordinate ids (subuid(5), subgid(5)): whether a user has some, and a range of them that nobody has here."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ETC = Path("/etc")
COUNT = 65536  # ids that a build takes; also what useradd gives where login.defs says nothing
FIRST, LAST = 100_000, 600_100_000  # login.defs(5): SUB_UID_MIN and SUB_UID_MAX where it says nothing
HIGHEST = 2**32 - 2
LOCAL = frozenset({"files", "compat", "systemd", "altfiles", "db"})  # what a machine knows without asking others


@dataclass(frozen=True, kw_only=True)
class Ids:
    """Ids from ``first`` to ``last``, with both."""

    first: int
    last: int


def lacking(user: str, etc: Path = ETC) -> list[Path]:
    """Return those of the two files in which a user has no range, by name or by number."""
    return [path for path in (etc / "subuid", etc / "subgid") if not has_range(path, user)]


def has_range(path: Path, user: str) -> bool:
    """Say whether a user has subordinate ids in a file."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.split(":")[0] in (user, str(os.getuid())) for line in lines)


def advice(user: str, files: list[Path], etc: Path = ETC) -> str:
    """Say how an administrator gives a user ranges in ``files``: the command, with ids that nobody has."""
    ask = f"Ask an administrator for a range of {COUNT} ids that nobody else has in {names(files)}"
    source = directory(etc, "subid")
    if source:
        return f"{ask}: this machine takes ranges from {source} (getsubids {user} shows them)."
    try:
        span = free(etc)
    except OSError as error:
        return f"{ask}: {error.filename} cannot be read here ({error.strerror})."
    if span is None:
        return f"{ask}: between those that login.defs names none is free."
    ids = f"{span.first}-{span.last}"
    words = " ".join(f"--add-{'subuids' if path.name == 'subuid' else 'subgids'} {ids}" for path in files)
    absent = " ".join(str(path) for path in files if not path.exists())
    command = f"{f'touch {absent}; ' if absent else ''}usermod {words} {user}"
    users = directory(etc, "passwd") or directory(etc, "group")
    more = f"\nUsers of {users} are not all seen from here: none of them may have an id in it."
    return f"An administrator gives a range that is free here: {command}{more if users else ''}"


def names(files: list[Path]) -> str:
    """Return the files as words."""
    return " and ".join(map(str, files))


def free(etc: Path = ETC) -> Ids | None:
    """Return the first range that no user and no group has, as an id of its own or a subordinate one; None without one.

    Raises OSError for a file that is there and cannot be read.
    """
    settings = dict(re.findall(r"^\s*(SUB_[UG]ID_\w+)\s+(\d+)", text(etc / "login.defs"), re.MULTILINE))
    first = max(number(settings, name, FIRST) for name in ("SUB_UID_MIN", "SUB_GID_MIN"))
    last = min(HIGHEST, *(number(settings, name, LAST) for name in ("SUB_UID_MAX", "SUB_GID_MAX")))
    count = max(COUNT, *(number(settings, name, COUNT) for name in ("SUB_UID_COUNT", "SUB_GID_COUNT")))
    for taken in sorted(occupied(etc), key=lambda ids: ids.first):
        if taken.first >= first + count:
            break
        first = max(first, taken.last + 1)
    return Ids(first=first, last=first + count - 1) if first + count - 1 <= last else None


def number(settings: Mapping[str, str], name: str, default: int) -> int:
    """Return a setting."""
    return int(settings.get(name, default))


def occupied(etc: Path) -> Iterator[Ids]:
    """Yield every range that somebody has; of a line that is not as it should be, all that it may mean."""
    for name in ("subuid", "subgid"):
        for line in text(etc / name).splitlines():
            _, *fields = line.split(":")
            starts = numbers(fields[0]) if fields else []
            counts = numbers(fields[1]) if len(fields) > 1 else []
            for start in starts:
                yield Ids(first=start, last=start + max(1, *(counts or [COUNT])) - 1)
    for name in ("passwd", "group"):
        for line in text(etc / name).splitlines():
            fields = line.split(":")
            for own in (value for field in fields[2:4] for value in numbers(field)):
                yield Ids(first=own, last=own)


def numbers(word: str) -> list[int]:
    """Return what a number may mean, in decimal and as in C, where it may begin with 0 or 0x."""
    word = word.strip()
    readings = [int(word)] if re.fullmatch(r"[0-9]{1,20}", word) else []
    if re.fullmatch(r"0[0-7]{1,20}", word):
        readings.append(int(word, 8))
    if re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", word):
        readings.append(int(word, 16))
    return readings


def directory(etc: Path, database: str) -> str:
    """Return the source besides files of this machine that nsswitch.conf names for a database; nothing without one."""
    try:
        lines = text(etc / "nsswitch.conf").splitlines()
    except OSError:
        return ""
    for line in lines:
        name, colon, sources = line.partition("#")[0].partition(":")
        if colon and name.strip() == database:
            words = re.sub(r"\[[^]]*\]", " ", sources).split()
            return next((word for word in words if word not in LOCAL), "")
    return ""


def text(path: Path) -> str:
    """Return what is in a file; nothing if there is none. Raises OSError."""
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""
