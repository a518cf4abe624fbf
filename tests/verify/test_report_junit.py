from __future__ import annotations

from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from envkit.verify.checks import check
from envkit.verify.outcome import Result, Status
from envkit.verify.report import Report, make_report, render
from envkit.verify.report.junit import junit
from envkit.verify.report.page import html

from . import recorded

# What Jenkins and GitLab read: an element's children, in this order, and its attributes; ! marks those it must have.
SHAPE = {
    "testsuites": (["testsuite"], {"name", "tests", "failures", "errors", "time"}),
    "testsuite": (["properties", "testcase"], {"name!", "tests!", "failures!", "errors!", "skipped", "time"}),
    "properties": (["property"], set()),
    "property": ([], {"name!", "value!"}),
    "testcase": (["skipped", "failure", "system-out"], {"name!", "classname!", "time"}),
    "failure": ([], {"message", "type!"}),
    "skipped": ([], {"message"}),
    "system-out": ([], set()),
}


def report(name: str) -> Report:
    case = recorded.case(name)
    return make_report("demo-1", case.facts, check(case.facts, case.expected), expected=case.expected, seconds=7.5)


def cases(written: bytes) -> dict[tuple[str | None, str | None], ElementTree.Element]:
    return {
        (case.get("classname"), case.get("name")): case for case in ElementTree.fromstring(written).iter("testcase")
    }


@pytest.mark.parametrize("name", recorded.names())
def test_it_has_the_shape_that_is_read(name: str) -> None:
    for element in ElementTree.fromstring(junit(report(name))).iter():
        children, attributes = SHAPE[element.tag]
        order = [children.index(child.tag) for child in element]
        assert order == sorted(order)
        assert {key.rstrip("!") for key in attributes if key.endswith("!")} <= set(element.attrib)
        assert set(element.attrib) <= {key.rstrip("!") for key in attributes}


def test_it_says_which_cache_horovod_was_taken_from() -> None:
    case, origin = (
        recorded.case("pytorch-2ranks"),
        "Horovod/1 from the cache /c, built on node1",
    )
    made = make_report("demo-1", case.facts, [], expected=replace(case.expected, origin=origin))
    [told] = [one for one in ElementTree.fromstring(junit(made)).iter("property") if one.get("name") == "origin"]
    assert told.get("value") == origin
    assert origin in " ".join(render(made, width=200).split())
    assert origin in html(made)
    assert "origin" not in junit(report("pytorch-2ranks")).decode()


@pytest.mark.parametrize("name", recorded.names())
def test_it_counts_and_names_every_check_once(name: str) -> None:
    shown = report(name)
    suite = next(ElementTree.fromstring(junit(shown)).iter("testsuite"))
    found = cases(junit(shown))
    checks = {(f"envkit.verify.demo-1.{result.framework}", result.id) for result in shown.results}
    assert set(found) == checks | {("envkit.verify.demo-1", "verdict")}
    assert int(suite.attrib["tests"]) == len(list(suite.iter("testcase"))) == len(found)
    assert int(suite.attrib["failures"]) == len(list(suite.iter("failure")))
    assert int(suite.attrib["skipped"]) == len(list(suite.iter("skipped")))
    assert suite.attrib["time"] == "7.500"


@pytest.mark.parametrize("name", recorded.names())
def test_something_fails_exactly_where_the_verdict_is_not_pass(name: str) -> None:
    shown = report(name)
    failures = list(ElementTree.fromstring(junit(shown)).iter("failure"))
    assert bool(failures) == (shown.verdict == "fail")


def test_a_failure_has_message_cause_and_remedy() -> None:
    shown = report("rank-killed")
    worst = next(result for result in shown.results if result.status is Status.FAIL)
    failure = cases(junit(shown))["envkit.verify.demo-1.torch", worst.id].find("failure")
    assert failure is not None
    assert failure.attrib["message"] == worst.message
    assert failure.text == f"fail: {worst.message}\ncause: {worst.cause}\nremedy: {worst.remedy}"


def results(*stated: tuple[Status, bool]) -> tuple[Result, ...]:
    return tuple(
        Result(
            id="one",
            case="some",
            status=status,
            framework="torch",
            message=f"message {number}",
            required=required,
            cause="why",
        )
        for number, (status, required) in enumerate(stated)
    )


@pytest.mark.parametrize(
    ("statuses", "children"),
    [
        ([Status.PASS, Status.FAIL], ["failure", "system-out"]),
        ([Status.WARN], ["system-out"]),
        ([Status.SKIP, Status.SKIP], ["skipped"]),
        ([Status.SKIP, Status.PASS], ["system-out"]),
    ],
)
def test_the_results_of_one_check_are_one_case(statuses: list[Status], children: list[str]) -> None:
    shown = replace(report("pytorch-2ranks"), results=results(*((status, False) for status in statuses)))
    case = cases(junit(shown))["envkit.verify.demo-1.torch", "one"]
    assert [child.tag for child in case] == children


def test_what_is_required_but_not_proved_fails_the_verdict() -> None:
    shown = replace(report("pytorch-2ranks"), verdict="fail", results=results((Status.SKIP, True)))
    found = cases(junit(shown))
    failure = found["envkit.verify.demo-1", "verdict"].find("failure")
    assert failure is not None
    assert failure.text == "not proved: one (torch): message 0"
    assert found["envkit.verify.demo-1.torch", "one"].find("skipped") is not None


def test_characters_that_xml_forbids_are_left_out() -> None:
    hostile = replace(results((Status.FAIL, True))[0], message="a\x00\x1b[31mb\x0c\ud800\ufffe<&>\"'\x85é\U0001f600")
    written = junit(replace(report("pytorch-2ranks"), results=(hostile,)))
    failure = cases(written)["envkit.verify.demo-1.torch", "one"].find("failure")
    assert failure is not None
    assert failure.attrib["message"] == "ab<&>\"'é\U0001f600"
