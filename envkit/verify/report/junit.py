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
    suite = ElementTree.Element("testsuite", name=suite_name(report))
    suite.append(suite_properties(report))
    suite.append(verdict_case(report))
    checks: dict[tuple[str, str], list[Result]] = {}
    for result in report.results:
        checks.setdefault((result.framework, result.id), []).append(result)
    for (framework, check), results in checks.items():
        suite.append(check_case(f"{suite_name(report)}.{framework}", check, results))
    count(suite, report.seconds)
    totals = {name: value for name, value in suite.attrib.items() if name != "skipped"}
    suites = ElementTree.Element("testsuites", {**totals, "name": "envkit verify"})
    suites.append(suite)
    ElementTree.indent(suites)
    written: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def suite_name(report: Report) -> str:
    """Return the name of the suite, after the environment."""
    return f"envkit.verify.{plain(report.environment)}"


def suite_properties(report: Report) -> ElementTree.Element:
    """Return the properties of the suite: the verdict, the world, and what started the ranks."""
    values = {"verdict": report.verdict, "world": report.world}
    if report.started:
        values |= {"launcher": report.started.launcher, "job": report.started.job or "none"}
    if report.origin:
        values["origin"] = report.origin
    properties = ElementTree.Element("properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=plain(value))
    return properties


def verdict_case(report: Report) -> ElementTree.Element:
    """Return the test case that fails where the verdict is not PASS."""
    case = ElementTree.Element("testcase", classname=suite_name(report), name="verdict", time=time_text(report.seconds))
    if report.verdict != "pass":
        failed = dict.fromkeys(result.id for result in report.results if result.status is Status.FAIL)
        message = f"{report.world}. Failed: {', '.join(failed) or 'nothing'}."
        reasons = [f"not proved: {text}" for text in report.skipped(required=True)]
        fail(case, message, reasons)
    return case


def check_case(classname: str, check: str, results: Sequence[Result]) -> ElementTree.Element:
    """One check: it failed if it failed in any respect, and was skipped if it was in every one."""
    case = ElementTree.Element("testcase", classname=plain(classname), name=check, time=time_text(None))
    failed = [result for result in results if result.status is Status.FAIL]
    if failed:
        fail(case, failed[0].message, map(result_text, failed))
    elif all(result.status is Status.SKIP for result in results):
        ElementTree.SubElement(case, "skipped", message=plain(results[0].message))
        return case
    if notes := [result_text(result) for result in results if result.status is not Status.FAIL]:
        ElementTree.SubElement(case, "system-out").text = plain("\n\n".join(notes))
    return case


def fail(case: ElementTree.Element, message: str, lines: Iterable[str]) -> None:
    """Make a test case fail, with a message and the texts that explain it."""
    failure = ElementTree.SubElement(case, "failure", message=plain(message), type="failure")
    failure.text = plain("\n\n".join(lines))


def result_text(result: Result) -> str:
    """Return a result in words, with its cause and remedy."""
    lines = [f"{result.status}: {result.message}"]
    lines += [f"{name}: {text}" for name, text in (("cause", result.cause), ("remedy", result.remedy)) if text]
    return "\n".join(lines)


def count(suite: ElementTree.Element, seconds: float | None) -> None:
    """Set the numbers of test cases, failures and skips of a suite, and its time."""
    for name, path in (("tests", "testcase"), ("failures", "testcase/failure"), ("skipped", "testcase/skipped")):
        suite.set(name, str(len(suite.findall(path))))
    suite.set("errors", "0")
    suite.set("time", time_text(seconds))


def time_text(seconds: float | None) -> str:
    """Return a time in seconds as JUnit writes it."""
    return f"{seconds or 0:.3f}"
