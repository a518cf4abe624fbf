"""Horovod's own tests: what ranks note of a real run of pytest, and how that is held against what a stack gives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envkit.errors import ChecksumMismatch, UsageProblem
from envkit.knowledge.known import known
from envkit.planning.stack import stacks
from envkit.system.resources import data
from envkit.verify import options, upstream, upstream_run
from envkit.verify.checks.upstream import upstream as check
from envkit.verify.outcome import Expected, Result, Status
from envkit.verify.report import make_report, render, to_json
from envkit.verify.report.page import html
from envkit.verify.upstream import FileResult, Outcomes, Row, UpstreamEvent, UpstreamRun

from . import recorded

ASKED = Expected(size=2, frameworks=("torch",))
FILE = UpstreamRun(file="parallel/test_some.py", over="MPI", limit_s=60)
SOME = """
import os
import unittest


class Some(unittest.TestCase):
    def test_right(self):
        assert os.path.basename(os.getcwd()) == "parallel"

    def test_wrong(self):
        assert 1 + 1 == 3, "sums are wrong"

    @unittest.skip("no GPU")
    def test_left_out(self):
        raise AssertionError

    def test_sub(self):
        for number in (1, 2):
            with self.subTest(number):
                assert number == 1, "only one"

    def test_each_left_out(self):
        for number in (1, 2):
            with self.subTest(number):
                self.skipTest("no GPU here")

    def test_some_left_out(self):
        for number in (1, 2):
            with self.subTest(number):
                if number == 1:
                    self.skipTest("no GPU here")
"""


def noted(tmp_path: Path, text: str, status: int = 0) -> list[UpstreamEvent]:
    """What one rank notes of a file of tests, by the pytest of this process."""
    test = tmp_path / "test" / "parallel" / "test_some.py"
    test.parent.mkdir(parents=True)
    test.write_text(text)
    job = {"test": str(test), "root": str(test.parents[1]), "packages": "", "limit_s": 60, "in_ranks": False}
    (tmp_path / "job.json").write_text(json.dumps(job))
    program = data("inside/upstream_rank.py")
    done = subprocess.run([sys.executable, program, tmp_path / "job.json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == status, done.stdout + done.stderr
    return upstream_run.noted(tmp_path / "rank-0")


def judged(outcomes: Outcomes, row: Mapping[str, Any] | None, ended: str = "", ranks: int = 2) -> FileResult:
    found = msgspec.convert({"file": FILE.file, "over": FILE.over, **row}, Row) if row is not None else None
    return upstream.judged(FILE, ranks, 1.0, outcomes, ended, found)


def of(**tests: str) -> Outcomes:
    return Outcomes(tests={name: (kind, f"rank 0:\nE   {kind} it") for name, kind in tests.items()})


def only(file: FileResult) -> Result:
    (result,) = check([file], ASKED)
    return result


@pytest.mark.integration
def test_a_rank_notes_what_pytest_found(tmp_path: Path) -> None:
    found = upstream.merged([noted(tmp_path, SOME)])
    kinds = {test: kind for test, (kind, _) in found.tests.items()}
    assert kinds == {
        "Some::test_right": "passed",
        "Some::test_wrong": "failed",
        "Some::test_left_out": "skipped",
        "Some::test_sub": "failed",
        "Some::test_each_left_out": "skipped",
        "Some::test_some_left_out": "passed",
    }
    assert (found.is_whole, found.broken) == (True, "")
    assert upstream.error_of(found.tests["Some::test_wrong"][1]) == "AssertionError: sums are wrong"
    assert found.tests["Some::test_left_out"][1] == "rank 0:\nno GPU"


@pytest.mark.integration
def test_a_file_that_cannot_be_imported_has_failed(tmp_path: Path) -> None:
    found = upstream.merged([noted(tmp_path, "import there_is_no_such_module\n")])
    file = judged(found, {"passed": 0, "skipped": 0})
    assert file.unexpected[0].error == "ModuleNotFoundError: No module named 'there_is_no_such_module'"
    assert only(file).status is Status.FAIL
    assert only(
        judged(
            upstream.merged([[UpstreamEvent(test="", outcome="failed", text="E   no")]]), {"passed": 8, "skipped": 0}
        )
    )


def test_a_rank_that_dies_is_told_with_its_test(tmp_path: Path) -> None:
    text = "import os\n\ndef test_one():\n    pass\n\ndef test_two():\n    os._exit(3)\n"
    found = upstream.merged([noted(tmp_path, text, status=3)])
    assert (found.is_whole, found.interrupted) == (False, "test_two")
    (tmp_path / "log").write_text("it is gone\n")
    ended = upstream_run.end_of(FILE, found, 3, tmp_path, is_late=False)
    assert ended == "ended early in test_two, status 3: it is gone"
    assert only(judged(found, {"passed": 2, "skipped": 0}, ended)).case == "ended"


def test_a_file_without_a_sign_of_any_rank_has_not_ended(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("mpirun: no such host\n")
    assert "no such host" in upstream_run.end_of(FILE, upstream.merged([]), 1, tmp_path, is_late=False)
    (tmp_path / "stack-0").write_text('Timeout!\nThread 1:\n  File "/t/test_some.py", line 7 in test_two\n')
    late = upstream_run.end_of(FILE, upstream.merged([]), 124, tmp_path, is_late=True)
    assert late == 'not over after 60 s (File "/t/test_some.py", line 7 in test_two)'


def test_lines_that_are_cut_or_none_of_ours_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "rank-0").write_bytes(
        b'{"test":"a"}\n\xff\xfe\n[1]\n{"test":"c","outcome":"strange"}\n{"test":"a","outcome":"passed"}\n{"test":"b","outc'
    )
    assert upstream.merged([upstream_run.noted(tmp_path / "rank-0")]).tests == {"a": ("passed", "")}


@pytest.mark.parametrize(
    ("ranks", "kind"),
    [
        (("passed", "failed"), "failed"),
        (("failed", "passed"), "failed"),
        (("skipped", "passed"), "passed"),
        (("skipped", "skipped"), "skipped"),
    ],
)
def test_a_failure_in_any_rank_counts(ranks: tuple[str, str], kind: str) -> None:
    lines = [[msgspec.convert({"test": "a", "outcome": one, "text": f"of {one}"}, UpstreamEvent)] for one in ranks]
    found = upstream.merged(lines).tests["a"]
    assert found[0] == kind
    assert kind != "failed" or found[1] == f"rank {ranks.index('failed')}:\nof failed"


def test_what_is_known_to_fail_is_no_failure_of_this_environment() -> None:
    outcomes = of(a="passed", b="failed", c="skipped")
    file = judged(outcomes, {"passed": 1, "skipped": 1, "failed": {"b": "a bug of Horovod's"}})
    assert (file.passed, file.failed, file.skipped, file.unexpected) == (1, 1, 1, ())
    assert (file.causes, file.failures_in_words) == ({"a bug of Horovod's": 1}, "1, all known")
    assert only(file).status is Status.PASS


def test_what_is_not_known_to_fail_is_a_failure_with_its_error() -> None:
    result = only(judged(of(a="passed", b="failed"), {"passed": 2, "skipped": 0}))
    assert (result.status, result.case) == (Status.FAIL, "failed")
    assert "1 failed, which pass in this stack: b: failed it" in result.message
    assert result.remedy


def test_what_passes_though_it_is_known_to_fail_is_told() -> None:
    results = check([judged(of(a="passed", b="passed"), {"passed": 1, "skipped": 0, "failed": {"b": "a bug"}})], ASKED)
    assert [(one.case, one.status) for one in results] == [("mended", Status.WARN), ("as-known", Status.PASS)]
    assert results[0].message.endswith("is known to fail there: b")


def test_what_passes_when_it_is_run_again_is_told_and_no_failure() -> None:
    row = {"passed": 3, "skipped": 0}
    first = judged(of(a="passed", b="failed", c="failed"), row)
    file = upstream.again(first, judged(of(a="passed", b="passed", c="failed"), row))
    assert [one.test for one in file.unsteady] == ["b"]
    assert [one.case for one in check([file], ASKED)] == ["failed", "unsteady"]
    file = upstream.again(first, judged(of(a="passed", b="passed", c="passed"), row))
    assert [one.status for one in check([file], ASKED)] == [Status.WARN, Status.PASS]
    dead = upstream.again(
        judged(of(a="passed"), row, "ended early"), judged(of(a="passed", b="passed", c="passed"), row)
    )
    assert [one.error for one in dead.unsteady] == ["ended early"]
    cut = upstream.again(first, judged(of(a="passed"), row, "ended early"))
    assert (cut.unsteady, [one.case for one in check([cut], ASKED)]) == ((), ["ended"])


def test_tests_that_do_not_run_are_no_pass() -> None:
    fewer = judged(of(a="passed", b="skipped", c="skipped"), {"passed": 2, "skipped": 1})
    assert (fewer.lacking, only(fewer).case) == (1, "lacking")
    assert only(fewer).status is Status.FAIL
    assert judged(of(a="passed"), {"passed": 3, "skipped": 0}).lacking == 2
    assert judged(of(a="passed"), {"passed": 3, "skipped": 0}, ranks=4).lacking == 0  # known of two ranks alone


def test_a_failure_is_not_counted_twice_as_lacking() -> None:
    assert judged(of(a="passed", b="failed"), {"passed": 2, "skipped": 0}).lacking == 0


def test_without_a_table_nothing_is_judged_and_that_is_said() -> None:
    results = check([judged(of(a="passed", b="failed"), None)], ASKED)
    assert [(one.case, one.status) for one in results] == [
        ("failed-unknown", Status.WARN),
        ("no-table", Status.WARN),
    ]


def test_nothing_that_passed_is_no_pass() -> None:
    assert only(judged(of(a="skipped"), {"passed": 0, "skipped": 1})).case == "nothing"
    assert [one.case for one in check([], ASKED)] == ["not-run"]


def test_which_files_are_run() -> None:
    found = upstream.asked("torch", ("mpi", "gloo"))
    titles = [one.title for one in found]
    assert "parallel/test_torch.py over MPI" in titles
    assert "parallel/test_torch.py over Gloo" in titles
    assert "single/test_run.py in one process" in titles
    assert not any("tensorflow" in one.file for one in found)
    assert not any(one.over == "MPI" for one in upstream.asked("tensorflow", ("gloo",)))
    (alone,) = upstream.asked("torch", ("mpi",), only=("test_torch",))
    assert (alone.file, alone.limit_s) == ("parallel/test_torch.py", 1200)
    assert upstream.asked("torch", ("mpi",), 5, ("test_torch",))[0].limit_s == 5
    with pytest.raises(UsageProblem, match="test_tensorflow"):
        upstream.asked("torch", ("mpi",), only=("test_tensorflow",))


def test_the_options_go_together() -> None:
    with pytest.raises(UsageProblem, match="--tests-only goes with --upstream-tests"):
        options.asked(tests_only=("test_torch.py",))
    assert options.asked(upstream_tests=True, tests_only=("test_torch.py", "")).tests_only == ("test_torch",)


def test_every_row_of_what_is_known_names_a_stack_a_file_and_causes() -> None:
    names = {stack.name: stack.framework for stack in stacks()}
    for stack in known("upstream_known")["stacks"]:
        rows = list(upstream.rows(stack))
        package = {"pytorch": "torch"}.get(names[stack], names[stack])
        order = [(one.file, one.over) for one in upstream.asked(package, ("mpi", "gloo"))]
        places = [order.index((row.file, row.over)) for row in rows]
        assert places == sorted(set(places)), stack
        for row in rows:
            assert all(re.match(r"\S+.*\S{3}", cause) and not cause.endswith(".") for cause in row.failed.values())


def test_older_pythons_get_what_they_lack() -> None:
    newer, older = ({one.project for one in upstream_run.sources(python)} for python in ("3.11.2", "3.10.12"))
    assert older - newer == {"exceptiongroup", "tomli", "typing-extensions"}
    assert all(one.sha256 for one in upstream_run.sources("3.11"))


def test_a_folder_has_to_have_the_tests_of_this_release(tmp_path: Path) -> None:
    pins = {"conftest.py": "0" * 64}
    with pytest.raises(UsageProblem, match="does not have Horovod's tests"):
        list(upstream_run.from_folder(tmp_path, pins))
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "conftest.py").write_text("")
    with pytest.raises(UsageProblem, match="is not as Horovod"):
        list(upstream_run.from_folder(tmp_path, pins))
    right = {"conftest.py": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
    assert list(upstream_run.from_folder(tmp_path, right)) == list(upstream_run.from_folder(tmp_path / "test", right))


def test_an_archive_has_to_have_them_too(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "conftest.py", "horovod-0.28.1/test/conftest.py")
    right = {"conftest.py": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
    assert list(upstream_run.from_archive(tmp_path / "a.tar.gz", right)) == [("conftest.py", b"")]
    with pytest.raises(ChecksumMismatch):
        list(upstream_run.from_archive(tmp_path / "a.tar.gz", {"conftest.py": "0" * 64}))


def test_the_report_has_a_table_with_causes_and_fits_a_terminal() -> None:
    row = {"over": "one process", "passed": 10, "skipped": 2, "failed": {"b": "a bug"}}
    outcomes = of(**{f"t{number}": "passed" for number in range(10)}, b="failed", c="skipped")
    files = []
    for name in known("upstream_tests")["files"]:
        one = UpstreamRun(file=name, over="one process", limit_s=1)
        files.append(upstream.judged(one, 1, 1.0, outcomes, "", msgspec.convert({"file": name, **row}, Row)))
    case = recorded.case("pytorch-2ranks")
    made = make_report("demo", case.facts, check(files, case.expected), expected=case.expected, tests=files)
    text = render(made)
    assert re.search(r"^test_torch +one process +10 +1, all known +1$", text, re.MULTILINE)
    assert "known  a bug" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    page = html(made)
    assert re.search(r"<th scope=.row.>parallel/test_torch.py</th><td>one process</td>.*a bug</td>", page)
    assert [one["failures"][0]["cause"] for one in json.loads(to_json(made))["tests"]] == ["a bug"] * len(files)
    assert "Horovod's own tests" not in render(make_report("demo", case.facts, [], expected=case.expected))
