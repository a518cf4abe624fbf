"""The report for GitHub Actions: annotations, which are lines that its runner obeys, and the summary of the job."""

from __future__ import annotations

import re
from collections.abc import Iterator

import envkit.report.words as words
from envkit.report.words import plain
from envkit.verify.outcome import Result, Status
from envkit.verify.report.model import Report

_TITLE = "envkit verify"
_LEVELS = {Status.FAIL: "error", Status.WARN: "warning"}


def workflow_commands(report: Report) -> str:
    """A line for each problem, the root cause first, and one for what is not proved; of a good report one alone."""
    lines = [_annotation(_LEVELS[one.status], f"{one.id} ({one.framework})", _told(one)) for one in report.problems]
    if report.verdict == "pass":
        lines.append(_annotation("notice", "PASS", _verdict(report)))
    elif not any(one.status is Status.FAIL for one in report.problems):
        lines.append(_annotation("error", "FAIL", "\n".join([_verdict(report), *report.skipped(required=True)])))
    return "".join(f"{line}\n" for line in lines)


def summary(report: Report) -> str:
    """The report as Markdown: the verdict, each problem with its remedy, then the names of what passed."""
    parts = [f"### {_TITLE}: {report.verdict.upper()}", _text(_verdict(report))]
    for one in report.problems:
        parts.append(f"**{one.status.upper()} {_text(f'{one.id} ({one.framework})')}**: {_text(one.message)}")
        parts += [f"*{name}*: {_text(why)}" for name, why in (("Cause", one.cause), ("Remedy", one.remedy)) if why]
        if one.commands:
            parts.append(_code("\n".join(one.commands)))
    if report.consequences:
        names = ", ".join(dict.fromkeys(one.id for one in report.consequences))
        parts.append(f"Because of this: {_text(names)}")
    parts += [f"Not proved: {_text(text)}" for text in report.skipped(required=True)]
    for framework in report.frameworks:
        if passed := report.passed(framework.name):
            parts.append(f"Passed ({_text(framework.name)}): {_text(', '.join(passed))}")
    return "\n\n".join(parts) + "\n"


def _verdict(report: Report) -> str:
    time = "" if report.seconds is None else f", in {words.duration(report.seconds)}"
    return f"{report.environment}: {report.world}{time}"


def _told(result: Result) -> str:
    return "\n".join(_lines(result))


def _lines(result: Result) -> Iterator[str]:
    yield result.message
    yield from (f"{name}: {why}" for name, why in (("cause", result.cause), ("remedy", result.remedy)) if why)
    yield from result.commands


def _annotation(level: str, title: str, message: str) -> str:
    """A line of the runner's own: in its parameters a colon and a comma mean something, in its text the line ends."""
    name = _escaped(f"{_TITLE}: {title}").replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={name}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _text(text: str) -> str:
    """A text in which nothing is markup, on one line."""
    return re.sub(r"([\\`*_{}\[\]()<>#|!~&@:])", r"\\\1", " ".join(plain(text).split()))


def _code(text: str) -> str:
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}console\n{plain(text)}\n{fence}"
