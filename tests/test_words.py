"""Text for a terminal: without what it obeys, and in a time that goes by its length."""

from __future__ import annotations

import time

import pytest

from envkit.report.paper import wrapped
from envkit.report.words import plain

STARTERS = ("\x1b]", "\x1bP", "\x1b[", "\x9b", "\x9d", "\x90", "\x98", "\x9e", "\x9f", "\x9d\x90", "\x1b]\x9d", "\x9b0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x1b[31mb", "ab"),
        ("a\x9b31mb", "ab"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x9d0;title\x9cb", "ab"),
        ("a\x90q\x9d0;title\x07b", "aqb"),
        ("a\x1b]8;;file:///x\x1b\\b", "ab"),
        ("a\u202eb\x00\x7f", "ab"),
        ("a\tb\nc", "a\tb\nc"),
    ],
)
def test_what_a_terminal_obeys_is_left_out(text: str, expected: str) -> None:
    assert plain(text) == expected


@pytest.mark.integration
@pytest.mark.parametrize("starter", STARTERS)
def test_sequences_that_begin_and_never_end(starter: str) -> None:
    """The time is that of the processor; so many characters that each began one took an hour."""
    began = time.thread_time()
    assert not set(plain(starter * 300_000)) & set("\x1b\x9b\x9d\x90\x98\x9e\x9f")
    assert time.thread_time() - began < 1.5


def test_a_long_word_is_wrapped_after_slashes() -> None:
    assert wrapped("/abc/defgh/ij", 8) == ["/abc/", "defgh/ij"]
    assert wrapped("x" * 20, 8) == ["x" * 8, "x" * 8, "x" * 4]
    assert wrapped("see https://host/" + "a/" * 9, 12) == ["see", "https://host/" + "a/" * 9]
    assert wrapped("/abcdefg/https://h/x", 8) == ["/abcdefg/https://h/x"]


def test_a_word_of_a_million_letters_is_wrapped_in_a_time_by_its_length() -> None:
    began = time.thread_time()
    assert "".join(wrapped("x" * 1_000_000, 60)) == "x" * 1_000_000
    assert time.thread_time() - began < 5
