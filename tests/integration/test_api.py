"""``envkit.api`` with a real environment."""

import json
from collections.abc import Callable
from datetime import date

import pytest

from envkit import api, errors

from ..stacks import Site

STACK = "pytorch-2.13-cpu"

pytestmark = pytest.mark.integration


def test_an_installed_environment(
    stacks: Site, installed: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    installed(STACK)
    said: list[str] = []
    made = api.install("pytorch", method="easybuild", prefix=stacks.prefix, progress=said.append)
    assert made.verification is None
    assert made.environment and made.environment.name == STACK
    assert made.environment.verified == date.fromisoformat(str(made.environment.verified))
    assert made.environment.problem == ""
    assert any("installed already" in line for line in said)
    assert made.environment in api.environments(prefix=stacks.prefix)

    found = api.verify("pytorch-2.13-cpu", prefix=stacks.prefix, ranks=2)
    assert found.passed, found.cause
    assert (found.environment, found.ranks, found.cause) == (STACK, 2, None)
    assert json.loads(found.to_json())["verdict"] == "pass"
    assert 'failures="0"' in found.to_junit()
    assert "</html>" in found.to_html()

    found = api.verify("pytorch-2.13-cpu", prefix=stacks.prefix, ranks=2, require=["nccl"], quick=True)
    assert not found.passed
    assert found.cause and found.cause.id == "flag-required"
    assert found.cause.remedy
    with pytest.raises(errors.EnvironmentMissing):
        api.verify("tensorflow-2.13-rocm", prefix=stacks.prefix)
    assert capfd.readouterr() == ("", "")
