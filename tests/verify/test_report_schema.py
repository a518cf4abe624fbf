from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from envkit.verify.checks import check
from envkit.verify.report import StartedBy, make_report, to_json
from envkit.verify.speed import Bandwidth, Scaling

from . import recorded, report_schema, simulated

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

pytestmark = pytest.mark.xdist_group("schemas")  # to import what reads them takes seconds


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    schema = json.loads(report_schema.PATH.read_bytes())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def written(name: str) -> dict[str, Any]:
    case = recorded.case(name)
    made = make_report(
        "demo",
        case.facts,
        check(case.facts, case.expected),
        expected=case.expected,
        seconds=7.5,
        started=StartedBy(
            launcher="srun", why="in a job", command=("srun", "-n2"), job="Slurm job 7", nodes=("n1", "n2")
        ),
        bandwidth=[Bandwidth(size_bytes=8, seconds=1e-5, bus_bytes_per_s=8e5)],
        scaling=[Scaling(ranks=2, framework="torch", model="MLP", samples_per_s=9.0, efficiency=0.9)],
    )
    read: dict[str, Any] = json.loads(to_json(made))
    return read


def test_the_published_schema_is_that_of_the_structs() -> None:
    assert report_schema.PATH.read_bytes() == report_schema.schema(), "run: python -m tests.verify.report_schema"


@pytest.mark.parametrize("name", recorded.names())
def test_every_report_satisfies_it(validator: Draft202012Validator, name: str) -> None:
    validator.validate(written(name))


def test_a_report_on_many_ranks_satisfies_it(validator: Draft202012Validator, tmp_path: Path) -> None:
    simulated.write(tmp_path, 96, 8, killed=7, late=90)
    validator.validate(json.loads(to_json(simulated.report(tmp_path, 96))))


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("verdict",), "perhaps"),
        (("results", 0, "status"), "passed"),
        (("ranks", 0, "rank"), "0"),
        (("facts", 0, "common", "python"), "3.11"),
        (("scaling", 0, "efficiency"), None),
    ],
)
def test_what_is_no_report_does_not(
    validator: Draft202012Validator, path: tuple[str | int, ...], wrong: object
) -> None:
    read = written("pytorch-2ranks")
    inner: Any = read
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = wrong
    assert [tuple(error.absolute_path) for error in validator.iter_errors(read)] == [path]
