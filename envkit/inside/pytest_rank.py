"""One rank of a test: runs it by pytest, and leaves its outcome in a file beside its job.

    python pytest_rank.py JOB.json

Standard library and pytest only, Python 3.9 or later. pytest is the environment's own; where that has none, the one
that started the ranks, with what it needs itself.
"""

import faulthandler
import importlib.machinery
import importlib.util
import json
import os
import shlex
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Tuple

FIRST = ("pytest", "_pytest", "py", "pluggy", "iniconfig")
LAST = ("packaging", "pygments", "exceptiongroup", "tomli", "typing_extensions")
MARK = "horovod(ranks, environment, nodes, timeout): run the test in ranks of an environment"


class Borrowed:
    """Finds some packages in a folder, and nothing else there."""

    def __init__(self, folder: str, names: Tuple[str, ...]) -> None:
        self.folder, self.names = folder, names

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> Any:
        if path is not None or name not in self.names:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self.folder])


class OutcomeRecorder:
    """A plugin of pytest that notes the outcome of the one test."""

    def __init__(self, rank: int, folder: str) -> None:
        self.path = os.path.join(folder, "outcome-%d.json" % rank)
        self.found = {"rank": rank, "host": socket.gethostname(), "outcome": "", "when": "before", "text": ""}
        self.sections = []  # type: List[Tuple[str, str]]

    def pytest_configure(self, config: Any) -> None:
        config.addinivalue_line("markers", MARK)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.note("failed", "before", str(report.longrepr))

    def pytest_internalerror(self, excrepr: Any) -> None:
        self.note("failed", "before", str(excrepr))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.sections = [(title.replace("Captured ", "").replace(" call", ""), text) for title, text in report.sections]
        if report.failed:
            self.note("failed", report.when, report.longreprtext)
        elif report.skipped:
            longrepr = report.longrepr
            reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
            self.note("skipped", report.when, reason.removeprefix("Skipped: "))
        elif report.when == "call":
            self.note("passed", "call", "", wait=True)

    def note(self, outcome: str, when: str, text: str, wait: bool = False) -> None:
        """Note an outcome, the first failure for good; that a test has passed is only said after its end."""
        if self.found["outcome"] != "failed":
            self.found.update(outcome=outcome, when=when, text=text, ended=time.time())
        if not wait:
            self.write()

    def write(self) -> None:
        with open(self.path + ".new", "w") as stream:
            json.dump(dict(self.found, sections=self.sections), stream)
        os.replace(self.path + ".new", self.path)


def main() -> int:
    del sys.path[0]  # the folder of this file
    folder = os.path.dirname(os.path.abspath(sys.argv[1]))
    with open(sys.argv[1]) as stream:
        job = json.load(stream)  # type: Dict[str, Any]
    rank = number()
    recorder = OutcomeRecorder(rank, folder)
    own = [os.path.join(folder, "%s-%d" % (kind, rank)) for kind in ("stack", "stopped")]
    with open(own[0], "w") as stack, open(own[1], "w") as stopped:
        faulthandler.dump_traceback_later(job["limit_s"], file=stack)
        faulthandler.register(signal.SIGTERM, file=stopped, chain=True)  # who was ended has not ended by itself
        try:
            pytest = load(job)
        except (ImportError, SyntaxError) as error:
            recorder.note("failed", "before", no_pytest(job, error))
            return 1
        sys.path[:0] = job["path"]
        ini = os.path.join(folder, "pytest-%d.ini" % rank)
        with open(ini, "w") as stream:
            stream.write(settings(job["settings"]))
        words = ["-c", ini, *job["arguments"], "-p", "no:cacheprovider", "-p", "no:envkit", "--runxfail", "-q"]
        status = int(pytest.main([*words, job["test"]], plugins=[recorder]))
        if recorder.found["outcome"] not in ("failed", "skipped"):
            if status:
                recorder.note("failed", "before", "pytest ended with status %d; it said why above." % status)
            else:
                recorder.write()
        faulthandler.cancel_dump_traceback_later()
        faulthandler.unregister(signal.SIGTERM)
    return status


def number() -> int:
    """Which rank this is, as its launcher tells."""
    place = os.path.join(os.path.dirname(os.path.abspath(__file__)), "probe", "started.py")
    spec = importlib.util.spec_from_file_location("envkit_started", place)  # type: Any
    started = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(started)
    start = started.detect(os.environ)
    return int(start.rank) if start else 0


def load(job: Dict[str, Any]) -> Any:
    """The environment's own pytest, or else that of who started this."""
    if importlib.util.find_spec("pytest") is None:
        sys.meta_path.insert(0, Borrowed(job["borrowed"], FIRST))
        sys.meta_path.append(Borrowed(job["borrowed"], LAST))
    return importlib.import_module("pytest")


def no_pytest(job: Dict[str, Any], error: Exception) -> str:
    version = ".".join(map(str, sys.version_info[:2]))
    return (
        "The environment has no pytest, and pytest %s of outside does not run in its Python %s: %s\n"
        "Make a virtual environment with a pytest for it: 'envkit venv NAME DIR', 'DIR/bin/pip install pytest'; "
        "then give --horovod-environment DIR." % (job["version"], version, error)
    )


def settings(values: Dict[str, List[str]]) -> str:
    """An ini file for pytest."""
    lines = ["[pytest]"]
    for name, words in sorted(values.items()):
        if words:
            lines += ["%s =" % name, *("    %s" % (shlex.quote(word) if " " in word else word) for word in words)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
