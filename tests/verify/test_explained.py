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
def test_every_case_in_which_a_check_does_not_pass_is_told(name: str) -> None:
    text = explained(name, io.StringIO())
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    shared = [table for table, names in SHARED.items() if name in names]
    for words in catalogue()[shared[0] if shared else name].values():
        shown = f"{words['status'].upper()} {' '.join(words['message'].split())}"
        assert (shown in " ".join(text.split())) is (words["status"] != "pass")
        for part in ("cause", "remedy"):
            assert part not in words or f"{part} {' '.join(words[part].split())}" in " ".join(text.split())


def test_a_check_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["--explain", "word-size"], "Did you mean 'world-size'?"),
        (["--explain", "zzz"], "Name one of these: "),
        (["--explain", ""], "there is no check ''"),
        (["pytorch", "--explain", "world-size"], "goes without NAME"),
    ):
        assert run(["verify", *words]) == 2
        out, err = capsys.readouterr()
        assert said in err and not out
    assert run(["verify", "--explain", "world-size"]) == 0
    assert capsys.readouterr().out == explained("world-size", io.StringIO()) + "\n"


@pytest.mark.parametrize("name", recorded.names())
def test_a_report_points_to_the_check_of_its_first_problem(name: str) -> None:
    shown = report(name)
    command = f"envkit verify --explain {shown.problems[0].id}" if shown.problems else ""
    assert shown.more == command
    assert render(shown).endswith(f"   more  {command}\n") is bool(command)
    assert (f"<code>{command}</code>" in html(shown)) is bool(command)
    assert {one.id for one in shown.results if one.status != "pass"} <= explainable().keys()
