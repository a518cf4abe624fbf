"""What compat says of combinations that it was not written from: never that what fails works, or the reverse."""

import pytest

from envkit.compat.judge import Verdict
from tests.compat import confusion

Found = dict[str, tuple[str, Verdict]]


@pytest.fixture(scope="module")
def found() -> Found:
    """What is known of each combination, and what envkit says."""
    return confusion.verdicts()


def test_there_are_enough_and_each_has_its_source(found: Found) -> None:
    assert len(found) >= 60
    assert sum(len(confusion.OUTCOMES[row]) for row in confusion.ROWS) == len(found)
    assert all(confusion.source(text).startswith(("https://", "the ", "release notes")) for text in found)


def test_nothing_is_wrong(found: Found) -> None:
    assert not {text: pair for text, pair in found.items() if pair in confusion.WRONG}


def test_at_most_one_in_five_of_the_public_recipes_is_not_known(found: Found) -> None:
    said = [verdict for row, verdict in found.values() if row == "recipe"]
    assert said.count(Verdict.UNKNOWN) <= len(said) / 5


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert confusion.main() == 0
    said = capsys.readouterr().out
    assert said.startswith("| | number | works | fails | risky | unknown |")
    for row, title in confusion.ROWS.items():
        assert f"| {title} | {len(confusion.OUTCOMES[row])} |" in said
    assert "wrong: " not in said
