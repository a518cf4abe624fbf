"""Which tests run: a subject's where a file of it has changed, any other where it has not passed here as all is now."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from . import selection, subjects
from .stacks import KEPT_S

STEPS = ("setup", "call", "teardown")
ONES = ("common", "imported", "modules_of", "files_of")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small checkout with one subject."""
    for name, text in {
        "envkit/build.py": "1",
        "envkit/words.py": "1",
        "tests/test_build.py": "",
        "tests/test_words.py": "",
        "tests/stacks.py": "",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".git").mkdir()
    building = {"tests": ["tests/test_build.py"], "files": ["envkit/build*"]}
    monkeypatch.setattr(subjects, "ROOT", tmp_path)
    monkeypatch.setattr(subjects, "PASSED", tmp_path / "passed.toml")
    monkeypatch.setattr(subjects, "SUBJECTS", {"building": building})
    monkeypatch.setattr(subjects, "memory", lambda: tmp_path / "cache" / "passed.json")
    monkeypatch.setattr(subjects, "listed", lambda: [str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*.py")])
    monkeypatch.setattr(subjects, "TOOLS", ())
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """Have everything looked at anew, as another session would."""
    for name in ONES:
        getattr(subjects, name).cache_clear()


def test_every_pattern_of_a_subject_names_something() -> None:
    for name, told in subjects.SUBJECTS.items():
        for pattern in (*told["files"], *told.get("tests", ())):
            assert any(path.is_file() for path in subjects.ROOT.glob(pattern)), f"{name}: {pattern}"


def test_every_subject_that_passed_is_one() -> None:
    assert subjects.passed().keys() <= subjects.SUBJECTS.keys()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [("envkit/build.py", {}), ("tests/test_build.py", {}), ("envkit/words.py", {"building"}), ("", {"building"})],
)
def test_a_subject_is_unchanged_where_no_file_of_it_has_changed(changed: str, expected: set[str], tree: Path) -> None:
    assert subjects.unchanged() == {}
    subjects.record(["building"])
    if changed:
        (tree / changed).write_text("2")
    forget()
    assert {*subjects.unchanged()} == {*expected}


def test_what_another_subject_passed_with_stays_written_down(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects.record(["building"])
    before = subjects.passed()["building"]
    monkeypatch.setitem(subjects.SUBJECTS, "words", {"files": ["envkit/words.py"]})
    subjects.record(["words"])
    assert subjects.passed()["building"] == before
    assert {*subjects.unchanged()} == {"building", "words"}


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        ("", {"tests/test_build.py", "tests/test_words.py"}),
        ("tests/test_build.py", {"tests/test_words.py"}),
        ("envkit/words.py", set()),
        ("tests/stacks.py", set()),
    ],
)
def test_what_passed_here_is_believed_until_what_it_depends_on_changes(
    changed: str, left: set[str], tree: Path
) -> None:
    subjects.remember(["tests/test_build.py::test_one", "tests/test_words.py::test_two[a::b]"])
    if changed:
        (tree / changed).write_text("2")
    forget()
    assert {*subjects.remembered()} == left


def test_a_module_from_which_another_imports_counts_for_all(tree: Path) -> None:
    (tree / "tests/test_words.py").write_text("from .test_build import something\n")
    subjects.remember(["tests/test_words.py::test_two"])
    (tree / "tests/test_build.py").write_text("2")
    forget()
    assert subjects.remembered() == {}


def test_tests_of_several_sessions_add_up(tree: Path) -> None:
    subjects.remember(["tests/test_build.py::test_one"])
    subjects.remember(["tests/test_build.py::test_two"])
    [told] = subjects.remembered().values()
    assert told["passed"] == ["tests/test_build.py::test_one", "tests/test_build.py::test_two"]


@pytest.mark.parametrize("text", ["", "{", "[]", "7"])
def test_a_damaged_memory_is_none(text: str, tree: Path) -> None:
    subjects.memory().parent.mkdir()
    subjects.memory().write_text(text)
    assert subjects.remembered() == {}


def test_an_old_pass_is_none(tree: Path) -> None:
    subjects.remember(["tests/test_build.py::test_one"])
    kept = json.loads(subjects.memory().read_text())
    kept["tests/test_build.py"]["when"] -= KEPT_S + 1
    subjects.memory().write_text(json.dumps(kept))
    assert subjects.remembered() == {}


def test_nothing_is_kept_of_a_tree_without_git(tree: Path) -> None:
    shutil.rmtree(tree / ".git")
    subjects.remember(["tests/test_build.py::test_one"])
    assert not subjects.memory().exists()


def test_in_ci_only_subjects_are_left_out(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects.record(["building"])
    subjects.remember(["tests/test_words.py::test_two"])
    monkeypatch.delenv("CI", raising=False)
    assert selection.left_out(is_anew=False)["tests"] == ["tests/test_words.py::test_two"]
    monkeypatch.setenv("CI", "true")
    told = selection.left_out(is_anew=False)
    assert (set(told["subjects"]), told["tests"]) == ({"building"}, [])
    assert selection.left_out(is_anew=True) == {"subjects": {}, "tests": []}


def report(nodeid: str, when: str, outcome: str) -> Any:
    return SimpleNamespace(
        nodeid=nodeid,
        when=when,
        failed=outcome == "failed",
        skipped=outcome == "skipped",
        user_properties=[("subject", "building")],
    )


@pytest.fixture
def recording(tree: Path, monkeypatch: pytest.MonkeyPatch) -> selection.Selection:
    """What a session with --record keeps; it runs two tests of the subject."""
    monkeypatch.setattr(selection, "left_out", lambda **_: {"subjects": {}, "tests": []})
    monkeypatch.setenv("ENVKIT_TEST_FOLDER", str(tree))
    selection.keep_count(Counter(building=2))
    options = {"record": True, "all": False, "keyword": "", "markexpr": ""}
    source = pytest.Config.ArgsSource.TESTPATHS
    return selection.Selection(SimpleNamespace(getoption=options.get, args_source=source))  # type: ignore[arg-type]


def passes(recording: selection.Selection, name: str) -> None:
    for step in STEPS:
        recording.pytest_runtest_logreport(report(f"tests/test_build.py::{name}@group", step, "passed"))


@pytest.mark.parametrize("when", STEPS)
@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_one_part_that_does_not_pass_keeps_a_subject_from_being_recorded(
    when: str, outcome: str, recording: selection.Selection
) -> None:
    passes(recording, "test_one")
    for step in STEPS[: STEPS.index(when) + 1]:
        said = report("tests/test_build.py::test_two", step, outcome if step == when else "passed")
        recording.pytest_runtest_logreport(said)
    recording.pytest_sessionfinish(pytest.ExitCode.TESTS_FAILED)
    assert subjects.unchanged() == {}
    assert subjects.remembered()["tests/test_build.py"]["passed"] == ["tests/test_build.py::test_one"]


@pytest.mark.parametrize("end", [pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED])
def test_a_subject_is_recorded_once_all_its_tests_have_passed(
    end: pytest.ExitCode, recording: selection.Selection
) -> None:
    """However the session ends: one that was interrupted need not try again what it had finished."""
    passes(recording, "test_one")
    recording.pytest_sessionfinish(pytest.ExitCode.INTERRUPTED)
    assert subjects.unchanged() == {}
    passes(recording, "test_two")
    recording.pytest_sessionfinish(pytest.ExitCode.INTERNAL_ERROR)
    assert subjects.unchanged() == {}
    recording.pytest_sessionfinish(end)
    assert {*subjects.unchanged()} == {"building"}


class Item:
    """A test of the subject, as pytest has collected it."""

    fixturenames = ()

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid
        self.path = subjects.ROOT / nodeid.partition("::")[0]

    def get_closest_marker(self, name: str) -> None:
        """No test here has a mark."""


def test_a_subject_is_recorded_where_all_its_tests_had_passed_here_before(recording: selection.Selection) -> None:
    """As where a session without --record had tried them."""
    items = [Item(f"tests/test_build.py::{name}") for name in ("test_one", "test_two")]
    recording.tests = {item.nodeid for item in items}
    config = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda items: None))
    recording.pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
    assert items == []
    recording.pytest_sessionfinish(pytest.ExitCode.OK)
    assert {*subjects.unchanged()} == {"building"}
