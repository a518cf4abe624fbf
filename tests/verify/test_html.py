from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

from envkit.system.resources import data
from envkit.verify.checks import check
from envkit.verify.facts import Compiled, Fabric, Interface, Machine, NodeGpu, NodeGpus, RdmaDevice, load
from envkit.verify.outcome import Result, Status
from envkit.verify.report import Report, StartedBy, make_report
from envkit.verify.report.page import html
from envkit.verify.report.plots import bandwidth_plot, scaling_plots, timeline
from envkit.verify.speed import Bandwidth, Scaling

from . import recorded, simulated

VOID = {"meta", "link", "br", "hr", "img", "input"}


def report(name: str) -> Report:
    case = recorded.case(name)
    return make_report("demo", case.facts, check(case.facts, case.expected), expected=case.expected, seconds=7.5)


def measured(shown: Report) -> Report:
    """The same report with a bandwidth and a scaling as if measured."""
    bandwidth = [
        Bandwidth(size_bytes=4**n, seconds=1e-5, bus_bytes_per_s=4**n * 1e5, raw_seconds=8e-6, ratio=0.8)
        for n in range(5, 15)
    ]
    scaling = [
        Scaling(
            ranks=n, framework="torch", model="CNN", samples_per_s=90.0 * n, efficiency=0.9, ddp_samples_per_s=95.0 * n
        )
        for n in (1, 2, 4, 8)
    ]
    return replace(shown, bandwidth=tuple(bandwidth), scaling=tuple(scaling))


class Page(HTMLParser):
    """A page as read: its text, its elements with their attributes; raises where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += f"{data} "

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.mark.parametrize("name", recorded.names())
def test_every_report_is_a_whole_page_with_its_verdict_first(name: str) -> None:
    page = Page(html(report(name)))
    assert page.text.split()[0] == f"{report(name).verdict.upper()}:"
    assert page.named("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.named("meta")
    for result in report(name).results:
        if result.status in {Status.FAIL, Status.WARN}:
            assert " ".join(result.remedy.split()) in " ".join(page.text.split())


def test_it_needs_no_script_and_nothing_from_elsewhere() -> None:
    page = Page(html(measured(report("rank-killed"))))
    assert not page.named("script")
    for _, attributes in page.elements:
        assert not {"src", "srcset", "action", "data", "xlink:href"} & set(attributes)
        assert attributes.get("href", "data:,") == "data:,"
        assert not [name for name in attributes if name.startswith("on")]
    assert re.findall(r"url\(([^)]*)\)|@import", html(report("rank-killed"))) == ["#hatch"]


def test_what_others_said_is_escaped() -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\x1b[31m\x00"
    result = Result(
        id=hostile, case="some", status=Status.FAIL, framework=hostile, message=hostile, cause=hostile, remedy=hostile
    )
    shown = report("rank-killed")
    started = StartedBy(launcher=hostile, why=hostile, command=(hostile,), job=hostile, nodes=(hostile,))
    rows = tuple(replace(row, host=hostile, device=f"GPU {hostile}", ended=hostile) for row in shown.ranks)
    hosts = tuple(replace(row, name=hostile, devices={hostile: 1}, ended={hostile: 2}) for row in shown.hosts)
    facts = tuple(
        replace(one, common=replace(one.common, host=hostile, installed={hostile: hostile})) for one in shown.facts
    )
    text = html(
        replace(
            shown,
            environment=hostile,
            launcher_said=hostile,
            results=(result,),
            started=started,
            ranks=rows,
            hosts=hosts,
            facts=facts,
            timings={hostile: 1.0},
        )
    )
    page = Page(text)
    assert not page.named("script") + page.named("img")
    assert "\x1b" not in text
    assert "\x00" not in text
    assert page.text.count("<script>alert(1)</script>") > 15


def test_tables_have_headers_and_drawings_have_names() -> None:
    page = Page(html(measured(report("pytorch-4ranks"))))
    assert len(page.named("th")) > 30
    assert {attributes.get("scope") for attributes in page.named("th")} == {"row", "col"}
    drawings = [attributes for attributes in page.named("svg") if attributes.get("role") == "img"]
    assert len(drawings) == 4 + 2
    ids = {attributes.get("id") for _, attributes in page.elements}
    for attributes in drawings:
        assert attributes.get("aria-label") or attributes.get("aria-labelledby") in ids
    for _, attributes in page.elements:
        assert attributes.get("aria-labelledby") in {None, *ids}


def test_a_rank_that_ended_badly_is_marked_by_more_than_colour() -> None:
    text = " ".join(Page(html(report("rank-killed"))).text.split())
    assert "✘ rank 0 CPU SIGKILL in training_torch" in text


def test_what_ran_is_told_with_the_node_and_the_variables() -> None:
    case = recorded.case("pytorch-2ranks")
    found = {
        "machine": Machine(kernel="6.1.0", architecture="x86_64", libc="glibc 2.36", cores=96, container="apptainer"),
        "node_gpus": NodeGpus(nvidia=(NodeGpu(name="NVIDIA H200"),) * 8, nvidia_driver="570.86"),
        "compiled": Compiled(cuda="12.4", nccl="2.21.5"),
        "fabric": Fabric(
            infiniband=(RdmaDevice(name="mlx5_0"),), interfaces=(Interface(name="ib0", kind="physical", up=True),)
        ),
    }
    facts = [
        replace(one, **found, environment={"NCCL_DEBUG": "INFO", "PMIX_RANK": str(one.rank)}) for one in case.facts
    ]
    made = make_report("demo", facts, check(facts, case.expected), expected=case.expected)
    text = " ".join(Page(html(made)).text.split())
    assert "torch compiled for CUDA 12.4, NCCL 2.21.5" in text
    assert "kernel 6.1.0, x86_64, glibc 2.36 cores per host 96 container apptainer" in text
    assert "GPU driver 570.86 network InfiniBand mlx5_0, ib0" in text
    assert "NCCL_DEBUG INFO PMIX_RANK 2 values" in text
    assert made.hosts[0].used == "CPU (of 8 GPUs)"


def test_of_many_ranks_each_host_is_shown_by_one_and_the_page_stays_small(tmp_path: Path) -> None:
    simulated.write(tmp_path, 1024, 8, killed=37, late=1000)
    text = html(simulated.report(tmp_path, 1024))
    page = Page(text)
    lanes = [str(attributes["aria-label"]) for attributes in page.named("svg") if attributes.get("aria-label")]
    assert len(lanes) == 64
    assert any(lane.startswith("rank 37 on n0005") and "did not return from training_torch" in lane for lane in lanes)
    assert any(lane.startswith("rank 1000 on n0126: began after 5.") for lane in lanes)
    assert "64 hosts that ended earlier are left out" in page.text
    assert len(text) < 200_000


def test_a_late_rank_is_drawn_late(tmp_path: Path) -> None:
    simulated.write(tmp_path, 8, 4, late=3)
    drawn = timeline(load(tmp_path))
    assert drawn is not None
    assert [lane.rank for lane in drawn.lanes if lane.late_s > 4.5] == ["rank 3"]
    assert drawn.lanes[3].bars[0].x > drawn.lanes[0].bars[-1].x / 2
    assert all(bar.x + bar.width <= 100.001 for lane in drawn.lanes for bar in lane.bars)


def test_equal_factors_of_size_and_of_bandwidth_are_equal_distances() -> None:
    drawn = bandwidth_plot(measured(report("pytorch-2ranks")).bandwidth)
    horovod, raw = drawn.lines
    across = {round(b.x - a.x, 6) for a, b in zip(horovod.points, horovod.points[1:], strict=False)}
    down = {round(a.y - b.y, 6) for a, b in zip(horovod.points, horovod.points[1:], strict=False)}
    assert (len(across), len(down)) == (1, 1)
    assert all(above.y < below.y for above, below in zip(raw.points, horovod.points, strict=True))
    assert 2 <= len(drawn.x_ticks) <= 6
    assert 2 <= len(drawn.y_ticks) <= 6


def test_the_ideal_line_is_straight_and_above_what_was_measured() -> None:
    ((drawn, _),) = scaling_plots(measured(report("pytorch-2ranks")).scaling)
    ideal, horovod, ddp = drawn.lines
    slopes = {round((100 - point.y) / point.x, 6) for point in ideal.points}
    assert len(slopes) == 1
    assert [line.name for line in drawn.lines] == ["ideal", "Horovod", "DDP"]
    assert all(best.y < ours.y for best, ours in zip(ideal.points, horovod.points, strict=True))
    assert all(theirs.y < ours.y for theirs, ours in zip(ddp.points, horovod.points, strict=True))


def test_one_measurement_is_drawn_too() -> None:
    shown = measured(report("pytorch-2ranks"))
    page = Page(html(replace(shown, bandwidth=shown.bandwidth[:1], scaling=shown.scaling[:1])))
    assert len(page.named("polyline")) == 2 + 3


def test_a_report_without_any_record_is_a_page() -> None:
    case = recorded.case("pytorch-2ranks")
    made = make_report("demo", (), check((), case.expected), expected=case.expected, said="no such host")
    page = Page(html(made))
    assert "2 ranks asked for; found: none" in page.text
    assert "no such host" in page.text


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("number", range(3), ids=["light", "dark", "print"])
def test_colours_have_enough_contrast(number: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", data("report/page.css").read_text(), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[number]))
    pairs = [(name, ground) for name in ("text", "soft", "fail", "warn") for ground in ("ground", "card")]
    pairs += [("text", f"{status}-ground") for status in ("pass", "fail", "warn", "skip")]
    pairs += [(status, f"{status}-ground") for status in ("pass", "fail", "warn", "skip")]
    pairs += [("on-step", f"step{kind}") for kind in range(1, 7)]
    assert {pair for pair in pairs if contrast(colours[pair[0]], colours[pair[1]]) < 4.5} == set()
    assert {line for line in ("line0", "line1", "line2") if contrast(colours[line], colours["ground"]) < 3} == set()
