from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import envkit.report.words as words
from envkit.verify.checks import check
from envkit.verify.outcome import Status
from envkit.verify.report import Report, StartedBy, make_report, render, to_json, to_text
from envkit.verify.report.model import TrialRow, records
from envkit.verify.speed import Bandwidth, Scaling
from envkit.verify.upstream import Failure, FileResult

from . import recorded, simulated


def report(name: str) -> Report:
    case = recorded.case(name)
    results = check(case.facts, case.expected)
    return make_report("demo", case.facts, results, expected=case.expected, seconds=7.5)


@pytest.mark.parametrize("name", recorded.names())
def test_it_fits_80_columns_and_is_plain_when_piped(name: str) -> None:
    stream = io.StringIO()
    text = to_text(report(name), stream)
    assert "\x1b" not in text
    commands = {f"{' ' * 14}{command}" for result in report(name).problems for command in result.commands}
    assert max(len(line) for line in text.splitlines() if line not in commands) <= 80
    assert text.startswith(report(name).verdict.upper())


def test_colours_change_no_word() -> None:
    shown = report("rank-killed")
    assert "\x1b[1;31mFAIL\x1b[0m" in render(shown, colour=True)
    assert words.plain(render(shown, colour=True)) == render(shown)


def test_a_pass_names_its_checks_in_one_list_and_shows_no_remedy() -> None:
    text = render(report("pytorch-2ranks"))
    assert "training-truth-torch" in text
    assert "remedy" not in text


def test_a_failure_is_told_with_its_cause_and_remedy() -> None:
    shown = report("rank-killed")
    worst = next(result for result in shown.results if result.status == "fail")
    text = " ".join(render(shown).split())
    assert f"FAIL {worst.id} (torch): {worst.message} cause {worst.cause} remedy {worst.remedy}" in text
    assert shown.unmeasured
    assert f"because of this not measured: {', '.join(shown.unmeasured)}" in text


def test_failures_come_before_warnings() -> None:
    shown = report("rank-killed")
    worst = next(result for result in shown.results if result.status == "fail")
    mild = replace(worst, id="mild", status=Status.WARN)
    text = render(replace(shown, results=(mild, worst)))
    assert text.index(f"FAIL  {worst.id}") < text.index("WARN  mild")


def test_what_was_not_measured_is_not_among_what_passed() -> None:
    text = render(report("rank-killed"))
    assert "training-truth-torch" not in text[text.index("passed") :]


def test_markup_in_a_message_is_printed_as_it_is() -> None:
    shown = report("singletons")
    worst = next(r for r in shown.results if r.status == "fail")
    text = render(replace(shown, results=(replace(worst, message="[red]x[/red]"),)))
    assert "[red]x[/red]" in text


def test_what_the_launcher_said_is_shown_with_a_failure_only() -> None:
    said = "\n".join(["-" * 60, *(f"line {number}" for number in range(20)), "-" * 60])
    failed = render(replace(report("rank-killed"), launcher_status=1, launcher_said=said))
    assert "ended with status 1" in failed
    assert "line 19" in failed
    assert "line 9" not in failed
    assert "line 19" not in render(replace(report("pytorch-2ranks"), launcher_said=said))


def test_hosts_of_many_ranks_are_a_line_each_and_only_odd_ranks_are_shown_singly(tmp_path: Path) -> None:
    simulated.write(tmp_path, 64, 8, killed=37)
    text = render(simulated.report(tmp_path, 64))
    assert "torch      n0004  24-31  8 x NVIDIA H200   done\n" in text
    assert "torch      n0005  32-39  8 x NVIDIA H200   7 done, 1 SIGKILL in" in text
    assert text.count("n0005  37 ") == 1
    assert "n0005  36 " not in text


def test_hosts_that_are_alike_share_a_line_where_there_are_many(tmp_path: Path) -> None:
    simulated.write(tmp_path, 128, 4, killed=5)
    text = render(simulated.report(tmp_path, 128))
    assert "n[0001,0003-0032]  0-3, 8-127" in text
    assert len(text.splitlines()) < 80


def test_many_ranks_that_are_odd_are_cut_short(tmp_path: Path) -> None:
    simulated.write(tmp_path, 100, 50)
    shown = simulated.report(tmp_path, 100)
    rows = [replace(row, ended="timeout in init") if (row.rank or 0) > 9 else row for row in shown.ranks]
    assert "and 74 more, in the JSON report" in render(replace(shown, ranks=tuple(rows)))


def test_who_started_the_ranks_is_told_with_the_reason() -> None:
    started = StartedBy(launcher="srun", why="the job gave two nodes", command=("srun", "-n2"), job="Slurm job 7")
    assert "started with srun in Slurm job 7: the job gave two nodes" in render(
        replace(report("singletons"), started=started)
    )


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("pytorch-2ranks", "2 ranks in one world on 1 host"),
        ("singletons", "2 ranks asked for; found: 2 in a world of 1"),
    ],
)
def test_the_world_asked_for_is_set_against_the_one_found(name: str, world: str) -> None:
    assert world in render(report(name))


def test_what_was_measured_is_in_tables() -> None:
    bandwidth = Bandwidth(size_bytes=64 << 20, seconds=1e-3, bus_bytes_per_s=100e9, raw_seconds=8e-4, ratio=0.8)
    scaling = Scaling(ranks=8, framework="torch", model="ResNet-50", samples_per_s=9000.4, efficiency=0.934)
    lines = render(replace(report("pytorch-2ranks"), bandwidth=(bandwidth,), scaling=(scaling,))).splitlines()
    assert ["64", "MiB", "1.00", "ms", "100", "GB/s", "125", "GB/s", "0.80"] in [line.split() for line in lines]
    assert ["8", "torch", "ResNet-50", "9,000", "93", "%", "-", "-"] in [line.split() for line in lines]


def tables(text: str) -> list[list[list[str]]]:
    """The blocks of a text, each as lines of cells, without those of dashes."""
    blocks = [[line for line in block.splitlines() if set(line) - set("- ")] for block in text.split("\n\n")]
    return [[re.split(r"  +", line.strip()) for line in block] for block in blocks]


def test_every_number_stands_under_the_name_of_its_column() -> None:
    shown = report("pytorch-2ranks")
    framework = replace(
        shown.frameworks[0], flags={"rocm": 0, "cuda": 1, "nccl": 1, "mpi": None, "gloo": 1, "ddl": 0, "ccl": 0}
    )
    ranks = tuple(
        replace(row, host="n1", rank=7, local_rank=3, size=9, device="GPU 3 H200", ended="status 4 in init")
        for row in shown.ranks[:1]
    )
    bandwidth = (
        Bandwidth(size_bytes=64 << 20, seconds=1e-3, bus_bytes_per_s=100e9, raw_seconds=8e-4, ratio=0.8),
        Bandwidth(size_bytes=1024, seconds=2e-5, bus_bytes_per_s=5e6),
    )
    one = Scaling(ranks=8, framework="torch", model="ResNet-50", samples_per_s=9000.4, efficiency=0.934)
    scaling = (one, replace(one, ranks=16, ddp_samples_per_s=8000.4, ddp_efficiency=0.5))
    written = replace(shown, frameworks=(framework,), ranks=ranks, bandwidth=bandwidth, scaling=scaling)
    assert tables(render(written, width=120))[1:5] == [
        [
            ["framework", "version", "rocm", "cuda", "nccl", "mpi", "gloo", "ddl", "ccl"],
            ["torch", "2.13.0+cpu", "no", "yes", "yes", "?", "yes", "no", "no"],
        ],
        [
            ["framework", "host", "rank", "local rank", "size", "device", "ended"],
            ["torch", "n1", "7", "3", "9", "GPU 3 H200", "status 4 in init"],
        ],
        [
            ["allreduce of", "time", "bus bandwidth", "raw library", "Horovod / raw"],
            ["64 MiB", "1.00 ms", "100 GB/s", "125 GB/s", "0.80"],
            ["1 KiB", "20.0 us", "5.00 MB/s", "-", "-"],
        ],
        [
            ["ranks", "framework", "model", "samples/s", "efficiency", "DDP samples/s", "DDP efficiency"],
            ["8", "torch", "ResNet-50", "9,000", "93 %", "-", "-"],
            ["16", "torch", "ResNet-50", "9,000", "93 %", "8,000", "50 %"],
        ],
    ]


@pytest.mark.parametrize(("hosts", "ranks", "more"), [(16, 16, ""), (17, 17, "and 1 more, in the JSON report")])
def test_many_hosts_and_odd_ranks_are_shown_from_the_first_on(
    hosts: int, ranks: int, more: str, tmp_path: Path
) -> None:
    """None of the hosts is like another, as many ranks as `ranks` have not come to their end."""
    simulated.write(tmp_path, 2 * hosts, 2)
    shown = simulated.report(tmp_path, 2 * hosts)
    own = tuple(replace(row, devices={f"GPU {number}": 2}) for number, row in enumerate(shown.hosts))
    odd = tuple(replace(row, ended="status 1 in init") if (row.rank or 0) < ranks else row for row in shown.ranks)
    text = render(replace(shown, hosts=own, ranks=odd))
    found = [block for block in tables(text) if block[0][0] == "framework" and "version" not in block[0]]
    assert [block[0] for block in found] == [
        ["framework", "hosts", "ranks", "devices per host", "ended"],
        ["framework", "host", "rank", "local rank", "size", "device", "ended"],
    ]
    assert found[0][1] == ["torch", "n0001", "0-1", "2 x GPU 0", "done"]
    assert [row[1] for row in found[0][1:17]] == [f"n{number:04}" for number in range(1, 17)]
    assert found[1][1] == ["torch", "n0001", "0", "0", str(2 * hosts), f"GPU 0 {simulated.GPU}", "status 1 in init"]
    assert [row[2] for row in found[1][1:17]] == [str(rank) for rank in range(16)]
    assert [" ".join(row) for block in found for row in block[17:]] == ([more] * 2 if more else [])


def test_where_no_rank_is_odd_or_each_is_there_is_no_table_of_them(tmp_path: Path) -> None:
    simulated.write(tmp_path, 32, 16)
    shown = simulated.report(tmp_path, 32)
    for ranks in (shown.ranks, tuple(replace(row, ended="status 1 in init") for row in shown.ranks)):
        text = render(replace(shown, ranks=ranks))
        assert "devices per host" in text
        assert "local rank" not in text


def test_lines_of_dashes_are_not_what_a_launcher_said() -> None:
    said = "\n".join(["first", "-" * 60, "", "  - -", "last", "-" * 60])
    text = render(replace(report("rank-killed"), launcher_status=1, launcher_said=said))
    assert "said:\n          first\n          last\n\n" in text


def test_up_to_16_ranks_are_a_line_each(tmp_path: Path) -> None:
    for ranks, column in ((16, "local rank"), (17, "devices per host")):
        simulated.write(tmp_path, ranks, ranks)
        assert column in render(simulated.report(tmp_path, ranks))


def test_a_host_none_of_whose_ranks_is_known_has_its_processes_counted(tmp_path: Path) -> None:
    simulated.write(tmp_path, 32, 16)
    shown = simulated.report(tmp_path, 32)
    text = render(replace(shown, hosts=tuple(replace(row, ranks=()) for row in shown.hosts)))
    assert ["torch", "n0001", "16 processes", f"16 x {simulated.GPU}", "done"] in [
        row for block in tables(text) for row in block
    ]


def test_the_first_line_and_the_words_at_the_left() -> None:
    shown = replace(report("rank-killed"), launcher_status=9, launcher_said="\n".join("abcdefgh"))
    started = StartedBy(launcher="srun", why="of the job", command=("srun",))
    lines = render(replace(shown, started=started), width=200).splitlines()
    assert lines[:2] == [
        "FAIL  demo: 2 ranks in one world on 1 host, in 7.5 s",
        "      started with srun: of the job",
    ]
    labels = [line.split("  ")[0] for line in lines]
    places = [labels.index(label, 1) for label in ("FAIL", "launcher", "framework", "passed", "skipped")]
    assert places == sorted(places)
    at = lines.index("launcher  ended with status 9; the end of what it said:")
    assert lines[at + 1 : at + 8] == [*(f"          {letter}" for letter in "cdefgh"), ""]
    assert [line.split("  ")[0] for line in lines if re.match("[a-z]", line)] == [
        *("launcher", "framework", "torch", "framework", "torch", "torch"),
        *("passed", "skipped", "skipped", "slowest"),
    ]
    assert render(replace(shown, seconds=None, hosts=())).startswith("FAIL  demo: 2 ranks in one world\n")


def test_the_three_slowest_phases_by_time() -> None:
    timings = {"torch.a": 1.0, "torch.b": 4.26, "torch.c": 3.0, "torch.d": 2.0}
    text = render(replace(report("pytorch-2ranks"), timings=timings))
    assert text.endswith("slowest  torch.b 4.3 s, torch.c 3.0 s, torch.d 2.0 s\n")


def test_each_status_has_its_colour() -> None:
    shown = report("rank-killed")
    worst = next(result for result in shown.results if result.status == "fail")
    mild = replace(worst, id="mild", status=Status.WARN, message="mild")
    failed = render(replace(shown, results=(*shown.results, mild)), colour=True)
    passed = render(report("pytorch-2ranks"), colour=True)
    assert failed.startswith("\x1b[1;31mFAIL\x1b[0m  demo")
    assert passed.startswith("\x1b[32mPASS\x1b[0m  demo")
    assert f"\x1b[1;31mFAIL\x1b[0m  {worst.id}" in failed
    assert "\x1b[33mWARN\x1b[0m  mild" in failed
    assert "\x1b[1m     because of this\x1b[0m" in failed
    assert "\x1b[32mpassed\x1b[0m  (torch)" in passed
    assert "\x1b[36mskipped\x1b[0m  flags-agree" in passed
    assert "\x1b[2mslowest\x1b[0m  " in passed
    said = render(replace(shown, launcher_status=1, launcher_said="last word"), colour=True)
    assert "\x1b[1mlauncher\x1b[0m  ended with status 1" in said
    assert "\x1b[1m        \x1b[0m  last word" in said


def test_a_terminal_is_not_obeyed_by_what_a_program_said() -> None:
    shown = replace(report("rank-killed"), launcher_said="one \x1b[2Jtwo\x07 \x1b]0;title\x07three", launcher_status=1)
    assert "one two three" in render(shown)


def test_the_json_is_versioned_and_holds_everything() -> None:
    read = json.loads(to_json(report("rank-killed")))
    assert (read["version"], read["verdict"], read["world_size"]) == (2, "fail", 2)
    assert read["frameworks"][0]["flags"]["mpi"] == 1
    assert [row["ended"] for row in read["ranks"]] == ["SIGKILL in training_torch", "SIGTERM in training_torch"]
    assert {result["id"] for result in read["results"]} >= {"rank-died", "world-size"}
    assert read["timings"]["torch.import"] > 0
    assert [len(host["ranks"]) for host in read["facts"][0]["hosts"]] == [2]


@pytest.mark.parametrize("name", recorded.names())
def test_the_json_has_every_fact_of_every_rank(name: str) -> None:
    read = msgspec.json.decode(to_json(report(name)), type=Report)
    assert tuple(records(read)) == recorded.case(name).facts


@pytest.mark.integration
def test_thousands_of_ranks_are_reported_on_quickly_and_with_little_memory(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.verify.simulated", str(tmp_path), "4096", "8"]
    took = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout)
    assert took["seconds"] < 2
    assert took["peak_mib"] < 200
    assert took["json_bytes"] < 4096 * 4000
    assert took["text_bytes"] < 5000


@pytest.mark.parametrize(
    ("written", "right"),
    [
        (words.hosts(["n10", "n9", "n2", "login", "n1"]), "login, n[1-2,9-10]"),
        (words.hosts(["gpu01-ib", "gpu02-ib", "gpu04-ib"]), "gpu[01-02,04]-ib"),
        (words.hosts(["only7"]), "only7"),
        (words.ranges([3, 0, 1, 2, 7, 7]), "0-3, 7"),
        (words.size(1536), "1.5 KiB"),
        (words.size(268435456), "256 MiB"),
        (words.rate(957e3), "957 kB/s"),
        (words.rate(12.34e9), "12.3 GB/s"),
        (words.duration(35e-6), "35.0 us"),
        (words.duration(0.0077), "7.70 ms"),
        (words.duration(7.54), "7.5 s"),
        (words.duration(200), "3 min 20 s"),
        (words.ratio(0.0019), "0.0019"),
        (words.ratio(None), "-"),
        (words.percent(0.934), "93 %"),
        (words.count(4096, "rank"), "4,096 ranks"),
        (words.count(1, "process"), "1 process"),
        (words.count(2, "process"), "2 processes"),
    ],
)
def test_numbers_and_names_are_written_as_the_field_does(written: str, right: str) -> None:
    assert written == right


@pytest.mark.parametrize(("code", "version"), [(21803, "2.18.3"), (2408, "2.4.8"), (22907, "2.29.7")])
def test_nccl_codes_are_shown_as_versions(code: int, version: str) -> None:
    assert words.nccl_version(code) == version


def test_a_command_of_a_remedy_stands_on_one_line_to_be_pasted() -> None:
    shown = report("rank-killed")
    worst = next(result for result in shown.results if result.status == "fail")
    long = f"sed -i.before '/^[[:space:]]*btl[[:space:]]*=/d  ' /home/me/{'folder/' * 20}mca-params.conf"
    lines = render(replace(shown, results=(replace(worst, commands=(long, "two\nlines\x1b[2J")),))).splitlines()
    assert [line for line in lines if line.endswith((long, "lines"))] == [f"{' ' * 14}{long}", f"{' ' * 14}two lines"]


def test_what_follows_from_the_root_cause_is_cut_short() -> None:
    shown = report("rank-killed")
    worst = next(result for result in shown.results if result.status == "fail")
    follow = [replace(worst, id=f"check-{n}", message=f"text {n}", because_of=worst.id) for n in range(6)]
    for number, more in ((4, []), (6, ["              and 2 more, in the JSON report"])):
        lines = render(replace(shown, results=(worst, *follow[:number])), width=200).splitlines()
        at = lines.index("     because of this")
        told = [f"              check-{n} (torch): text {n}" for n in range(4)]
        assert [*lines[at + 1 : lines.index("", at)]] == [*told, *more]


def test_other_starts_and_what_follows_stand_between_the_first_problem_and_the_others() -> None:
    shown = report("rank-killed")
    worst = next(result for result in shown.results if result.status == "fail")
    mild = replace(worst, id="mild", status=Status.WARN, message="mild")
    trials = (
        TrialRow(name="a", without=(), passed=True, seconds=2.0),
        TrialRow(name="b", without=(), passed=False, seconds=1.5),
    )
    shown = replace(shown, results=(worst, mild), trials=trials)
    text = render(shown, width=200, colour=True)
    said = "\x1b[1m       tried\x1b[0m  2 other starts in 3.5 s, 1 of which passed; each is in the JSON report"
    assert text.index(worst.id) < text.index(said) < text.index("mild")
    assert "1 other start in 1.5 s, none of which passed;" in render(replace(shown, trials=trials[1:]), width=200)
    assert "tried" not in render(replace(shown, trials=()))


def test_what_stands_beside_is_dim() -> None:
    started = StartedBy(launcher="srun", why="of the job", command=("srun",))
    text = render(replace(report("pytorch-2ranks"), started=started, origin="from a cache"), width=200, colour=True)
    assert text.splitlines()[1:3] == [
        "\x1b[2m    \x1b[0m  started with srun: of the job",
        "\x1b[2m    \x1b[0m  from a cache",
    ]


def test_the_names_of_what_passed_are_a_list() -> None:
    shown = report("pytorch-2ranks")
    (line,) = [line for line in render(shown, width=4000).splitlines() if line.startswith("passed")]
    assert line == f"passed  (torch) {', '.join(shown.passed('torch'))}"
    assert len(shown.passed("torch")) > 2


def test_known_causes_of_failures_stand_below_horovods_own_tests_once_each() -> None:
    failure = Failure(test="test_a", error="broke", text="", cause="Gloo has no such operation.")
    one = FileResult(
        file="test_a.py", over="MPI", ranks=2, seconds=1.0, passed=1, failed=1, skipped=0, failures=(failure,)
    )
    text = render(replace(report("pytorch-2ranks"), tests=(one, replace(one, over="Gloo"))), width=200, colour=True)
    assert text.count("\x1b[2m known\x1b[0m  Gloo has no such operation.") == 1
    assert text.count("Gloo has no such operation.") == 1
