"""One rank of one file of Horovod's own tests: runs it by pytest, and notes each outcome as soon as it is there.

    python upstream_rank.py JOB.json

Standard library and pytest only, Python 3.6 or later. pytest, with what it and the tests need, is taken from a folder
that comes after all packages of the environment.
"""

import faulthandler
import importlib.util
import json
import os
import sys
from typing import Any, Dict, Set  # noqa: F401  (a comment says it)


class EventRecorder:
    """A plugin of pytest that writes a line where a test begins, and one with its outcome.

    Of a test that has subtests their outcomes are noted: it passes itself where each of them is skipped.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.in_parts = set()  # type: Set[str]

    def write(self, **what: Any) -> None:
        self.stream.write(json.dumps(what) + "\n")
        self.stream.flush()

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.write(test="", outcome="failed", text=str(report.longrepr))
        elif report.skipped:
            self.write(test="", outcome="skipped", text=reason(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(test=name(nodeid))

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = name(report.nodeid)
        if hasattr(report, "context"):
            self.in_parts.add(test)
        if report.failed:
            self.write(test=test, outcome="failed", text=report.longreprtext)
        elif report.skipped:
            self.write(test=test, outcome="skipped", text=reason(report))
        elif report.when == "call" and (hasattr(report, "context") or test not in self.in_parts):
            self.write(test=test, outcome="passed")


def name(nodeid: str) -> str:
    """A test's name within its file."""
    return nodeid.partition("::")[2]


def reason(report: Any) -> str:
    """Why a test was left out."""
    message = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(message)[9:] if str(message).startswith("Skipped: ") else str(message)


def main() -> int:
    folder = os.path.dirname(os.path.abspath(sys.argv[1]))
    with open(sys.argv[1]) as stream:
        job = json.load(stream)  # type: Dict[str, Any]
    rank = number() if job["in_ranks"] else 0
    sys.path[0] = os.path.dirname(job["test"])  # in place of the folder of this file, as pytest has it
    sys.path.append(job["packages"])
    before = os.environ.get("PYTHONPATH")  # tests start processes that import what they do
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, job["packages"]]))
    os.chdir(os.path.dirname(job["test"]))
    with open(os.path.join(folder, "stack-%d" % rank), "w") as stack:
        with open(os.path.join(folder, "rank-%d" % rank), "w") as stream:
            recorder = EventRecorder(stream)
            faulthandler.dump_traceback_later(job["limit_s"], file=stack)
            if importlib.util.find_spec("tf_keras"):  # the tests were written for Keras 2
                os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
            try:
                import pytest
            except ImportError as error:
                recorder.write(test="", outcome="failed", text="pytest could not be imported: %s" % error)
                return 1
            own = os.path.join(folder, "pytest-%d.ini" % rank)
            with open(own, "w") as settings:
                settings.write("[pytest]\n")
            words = [
                "-c",
                own,
                "--rootdir",
                job["root"],
                "-p",
                "no:cacheprovider",
                "-p",
                "no:envkit",
                "-q",
                "--color=no",
            ]
            status = int(pytest.main([*words, job["test"]], plugins=[recorder]))
            recorder.write(test="", status=status)
            faulthandler.cancel_dump_traceback_later()
    return 0


def number() -> int:
    """Which rank this is, as its launcher tells."""
    place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe", "started.py")
    spec = importlib.util.spec_from_file_location("envkit_started", place)  # type: Any
    started = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(started)
    start = started.detect(os.environ)
    return int(start.rank) if start else 0


if __name__ == "__main__":
    sys.exit(main())
