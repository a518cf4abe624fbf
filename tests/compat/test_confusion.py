"""What compat says of combinations that it was not written from: never that what fails works, or the reverse."""

import pytest

from envkit.compat.judge import Verdict
from tests.compat import confusion

FOUND = confusion.verdicts()


def test_there_are_enough_and_each_has_its_source() -> None:
    assert len(FOUND) >= 60
    assert sum(len(confusion.OUTCOMES[row]) for row in confusion.ROWS) == len(FOUND)
    assert all(confusion.source(text).startswith(("https://", "the ", "release notes")) for text in FOUND)


@pytest.mark.parametrize("text", FOUND)
def test_nothing_is_wrong(text: str) -> None:
    assert FOUND[text] not in confusion.WRONG


def test_at_most_one_in_five_of_the_public_recipes_is_not_known() -> None:
    said = [verdict for row, verdict in FOUND.values() if row == "recipe"]
    assert said.count(Verdict.UNKNOWN) <= len(said) / 5


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert confusion.main() == 0
    said = capsys.readouterr().out
    assert said.startswith("| | number | works | fails | risky | unknown |")
    for row, title in confusion.ROWS.items():
        assert f"| {title} | {len(confusion.OUTCOMES[row])} |" in said
    assert "wrong: " not in said
