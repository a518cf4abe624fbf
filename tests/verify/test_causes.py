"""Which of several failures is the root cause, and what follows from it."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from envkit.knowledge.known import catalogue
from envkit.verify.causes import can_be_explained, order, place, ranked
from envkit.verify.checks import Expected, check
from envkit.verify.facts import Ended, Fact
from envkit.verify.outcome import Result, Status
from envkit.verify.report.explained import explainable

from . import recorded

GOOD = recorded.case("pytorch-4ranks").facts
ASKED = Expected(size=4, frameworks=("torch",))


def failed(words: str, status: Status = Status.FAIL) -> Result:
    check_id, _, case = words.partition(".")
    return Result(id=check_id, case=case, status=status, framework="torch", message=words)


def test_every_name_in_the_order_is_a_check_with_that_case() -> None:
    for name in order():
        check_id, _, case = name.partition(".")
        assert check_id == "training-truth" or check_id in explainable(), name
        assert not case or case in catalogue()[check_id], name


@pytest.mark.parametrize(
    ("root", "followers"),
    [
        ("settings.without", ["rank-died.SIGSEGV", "launcher-ended.fail", "damage.found"]),
        ("damage.found", ["framework-present.error", "rank-hung.bereaved", "launcher-ended.known"]),
        ("framework-present.error", ["extension-loads.other", "rank-hung.bereaved", "launcher-ended.fail"]),
        ("rank-hung.stopped", ["launcher-ended.fail"]),
        ("init.error", ["rank-died.terminated", "rank-hung.bereaved"]),
        ("rank-died.SIGKILL", ["rank-hung.bereaved", "launcher-ended.fail", "launcher-ended.known"]),
        ("world-size.singletons", ["ranks-unique.wrong", "training-truth-torch.alone"]),
        ("places.unwritable", ["rank-died.aborted", "launcher-ended.fail"]),
        ("dev-shm.small", ["rank-died.SIGBUS"]),
    ],
)
def test_the_cause_comes_first_whatever_the_order(root: str, followers: list[str]) -> None:
    results = [failed("drift.pass", Status.PASS), *map(failed, followers), failed(root)]
    for seed in range(10):
        random.Random(seed).shuffle(results)
        first, *others = ranked(results)
        assert first.message == root and not first.because_of
        assert {one.message for one in others if one.because_of == first.id} == set(followers)
        assert sorted(map(str, (first, *others))) != sorted(map(str, results))


def test_what_has_its_own_cause_is_not_folded() -> None:
    told = ranked([failed("flag-required.lacks"), failed("rank-died.SIGSEGV"), failed("versions-agree.differ")])
    assert [one.message for one in told if not one.because_of] == [
        "rank-died.SIGSEGV",
        "flag-required.lacks",
        "versions-agree.differ",
    ]
    assert not can_be_explained(told[1]) and can_be_explained(told[0])


def test_what_was_not_measured_is_never_the_cause_where_something_failed() -> None:
    missing = failed("init.required", Status.SKIP)
    [first, second] = ranked([missing, failed("flag-required.lacks")])
    assert (first.id, second.because_of) == ("flag-required", "flag-required")
    assert ranked([missing]) == [missing]


def test_where_nothing_failed_nothing_moves() -> None:
    results = [failed("drift.pass", Status.PASS), failed("leftover.warn", Status.WARN)]
    assert ranked(results) == results
    assert ranked([]) == []


@pytest.mark.parametrize("name", recorded.names())
def test_a_recorded_failure_has_one_root_cause(name: str) -> None:
    case = recorded.case(name)
    results = check(case.facts, case.expected)
    bad = [one for one in results if one.is_bad]
    if not bad:
        assert not any(one.because_of for one in results)
        return
    assert results[0].is_bad and not results[0].because_of
    assert all(place(results[0]) <= place(one) for one in bad)
    assert {one.because_of for one in results} <= {"", results[0].id}
    assert all(not one.because_of for one in results if not one.is_bad)


def test_a_rank_that_fails_by_itself_comes_before_those_that_wait_for_it() -> None:
    waiting = [
        replace(
            one, init=None, world=None, phase="init", ended=Ended(how="stopped", stack='  File "x.py", line 1 in init')
        )
        for one in GOOD[1:]
    ]
    error = Fact(error="PermissionError: [Errno 13] Permission denied: '/data/set'")
    facts = (replace(GOOD[0], init=error, world=None, phase="exit"), *waiting)
    results = check(facts, replace(ASKED, launcher_status=1, launcher_said="mpirun: killing job"))
    assert "rank 0" in results[0].message and "/data/set" in results[0].message
    assert "launcher-ended" in {one.id for one in results if one.because_of}
