"""Subordinate ids: the range that is advised, and the one that the set-up gives, is nobody's."""

import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from envkit.machine import subids

SCRIPT = Path(__file__).parents[1] / "scripts" / "subids.sh"
MALFORMED = (
    "", "#comment", "name", "name:", "name:100000", "name:100000:", "name::65536", ":100000:65536", "name:x:65536",
    "name:-1:65536", "name:100000:x", "name:0x30000:0x10000", "name:0306500:65536", "name: 100000 : 65536",
    "name:100000:65536:more", "name:99999999999999999999:1", "+::", "name:200000:-5", "\x00\xff:100000:65536",
)  # fmt: skip


def generated(seed: int, folder: Path) -> Path:
    """Write files of users and ids as a machine may have them, from a seed."""
    known = random.Random(seed)

    def line() -> str:
        if known.random() < 0.2:
            return known.choice(MALFORMED)
        start = known.choice((100_000, 165_536, 231_072, known.randrange(90_000, 700_000), known.randrange(2**31)))
        return f"u{known.randrange(9)}:{start}:{known.choice((1, 1000, 65536, 65537, 200_000))}"

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("subuid", "subgid"):
        text = "\n".join(line() for _ in range(known.randrange(12)))
        (folder / name).write_text(text + known.choice(("", "\n")))
    users = [
        f"u{n}:x:{known.choice((0, 1000, 65534, known.randrange(100_000, 400_000)))}:100::/:/bin/sh" for n in range(6)
    ]
    groups = [f"g{n}:x:{known.choice((0, 1000, known.randrange(100_000, 400_000)))}:" for n in range(6)]
    (folder / "passwd").write_text("\n".join(users) + "\n")
    (folder / "group").write_text("\n".join(groups) + "\n")
    return folder


def taken(folder: Path) -> set[tuple[int, int]]:
    """The ranges and ids of lines that are well formed, first and last."""
    found = set()
    for name in ("subuid", "subgid"):
        for line in (folder / name).read_text(errors="replace").splitlines():
            if match := re.fullmatch(r"[^:]+:(\d{1,15}):(\d{1,15})", line):
                found.add((int(match[1]), int(match[1]) + int(match[2]) - 1))
    for name in ("passwd", "group"):
        for line in (folder / name).read_text().splitlines():
            found.add((int(line.split(":")[2]), int(line.split(":")[2])))
    return found


@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(0, 300, 50)], ids=str)
def test_a_range_that_is_advised_is_nobodys(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        etc = generated(seed, tmp_path / f"etc-{seed}")
        ids = subids.free(etc)
        assert ids is not None, seed
        assert ids.first >= 100_000 and ids.last - ids.first == 65_535 and ids.last <= 600_100_000, seed
        assert not [one for one in taken(etc) if one[0] <= ids.last and one[1] >= ids.first], seed
        both = [etc / "subuid", etc / "subgid"]
        said = subids.advice("ada", both, etc)
        span = f"{ids.first}-{ids.last}"
        assert said.endswith(f"usermod --add-subuids {span} --add-subgids {span} ada"), seed


@pytest.mark.parametrize("seed", range(40))
def test_a_range_that_the_set_up_gives_is_nobodys(seed: int, tmp_path: Path) -> None:
    etc = generated(seed, tmp_path / "etc")
    before, lines = taken(etc), {name: (etc / name).read_text(errors="replace") for name in ("subuid", "subgid")}
    subprocess.run([SCRIPT, "root", etc], check=True)
    for name, text in lines.items():
        now = (etc / name).read_text(errors="replace")
        assert now.startswith(text)
        [given] = re.findall(r"^root:(\d+):65536$", now, re.MULTILINE)
        first, last = int(given), int(given) + 65_535
        assert first >= 100_000
        assert not [one for one in before if one[0] <= last and one[1] >= first]
    after = [(etc / name).read_text(errors="replace") for name in lines]
    subprocess.run([SCRIPT, "root", etc], check=True)
    assert [(etc / name).read_text(errors="replace") for name in lines] == after


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_line_that_is_malformed_frees_nothing(malformed: str, tmp_path: Path) -> None:
    """What it may have meant is left alone, and what is beside it counts."""
    (tmp_path / "subuid").write_text(f"{malformed}\nbob:165536:65536\n")
    ids = subids.free(tmp_path)
    assert ids is not None and (ids.last < 165_536 or ids.first >= 231_072)
    if "100000" in malformed:
        assert ids.first > 100_000


def test_the_first_user_of_a_machine(tmp_path: Path) -> None:
    said = subids.advice("ada", [tmp_path / "subuid", tmp_path / "subgid"], tmp_path)
    assert said == (
        f"An administrator gives a range that is free here: touch {tmp_path}/subuid {tmp_path}/subgid; "
        "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ada"
    )
    (tmp_path / "subuid").write_text("ada:100000:65536\n")
    (tmp_path / "subgid").touch()
    assert subids.lacking("ada", tmp_path) == [tmp_path / "subgid"]
    only = subids.advice("ada", [tmp_path / "subgid"], tmp_path)
    assert only.endswith("usermod --add-subgids 165536-231071 ada")


def test_where_login_defs_says_where(tmp_path: Path) -> None:
    (tmp_path / "login.defs").write_text(
        "# SUB_UID_MIN 5\nSUB_UID_MIN\t\t500000\nSUB_UID_MAX 900000\nSUB_UID_COUNT 100000\nSUB_GID_MIN 600000\n"
    )
    assert subids.free(tmp_path) == subids.Ids(first=600_000, last=699_999)
    (tmp_path / "subgid").write_text("bob:650000:200000\n")
    assert subids.free(tmp_path) is None
    assert "none is free" in subids.advice("ada", [tmp_path / "subuid"], tmp_path)


@pytest.mark.parametrize("source", ["sss", "files sss", "sss [NOTFOUND=return] files"])
def test_ranges_that_are_elsewhere(source: str, tmp_path: Path) -> None:
    (tmp_path / "nsswitch.conf").write_text(f"passwd: files\nsubid:  {source} # a comment\n")
    said = subids.advice("ada", [tmp_path / "subuid"], tmp_path)
    assert "this machine takes ranges from sss (getsubids ada shows them)" in said and "usermod" not in said
    (tmp_path / "nsswitch.conf").write_text("passwd: files ldap\nsubid: files\n")
    told = subids.advice("ada", [tmp_path / "subuid"], tmp_path)
    assert "usermod" in told and "Users of ldap are not all seen from here" in told


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "subuid").mkdir()
    said = subids.advice("ada", [tmp_path / "subuid", tmp_path / "subgid"], tmp_path)
    assert f"{tmp_path}/subuid cannot be read here (Is a directory)" in said and "usermod" not in said


@pytest.mark.parametrize(
    ("text", "there"),
    [
        ("ada:100000:65536\n", True),
        (f"{os.getuid()}:100000:65536\n", True),
        ("adam:1:2\n", False),
        ("", False),
    ],
)
def test_a_range_of_subordinate_ids(text: str, there: bool, tmp_path: Path) -> None:
    file = tmp_path / "subuid"
    file.write_text(text)
    assert subids.has_range(file, "ada") is there
    assert not subids.has_range(tmp_path / "none", "ada")


def test_no_range_is_advised_to_every_user_alike() -> None:
    """Two users who take the same can change each other's files."""
    root = SCRIPT.parents[1]
    files = [path for folder in ("envkit", "scripts", "containers") for path in (root / folder).rglob("*.*")]
    texts = [path for path in [root / "README.md", *files] if path.suffix in (".md", ".toml", ".sh", ".py", ".def")]
    assert len(texts) > 100
    assert [path for path in texts if re.search(r"--add-sub[ug]ids \d", path.read_text())] == []
