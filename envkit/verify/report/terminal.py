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

COLOURS = {Status.PASS: "green", Status.FAIL: "red", Status.WARN: "yellow", Status.SKIP: "cyan"}
SHOWN_RANKS = 16
SHOWN_HOSTS = 16
SHOWN_LINES = 6
SHOWN_CONSEQUENCES = 4
EXPLAINED = ("settings", "damage")  # what the launcher said adds nothing to these


def to_text(report: Report, stream: TextIO) -> str:
    """The report as text for a stream: as wide as its terminal, in colours where these are allowed."""
    paper = Paper.of(stream)
    return render(report, width=paper.width, colour=paper.colour)


def render(report: Report, *, width: int = 80, colour: bool = False) -> str:
    """The report as text, ending in a newline."""
    paper = Paper(width=width, colour=colour)
    blocks = [
        head(report, paper),
        *(problem(result, paper) for result in report.problems[:1]),
        consequences(report, paper),
        trials(report, paper),
        *(problem(result, paper) for result in report.problems[1:]),
        launcher(report, paper),
        *not_proved(report, paper),
        builds(report, paper),
        rank_table(report, paper) if len(report.ranks) <= SHOWN_RANKS else host_table(report, paper),
        bandwidth(report, paper),
        scaling(report, paper),
        tests(report, paper),
        *passes(report, paper),
        skips(report, paper),
        slowest_steps(report, paper),
        paper.paragraph("   more", "dim", report.more),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def head(report: Report, paper: Paper) -> list[str]:
    """Return the verdict on the environment, with what started the ranks and where its Horovod is from."""
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


def problem(result: Result, paper: Paper) -> list[str]:
    """Return a result that is wrong, with its cause, its remedy and the commands for that."""
    text = f"{result.id} ({result.framework}): {result.message}"
    lines = paper.paragraph(result.status.upper(), COLOURS[result.status], text)
    for name, why in (("cause", result.cause), ("remedy", result.remedy)):
        lines += paper.paragraph(f"      {name:>6}", "bold", why)
    return [*lines, *(paper.command(14, command) for command in result.commands)]


def consequences(report: Report, paper: Paper) -> list[str]:
    """The consequences of the root cause, a line each, and the names of what was not measured because of it."""
    follows = report.consequences
    texts = [f"{result.id} ({result.framework}): {result.message}" for result in follows[:SHOWN_CONSEQUENCES]]
    texts += [f"and {len(follows) - len(texts)} more, in the JSON report"] if len(follows) > len(texts) else []
    if unmeasured := report.unmeasured:
        texts.append(f"not measured: {', '.join(unmeasured)}")
    lines = [line for text in texts for line in paper.paragraph("            ", "dim", text)]
    return [paper.styled("     because of this", "bold"), *lines] if lines else []


def trials(report: Report, paper: Paper) -> list[str]:
    """How often the ranks were started otherwise, and how long that took."""
    if not report.trials:
        return []
    seconds = words.duration(sum(trial.seconds for trial in report.trials))
    passed = sum(trial.passed for trial in report.trials)
    tried = f"{words.count(len(report.trials), 'other start')} in {seconds}, {passed or 'none'} of which passed"
    return paper.paragraph("       tried", "bold", f"{tried}; each is in the JSON report")


def launcher(report: Report, paper: Paper) -> list[str]:
    """Return the end of what the launcher said, where that may explain a failure."""
    output = [line for line in report.launcher_said.splitlines() if line.strip("- ")]
    if report.verdict == "pass" or not output or (report.cause and report.cause.id in EXPLAINED):
        return []
    text = f"ended with status {report.launcher_status}; the end of what it said:"
    lines = paper.paragraph("launcher", "bold", text)
    for line in output[-SHOWN_LINES:]:
        lines += paper.paragraph(" " * 8, "bold", line)
    return lines


def not_proved(report: Report, paper: Paper) -> list[list[str]]:
    """Return a block for each required check that was skipped."""
    return [paper.paragraph("NOT PROVED", "cyan", text) for text in report.skipped(required=True)]


def skips(report: Report, paper: Paper) -> list[str]:
    """Return the checks that were skipped and are not required."""
    return [line for text in report.skipped(required=False) for line in paper.paragraph("skipped", "cyan", text)]


def builds(report: Report, paper: Paper) -> list[str]:
    """Return the table of what Horovod was built with."""
    rows = [
        (row.name, row.version, *(words.flag(name, row.flags.get(name)) for name in FLAGS)) for row in report.frameworks
    ]
    return paper.table(("framework", "version", *FLAGS), rows)


def rank_table(report: Report, paper: Paper) -> list[str]:
    """Return the table of the ranks, or nothing where there are none."""
    header = ("framework", "host", "rank", "local rank", "size", "device", "ended")
    return paper.table(header, map(rank_row, report.ranks)) if report.ranks else []


def rank_row(row: RankRow) -> tuple[str, ...]:
    """Return the row of a rank in the table."""
    numbers = ["-" if number is None else str(number) for number in (row.rank, row.local_rank, row.size)]
    return (row.framework, row.host, *numbers, row.device, row.ended)


def host_table(report: Report, paper: Paper) -> list[str]:
    """A line per host, alike hosts together where there are many; then the ranks that are not like the rest."""
    groups = report.alike(SHOWN_HOSTS)
    lines = paper.table(("framework", "hosts", "ranks", "devices per host", "ended"), map(alike, groups[:SHOWN_HOSTS]))
    if len(groups) > SHOWN_HOSTS:
        lines.append(paper.styled(f"and {len(groups) - SHOWN_HOSTS} more, in the JSON report", "dim"))
    return lines + odd_ranks(report, paper)


def alike(rows: Sequence[HostRow]) -> tuple[str, ...]:
    """Return the row of hosts that are alike."""
    row = rows[0]
    ranks = words.ranges(rank for host in rows for rank in host.ranks) or f"{words.count(row.processes, 'process')}"
    return (row.framework, words.hosts(host.name for host in rows), ranks, row.used, row.ends)


def odd_ranks(report: Report, paper: Paper) -> list[str]:
    """Return the table of the ranks that are not like the rest, or nothing where none or all are."""
    rows = report.odd
    if not rows or len(rows) == len(report.ranks):
        return []
    header = ("framework", "host", "rank", "local rank", "size", "device", "ended")
    lines = ["", *paper.table(header, map(rank_row, rows[:SHOWN_RANKS]))]
    if len(rows) > SHOWN_RANKS:
        lines.append(paper.styled(f"and {len(rows) - SHOWN_RANKS} more, in the JSON report", "dim"))
    return lines


def bandwidth(report: Report, paper: Paper) -> list[str]:
    """Return the table of the bandwidth by size, or nothing where it was not measured."""
    header = ("allreduce of", "time", "bus bandwidth", "raw library", "Horovod / raw")
    rows = [
        (
            words.size(measured.size_bytes),
            words.duration(measured.seconds),
            words.rate(measured.bus_bytes_per_s),
            words.rate(raw) if (raw := raw_rate(measured)) else "-",
            words.ratio(measured.ratio),
        )
        for measured in report.bandwidth
    ]
    return paper.table(header, rows) if rows else []


def scaling(report: Report, paper: Paper) -> list[str]:
    """Return the table of the scaling, or nothing where it was not measured."""
    header = ("ranks", "framework", "model", "samples/s", "efficiency", "DDP samples/s", "DDP efficiency")
    rows = [
        (
            str(run.ranks),
            run.framework,
            run.model,
            f"{run.samples_per_s:,.0f}",
            words.percent(run.efficiency),
            "-" if run.ddp_samples_per_s is None else f"{run.ddp_samples_per_s:,.0f}",
            words.percent(run.ddp_efficiency),
        )
        for run in report.scaling
    ]
    return paper.table(header, rows) if rows else []


def tests(report: Report, paper: Paper) -> list[str]:
    """Horovod's own tests, a line for each file and what it ran over, then the causes of failures that are known."""
    if not report.tests:
        return []
    header = ("Horovod's own tests", "over", "passed", "failed", "skipped")
    rows = [
        (file.name, file.over, str(file.passed), file.failures_in_words, str(file.skipped)) for file in report.tests
    ]
    lines = paper.table(header, rows)
    causes = dict.fromkeys(cause for file in report.tests for cause in file.causes)
    for cause in causes:
        lines += paper.paragraph(" known", "dim", cause)
    return lines


def passes(report: Report, paper: Paper) -> list[list[str]]:
    """Return a block for each framework, with the checks that passed."""
    return [
        paper.paragraph("passed", "green", f"({framework.name}) {', '.join(names)}")
        for framework in report.frameworks
        if (names := report.passed(framework.name))
    ]


def slowest_steps(report: Report, paper: Paper) -> list[str]:
    """Return the three steps that took longest."""
    slowest = sorted(report.timings.items(), key=operator.itemgetter(1), reverse=True)[:3]
    shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest)
    return paper.paragraph("slowest", "dim", shown)
