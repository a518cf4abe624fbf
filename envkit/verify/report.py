"""The one object that people and machines see after a verification."""

from __future__ import annotations

import operator
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from envkit.verify.build_flags import FLAGS, FRAMEWORKS
from envkit.verify.facts import RankFacts, ordered
from envkit.verify.outcome import Expected, Result, Status, verdict

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

VERSION = 1
_STYLES = {Status.PASS: "green", Status.FAIL: "bold red", Status.WARN: "yellow", Status.SKIP: "cyan"}
_SHOWN_RANKS = 16
_SHOWN_LINES = 6
_SHOWN_CHARACTERS = 4000


class FrameworkRow(msgspec.Struct, frozen=True, kw_only=True):
    """What Horovod was built with, by the loaded library or else by its file; None: unknown."""

    name: str
    flags: dict[str, int | None]
    built_for: str | None
    installed: str | None


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank: where it ran, as whom, on which device, how far it came; seconds by phase."""

    framework: str
    host: str
    pid: int
    rank: int | None
    local_rank: int | None
    size: int | None
    device: str
    phase: str
    ended: str
    stack: str | None
    seconds: dict[str, float]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A verification: verdict, what was verified, what was found; seconds by framework and phase.

    `facts` holds the records themselves, `launcher_said` the end of what the launcher printed.
    """

    version: int = VERSION
    verdict: Literal["pass", "fail"]
    environment: str
    world_size: int
    launcher_status: int | None
    launcher_said: str
    seconds: float | None
    frameworks: tuple[FrameworkRow, ...]
    ranks: tuple[RankRow, ...]
    results: tuple[Result, ...]
    timings: dict[str, float]
    facts: tuple[RankFacts, ...] = ()


def make_report(
    environment: str,
    facts: Sequence[RankFacts],
    results: Sequence[Result],
    *,
    expected: Expected,
    said: str = "",
    seconds: float | None = None,
) -> Report:
    """The report on an environment; `said` is what the launcher printed, `seconds` the whole time."""
    in_order = ordered(facts)
    return Report(
        verdict="pass" if verdict(results) is Status.PASS else "fail",
        environment=environment,
        world_size=expected.size,
        launcher_status=expected.launcher_status,
        launcher_said=said[-_SHOWN_CHARACTERS:],
        seconds=seconds,
        frameworks=tuple(_framework_row(name, in_order, expected) for name in expected.frameworks),
        ranks=tuple(_rank_row(one) for one in in_order),
        results=tuple(results),
        timings=_slowest(in_order),
        facts=in_order,
    )


def to_json(report: Report) -> bytes:
    """The report as JSON, indented, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def render(report: Report, console: Console) -> None:
    """Print for people: the verdict, builds and ranks, what is wrong with its remedy, what is right."""
    style = "bold green" if report.verdict == "pass" else "bold red"
    console.print(f"[{style}]{report.verdict.upper()}[/]  {report.environment}, {_ranks_wanted(report)}")
    console.print()
    console.print(_flags_table(report))
    console.print()
    if report.ranks:
        console.print(_ranks_table(report))
        if len(report.ranks) > _SHOWN_RANKS:
            console.print(f"  and {len(report.ranks) - _SHOWN_RANKS} more, in the JSON report", style="dim")
    for result in report.results:
        if result.status in {Status.FAIL, Status.WARN}:
            _render_problem(result, console)
    _render_launcher(report, console)
    _render_skips(report, console)
    _render_passes(report, console)
    slowest = sorted(report.timings.items(), key=operator.itemgetter(1), reverse=True)[:3]
    if slowest:
        shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest)
        _paragraph(console, "slowest", "dim", shown)


def _render_problem(result: Result, console: Console) -> None:
    label, style = result.status.upper(), _STYLES[result.status]
    _paragraph(console, label, style, f"{result.id} ({result.framework}): {result.message}")
    for name, text in (("cause", result.cause), ("remedy", result.remedy)):
        if text:
            _paragraph(console, f"      {name:>6}", "bold", text, gap=False)


def _render_launcher(report: Report, console: Console) -> None:
    lines = [line for line in report.launcher_said.splitlines() if line.strip("- ")]
    if report.verdict == "pass" or not lines:
        return
    _paragraph(console, "launcher", "bold", f"ended with status {report.launcher_status}; the end of what it said:")
    for line in lines[-_SHOWN_LINES:]:
        _paragraph(console, " " * 8, "bold", line, gap=False)


def _render_skips(report: Report, console: Console) -> None:
    skips: dict[tuple[bool, str, str], list[str]] = {}
    for result in report.results:
        if result.status is Status.SKIP:
            skips.setdefault((result.required, result.framework, result.message), []).append(result.id)
    for (required, framework, message), ids in sorted(skips.items(), reverse=True):
        names = ", ".join(dict.fromkeys(ids))
        label = "NOT PROVED" if required else "skipped"
        _paragraph(console, label, "cyan", f"{names} ({framework}): {message}", gap=required)


def _render_passes(report: Report, console: Console) -> None:
    for framework in report.frameworks:
        of_framework = [r for r in report.results if r.framework == framework.name]
        passed = dict.fromkeys(r.id for r in of_framework if r.status is Status.PASS)
        not_passed = {r.id for r in of_framework if r.status is not Status.PASS}
        if names := ", ".join(name for name in passed if name not in not_passed):
            _paragraph(console, "passed", "green", f"({framework.name}) {names}")


def _paragraph(console: Console, label: str, style: str, text: str, *, gap: bool = True) -> None:
    """Print a label and a text, wrapped and indented under the label; an empty line before it if `gap`."""
    from rich.text import Text

    indent = " " * (len(label) + 2)
    lines = textwrap.wrap(text, max(console.width - len(indent), 20), break_on_hyphens=False)
    if gap:
        console.print()
    for number, line in enumerate(lines):
        start = indent if number else Text(f"{label}  ", style=style)
        console.print(Text.assemble(start, line), soft_wrap=True, highlight=False)


def _flags_table(report: Report) -> Table:
    table = _table("framework", "version", *FLAGS)
    for row in report.frameworks:
        flags = [_flag_word(name, row.flags.get(name)) for name in FLAGS]
        table.add_row(row.name, _version_words(row), *flags)
    return table


def _version_words(row: FrameworkRow) -> str:
    if row.built_for is None or row.built_for == row.installed:
        return row.installed or "-"
    return f"{row.installed or 'none'}, built for {row.built_for}"


def _ranks_table(report: Report) -> Table:
    table = _table("framework", "host", "rank", "local rank", "size", "device", "ended")
    for row in report.ranks[:_SHOWN_RANKS]:
        numbers = ["-" if n is None else str(n) for n in (row.rank, row.local_rank, row.size)]
        table.add_row(row.framework, row.host, *numbers, row.device, row.ended)
    return table


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _flag_word(name: str, value: int | None) -> str:
    if value is None:
        return "?"
    if name == "nccl" and value > 1:
        return nccl_version(value)
    return "yes" if value else "no"


def nccl_version(code: int) -> str:
    """NCCL_VERSION_CODE as a version: major * 10000 + minor * 100 + patch; * 1000 before 2.9 (nccl.h)."""
    unit = 10000 if code >= 10000 else 1000
    return f"{code // unit}.{code % unit // 100}.{code % 100}"


def _ranks_wanted(report: Report) -> str:
    return "1 rank" if report.world_size == 1 else f"{report.world_size} ranks"


def _framework_row(name: str, facts: Sequence[RankFacts], expected: Expected) -> FrameworkRow:
    of_framework = [one for one in facts if one.framework == name]
    horovod = next((one.horovod for one in of_framework if one.horovod), None)
    imported = next((one.imported.version for one in of_framework if one.imported), None)
    told = next((one.flags for one in of_framework if one.flags), None)
    built = expected.built.flags_of(name) if expected.built else {}
    key = next((framework.metadata_key for framework in FRAMEWORKS if framework.name == name), name)
    return FrameworkRow(
        name=name,
        flags={flag: told.get(flag) if told else built.get(flag) for flag in FLAGS},
        built_for=horovod.metadata.get(key) if horovod else None,
        installed=imported or next((f.installed.get(name) for f in of_framework), None),
    )


def _rank_row(facts: RankFacts) -> RankRow:
    local = facts.world.local_rank if facts.world else None
    device = f"GPU {facts.device.index} {facts.device.name}" if facts.device else "CPU"
    return RankRow(
        framework=facts.framework,
        host=facts.host,
        pid=facts.pid,
        rank=facts.rank,
        local_rank=local if isinstance(local, int) else None,
        size=facts.size,
        device=device.strip(),
        phase=facts.phase,
        ended="done" if facts.finished else f"{_how(facts)} in {facts.phase}",
        stack=facts.ended.stack if facts.ended else None,
        seconds={phase.name: phase.seconds for phase in facts.phases if phase.seconds is not None},
    )


def _how(facts: RankFacts) -> str:
    if facts.ended is None:
        return "vanished"
    if facts.ended.how == "exit":
        return f"status {facts.ended.status}"
    return facts.ended.signal or facts.ended.how


def _slowest(facts: Sequence[RankFacts]) -> dict[str, float]:
    """The longest that any rank took for each phase, in seconds."""
    slowest: dict[str, float] = {}
    for one in facts:
        for phase in one.phases:
            name = f"{one.framework}.{phase.name}"
            slowest[name] = max(slowest.get(name, 0.0), phase.seconds or 0.0)
    return slowest
