from __future__ import annotations

import pytest

from envkit.verify.checks import security as checks
from envkit.verify.facts import Horovod, RankFacts, Started
from envkit.verify.outcome import Expected, Ranks, Result, Status, verdict

GLOO = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "HOROVOD_RANK": "0"}


def result(
    environment: dict[str, str], version: str | None = "0.28.1", started: Started | None = None
) -> Result | None:
    facts = RankFacts(
        framework="torch",
        host="node1",
        pid=1,
        phase="exit",
        started=started,
        environment=environment,
        horovod=Horovod(version=version),
    )
    found = checks.vulnerabilities(
        Ranks(framework="torch", facts=(facts,), expected=Expected(size=1, frameworks=("torch",)))
    )
    return found[0] if found else None


@pytest.mark.parametrize(
    ("environment", "version", "ids"),
    [
        (GLOO, "0.28.1", ["CVE-2026-31234"]),
        ({**GLOO, "HOROVOD_ELASTIC": "1"}, "0.28.1", ["CVE-2024-10190", "CVE-2026-31234"]),
        ({**GLOO, "HOROVOD_ELASTIC": "0"}, "0.28.1", ["CVE-2026-31234"]),
        (GLOO, "0.29.0", []),
        (GLOO, "0.28.1rc1", ["CVE-2026-31234"]),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "0.28.1", []),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "0.28.1", []),
        ({"JSM_NAMESPACE_RANK": "0"}, "0.23.0", ["CVE-2022-0315"]),
        ({"JSM_NAMESPACE_RANK": "0"}, "0.28.1", []),
        ({}, "0.28.1", []),
    ],
)
def test_a_weakness_matters_where_its_part_runs(environment: dict[str, str], version: str, ids: list[str]) -> None:
    found = result(environment, version)
    assert found is not None
    assert found.status is (Status.WARN if ids else Status.PASS)
    assert all(one in found.message for one in ids)
    assert found.message.count("CVE") == len(ids)
    assert verdict([found]) is Status.PASS


@pytest.mark.parametrize(("launcher", "status"), [("mpirun", Status.PASS), ("horovodrun", Status.WARN)])
def test_variables_of_another_launcher_tell_nothing(launcher: str, status: Status) -> None:
    """They were set by hand, or are left over: mpirun runs no server of horovodrun's."""
    started = Started(launcher=launcher, title=launcher, rank=0)
    for environment in ({"HOROVOD_ELASTIC": "1"}, GLOO):
        found = result(environment, started=started)
        assert found is not None and found.status is status


def test_a_version_that_is_not_known_is_not_judged() -> None:
    assert result(GLOO, None) is None
