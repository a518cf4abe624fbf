"""``envkit verify --explain CHECK``, and where reports point to it."""

import io

import pytest

from envkit.cli import run
from envkit.knowledge.known import catalogue
from envkit.verify.checks import check
from envkit.verify.report import Report, make_report, render
from envkit.verify.report.explained import SHARED, explainable, explained
from envkit.verify.report.page import html

from . import recorded


def report(name: str) -> Report:
    case = recorded.case(name)
    return make_report("demo", case.facts, check(case.facts, case.expected), expected=case.expected)


@pytest.mark.parametrize("name", sorted(explainable()))
def test_every_case_in_which_a_check_does_not_pass_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    text = explained(name, io.StringIO())
    commands = {command for case in explainable()[name].values() for command in case.get("commands", ())}
    assert max(len(line) for line in text.splitlines() if line.strip() not in commands) <= 80 and "\x1b" not in text
    told = " ".join(text.split())
    for table in {name, *(table for table, names in SHARED.items() if name in names)} & catalogue().keys():
        for case, words in catalogue()[table].items():
            shown = f"{words['status'].upper()} {case}: {' '.join(words['message'].split())}"
            assert (shown in told) is (words["status"] != "pass")
            for part in ("cause", "remedy"):
                assert part not in words or f"{part} {' '.join(words[part].split())}" in told
            assert all(f"\n{' ' * 13}{command}\n" in f"{text}\n" for command in words.get("commands", ()))


def test_a_check_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--explain", "word-size"], "Did you mean 'world-size'?"),
        (["--explain", "zzz"], "Name one of these: "),
        (["--explain", ""], "there is no check ''"),
        (["--explain", "not-measured"], "there is no check 'not-measured'"),
        (["pytorch", "--explain", "world-size"], "goes alone"),
        (["--explain", "world-size", "--json"], "goes alone"),
        (["--explain", "world-size", "--partition", "x"], "goes alone"),
    ):
        assert run(["verify", *words]) == 2
        out, err = capsys.readouterr()
        assert said in err and not out
    assert run(["verify", "--explain", "world-size"]) == 0
    assert capsys.readouterr().out == explained("world-size", io.StringIO()) + "\n"


@pytest.mark.parametrize("name", recorded.names())
def test_a_report_points_to_a_check_that_tells_more(name: str) -> None:
    shown = report(name)
    assert (shown.more != "") is (shown.verdict != "pass" or bool(shown.problems))
    assert render(shown).endswith(f"   more  {shown.more}\n") is bool(shown.more)
    assert (f"<code>{shown.more}</code>" in html(shown)) is bool(shown.more)
    if shown.verdict != "pass":
        assert shown.cause and shown.more == f"envkit verify --explain {shown.cause.id}"
    for one in shown.results:
        if one.status != "pass" and one.case not in catalogue()["not-measured"]:
            assert one.case in explainable()[one.id]
