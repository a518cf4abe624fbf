"""The report for people at a terminal: the verdict, what is wrong with its remedy, then what was verified."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TextIO

import envkit.report.words as words
from envkit.binary.build_flags import FLAGS
from envkit.report.paper import Paper
from envkit.verify.outcome import Result, Status
from envkit.verify.report.model import HostRow, RankRow, Report, raw_rate

_COLOURS = {Status.PASS: "green", Status.FAIL: "red", Status.WARN: "yellow", Status.SKIP: "cyan"}
_SHOWN_RANKS = 16
_SHOWN_HOSTS = 16
_SHOWN_LINES = 6
_SHOWN_CONSEQUENCES = 4
_EXPLAINED = ("settings", "damage")  # what the launcher said adds nothing to these


def to_text(report: Report, stream: TextIO) -> str:
    """The report as text for a stream: as wide as its terminal, in colours where these are allowed."""
    paper = Paper.of(stream)
    return render(report, width=paper.width, colour=paper.colour)


def render(report: Report, *, width: int = 80, colour: bool = False) -> str:
    """The report as text, ending in a newline."""
    paper = Paper(width=width, colour=colour)
    blocks = [
        _head(report, paper),
        *(_problem(result, paper) for result in report.problems[:1]),
        _consequences(report, paper),
        _trials(report, paper),
        *(_problem(result, paper) for result in report.problems[1:]),
        _launcher(report, paper),
        *_not_proved(report, paper),
        _builds(report, paper),
        _ranks(report, paper) if len(report.ranks) <= _SHOWN_RANKS else _hosts(report, paper),
        _bandwidth(report, paper),
        _scaling(report, paper),
        _tests(report, paper),
        *_passes(report, paper),
        _skips(report, paper),
        _slowest(report, paper),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _head(report: Report, paper: Paper) -> list[str]:
    label = report.verdict.upper()
    time = "" if report.seconds is None else f", in {words.duration(report.seconds)}"
    names = {row.name for row in report.hosts}
    hosts = f" on {words.count(len(names), 'host')}" if names else ""
    lines = paper.paragraph(
        label, "green" if report.verdict == "pass" else "red", f"{report.environment}: {report.world}{hosts}{time}"
    )
    if report.started:
        job = f" in {report.started.job}" if report.started.job else ""
        lines += paper.paragraph(
            " " * len(label), "dim", f"started with {report.started.launcher}{job}: {report.started.why}"
        )
    if report.origin:
        lines += paper.paragraph(" " * len(label), "dim", report.origin)
    return lines


def _problem(result: Result, paper: Paper) -> list[str]:
    text = f"{result.id} ({result.framework}): {result.message}"
    lines = paper.paragraph(result.status.upper(), _COLOURS[result.status], text)
    for name, why in (("cause", result.cause), ("remedy", result.remedy)):
        lines += paper.paragraph(f"      {name:>6}", "bold", why)
    for command in result.commands:
        lines += paper.paragraph("            ", "bold", command)
    return lines


def _consequences(report: Report, paper: Paper) -> list[str]:
    """What follows from the root cause, a line each, and the names of what was not measured because of it."""
    follows = report.consequences
    told = [f"{one.id} ({one.framework}): {one.message}" for one in follows[:_SHOWN_CONSEQUENCES]]
    told += [f"and {len(follows) - len(told)} more, in the JSON report"] if len(follows) > len(told) else []
    if unmeasured := report.unmeasured:
        told.append(f"not measured: {', '.join(unmeasured)}")
    lines = [line for text in told for line in paper.paragraph("            ", "dim", text)]
    return [paper.styled("     because of this", "bold"), *lines] if lines else []


def _trials(report: Report, paper: Paper) -> list[str]:
    """How often the ranks were started otherwise, and how long that took."""
    if not report.trials:
        return []
    seconds = words.duration(sum(trial.seconds for trial in report.trials))
    passed = sum(trial.passed for trial in report.trials)
    tried = f"{words.count(len(report.trials), 'other start')} in {seconds}, {passed or 'none'} of which passed"
    return paper.paragraph("       tried", "bold", f"{tried}; each is in the JSON report")


def _launcher(report: Report, paper: Paper) -> list[str]:
    said = [line for line in report.launcher_said.splitlines() if line.strip("- ")]
    if report.verdict == "pass" or not said or (report.cause and report.cause.id in _EXPLAINED):
        return []
    text = f"ended with status {report.launcher_status}; the end of what it said:"
    lines = paper.paragraph("launcher", "bold", text)
    for line in said[-_SHOWN_LINES:]:
        lines += paper.paragraph(" " * 8, "bold", line)
    return lines


def _not_proved(report: Report, paper: Paper) -> list[list[str]]:
    return [paper.paragraph("NOT PROVED", "cyan", text) for text in report.skipped(required=True)]


def _skips(report: Report, paper: Paper) -> list[str]:
    return [line for text in report.skipped(required=False) for line in paper.paragraph("skipped", "cyan", text)]


def _builds(report: Report, paper: Paper) -> list[str]:
    rows = [
        (row.name, row.version, *(words.flag(name, row.flags.get(name)) for name in FLAGS)) for row in report.frameworks
    ]
    return paper.table(("framework", "version", *FLAGS), rows)


def _ranks(report: Report, paper: Paper) -> list[str]:
    header = ("framework", "host", "rank", "local rank", "size", "device", "ended")
    return paper.table(header, map(_rank, report.ranks)) if report.ranks else []


def _rank(row: RankRow) -> tuple[str, ...]:
    numbers = ["-" if number is None else str(number) for number in (row.rank, row.local_rank, row.size)]
    return (row.framework, row.host, *numbers, row.device, row.ended)


def _hosts(report: Report, paper: Paper) -> list[str]:
    """A line per host, alike hosts together where there are many; then the ranks that are not like the rest."""
    groups = report.alike(_SHOWN_HOSTS)
    lines = paper.table(
        ("framework", "hosts", "ranks", "devices per host", "ended"), map(_alike, groups[:_SHOWN_HOSTS])
    )
    if len(groups) > _SHOWN_HOSTS:
        lines.append(paper.styled(f"and {len(groups) - _SHOWN_HOSTS} more, in the JSON report", "dim"))
    return lines + _odd_ranks(report, paper)


def _alike(rows: Sequence[HostRow]) -> tuple[str, ...]:
    row = rows[0]
    ranks = words.ranges(rank for one in rows for rank in one.ranks) or f"{words.count(row.processes, 'process')}"
    return (row.framework, words.hosts(one.name for one in rows), ranks, row.used, row.ends)


def _odd_ranks(report: Report, paper: Paper) -> list[str]:
    rows = report.odd
    if not rows or len(rows) == len(report.ranks):
        return []
    header = ("framework", "host", "rank", "local rank", "size", "device", "ended")
    lines = ["", *paper.table(header, map(_rank, rows[:_SHOWN_RANKS]))]
    if len(rows) > _SHOWN_RANKS:
        lines.append(paper.styled(f"and {len(rows) - _SHOWN_RANKS} more, in the JSON report", "dim"))
    return lines


def _bandwidth(report: Report, paper: Paper) -> list[str]:
    header = ("allreduce of", "time", "bus bandwidth", "raw library", "Horovod / raw")
    rows = [
        (
            words.size(one.size_bytes),
            words.duration(one.seconds),
            words.rate(one.bus_bytes_per_s),
            words.rate(raw) if (raw := raw_rate(one)) else "-",
            words.ratio(one.ratio),
        )
        for one in report.bandwidth
    ]
    return paper.table(header, rows) if rows else []


def _scaling(report: Report, paper: Paper) -> list[str]:
    header = ("ranks", "framework", "model", "samples/s", "efficiency", "DDP samples/s", "DDP efficiency")
    rows = [
        (
            str(one.ranks),
            one.framework,
            one.model,
            f"{one.samples_per_s:,.0f}",
            words.percent(one.efficiency),
            "-" if one.ddp_samples_per_s is None else f"{one.ddp_samples_per_s:,.0f}",
            words.percent(one.ddp_efficiency),
        )
        for one in report.scaling
    ]
    return paper.table(header, rows) if rows else []


def _tests(report: Report, paper: Paper) -> list[str]:
    """Horovod's own tests, a line for each file and what it ran over, then the causes of failures that are known."""
    if not report.tests:
        return []
    header = ("Horovod's own tests", "over", "passed", "failed", "skipped")
    rows = [(one.name, one.over, str(one.passed), one.failures_in_words, str(one.skipped)) for one in report.tests]
    lines = paper.table(header, rows)
    causes = dict.fromkeys(cause for one in report.tests for cause in one.causes)
    for cause in causes:
        lines += paper.paragraph(" known", "dim", cause)
    return lines


def _passes(report: Report, paper: Paper) -> list[list[str]]:
    return [
        paper.paragraph("passed", "green", f"({framework.name}) {', '.join(names)}")
        for framework in report.frameworks
        if (names := report.passed(framework.name))
    ]


def _slowest(report: Report, paper: Paper) -> list[str]:
    slowest = sorted(report.timings.items(), key=operator.itemgetter(1), reverse=True)[:3]
    shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest)
    return paper.paragraph("slowest", "dim", shown)
