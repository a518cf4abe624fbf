"""The page of a timeline, read as any other page."""

import io
import json
from typing import Any

import pytest

from envkit.training import timeline
from envkit.verify.report.timeline_page import html

from .test_html import Page

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[31m\x00\ud800"


def of_tensor(number: int, name: str) -> list[dict[str, Any]]:
    """What one allreduce on 30 ranks leaves; rank ``number`` modulo 30 comes last."""
    begin = 1e6 * number
    ranks = sorted(range(30), key=lambda rank: (rank - number - 1) % 30)
    return [
        {"name": "process_name", "ph": "M", "pid": number, "args": {"name": name}},
        {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": begin, "pid": number},
        *({"ph": "X", "name": str(rank), "ts": begin + 1e3 * place, "pid": number} for place, rank in enumerate(ranks)),
        {"ph": "E", "ts": begin + 1e5, "pid": number},
        {"ph": "B", "name": "ALLREDUCE", "ts": begin + 1e5, "pid": number},
        {"ph": "B", "name": "MEMCPY_IN_FUSION_BUFFER", "ts": begin + 1e5, "pid": number},
        {"ph": "E", "ts": begin + 2e5, "pid": number},
        {"ph": "E", "ts": begin + 3e5 + number, "pid": number},
    ]


def summary(events: list[dict[str, Any]], end: str = "]") -> timeline.Summary:
    return timeline.summary(io.StringIO(json.dumps(events)[:-1] + end))


def said(found: timeline.Summary) -> str:
    return " ".join(Page(html(found, "out.json")).text.split())


def test_the_phases_the_tensors_and_who_came_last() -> None:
    text = said(summary(of_tensor(7, "allreduce.w")))
    assert "300 ms out.json 1 operations on 1 tensors" in text
    assert "negotiation 100 ms 33 % memory copies 100 ms 33 %" in text
    assert "allreduce.w 200 ms 1 200 ms" in text
    assert "In the 1 negotiations" in text and "7 1 100 % 29.0 ms" in text


def test_of_many_tensors_and_ranks_the_worst_are_shown() -> None:
    found = summary([event for number in range(300) for event in of_tensor(number, f"layer{number}")])
    page = html(found, "out.json")
    assert "the slowest 20 of 300" in said(found) and "10 other ranks are left out" in said(found)
    assert "layer299" in page and "layer280" in page and "layer279" not in page


def test_a_timeline_that_was_cut_short_says_so() -> None:
    assert "cut short" in said(summary(of_tensor(0, "w"), end=",")) and "cut short" not in said(
        summary(of_tensor(0, "w"))
    )


def test_what_names_tensors_phases_ranks_and_the_file_is_escaped() -> None:
    events = of_tensor(0, HOSTILE)
    for event in events:
        if event["ph"] == "X" or event.get("name") == "MEMCPY_IN_FUSION_BUFFER":
            event["name"] = HOSTILE + event["name"]
    found = summary(events)
    text = html(found, HOSTILE)
    page = Page(text)
    assert not page.named("script") + page.named("img")
    assert not {"\x1b", "\x00", "\ud800"} & {*text, *"".join(timeline.lines(found))}
    assert page.text.count("<script>alert(1)</script>") == 2 + 3  # the file; a phase, a tensor, a rank


@pytest.mark.parametrize("events", [[], [{"ph": "B", "ts": 0}], [{"ph": "E", "ts": "soon"}, {"ph": "X", "ts": 1}]])
def test_what_is_hardly_a_timeline_is_a_page(events: list[dict[str, Any]]) -> None:
    assert said(summary(events)).startswith("Timeline: out.json")


def test_it_needs_no_script_and_nothing_from_elsewhere() -> None:
    page = Page(html(summary(of_tensor(0, "w")), "out.json"))
    assert not page.named("script")
    for _, attributes in page.elements:
        assert not {"src", "srcset", "action", "data", "xlink:href"} & set(attributes)
        assert attributes.get("href", "data:,") == "data:,"
    assert {attributes.get("scope") for attributes in page.named("th")} == {"row", "col"}
