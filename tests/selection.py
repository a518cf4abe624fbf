"""The part of pytest that leaves tests out, says which, and keeps what passed: see subjects.py."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from . import subjects


class Selection:
    """Which tests of a session run, and which of them passed."""

    def __init__(self, config: pytest.Config) -> None:
        self.is_recording: bool = config.getoption("record")
        self.is_worker = hasattr(config, "workerinput")
        is_named = config.args_source != pytest.Config.ArgsSource.TESTPATHS
        if self.is_recording and (is_named or config.getoption("keyword") or config.getoption("markexpr")):
            raise pytest.UsageError("--record is for the whole suite: name no tests, and select none")
        told = getattr(config, "workerinput", {}).get("left out")
        self.left_out = told or left_out(is_anew=config.getoption("all") or is_named)
        self.subjects: dict[str, str] = self.left_out["subjects"]
        self.tests: set[str] = {*self.left_out["tests"]}
        self.passed, self.failed = dict[str, str](), dict[str, str]()  # each with its subject

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Have the workers leave out what the session does."""
        node.workerinput["left out"] = self.left_out

    def pytest_report_header(self) -> list[str]:
        """Say before the tests begin what of them is left out."""
        told = [f"{name} (passed {day})" for name, day in self.subjects.items()]
        lines = [f"left out, since what they are about has not changed: {', '.join(told)}"] if told else []
        lines += [f"left out, since they passed here with these very files: {len(self.tests)} tests"] * bool(self.tests)
        return [*lines, "--all runs what is left out"] if lines else []

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what need not run."""
        counted = Counter(dict.fromkeys({subjects.subject_of(item) for item in items} - self.subjects.keys(), 0))
        out = {item for item in items if self.is_left_out(item)}
        config.hook.pytest_deselected(items=[*out])
        items[:] = [item for item in items if item not in out]
        for item in items:
            item.user_properties.append(("subject", subjects.subject_of(item)))
        counted.update(subjects.subject_of(item) for item in items)
        keep_count(counted)

    def is_left_out(self, item: pytest.Item) -> bool:
        """Say whether a test need not run; what builds the main job's stack always runs."""
        if subject := subjects.subject_of(item):
            if item.path not in subjects.files_of(subject):
                raise pytest.UsageError(f"{item.nodeid} is about {subject}, which names not this file in subjects.toml")
            if subject in self.subjects:
                return True
        return name_of(item.nodeid) in self.tests and item.get_closest_marker("builds") is None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep which tests passed, from their setup to their end."""
        kept = self.failed if report.failed or report.skipped else self.passed if report.when == "call" else None
        if kept is not None:
            kept[name_of(report.nodeid)] = str(dict(report.user_properties).get("subject", ""))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Keep what passed for the next session, and for everybody where that was asked for."""
        finished = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
        if self.is_worker or exitstatus not in finished:
            return
        passed = {test: subject for test, subject in self.passed.items() if test not in self.failed}
        subjects.remember(passed)
        if self.is_recording:
            subjects.record(complete(Counter(passed.values())))


def left_out(*, is_anew: bool) -> dict[str, Any]:
    """Which subjects are unchanged, and which tests passed here with the files as they are, but in CI."""
    if is_anew:
        return {"subjects": {}, "tests": []}
    kept = {} if os.environ.get("CI") else subjects.remembered()
    return {"subjects": subjects.unchanged(), "tests": [test for told in kept.values() for test in told["passed"]]}


def keep_count(counted: Counter[str]) -> None:
    """Keep how many tests of each changed subject a session runs, where it finds that when it ends.

    None is said, too: then all of them have passed here with the files as they are. Each worker knows the numbers.
    """
    place = count_file()
    new = place.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(counted))
    new.replace(place)


def complete(passed: Counter[str]) -> list[str]:
    """The subjects all of whose tests have passed, now or before, of how many passed of each."""
    counted = json.loads(count_file().read_text())
    return [subject for subject, count in counted.items() if subject and count == passed[subject]]


def count_file() -> Path:
    """The file in which a session keeps how many tests of each subject it runs."""
    return Path(os.environ["ENVKIT_TEST_FOLDER"], "subjects.json")


def name_of(nodeid: str) -> str:
    """The name of a test without the group that pytest-xdist puts behind it."""
    return re.sub(r"@[\w-]+$", "", nodeid)
