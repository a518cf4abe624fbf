import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit import diagnose
from envkit.diagnose import Rule, first_cause, first_cause_in, rules

FOLLOW_UP = "operations.cc:{}:3: error: 'shape' was not declared in this scope\n"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_a_rule_explains_its_own_example(rule: Rule) -> None:
    found = first_cause(["== building...", rule.example, "make: *** [all] Error 2"])
    assert found is not None
    assert found.rule == rule
    assert (found.number, found.line) == (2, rule.example.strip())


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.id)
def test_a_rule_says_cause_and_remedy_in_sentences(rule: Rule) -> None:
    assert rule.cause.endswith(".") and rule.fix.endswith(".")
    assert "\n" not in rule.example


def test_nothing_that_goes_well_is_a_cause() -> None:
    log = ["== building...", "gcc -Werror=format -c error.c", "0 errors", "-- Found MPI_CXX: /usr/lib", "error_log.cc"]
    assert first_cause(log) is None
    assert first_cause([]) is None


def test_the_first_of_many_follow_ups() -> None:
    log = ["ok\n", FOLLOW_UP.format(1), *(FOLLOW_UP.format(n) for n in range(2, 300))]
    found = first_cause(log)
    assert found is not None
    assert (found.rule.id, found.number) == ("compiler-error", 2)


def test_a_cause_counts_before_the_follow_ups_above_it() -> None:
    log = [FOLLOW_UP.format(n) for n in range(100)]
    log += ["torch/all.h:5:2: error: #error C++17 or later compatible compiler is required to use PyTorch.\n"]
    log += ["fatal error: mpi.h: No such file or directory\n"]
    found = first_cause(log)
    assert found is not None
    assert (found.rule.id, found.number) == ("cxx17", 101)


def test_a_full_disk_outranks_all() -> None:
    found = first_cause([FOLLOW_UP.format(1), "fatal error: mpi.h: No such file", "write: No space left on device"])
    assert found is not None
    assert (found.rule.id, found.number) == ("disk-full", 3)


def test_a_long_line_is_cut() -> None:
    found = first_cause(["x" * 100_000 + " No space left on device " + "y" * 100_000])
    assert found is not None
    assert len(found.line) == 300


def test_a_long_log_is_read_as_a_stream() -> None:
    def log() -> Iterator[str]:
        for number in range(50_000):
            yield f"[{number:6}/50000] g++ -O2 -fPIC -c source_{number}.cc -o object_{number}.o: nothing to note\n"
        yield "fatal error: Python.h: No such file or directory\n"

    tracemalloc.start()
    found = first_cause(log())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert (found.rule.id, found.number) == ("python-headers", 50_001)
    assert peak < 500_000


def test_a_log_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert first_cause_in(path) is None
    path.write_bytes(b"\xff\xfe\nfatal error: mpi.h: No such file\n")
    found = first_cause_in(path)
    assert found is not None
    assert (found.rule.id, found.number) == ("mpi-headers", 2)


def test_identifiers_are_named_once() -> None:
    assert len({rule.id for rule in diagnose.rules()}) == len(diagnose.rules())
