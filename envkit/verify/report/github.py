"""The report for GitHub Actions: annotations, which are lines that its runner obeys, and the summary of the job."""

from __future__ import annotations

import re
from collections.abc import Iterator

import envkit.report.words as words
from envkit.report.words import plain
from envkit.verify.outcome import Result, Status
from envkit.verify.report.model import Report

TITLE = "envkit verify"
LEVELS = {Status.FAIL: "error", Status.WARN: "warning"}


def workflow_commands(report: Report) -> str:
    """A line for each problem, the root cause first, and one for what is not proved; of a good report one alone."""
    lines = [
        annotation(LEVELS[problem.status], f"{problem.id} ({problem.framework})", problem_text(problem))
        for problem in report.problems
    ]
    if report.verdict == "pass":
        lines.append(annotation("notice", "PASS", verdict(report)))
    elif not any(problem.status is Status.FAIL for problem in report.problems):
        lines.append(annotation("error", "FAIL", "\n".join([verdict(report), *report.skipped(required=True)])))
    return "".join(f"{line}\n" for line in lines)


def summary(report: Report) -> str:
    """The report as Markdown: the verdict, each problem with its remedy, then the names of what passed."""
    parts = [f"### {TITLE}: {report.verdict.upper()}", markdown(verdict(report))]
    for problem in report.problems:
        heading = markdown(f"{problem.id} ({problem.framework})")
        parts.append(f"**{problem.status.upper()} {heading}**: {markdown(problem.message)}")
        parts += [
            f"*{name}*: {markdown(why)}" for name, why in (("Cause", problem.cause), ("Remedy", problem.remedy)) if why
        ]
        if problem.commands:
            parts.append(code("\n".join(problem.commands)))
    if report.consequences:
        names = ", ".join(dict.fromkeys(result.id for result in report.consequences))
        parts.append(f"Because of this: {markdown(names)}")
    parts += [f"Not proved: {markdown(text)}" for text in report.skipped(required=True)]
    for framework in report.frameworks:
        if passed := report.passed(framework.name):
            parts.append(f"Passed ({markdown(framework.name)}): {markdown(', '.join(passed))}")
    return "\n\n".join(parts) + "\n"


def verdict(report: Report) -> str:
    """Return the verdict in words: the environment, its world and the time that it took."""
    time = "" if report.seconds is None else f", in {words.duration(report.seconds)}"
    return f"{report.environment}: {report.world}{time}"


def problem_text(result: Result) -> str:
    """Return a result with its cause, remedy and commands, as one text."""
    return "\n".join(problem_lines(result))


def problem_lines(result: Result) -> Iterator[str]:
    """Return the parts of that text: the message, the cause, the remedy and the commands."""
    yield result.message
    yield from (f"{name}: {why}" for name, why in (("cause", result.cause), ("remedy", result.remedy)) if why)
    yield from result.commands


def annotation(level: str, title: str, message: str) -> str:
    """A line of the runner's own: in its parameters a colon and a comma mean something, in its text the line ends."""
    name = escaped(f"{TITLE}: {title}").replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={name}::{escaped(message)}"


def escaped(text: str) -> str:
    """Return a text in which the runner takes nothing for a sign of its own."""
    return plain(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def markdown(text: str) -> str:
    """A text in which nothing is markup, on one line."""
    return re.sub(r"([\\`*_{}\[\]()<>#|!~&@:])", r"\\\1", words.one_line(text))


def code(text: str) -> str:
    """Return a text as a block of code, with a fence that is longer than any in it."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}console\n{plain(text)}\n{fence}"
