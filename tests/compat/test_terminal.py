"""What people are told of a combination, word for word."""

from typing import Any

import pytest
from msgspec.structs import replace

from envkit.compat.complete import Complete
from envkit.compat.evidence import Combination, Evidence, Proof, RuleStatus, VersionRule
from envkit.compat.judge import Judgement, Verdict
from envkit.compat.terminal import render
from envkit.report.paper import Paper

WIDE = Paper(width=400, colour=False)
PARTS = {"horovod": "0.28.1", "torch": "2.13.0"}
PROOF = Proof(evidence=Evidence.CI, source="a run", parts={"horovod": "0.28.1", "torch": "2.13.1"})
ASKED = Judgement(parts=PARTS, verdict=Verdict.WORKS, rules=(), proof=PROOF)
LINE = Combination(how="pip install", evidence=Evidence.OBSERVED, accelerator="cpu", parts={**PARTS, "python": "3.11"})
BEST = Complete(
    combination=LINE,
    judgement=replace(ASKED, parts={**LINE.parts, "machine": "x86_64"}),
    differs=(),
    replaced=(),
)
NONE = "best       no complete combination is known for this machine"
BOTH = "Horovod 0.28.1, PyTorch 2.13.0"


def said(asked: Judgement, best: Complete | None = None, **ranges: str) -> list[str]:
    text = render(asked, best, WIDE, ranges)
    assert text.endswith("\n")
    return text.splitlines()


def test_all_of_it_was_had() -> None:
    assert said(ASKED) == [
        f"works      {BOTH}",
        "       ci  all of it: Horovod 0.28.1, PyTorch 2.13.1 (a run)",
        "",
        NONE,
    ]
    noted = replace(PROOF, note="on CPUs", measures=("a", "b"))
    assert said(replace(ASKED, proof=noted))[1] == (
        "       ci  all of it: Horovod 0.28.1, PyTorch 2.13.1, with a, b; on CPUs (a run)"
    )


def test_what_nobody_had_together() -> None:
    one = replace(PROOF, parts={"horovod": "0.28.1"})
    asked = replace(ASKED, verdict=Verdict.UNKNOWN, unproven=("torch",), proof=one)
    assert said(asked)[:3] == [
        f"unknown    {BOTH}",
        "  unknown  nobody is known to have had PyTorch 2.13.0 together with Horovod 0.28.1",
        "       ci  without PyTorch 2.13.0: Horovod 0.28.1 (a run)",
    ]
    nothing = replace(asked, unproven=("horovod", "torch"), proof=None)
    assert said(nothing)[1:] == [f"  unknown  nobody is known to have had {BOTH}", "", NONE]
    assert said(replace(asked, verdict=Verdict.FAILS)) == [f"fails      {BOTH}", "", NONE]


def test_the_rules_and_what_mends_what_they_are_about() -> None:
    rule = VersionRule(
        id="x",
        when={"torch": ">=2.1", "horovod": "==0.28.1"},
        status=RuleStatus.FAILS,
        evidence=Evidence.REPORT,
        source="an issue",
        note="it does not compile",
        cure=(("cxx17", "no-build-isolation"), ("without-gloo",)),
    )
    plain = replace(rule, status=RuleStatus.RISKY, evidence=Evidence.DOCS, note="", cure=())
    asked = replace(ASKED, verdict=Verdict.RISKY, rules=(rule, plain), cures=(rule.cure,))
    site = "https://github.com/horovod/horovod"
    assert said(asked)[1:5] == [
        (
            f"     with  C++17 for the extension of PyTorch ({site}/pull/3998; the recipes of envkit do it), "
            f"pip install --no-build-isolation ({site}/issues/3507; the recipes of envkit do it) "
            f"or HOROVOD_WITHOUT_GLOO=1 ({site}/blob/master/docs/install.rst)"
        ),
        "       ci  all of it: Horovod 0.28.1, PyTorch 2.13.1 (a run)",
        (
            "   report  PyTorch >=2.1, Horovod ==0.28.1 fails as released; the above mends it: "
            "it does not compile (an issue)"
        ),
        "     docs  PyTorch >=2.1, Horovod ==0.28.1 risky (an issue)",
    ]


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (Verdict.WORKS, "the newest in it that is known to work with the rest; others may fail"),
        (Verdict.FAILS, "but every other fails, too"),
        (Verdict.UNKNOWN, "the newest; no other in it is known to work"),
        (Verdict.RISKY, "the newest; no other in it is known to work"),
    ],
)
def test_the_version_that_was_chosen_of_a_range(verdict: Verdict, why: str) -> None:
    lines = said(replace(ASKED, verdict=verdict), torch=">=2")
    assert lines[1] == f"       of  PyTorch >=2: judged is 2.13.0, {why}"


def test_that_a_rule_without_a_source_names_none() -> None:
    rule = VersionRule(
        id="r", when={"torch": ">=2.14"}, status=RuleStatus.UNTRIED, evidence=Evidence.INFERRED, source="none"
    )
    assert said(replace(ASKED, rules=(rule,)))[2] == " inferred  PyTorch >=2.14 untried"


@pytest.mark.parametrize(
    ("changes", "line", "ranges", "told"),
    [
        ({}, {}, {}, "best       {parts} (observed)"),
        ({}, {"note": "on CPUs"}, {}, "best       {parts} (observed; on CPUs)"),
        ({"differs": ("torch",)}, {}, {}, "nearest    {parts} (observed; PyTorch not as asked)"),
        (
            {"differs": ("torch", "cuda")},
            {},
            {"torch": "<2", "cuda": ">12"},
            (
                "nearest    {parts} (observed; PyTorch 2.13.0 is not in <2, of which no way to install one is known; "
                "no CUDA in >12, of which no way to install one is known)"
            ),
        ),
        (
            {"replaced": ("python", "machine", "torch")},
            {},
            {},
            "best       {parts} (observed with Python 3.11, PyTorch 2.13.0 without machine type)",
        ),
        (
            {"judgement": replace(BEST.judgement, verdict=Verdict.RISKY)},
            {},
            {},
            "best       {parts} (observed; risky as it is here)",
        ),
    ],
)
def test_the_best(changes: dict[str, Any], line: dict[str, Any], ranges: dict[str, str], told: str) -> None:
    best = replace(BEST, combination=replace(LINE, **line), **changes)
    parts = f"{BOTH}, Python 3.11, machine type x86_64"
    asked = replace(ASKED, parts={**dict.fromkeys(ranges, "1"), **PARTS})
    assert said(asked, best, **ranges)[-2:] == [told.format(parts=parts), "      how  pip install"]


def test_the_measures_of_the_best() -> None:
    best = replace(BEST, combination=replace(LINE, measures=("cxx17", "without-gloo")))
    assert said(ASKED, best)[-2:] == [
        "     with  C++17 for the extension of PyTorch, HOROVOD_WITHOUT_GLOO=1",
        "      how  pip install",
    ]


def test_colours() -> None:
    best = replace(BEST, combination=replace(LINE, measures=("cxx17",)))
    text = render(ASKED, best, Paper(width=400, colour=True), {})
    starts = [line.partition("\x1b[0m")[0] for line in text.splitlines()]
    assert starts == [
        "\x1b[32mworks    ",
        "\x1b[2m       ci",
        "",
        "\x1b[1mbest     ",
        "\x1b[2m     with",
        "\x1b[2m      how",
    ]
    for verdict, colour in {"fails": "1;31", "risky": "33", "unknown": "33"}.items():
        asked = replace(ASKED, verdict=Verdict(verdict))
        assert render(asked, None, Paper(width=400, colour=True), {}).startswith(f"\x1b[{colour}m{verdict}")
