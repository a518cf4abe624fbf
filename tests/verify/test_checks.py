from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from envkit.binary.build_flags import BuildFlags, Extension
from envkit.knowledge.known import catalogue
from envkit.verify import checks
from envkit.verify.checks import Expected, Result, Status, check, verdict
from envkit.verify.checks.collectives import short
from envkit.verify.checks.elements import others
from envkit.verify.explain import is_outlived, is_plain
from envkit.verify.facts import Barrier, Device, Ended, Fact, Phase, RankFacts, World

from . import recorded

GOOD = recorded.case("pytorch-2ranks").facts
ASKED = Expected(size=2, frameworks=("torch",), required=frozenset({"mpi", "gloo"}))


def by_id(facts: Sequence[RankFacts], expected: Expected = ASKED) -> dict[str, Result]:
    results = check(facts, expected)
    assert verdict(results) in {Status.PASS, Status.FAIL}
    return {result.id: result for result in reversed(results)}


def changed(which: int, /, **facts: Any) -> tuple[RankFacts, ...]:
    """The good records, in which one rank, or with -1 every rank, states other facts."""
    return tuple(replace(f, **facts) if which in {-1, f.rank} else f for f in GOOD)


def within(which: int, fact: str, /, **values: Any) -> tuple[RankFacts, ...]:
    """The good records with other values inside one fact."""
    replaced = [replace(f, **{fact: replace(getattr(f, fact), **values)}) for f in GOOD]
    return tuple(new if which in {-1, f.rank} else f for f, new in zip(GOOD, replaced, strict=True))


def built(**flags: int | None) -> BuildFlags:
    told = {"rocm": 0, "cuda": 0, "nccl": 0, "mpi": 1, "gloo": 1, "ddl": 0, "ccl": 0, **flags}
    extension = Extension(
        framework="torch",
        path="/x.so",
        exists=True,
        flags=told,
        framework_found=True,
        unreadable=None,
        missing_libraries=(),
        missing_symbols=(),
        built_for=None,
        installed=None,
    )
    return BuildFlags(horovod="0.28.1", extensions=(extension,))


MODULES = [path for path in Path(checks.__file__).parent.glob("*.py") if path.name != "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_check_is_listed_and_every_outcome_has_its_words(path: Path) -> None:
    """A check that no list has would never run, and one without words would end in an error when it is needed."""
    listed = {one.__name__ for one in (*checks.CHECKS, *checks.UNSEEN, *checks.EXPLAINING)}
    listed |= {"broken"}  # of drift, which ``check`` calls itself
    tree = ast.parse(path.read_text())
    public = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        if ast.unparse(node.args) == "ranks: Ranks" and node.returns and ast.unparse(node.returns) == "list[Result]"
    }
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert public - called <= listed
    said = [
        tuple(ast.literal_eval(word) for word in node.args[:2])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".outcome")
        if len(node.args) >= 2 and all(isinstance(word, ast.Constant) for word in node.args[:2])
    ]
    assert [pair for pair in said if pair[1] not in catalogue().get(pair[0], {})] == []


@pytest.mark.parametrize("name", recorded.names())
def test_a_recorded_case_has_its_recorded_verdict(name: str) -> None:
    case = recorded.case(name)
    results = check(case.facts, case.expected)
    assert verdict(results) == case.verdict
    assert {r.id: r.status for r in results if r.status is not Status.PASS} == case.not_passed


@pytest.mark.parametrize("name", recorded.names())
def test_a_recorded_case_says_nothing_of_the_machine(name: str) -> None:
    text = (recorded.FOLDER / f"{name}.json").read_text()
    roots = set(re.findall(r'["\s](/[\w.-]+)/', text))
    assert roots <= {"/apps", "/etc", "/home", "/opt", "/usr"}
    assert set(re.findall(r'"host": "(.*?)"', text)) <= {"node1", "node2"}


DEAD = Ended(how="signal", signal="SIGSEGV")
HUNG = Ended(how="timeout", limit=60.0, stack='  File "x.py", line 1 in allreduce\n')
ERROR = Fact(error="RuntimeError: broken")


@pytest.mark.parametrize(
    ("facts", "failed", "words"),
    [
        (GOOD[:1], "rank-missing", "only 1 of 2"),
        ((*GOOD, GOOD[0]), "rank-missing", "3 processes"),
        ((), "rank-missing", "none of 2"),
        (changed(1, ended=DEAD), "rank-died", "SIGSEGV"),
        (changed(1, ended=None), "rank-died", "vanished"),
        (changed(1, ended=Ended(how="exit", status=7)), "rank-died", "status 7"),
        (changed(1, ended=Ended(how="terminated", signal="SIGTERM")), "rank-died", "SIGTERM"),
        (changed(-1, ended=HUNG), "rank-hung", "stuck in"),
        (changed(1, ended=HUNG, phases=GOOD[1].phases[:4]), "rank-hung", "rank 1 (node1, pid 2)"),
        (within(1, "horovod", error="ImportError: none"), "horovod-present", "none"),
        (within(1, "imported", error="ImportError: none"), "framework-present", "none"),
        (within(1, "horovod", extensions={"torch": None}), "extension-present", "no extension"),
        (changed(0, load=ERROR), "extension-loads", "broken"),
        (within(0, "flags", gloo=False), "flag-required", "not built with gloo"),
        (changed(0, init=ERROR), "init", "broken"),
        ((replace(GOOD[0], shutdown=Fact(error="RuntimeError: no end")), *GOOD[1:]), "shutdown", "no end"),
        (within(-1, "world", rank=0, size=1), "world-size", "mpirun of Open MPI"),
        (within(-1, "world", size=3), "world-size", "worlds of 3"),
        (within(-1, "world", rank=1), "ranks-unique", "1, 1"),
        (within(0, "imported", version="2.12.0"), "versions-agree", "2.12.0"),
        (changed(0, libraries={}), "mpi-loaded", "no MPI library"),
        (
            changed(0, libraries={"libmpi": ("/a/libmpi.so", "/b/libmpi.so")}),
            "mpi-loaded",
            "several MPI libraries loaded: /a/libmpi.so, /b/libmpi.so",
        ),
        (changed(-1, device=Device(uuid="GPU-1")), "gpu-shared", "ranks 0 1"),
        (changed(0, mpi_threads=ERROR), "mpi-threads", "broken"),
    ],
)
def test_a_fault_fails_its_check(facts: tuple[RankFacts, ...], failed: str, words: str) -> None:
    result = by_id(facts)[failed]
    assert result.status is Status.FAIL
    assert words in f"{result.message} {result.cause}"
    assert result.cause
    assert result.remedy
    assert verdict(check(facts, ASKED)) is Status.FAIL


def test_ranks_that_were_started_more_than_once_fail_though_all_went_well() -> None:
    results = check(GOOD, replace(ASKED, again=True))
    [bad] = [result for result in results if result.is_bad]
    assert (bad.id, bad.case, results[0]) == ("rank-missing", "again", bad)
    assert "more than once" in bad.message
    assert is_plain(replace(ASKED, again=True), len(GOOD)), "nothing needs to be tried"


def test_a_launcher_that_stays_is_told_where_all_ranks_have_ended() -> None:
    expected = replace(ASKED, launcher="mpirun", launcher_status=124)
    result = {result.id: result for result in check(GOOD, expected)}["launcher-ended"]
    assert (result.status, result.case) == (Status.FAIL, "stays") and result.message.startswith("mpirun did not end")
    assert is_outlived(cast("Any", SimpleNamespace(results=[result]))), "nothing is tried, which would take as long"
    result = {result.id: result for result in check(changed(1, ended=DEAD), expected)}["launcher-ended"]
    assert result.case == "fail"


def test_the_late_rank_is_named_and_not_those_that_wait() -> None:
    facts = tuple(replace(f, ended=HUNG, phases=f.phases[: 6 if f.rank else 9], phase=f.phases[5].name) for f in GOOD)
    message = by_id(facts)["rank-hung"].message
    assert "rank 1" in message
    assert "rank 0" not in message
    assert "with 1 waiting" in message


def test_a_rank_that_waits_for_a_dead_one_is_not_to_blame() -> None:
    facts = (replace(GOOD[0], ended=HUNG), replace(GOOD[1], ended=DEAD))
    assert "see rank-died" in by_id(facts)["rank-hung"].cause


@pytest.mark.parametrize(
    "fact",
    [
        "horovod",
        "imported",
        "load",
        "flags",
        "init",
        "world",
        "mpi_threads",
        "collectives_cpu",
        "training_torch",
    ],
)
def test_a_missing_fact_is_never_a_pass(fact: str) -> None:
    assert verdict(check(changed(1, **{fact: None}), ASKED)) is Status.FAIL


@pytest.mark.parametrize("size", [1, 3, 4])
def test_two_ranks_never_pass_for_another_number(size: int) -> None:
    assert verdict(check(GOOD, replace(ASKED, size=size))) is Status.FAIL


def test_one_rank_never_passes_for_two() -> None:
    alone = within(0, "world", size=1)[0]
    assert verdict(check([alone], ASKED)) is Status.FAIL
    assert by_id([alone])["world-size"].status is Status.FAIL


def test_a_framework_without_records_fails() -> None:
    both = replace(ASKED, frameworks=("torch", "tensorflow"))
    failed = [r for r in check(GOOD, both) if r.status is Status.FAIL]
    assert [(r.id, r.framework) for r in failed] == [("rank-missing", "tensorflow")]


def test_nothing_checked_is_not_a_pass() -> None:
    assert verdict([]) is Status.FAIL
    assert verdict(check(GOOD, replace(ASKED, frameworks=()))) is Status.FAIL


@pytest.mark.parametrize(
    ("flags", "status"),
    [({}, Status.PASS), ({"nccl": 21803}, Status.FAIL), ({"ccl": None}, Status.WARN)],
)
def test_the_loaded_library_is_held_against_its_file(flags: dict[str, int | None], status: Status) -> None:
    assert by_id(GOOD, replace(ASKED, built=built(**flags)))["flags-agree"].status is status


def test_drift_is_a_warning() -> None:
    facts = within(-1, "horovod", metadata={"pytorch": "2.12.0"})
    assert by_id(facts)["framework-drift"].status is Status.WARN
    assert verdict(check(facts, ASKED)) is Status.PASS


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("ImportError: libmpi.so.40: cannot open shared object file: No such file", "is not found here"),
        ("ImportError: /x.so: undefined symbol: _ZN5torch3jitE", "another build"),
        ("ImportError: /lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found", "older C or C++"),
        ("HorovodVersionMismatchError: built for 2.0", "was changed after"),
        ("ImportError: Keras cannot be imported. Check that it is installed.", "TF_USE_LEGACY_KERAS=1 asks for"),
        ("ValueError: x", "does not work with"),
    ],
)
def test_the_cause_of_a_failed_load_is_told_apart(error: str, words: str) -> None:
    assert words in by_id(changed(0, load=Fact(error=error)))["extension-loads"].cause


def test_the_order_of_the_records_does_not_matter() -> None:
    assert check(GOOD[::-1], ASKED) == check(GOOD, ASKED)


KEYS = {"status", "message", "cause", "remedy", "commands", "pattern", "required", "when"}


def test_every_case_is_worded_in_full() -> None:
    for name, cases in catalogue().items():
        for case, words in cases.items():
            status = Status(words["status"])
            assert words["message"], (name, case)
            assert set(words) <= KEYS, (name, case)
            if status in {Status.FAIL, Status.WARN}:
                assert words["cause"] and words["remedy"], (name, case)


def test_a_phase_without_an_end_has_no_duration() -> None:
    assert Phase(name="init", at=0.0).seconds is None


@pytest.mark.parametrize(("status", "verdict_wanted"), [(None, Status.PASS), (0, Status.PASS), (139, Status.FAIL)])
def test_a_launcher_that_ends_badly_is_no_pass(status: int | None, verdict_wanted: Status) -> None:
    """A rank may crash as it ends, after it has stated good facts."""
    case = recorded.case("pytorch-2ranks")
    results = check(case.facts, replace(case.expected, launcher_status=status))
    assert verdict(results) is verdict_wanted
    assert [r.status for r in results if r.id == "launcher-ended"] == ([] if status is None else [verdict_wanted])


def test_what_the_launcher_said_explains_how_it_ended() -> None:
    case = recorded.case("pytorch-2ranks")
    said = "node1: libc.so.6: version `GLIBC_2.34' not found (required by /.singularity.d/libs/libGLX.so.0)"
    expected = replace(case.expected, launcher_status=1, launcher_said=f"Starting\n{said}\n")
    result = by_id(case.facts, expected)["launcher-ended"]
    assert result.status is Status.FAIL
    assert said in result.message
    assert (
        result.cause == "Libraries of the host that are bound into the image want a newer C library than the image has."
    )


@pytest.mark.parametrize("is_told_first", [True, False])
def test_a_modules_tool_that_did_not_come_back_is_no_module_that_fails(is_told_first: bool) -> None:
    """Ended with the launcher, it was killed as well, and the shell that waited for it may say so."""
    told = ["\nenvkit: the modules tool has not come back from /slow\n"]
    killed = "envkit: the module Toy/1.0 could not be loaded.\n\n  The modules tool lmod was killed by SIGTERM.\n"
    told.insert(is_told_first, f"{killed}\nWhat to do: Run it again.\n")
    result = by_id([], replace(ASKED, launcher_status=124, launcher_said="".join(told)))["rank-missing"]
    assert result.case == "modules-tool" and result.message.endswith("had not come back from /slow")


@pytest.mark.parametrize(
    ("said", "case", "name"),
    [
        (
            'Fatal Python error: config_init_hash_seed: PYTHONHASHSEED must be "random" or an integer in range',
            "python-setting", "PYTHONHASHSEED",
        ),
        (
            "Fatal Python error: init_stdio_encoding: failed to get the Python codec name of the stdio encoding",
            "python-encoding", "PYTHONIOENCODING",
        ),
    ],
)  # fmt: skip
def test_a_setting_with_which_python_does_not_start(said: str, case: str, name: str) -> None:
    result = by_id([], replace(ASKED, launcher_status=1, launcher_said=f"{said}\n"))["rank-missing"]
    assert (result.case, result.remedy) == (case, f"Unset it: unset {name}")


FOUR = recorded.case("pytorch-4ranks").facts


@pytest.mark.parametrize(
    ("other", "shown"),
    [((), "012"), ((3,), "03"), ((2, 3), "023"), ((1, 2, 3), "012")],
)
def test_weights_are_shown_of_rank_0_and_of_two_that_differ(other: Sequence[int], shown: str) -> None:
    """Where none differs, of the next two."""
    tasks = [one.training_torch for one in FOUR]
    wrong = [tuple(float(10 * (rank in other) + number) for number in range(8)) for rank in range(4)]
    facts = [
        replace(one, training_torch=replace(task, weights=weights)) if task else one
        for one, task, weights in zip(FOUR, tasks, wrong, strict=True)
    ]
    result = by_id(facts, replace(ASKED, size=4))["training-truth-torch"]
    assert result.status is Status.FAIL
    assert ("the ranks' weights differ" if other else "the ranks agree on wrong weights") in result.message
    rows = re.findall(r"rank (\d): \[([^]]*)\]", f"{result.message} {result.cause}")
    assert "".join(rank for rank, _ in rows) == shown
    for rank, row in rows:
        assert row == ", ".join(f"{number:g}" for number in wrong[int(rank)][:6]) + ", ..."


@pytest.mark.parametrize(
    ("times", "early"),
    [
        ([(0, 5), (1, 5), (2, 5), (4, 5)], False),
        ([(0, 5), (1, 5), (2, 5), (5, 6)], False),
        ([(0, 5), (1, 5), (2, 5), (6, 7)], True),  # one came when three had left
        ([(0, 3), (1, 5), (2, 5), (4, 5)], True),  # one had left when another came
    ],
)
def test_no_rank_may_leave_a_barrier_before_all_have_come(times: Sequence[tuple[float, float]], early: bool) -> None:
    barriers = [Barrier(entered=entered, left=left) for entered, left in times]
    facts = [replace(one, barrier=barrier) for one, barrier in zip(FOUR, barriers, strict=True)]
    result = by_id(facts, replace(ASKED, size=4))["barrier"]
    assert (result.status is Status.PASS) != early
    assert ("on node1, ranks left" in result.message) == early


@pytest.mark.parametrize("length", [1, 6, 7, 9])
def test_a_vector_is_shown_by_its_first_six(length: int) -> None:
    vector = [number / 2 for number in range(length)]
    assert (
        short(vector) == "[" + ", ".join(["0", "0.5", "1", "1.5", "2", "2.5"][:length]) + ", ..." * (length > 6) + "]"
    )


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], ""),
        (["0"], ""),
        (["0", "0"], "; 1 more wrong, in 1 rank"),
        (["0", "1", "1"], "; 2 more wrong, in 2 ranks"),
    ],
)
def test_how_many_more_messages_were_wrong(ranks: Sequence[str], words: str) -> None:
    assert others(ranks) == words


def test_up_to_16_ranks_are_named_where_numbers_occur_twice() -> None:
    for size in (16, 17):
        facts = [replace(FOUR[0], world=World(rank=rank // 2, size=size)) for rank in range(size)]
        message = by_id(facts, replace(ASKED, size=size))["ranks-unique"].message
        told = ", ".join(str(rank // 2) for rank in range(16))
        assert told + (", ..." if size > 16 else "") in message
        assert ("..." in message) == (size > 16)


@pytest.mark.parametrize("size", [1, None])
def test_variables_of_a_launcher_that_has_gone_are_the_cause(size: int | None) -> None:
    """One of two ranks, alone in its world or never in any: nothing of its launcher is to be seen."""
    [one, _] = changed(-1, world=World(rank=0, size=size))
    found = by_id([one], replace(ASKED, unseen=("PMI_RANK", "PMI_SIZE")))
    assert found["rank-missing"].remedy == "Unset them: unset PMI_RANK PMI_SIZE"
    results = check([one], replace(ASKED, unseen=("PMI_RANK", "PMI_SIZE")))
    assert next(result for result in results if result.status is Status.FAIL).id == "rank-missing"
    assert "unset" not in by_id([one])["rank-missing"].remedy
