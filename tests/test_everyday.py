"""The questions that users ask most, and logs that nobody wrote a rule for."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from envkit.diagnose import Certainty, first_cause

LOGS = tomllib.loads(Path(__file__).with_name("everyday.toml").read_text())["log"]


@pytest.mark.parametrize("one", LOGS, ids=lambda one: f"{one['ask']}: {one['rule']}")
def test_an_everyday_question_is_answered(one: dict[str, Any]) -> None:
    found = first_cause([one["log"].encode()])
    assert found is not None
    assert found.rule.id == one["rule"]
    assert found.certainty is not Certainty.UNKNOWN
    assert found.cause and found.fix and not {"{", "}"} & set(found.cause + found.fix)


def test_each_question_has_several_logs() -> None:
    asked = [one["ask"] for one in LOGS]
    assert len(set(asked)) == 15
    assert all(asked.count(ask) >= 5 for ask in asked)
