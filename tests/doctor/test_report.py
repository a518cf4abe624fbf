"""The form of the doctor's JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envkit.doctor import terminal
from envkit.doctor.compare import with_comparison
from envkit.doctor.facts import MpiLibrary
from envkit.doctor.report import to_json
from envkit.doctor.rules import judge

from . import schema
from .test_rules import RECORDED, facts

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

pytestmark = pytest.mark.xdist_group("schemas")  # to import what reads them takes seconds


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    published = json.loads(schema.PATH.read_bytes())
    Draft202012Validator.check_schema(published)
    return Draft202012Validator(published)


def test_the_published_schema_is_that_of_the_structs() -> None:
    assert schema.PATH.read_bytes() == schema.schema(), "run: python -m tests.doctor.schema"


@pytest.mark.parametrize("name", RECORDED)
def test_every_report_satisfies_it(name: str, validator: Draft202012Validator) -> None:
    read = json.loads(to_json(judge(facts(name))))
    validator.validate(read)
    assert read["version"] == 1


def test_a_name_that_is_no_text_is_written_with_escapes() -> None:
    found = judge(msgspec.structs.replace(facts(), configuration=("/opt/\udcff/mpi",)))
    assert json.loads(to_json(found))["facts"]["configuration"] == ["/opt/\\udcff/mpi"]


def test_an_mpi_that_does_not_tell_which_it_is() -> None:
    unknown: dict[str, Any] = {
        "version": "unknown",
        "launcher": "/x/mpirun",
        "abi": "",
        "library": "",
        "pmi": (),
        "srun": "",
    }
    assert terminal.mpi(MpiLibrary(family="unknown", **unknown)) == "of no known family (/x/mpirun)"
    alone = MpiLibrary(family="MPICH", **{**unknown, "launcher": "", "abi": "libmpi.so.12"})
    assert terminal.mpi(alone) == "MPICH (no mpirun); no libmpi.so.12 is found; speaks nothing known"


def test_every_key_is_there_whatever_is_found() -> None:
    keys = [set(json.loads(to_json(judge(facts(name))))["facts"]) for name in RECORDED]
    assert all(one == keys[0] for one in keys)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("version",), "1"),
        (("methods", 0, "state"), "perhaps"),
        (("facts", "uid"), "0"),
        (("notes", 0, "fix"), None),
    ],
)
def test_what_is_no_report_does_not(
    path: tuple[str | int, ...], wrong: object, validator: Draft202012Validator
) -> None:
    read = json.loads(to_json(judge(facts())))
    inner: Any = read
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = wrong
    assert [tuple(error.absolute_path) for error in validator.iter_errors(read)] == [path]


def test_recordings_name_nothing_of_the_machine_they_are_of() -> None:
    for path in Path(__file__).parent.glob("*.json"):
        assert not re.search("pypi|/root/|/tmp/", path.read_text())


def test_a_report_beside_that_of_another_host_satisfies_it(validator: Draft202012Validator) -> None:
    found = with_comparison(judge(facts("job")), judge(facts("user")))
    assert found.comparison and found.comparison.differences
    validator.validate(json.loads(to_json(found)))
