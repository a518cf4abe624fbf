from __future__ import annotations

import io
import json

import pytest
from msgspec.structs import replace
from rich.console import Console

from envkit.verify.checks import check
from envkit.verify.report import Report, make_report, nccl_version, render, to_json

from . import recorded


def report(name: str) -> Report:
    case = recorded.case(name)
    results = check(case.facts, case.expected)
    return make_report("demo", case.facts, results, expected=case.expected, seconds=7.5)


def printed(shown: Report, width: int = 80, *, terminal: bool = False) -> str:
    stream = io.StringIO()
    render(shown, Console(file=stream, width=width, force_terminal=terminal))
    return stream.getvalue()


@pytest.mark.parametrize("name", recorded.names())
def test_it_fits_80_columns_and_is_plain_when_piped(name: str) -> None:
    text = printed(report(name))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith(recorded.case(name).verdict.upper())


def test_it_has_colour_on_a_terminal() -> None:
    assert "\x1b[" in printed(report("pytorch-2ranks"), terminal=True)


def test_a_pass_names_its_checks_in_one_list_and_shows_no_remedy() -> None:
    text = printed(report("pytorch-2ranks"))
    assert "training-truth-torch" in text
    assert "remedy" not in text


def test_a_failure_is_told_with_its_cause_and_remedy() -> None:
    text = " ".join(printed(report("singletons")).split())
    assert "2 processes each ran alone, as rank 0 of 1" in text
    assert "cause Launcher and MPI library do not match" in text
    assert "remedy Start with the mpirun of that MPI" in text
    assert "NOT PROVED ranks-unique, broadcast, allreduce" in text


def test_what_was_not_measured_is_not_among_what_passed() -> None:
    text = printed(report("rank-killed"))
    assert "training-truth-torch" not in text[text.index("passed") :]


def test_markup_in_a_message_is_printed_as_it_is() -> None:
    shown = report("pytorch-gloo")
    worst = next(r for r in shown.results if r.status == "fail")
    text = printed(replace(shown, results=(replace(worst, message="[red]x[/red]"),)))
    assert "[red]x[/red]" in text


def test_what_the_launcher_said_is_shown_with_a_failure_only() -> None:
    said = "\n".join(["-" * 60, *(f"line {number}" for number in range(20)), "-" * 60])
    failed = printed(replace(report("rank-killed"), launcher_status=1, launcher_said=said))
    assert "ended with status 1" in failed
    assert "line 19" in failed
    assert "line 9" not in failed
    assert "line 19" not in printed(replace(report("pytorch-2ranks"), launcher_said=said))


def test_many_ranks_are_cut_short() -> None:
    shown = report("pytorch-2ranks")
    assert "and 84 more, in the JSON report" in printed(replace(shown, ranks=shown.ranks * 50))


def test_the_json_is_versioned_and_holds_everything() -> None:
    read = json.loads(to_json(report("rank-killed")))
    assert (read["version"], read["verdict"], read["world_size"]) == (1, "fail", 2)
    assert read["frameworks"][0]["flags"]["mpi"] == 1
    assert [row["ended"] for row in read["ranks"]] == ["SIGKILL in training_torch", "SIGTERM in training_torch"]
    assert {result["id"] for result in read["results"]} >= {"rank-died", "world-size"}
    assert read["timings"]["torch.import"] > 0
    assert len(read["facts"]) == 2


@pytest.mark.parametrize(("code", "version"), [(21803, "2.18.3"), (2408, "2.4.8"), (22907, "2.29.7")])
def test_nccl_codes_are_shown_as_versions(code: int, version: str) -> None:
    assert nccl_version(code) == version
