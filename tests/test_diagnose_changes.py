"""What launchers, terminals and collectors of logs do to a log changes its first cause in hardly any."""

import time
from collections.abc import Mapping, Sequence
from functools import cache

import pytest

from envkit.diagnose import first_cause
from envkit.diagnose.rule import untagged
from tests.diagnose_changes import CHANGES, FORMS, HALF, TAGS, changed, corpus, halved, main
from tests.test_diagnose import HEALTHY

logs = cache(corpus)
EXACT = [*TAGS, "CRLF", "coloured lines", "coloured words", "coloured tag"]
MIXED = [name for name in FORMS if name not in EXACT]


@pytest.mark.parametrize("name", EXACT)
def test_a_tag_and_a_form_of_lines_change_no_cause(name: str) -> None:
    assert [*changed(CHANGES[name], logs())] == []


@pytest.mark.parametrize("name", MIXED)
def test_of_mixed_ranks_the_cause_is_nearly_always_the_same(name: str) -> None:
    other = [*changed(CHANGES[name], logs())]
    assert len(other) <= len(logs()) * 0.005, other


def test_the_second_half_of_a_log_mostly_has_the_cause_that_stands_in_it() -> None:
    some = halved(logs())
    other = [*changed(lambda lines: lines[len(lines) // 2 :], some)]
    assert len(other) <= len(some) * 0.1, other


@pytest.mark.parametrize(
    ("line", "bare"),
    [
        ("[1,0]<stderr>:  what():  foo", "what():  foo"),
        ("2024-05-06T07:08:09.123456789Z [1,0]<stderr>:foo", "foo"),
        ("#7 12.34 ERROR: x", "ERROR: x"),
        ("worker-1  | x", "x"),
        ("May  6 07:08:09 n1 slurmd[26180]: error: x", "error: x"),
        ("May  6 07:08:09 fatal error: x", "fatal error: x"),
        ("2024-05-06T07:08:09.123Z ERROR: No matching distribution", "ERROR: No matching distribution"),
        ("2024-05-06T07:08:09.123Z 2024-05-06 07:08:09,123 ERROR x", "2024-05-06 07:08:09,123 ERROR x"),
        *(
            (line, line)
            for line in (
                "2024-05-06T07:08:09.123Z ERROR trainer could not open shard 17",
                "2024-05-06T07:08:09Z - trainer - [ERROR] could not open shard 17",
                "Tue Nov  1 14:02:25 2022: [unset]:_pmi_init",
                "[1]+  Exit 1",
                "12 | #include <mpi.h>",
                "#error C++17 is required",
                "[n1:4711] PMIX ERROR: ERROR in file x.c",
                "[mpiexec@n1] match_arg",
                "x.cc:1:2: error: y",
            )
        ),
    ],
)
def test_a_tag_is_what_something_else_put_in_front(line: str, bare: str) -> None:
    assert untagged(line) == bare


@pytest.mark.parametrize(
    "part",
    [
        "-",
        "- ",
        "a ",
        "a|",
        "a-1 | ",
        "[1] ",
        "0: ",
        "[a.",
        "#1 2.3 ",
        "Tue Nov  1 14:02:25 2022",
        "May  6 07:08:09 a b",
    ],
)
def test_tags_take_a_time_that_no_line_makes_long(part: str) -> None:
    for front in ("", "2024-05-06T07:08:09Z ", "[pod/"):
        began = time.thread_time()
        for _ in range(20):
            untagged(front + part * (4000 // len(part)))
        assert time.thread_time() - began < 0.1


def test_a_tag_hides_neither_harm_nor_harmlessness() -> None:
    harmless = "INFO:    User not listed in /etc/subuid, trying root-mapped namespace: newuidmap failed"
    for name, change in TAGS.items():
        for line in (harmless, *HEALTHY.strip().splitlines()):
            assert first_cause(change([line])) is None, (name, line)
    found = first_cause(["[1,0]<stderr>:terminate called after throwing an instance of 'x'"])
    assert found is not None and found.line.startswith("[1,0]<stderr>:terminate")


def test_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    few: Mapping[str, Sequence[str]] = {"a": ["x"] * 4 + ["fatal error: mpi.h: No such file"], "b": ["KeyError: 'x'"]}
    monkeypatch.setattr("tests.diagnose_changes.corpus", lambda: few)
    monkeypatch.setattr("sys.argv", ["", "--show", HALF])
    main()
    assert capsys.readouterr().out.split() == ["only", "the", "second", "half", "1", "of", "1", "100.0", "%"]
