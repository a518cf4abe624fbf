"""The report as JUnit XML, for the test pages of GitLab and Jenkins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from envkit.report.words import plain
from envkit.verify.outcome import Result, Status
from envkit.verify.report.model import Report


def junit(report: Report) -> bytes:
    """A test case per check of a framework, after one named `verdict` that fails where the verdict is not PASS.

    What was skipped though it is required makes no test case fail, but the verdict.
    """
    suite = ElementTree.Element("testsuite", name=_suite(report))
    suite.append(_properties(report))
    suite.append(_verdict(report))
    checks: dict[tuple[str, str], list[Result]] = {}
    for result in report.results:
        checks.setdefault((result.framework, result.id), []).append(result)
    for (framework, check), results in checks.items():
        suite.append(_case(f"{_suite(report)}.{framework}", check, results))
    _count(suite, report.seconds)
    totals = {name: value for name, value in suite.attrib.items() if name != "skipped"}
    suites = ElementTree.Element("testsuites", {**totals, "name": "envkit verify"})
    suites.append(suite)
    ElementTree.indent(suites)
    written: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _suite(report: Report) -> str:
    return f"envkit.verify.{plain(report.environment)}"


def _properties(report: Report) -> ElementTree.Element:
    values = {"verdict": report.verdict, "world": report.world}
    if report.started:
        values |= {"launcher": report.started.launcher, "job": report.started.job or "none"}
    if report.origin:
        values["origin"] = report.origin
    properties = ElementTree.Element("properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=plain(value))
    return properties


def _verdict(report: Report) -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=_suite(report), name="verdict", time=_time(report.seconds))
    if report.verdict != "pass":
        failed = dict.fromkeys(result.id for result in report.results if result.status is Status.FAIL)
        message = f"{report.world}. Failed: {', '.join(failed) or 'nothing'}."
        told = [f"not proved: {text}" for text in report.skipped(required=True)]
        _fail(case, message, told)
    return case


def _case(classname: str, check: str, results: Sequence[Result]) -> ElementTree.Element:
    """One check: it failed if it failed in any respect, and was skipped if it was in every one."""
    case = ElementTree.Element("testcase", classname=plain(classname), name=check, time=_time(None))
    failed = [result for result in results if result.status is Status.FAIL]
    if failed:
        _fail(case, failed[0].message, map(_told, failed))
    elif all(result.status is Status.SKIP for result in results):
        ElementTree.SubElement(case, "skipped", message=plain(results[0].message))
        return case
    if notes := [_told(result) for result in results if result.status is not Status.FAIL]:
        ElementTree.SubElement(case, "system-out").text = plain("\n\n".join(notes))
    return case


def _fail(case: ElementTree.Element, message: str, told: Iterable[str]) -> None:
    failure = ElementTree.SubElement(case, "failure", message=plain(message), type="failure")
    failure.text = plain("\n\n".join(told))


def _told(result: Result) -> str:
    lines = [f"{result.status}: {result.message}"]
    lines += [f"{name}: {text}" for name, text in (("cause", result.cause), ("remedy", result.remedy)) if text]
    return "\n".join(lines)


def _count(suite: ElementTree.Element, seconds: float | None) -> None:
    for name, path in (("tests", "testcase"), ("failures", "testcase/failure"), ("skipped", "testcase/skipped")):
        suite.set(name, str(len(suite.findall(path))))
    suite.set("errors", "0")
    suite.set("time", _time(seconds))


def _time(seconds: float | None) -> str:
    return f"{seconds or 0:.3f}"
