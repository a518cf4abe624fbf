"""Who else can change a file: by its mode, and by its access list (POSIX ACL), which the mode does not tell."""

import errno
import grp
import os
import pwd
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.environments import trust
from envkit.system import owners

ADA, BEN, PROJECT = 23_001, 23_002, 23_007  # which no user and no group has
OWNER, USER, GROUP_OF_FILE, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
NO_ID = 0xFFFFFFFF
Entry = tuple[int, int, int]


def acl(*named: Entry, group: int = 5, mask: int = 7) -> bytes:
    """An access list: what these entries, the file's group and the mask may."""
    entries = [(OWNER, 7, NO_ID), (GROUP_OF_FILE, group, NO_ID), *named, (MASK, mask, NO_ID), (OTHER, 5, NO_ID)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in sorted(entries))


def give(path: Path, content: bytes) -> None:
    try:
        os.setxattr(path, "system.posix_acl_access", content)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        pytest.skip(f"the file system of {path} has no access lists")


def who(path: Path, *trusted: str) -> tuple[str, str] | None:
    return owners.stranger(path.stat(), path, owners.known(trusted))


@pytest.mark.parametrize(
    ("content", "word", "kind"),
    [
        (acl((USER, 7, ADA)), f"{ADA}", "user"),
        (acl((USER, 2, ADA), mask=2), f"{ADA}", "user"),
        (acl((GROUP, 7, PROJECT)), f"@{PROJECT}", "group"),
        (acl((USER, 5, ADA), (GROUP, 6, PROJECT)), f"@{PROJECT}", "group"),
    ],
)
def test_whom_an_access_list_lets_write(content: bytes, word: str, kind: str, tmp_path: Path) -> None:
    """The mode says no more than that the group may, which is this user's."""
    tmp_path.chmod(0o755)
    give(tmp_path, content)
    assert tmp_path.stat().st_mode & 0o022 == 0o020 and tmp_path.stat().st_gid == os.getegid()
    found = who(tmp_path)
    assert found and found[0].startswith(f"The {kind} {word.lstrip('@')} may write to it (setfacl -b ")
    assert found[1] == word
    assert who(tmp_path, word) is None, "who is trusted"


@pytest.mark.parametrize(
    "content",
    [
        acl((USER, 5, ADA), (GROUP, 4, PROJECT)),  # who may read
        acl((USER, 7, ADA), (GROUP, 7, PROJECT), group=7, mask=5),  # whom the mask keeps from writing
    ],
)
def test_whom_an_access_list_does_not_let_write(content: bytes, tmp_path: Path) -> None:
    give(tmp_path, content)
    assert who(tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to a group")
def test_the_group_of_a_file_with_an_access_list(tmp_path: Path) -> None:
    """It may write only if its own entry says so: its bits in the mode are the mask."""
    os.chown(tmp_path, -1, PROJECT)
    give(tmp_path, acl((USER, 7, os.geteuid()), group=5))
    assert tmp_path.stat().st_mode & 0o020 and who(tmp_path) is None
    give(tmp_path, acl((USER, 7, os.geteuid()), group=7))
    found = who(tmp_path)
    assert found and found[1] == f"@{PROJECT}"


def test_each_file_is_judged_by_its_own_access_list(tmp_path: Path) -> None:
    """Though all else of them is the same."""
    tmp_path.chmod(0o755)
    watch = trust.watcher(tmp_path)
    for name in ("one", "two", "three"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o664)
    give(tmp_path / "two", acl((USER, 6, ADA), group=4, mask=6))
    give(tmp_path / "three", acl((USER, 6, BEN), group=4, mask=6))
    found = [watch(path.stat(), str(path)) for path in (tmp_path / name for name in ("one", "two", "three"))]
    assert [one and one[1] for one in found[1:]] == [f"{ADA}", f"{BEN}"]
    assert found[0] is None or found[0][1].startswith("@")


@pytest.mark.parametrize("content", [b"", b"\2\0\0\0\1", b"\3\0\0\0" + acl()[4:], bytes(4), bytes(13)])
def test_what_is_no_access_list(content: bytes) -> None:
    assert owners.listed(content, PROJECT) is None


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[pwd.struct_passwd]]:
    """The users of a machine on which Ada has a group of her own, by its name."""
    ada = pwd.struct_passwd(("ada", "x", ADA, ADA, "", "/", "/bin/sh"))
    users = [ada, pwd.struct_passwd(("toor", "x", 0, 0, "", "/", "/bin/sh"))]
    monkeypatch.setattr(os, "geteuid", lambda: ADA)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: ada)
    monkeypatch.setattr(pwd, "getpwall", lambda: users)
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group(("ada", "x", ADA, [])))
    owners.have_as_first.cache_clear()
    yield users
    owners.have_as_first.cache_clear()


@pytest.mark.parametrize(("uid", "gid", "own"), [(BEN, ADA, False), (BEN, BEN, True), (ADA, ADA, True)])
def test_a_group_that_another_user_has_as_the_first_one(
    uid: int, gid: int, own: bool, alone: list[pwd.struct_passwd]
) -> None:
    """The list of its members does not name them."""
    assert owners.is_own_group(ADA)
    owners.have_as_first.cache_clear()
    alone.append(pwd.struct_passwd(("ben", "x", uid, gid, "", "/", "/bin/sh")))
    assert owners.is_own_group(ADA) is own
