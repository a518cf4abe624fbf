"""What people are told of a diagnosis and of a rule, word for word; each question to a machine; logs that are none."""

import gzip
import json
import lzma
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from envkit.diagnose import source, words
from envkit.diagnose.judge import Certainty, Diagnosis
from envkit.diagnose.rule import Conditions, Rule, Sign
from envkit.diagnose.scan import Deadline, ScannedLog
from envkit.diagnose.surroundings import FULL, Surroundings
from envkit.errors import LogUnreadable
from envkit.system import decompression

RULE = Rule(
    id="toy",
    about="build",
    find=("a", "b'"),
    cause="It broke. So it is.",
    fix="Mend it.",
    example="one\ntwo",
    source=("https://a", "https://b"),
)
FOUND = Diagnosis(
    rule=RULE,
    certainty=Certainty.CONFIRMED,
    line="the line",
    number=7,
    cause="It broke.",
    fix="Mend it.",
    confirmed=("line 3: x", "torch is there"),
)


def test_what_was_found() -> None:
    assert words.text("log", FOUND, 100, ["below", ""]).splitlines() == [
        "toy (confirmed)  log:7",
        "    the line",
        "    below",
        "    ",
        "",
        "     cause   It broke.",
        " confirmed   line 3: x",
        " confirmed   torch is there",
        "    remedy   Mend it.",
        "    source   https://a, https://b",
    ]
    assert words.text("log", None, 100) == "log: no sign of a failure is in this log"


def test_what_the_log_alone_does_not_prove() -> None:
    likely = replace(FOUND, certainty=Certainty.LIKELY, confirmed=(), fix="")
    assert words.text("log", likely, 100).splitlines()[3:] == [
        "     cause   It broke.",
        "    likely   the log alone does not prove it",
        "    source   https://a, https://b",
    ]
    looks = replace(likely, rule=replace(RULE, machine=Conditions(full="/tmp")))
    assert words.text("log", looks, 100).splitlines()[4] == (
        "    likely   the log alone does not prove it; where it was written, --here looks at the machine"
    )


def test_long_words_are_wrapped_behind_their_name() -> None:
    assert [*words.paragraph("cause", "one two-three four", 33)] == ["     cause   one two-three four"]
    assert [*words.paragraph("cause", f"one two {'x' * 30}", 5)] == [
        "     cause   one two",
        f"             {'x' * 30}",
    ]
    assert [*words.paragraph("cause", "", 5)] == ["     cause   "]
    lines = [*words.paragraph("cause", "12345 " * 20, 50)]
    assert max(map(len, lines)) == 13 + 35


@pytest.mark.parametrize(
    ("changes", "seen_by", "proved_by"),
    [
        ({}, "", "that alone"),
        ({"bare": True}, "", "nothing in a log"),
        ({"unknown": True}, "", "nothing in a log"),
        ({"proof": Sign(find=("c", "d"))}, "", "a line with 'c' or 'd'"),
        ({"machine": Conditions(full="/tmp"), "bare": True}, "", "the machine (--here)"),
        (
            {"proof": Sign(find=("c",)), "machine": Conditions(full="/tmp")},
            "",
            "a line with 'c' or the machine (--here)",
        ),
        (
            {"preceded_by": Sign(find=("c", "d")), "also": Sign(find=("e",)), "unless": Sign(find=("f",))},
            ", shortly below one with 'c' or 'd', with one with 'e', without one with 'f'",
            "that alone",
        ),
    ],
)
def test_what_is_known_of_a_rule(changes: dict[str, object], seen_by: str, proved_by: str) -> None:
    assert words.explained(replace(RULE, **changes), 200).splitlines() == [
        "toy (build)",
        f"""   seen by   a line with 'a' or "b'"{seen_by}""",
        f" proved by   {proved_by}",
        "     cause   It broke. So it is.",
        "    remedy   Mend it.",
        "    source   https://a, https://b",
        "   example",
        "             one",
        "             two",
    ]


def test_the_list_of_rules() -> None:
    other = replace(RULE, id="a-longer-name", about="launch", cause="It hung.")
    assert words.listed((RULE, other)).splitlines() == [
        "build     toy            It broke",
        "launch    a-longer-name  It hung",
    ]
    told = json.loads(words.list_json((RULE,)))
    assert told == {
        "version": 1,
        "rules": [
            {
                "id": "toy",
                "about": "build",
                "cause": "It broke. So it is.",
                "fix": "Mend it.",
                "source": ["https://a", "https://b"],
                "example": "one\ntwo",
            }
        ],
    }


def test_how_to_read_on(tmp_path: Path) -> None:
    log, packed = tmp_path / "a log", tmp_path / "log.gz"
    log.write_text("0123456789")
    packed.write_bytes(gzip.compress(b"0123456789"))
    seen = ScannedLog(lines=1234, size=9, whole=False)
    said = "envkit: the first 1,234 lines (0.0 MB) of {} were read, no more: to look at all of it takes too long."
    assert words.cut(str(log), seen) == (said.format(log) + f" To go on: tail -c +10 '{log}' | envkit diagnose -")
    seen.size = 10
    assert words.cut(str(log), seen) == said.format(log)
    assert words.cut(str(packed), seen) == said.format(packed)
    seen.size = 2_540_000
    assert "(2.5 MB) of -" in words.cut("-", seen)


@pytest.fixture
def python() -> Mapping[str, object]:
    """What a Python tells, with two packages and a Horovod of two extensions, of which one is cut."""
    extensions = [{"path": "/h/a.so", "size": 8, "wanted": 8}, {"path": "/h/b.so", "size": 7, "wanted": 8}]
    return {
        "executable": "/p",
        "versions": {"torch": "2.13.0+cpu", "odd": "x"},
        "horovod": "/h",
        "extensions": extensions,
    }


def place(python: Mapping[str, object] | None, **env: str) -> Surroundings:
    found = Surroundings(env=env)
    found.__dict__["python"] = python  # as if it had been asked
    return found


@pytest.mark.parametrize(
    ("wanted", "holds", "facts"),
    [
        (Conditions(package={"torch": ">=2.1"}), True, ["/p has torch 2.13.0+cpu"]),
        (Conditions(package={"torch": "<2.1"}), False, ["/p has torch 2.13.0+cpu"]),
        (Conditions(package={"odd": ">=1"}), False, ["/p has odd x"]),
        (Conditions(package={"numpy": ">=1"}), None, ["/p has no numpy"]),
        (Conditions(no_package=("numpy",)), True, ["/p has no numpy"]),
        (Conditions(no_package=("torch",)), False, ["/p has torch 2.13.0+cpu"]),
        (
            Conditions(no_package=("numpy",), package={"torch": "<1"}),
            False,
            ["/p has torch 2.13.0+cpu", "/p has no numpy"],
        ),
        (Conditions(no_package=("numpy",), package={"x": "<1"}), None, ["/p has no x", "/p has no numpy"]),
        (Conditions(extension="cut"), True, ["/h/b.so has 7 bytes instead of 8"]),
        (Conditions(extension="absent"), False, ["/h has /h/a.so"]),
        (Conditions(), True, []),
    ],
)
def test_what_a_python_has(
    wanted: Conditions, holds: bool | None, facts: list[str], python: Mapping[str, object]
) -> None:
    assert place(python).holds(wanted) == (holds, facts)


def test_what_is_not_known_of_a_python(python: Mapping[str, object]) -> None:
    wanted = Conditions(package={"torch": ">=2"})
    assert place(None).holds(wanted) == (None, ["no Python was found that could tell of torch"])
    assert place(None).holds(Conditions(extension="cut")) == (None, ["no Horovod was found"])
    assert place({**python, "horovod": ""}).holds(Conditions(extension="absent")) == (None, ["no Horovod was found"])
    bare = {**python, "extensions": []}
    assert place(bare).holds(Conditions(extension="absent")) == (True, ["/h has no extension"])
    assert place(bare).holds(Conditions(extension="cut")) == (None, ["no extension was found"])
    whole = {**python, "extensions": [{"path": "/h/a.so", "size": 9, "wanted": 8}]}
    assert place(whole).holds(Conditions(extension="cut")) == (False, ["/h/a.so is whole"])


def test_whether_a_header_is_there(tmp_path: Path) -> None:
    wanted = Conditions(no_header="toy/none.h")
    nowhere = (True, ["toy/none.h is in none of the usual folders"])
    header = tmp_path / "nccl" / "include" / "toy" / "none.h"
    header.parent.mkdir(parents=True)
    header.touch()
    found = (None, [f"{header} is there"])
    folder = str(tmp_path / "nccl" / "include")
    assert (
        Surroundings(env={}).holds(wanted)
        == Surroundings(env={"CPATH": f"{tmp_path}:", "NCCL_HOME": ""}).holds(wanted)
        == nowhere
    )
    assert Surroundings(env={"CPATH": f"{tmp_path}:{folder}"}).holds(wanted) == found
    assert Surroundings(env={"CPLUS_INCLUDE_PATH": folder}).holds(wanted) == found
    assert Surroundings(env={"NCCL_HOME": str(tmp_path / "nccl")}).holds(wanted) == found


def test_the_version_of_a_program(tmp_path: Path) -> None:
    for name, version in (("new", "toy 1.2.3 (4.5)"), ("odd", "none")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{version}'\n")
        (tmp_path / name).chmod(0o755)
    here = Surroundings(env={"PATH": str(tmp_path)})
    assert here.holds(Conditions(program={"new": ">=1.2"})) == (True, ["new on PATH is 1.2.3"])
    assert here.holds(Conditions(program={"new": ">=1.3"})) == (False, ["new on PATH is 1.2.3"])
    assert here.holds(Conditions(program={"odd": ">=1"})) == (None, ["odd is there"])
    assert here.holds(Conditions(program={"none": ">=1"})) == (None, ["there is no none on PATH"])
    assert here.holds(Conditions(no_program=("none",))) == (True, ["there is no none on PATH"])
    assert here.holds(Conditions(no_program=("new",))) == (False, ["new is on PATH"])


def test_whether_a_disk_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Conditions(full=str(tmp_path))
    for free, holds in ((FULL - 1, True), (FULL, None)):
        monkeypatch.setattr("shutil.disk_usage", lambda _folder, free=free: type("Usage", (), {"free": free}))
        assert Surroundings(env={}).holds(wanted) == (holds, [f"{tmp_path} has {free // 1_000_000} MB free"])
    monkeypatch.undo()
    gone = str(tmp_path / "gone")
    assert Surroundings(env={}).holds(Conditions(full=gone)) == (None, [f"{gone} is not there"])


def refused(path: Path) -> LogUnreadable:
    with pytest.raises(LogUnreadable) as found, source.opened(str(path), Deadline()) as blocks:
        list(blocks)
    return found.value


def test_why_a_compressed_log_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "a log"
    log.write_bytes(gzip.compress(bytes(range(256)) * 90, mtime=0)[:-20])
    said = refused(log)
    assert said.what == f"{log} is a compressed file that is damaged."
    assert said.why == "Compressed file ended before the end-of-stream marker was reached"
    assert said.fix == "Copy it again, or take the original."
    log.write_bytes(lzma.compress(b"ok\n"))
    monkeypatch.setattr(decompression, "MEMORY", 1 << 20)
    said = refused(log)
    assert said.what == f"{log}: unpacking it takes more than 1 MiB of memory."
    assert said.fix == f"xz -dc '{log}' | envkit diagnose -"


def test_a_name_that_no_file_can_have() -> None:
    said = refused(Path("a\0b"))
    assert (said.what, said.fix) == ("a\0b cannot be read.", "Name the file of a log, or give '-'.")
    assert "null" in said.why


@pytest.mark.parametrize(
    ("certainty", "state"),
    [(Certainty.CONFIRMED, "cause"), (Certainty.LIKELY, "cause"), (Certainty.UNKNOWN, "unknown")],
)
def test_what_is_told_as_json(certainty: Certainty, state: str) -> None:
    told = json.loads(words.to_json("log", replace(FOUND, certainty=certainty), whole=False))
    assert told == {
        "version": 1,
        "log": "log",
        "complete": False,
        "state": state,
        "cause": {
            "id": "toy",
            "certainty": certainty.value,
            "line": 7,
            "text": "the line",
            "cause": "It broke.",
            "confirmed": ["line 3: x", "torch is there"],
            "remedy": "Mend it.",
            "source": ["https://a", "https://b"],
        },
    }


def test_what_to_do_with_what_is_no_log(tmp_path: Path) -> None:
    log = tmp_path / "a log"
    assert (refused(log).what, refused(log).fix) == (
        f"There is no log {log}.",
        "Correct its path; '-' reads standard input.",
    )
    assert (refused(tmp_path).what, refused(tmp_path).fix) == (f"{tmp_path} is a folder.", "Name a log in it.")
    log.write_bytes(b"")
    assert (refused(log).what, refused(log).fix) == (
        f"{log} is empty.",
        "Write both outputs of the command into it: COMMAND > LOG 2>&1",
    )
    log.write_bytes(b"PK\x03\x04rest")
    assert (refused(log).what, refused(log).fix) == (
        f"{log} is compressed in a way that is not read here.",
        f"unzip -p '{log}' | envkit diagnose -",
    )
    log.write_bytes("x".encode("utf-16"))
    assert refused(log).what == f"{log} is encoded in a way that is not read here."
