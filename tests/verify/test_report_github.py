"""The report for GitHub Actions: lines that its runner reads, and Markdown."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from envkit.cli import echo, explain
from envkit.commands.verify import shown
from envkit.errors import HostProblem
from envkit.report.words import inert
from envkit.verify.outcome import Result, Status
from envkit.verify.report import Report
from envkit.verify.report.github import summary, workflow_commands

from . import recorded
from .test_report_junit import report

LINE = re.compile(r"::(error|warning|notice) title=([^:,\n]*)::([^\n]*)")
GIVEN = {"as_json": True, "junit": None, "html": None, "github": True, "baseline": None}
HOSTILE = "a, b: 100%\n::add-mask::x\r\n| `code` <script> [x](y) @team"


def read(text: str) -> list[tuple[str, str, str]]:
    """Return level, title and message of each annotation, as the runner reads them."""

    def unescaped(words: str) -> str:
        for code, sign in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
            words = words.replace(code, sign)
        return words

    matches = [LINE.fullmatch(line) for line in text.splitlines()]
    assert all(matches), text
    return [(found[1], unescaped(found[2]), unescaped(found[3])) for found in matches if found]


def hostile(status: Status) -> Report:
    """Return a report that says what the runner or Markdown would obey."""
    result = Result(
        id="odd", case="odd", status=status, framework="torch", message=HOSTILE, cause=HOSTILE, remedy=HOSTILE,
        commands=("echo '```'", "::error::"),
    )  # fmt: skip
    return replace(report("pytorch-2ranks"), verdict="fail", results=(result,))


@pytest.mark.parametrize("name", recorded.names())
def test_each_problem_is_annotated_the_cause_first(name: str) -> None:
    made = report(name)
    lines = read(workflow_commands(made))
    levels = [level for level, _, _ in lines]
    assert ("error" in levels) == (made.verdict == "fail")
    assert levels.count("notice") == (made.verdict == "pass")
    titles = [title.removeprefix("envkit verify: ") for _, title, _ in lines]
    assert titles[: len(made.problems)] == [f"{one.id} ({one.framework})" for one in made.problems]
    assert all(problem.remedy in said for problem, (_, _, said) in zip(made.problems, lines, strict=False))


@pytest.mark.parametrize("name", recorded.names())
def test_the_summary_names_verdict_and_problems(name: str) -> None:
    made = report(name)
    said = summary(made)
    assert said.startswith(f"### envkit verify: {made.verdict.upper()}\n")
    assert all(one.id in said for one in made.problems)
    assert said.count("**FAIL") == sum(one.status is Status.FAIL for one in made.problems)


def test_what_is_not_proved_is_an_error() -> None:
    made = hostile(Status.SKIP)
    [(level, _, said)] = read(workflow_commands(made))
    assert level == "error"
    assert "odd (torch)" in said


def test_nothing_that_is_told_is_obeyed() -> None:
    made = hostile(Status.FAIL)
    [(_, title, said)] = read(workflow_commands(made))
    assert title == "envkit verify: odd (torch)"
    assert said.startswith("a, b: 100%\n::add-mask::x")
    text = summary(made)
    assert not re.search(r"(?<!\\)[<@]", text)
    assert "````console\necho '```'\n::error::\n````" in text
    assert not [line for line in text.splitlines() if line.startswith(("::add-mask", "|"))]


@pytest.mark.parametrize("as_json", [False, True])
def test_no_line_of_the_report_is_obeyed(as_json: bool, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The runner obeys lines of standard output, too: :: at the beginning behind blanks, and ##[ anywhere."""
    odd = "  ::error::x\n\u2003::add-mask::y\nz ##[add-mask]w"
    made = replace(hostile(Status.FAIL), launcher_said=odd, environment="e\n::warning::e")
    assert shown(made, {**GIVEN, "as_json": as_json, "html": tmp_path / "r.html"}) == 1
    said = capfd.readouterr()
    assert not re.search(r"(?m)^\s*::|##\[", said.out)
    assert "add-mask" in said.out
    if as_json:
        assert json.loads(said.out)["launcher_said"] == odd


def test_the_time_grows_as_the_text_does() -> None:
    began = time.thread_time()
    for unit in ("\n", " ", ":", "#", " \n:"):
        inert(unit * 100_000)
    assert time.thread_time() - began < 10


@pytest.mark.parametrize("name", ["true", ""])
def test_no_line_of_a_message_is_obeyed_by_a_runner(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", name)
    explain(HostProblem(what="x", why="a\n::add-mask::b ##[error]c", fix="d\n ::stop-commands::e"))
    echo("::set-env name=a::b")
    said = capsys.readouterr()
    obeyed = re.findall(r"(?m)^\s*::|##\[", said.out + said.err)
    assert len(obeyed) == (0 if name else 4)


def test_what_a_build_prints_in_the_action_is_not_obeyed() -> None:
    """The shell of the action's step, with an envkit that prints a command."""
    steps = yaml_steps(Path(__file__).parents[2] / "action.yml")
    [script] = [text for text in steps if "envkit install" in text]
    fake = "envkit() { echo '::add-mask::x'; return 6; }\n"
    done = subprocess.run(["bash", "-e", "-c", fake + script], capture_output=True, text=True, check=False)
    first, said, last = done.stdout.splitlines()
    assert (done.returncode, said) == (6, "::add-mask::x")
    assert re.fullmatch(r"::stop-commands::[0-9a-f]{32}", first) and last == f"::{first.rpartition(':')[2]}::"


def yaml_steps(path: Path) -> list[str]:
    """Return the scripts of the steps in a file of GitHub's: the lines that are indented below 'run: |'."""
    found = re.findall(r"(?m)^( *)run: \|\n((?:\1  .*\n|\n)+)", path.read_text())
    return [textwrap.dedent(text) for _, text in found]


def test_annotations_leave_standard_output_alone_and_summaries_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    path.write_text("before\n")
    made = report("rank-killed")
    assert shown(made, GIVEN) == 1
    said = capsys.readouterr()
    assert said.out.startswith("{")
    assert read(said.err)
    assert path.read_text() == f"before\n{summary(made)}"
    assert shown(report("pytorch-2ranks"), GIVEN) == 0
    assert shown(report("pytorch-2ranks"), {**GIVEN, "github": False}) == 0
    assert path.read_text().count("###") == 2
    capsys.readouterr()


def test_a_summary_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "summary"))
    assert shown(report("pytorch-2ranks"), GIVEN) == 7
    assert "summary of the job" in capsys.readouterr().err
    assert shown(report("rank-killed"), GIVEN) == 1
