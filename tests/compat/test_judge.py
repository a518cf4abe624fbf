"""Verdicts on combinations, what is asked for and how, and the best complete one."""

import json
import random
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from envkit.cli import run
from envkit.compat.complete import Complete, MachineParts, best, distance
from envkit.compat.evidence import Evidence, RuleStatus, VersionRule, images, known, limiting, proofs, recipes, rules
from envkit.compat.judge import Verdict, covers, fits, is_cured, judge
from envkit.compat.wanted import parse as asked_for
from envkit.planning import compatibility

Output = pytest.CaptureFixture[str]
CPU = MachineParts(accelerator="cpu", parts={"machine": "x86_64", "python": "3.11.7", "gcc": "12.2.0"})


def parse(words: Iterable[str]) -> dict[str, str]:
    return asked_for(words).parts


def verdict(text: str) -> str:
    return judge(parse(text.split())).verdict.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch=2.0", "works"),
        ("torch=2.13 python=3.11 gcc=12.2", "works"),
        ("torch=2.13.1 python=3.11.7 gcc=12.4", "works"),
        ("torch=2.13 cuda=13", "works"),
        ("torch=2 python=3", "works"),
        ("torch=2.13 gcc=13", "unknown"),
        ("torch=2.13 cuda=13 gcc=14 python=3.12", "unknown"),
        ("torch=2.14", "unknown"),
        ("torch=3", "unknown"),
        ("torch=2.13 gcc=9", "unknown"),
        ("torch=2.8 cuda=12", "works"),
        ("torch=2.8 cuda=12.6", "works"),
        ("torch=2.8 cuda=12.5", "unknown"),
        ("tensorflow=2.10 cuda=12.4", "fails"),
        ("torch=1.14", "fails"),
        ("cuda=12.7 torch=2.6", "fails"),
        ("tensorflow=1.16", "fails"),
        ("horovod=0.25.1", "fails"),
        ("horovod=0.28.2", "unknown"),
        ("cuda=13.5", "unknown"),
        ("python=3.15", "risky"),
        ("numpy=1.27 torch=2.13", "fails"),
        ("torch=2.13 python=3.13", "unknown"),
        ("tensorflow=2.21 python=3.13 gcc=14.2 openmpi=5.0.7", "works"),
        ("torch=2.13 python=3.14", "risky"),
        ("torch=2.13 gcc=16 cuda=13.0", "fails"),
        ("tensorflow=2.21", "works"),
        ("tensorflow=2.17 numpy=2.0", "fails"),
        ("tensorflow=2.13 gcc=7", "fails"),
        ("tensorflow=2.12 gcc=7", "works"),
        ("torch=2.13 openmpi=3.1.3", "fails"),
        ("torch=1.13.1 cuda=11.7 gcc=11.3 python=3.10", "works"),
        ("torch=1.13.1 cuda=11.7 capability=9.0", "fails"),
        ("torch=1.13.1 cuda=11.7 capability=8.0", "works"),
        ("python=3.12 torch=2.0.1", "fails"),
        ("gcc=13.2 cuda=11.8", "fails"),
        ("cuda=13.0 capability=7.0 torch=2.13", "fails"),
        ("torch=1.5 cuda=12.4 gcc=13 python=3.12", "fails"),
        ("spark=3.5", "unknown"),
        ("spark=3.4 torch=2.0", "works"),
        ("flatbuffers=2.0.7 torch=2.13", "unknown"),
        ("capability=8.0", "works"),
        ("impi=2021.9", "unknown"),
        ("horovod=0.29 torch=2.0", "unknown"),
        ("horovod=0.28.0 torch=2.0", "works"),
        ("horovod=0.28.0 torch=2.0 python=3.9", "works"),
        ("horovod=0.28.0 torch=2.0 python=3.7", "fails"),
        ("horovod=0.28.0 torch=2.0 python=3.9 spark=3.4", "unknown"),
        ("torch=1.10.0 python=3.9.5 gcc=10.3.0", "works"),  # with Horovod 0.25.0
        ("torch=1.10.0 python=3.9.5 gcc=10.3.0 horovod=0.28.1", "unknown"),
        ("horovod=0.28 torch=2.0", "works"),
        ("machine=aarch64", "risky"),
    ],
)
def test_verdicts(text: str, expected: str) -> None:
    assert verdict(text) == expected


OUTCOMES = tomllib.loads(Path(__file__).with_name("known_outcomes.toml").read_text())


@pytest.mark.parametrize("text", OUTCOMES["works"])
def test_what_is_known_to_work_is_not_refused(text: str) -> None:
    assert OUTCOMES["works"][text] in OUTCOMES["sources"]
    assert verdict(text) == "works"


@pytest.mark.parametrize("text", OUTCOMES["fails"])
def test_what_is_known_to_fail_never_works(text: str) -> None:
    assert OUTCOMES["fails"][text] in OUTCOMES["sources"]
    assert verdict(text) == "fails"


PARTS = sorted({part for proof in proofs() for part in proof.parts.items()} - {("horovod", "0.28.1")})


def numbers(text: str) -> list[str]:
    return text.partition("+")[0].split(".")


def together(parts: dict[str, str]) -> bool:
    """Whether some evidence has all parts, by comparing text."""
    return any(
        all(
            name in proof.parts
            and numbers(proof.parts[name])[: len(numbers(version))][: known().component[name].series]
            == numbers(version)[: known().component[name].series]
            for name, version in parts.items()
        )
        for proof in proofs()
    )


def without_limits(parts: dict[str, str]) -> dict[str, str]:
    return {name: version for name, version in parts.items() if name not in limiting()}


def nothing_works_without_evidence(parts: dict[str, str]) -> bool:
    """Whether parts work, which they may where there is evidence of them all."""
    judged = judge(parts)
    assert (judged.verdict is Verdict.WORKS) <= together(parts), parts
    assert (judged.unproven == ()) == together(parts), parts
    assert judged.verdict in (Verdict.UNKNOWN, Verdict.FAILS, Verdict.RISKY) or judged.proof is not None
    return judged.verdict is Verdict.WORKS


@pytest.mark.integration
def test_no_pair_works_without_joint_evidence() -> None:
    every = [dict(pair) for pair in combinations(PARTS, 2) if pair[0][0] != pair[1][0]]
    pairs = random.Random(1).sample(every, 1500)
    working = sum(map(nothing_works_without_evidence, pairs))
    assert 0.03 * len(pairs) < working < 0.3 * len(pairs)


@pytest.mark.integration
def test_no_triple_or_more_works_without_joint_evidence() -> None:
    """Drawn at random from what is known, and from the parts of one piece of evidence with one exchanged."""
    chance = random.Random(28)
    working = 0
    for _ in range(400):
        drawn = dict(chance.sample(PARTS, chance.randint(3, 5)))
        own = dict(chance.sample(sorted(chance.choice(proofs()).parts.items()), 2))
        working += nothing_works_without_evidence(drawn)
        working += nothing_works_without_evidence(own | dict([chance.choice(PARTS)]))
    assert working > 20


@pytest.mark.parametrize("name", sorted({name for name, _ in PARTS}))
def test_each_part_works_alone_and_shortened(name: str) -> None:
    for version in (version for part, version in PARTS if part == name):
        for count in range(1, len(version.split(".")) + 1):
            if ".post" in version and count == len(version.split(".")) - 1:
                continue  # what 1.5.1.post0 mends is not 1.5.1
            short = version if known().component[name].names else ".".join(version.split(".")[:count])
            judged = judge({name: short})
            assert judged.unproven == (), short
            assert judged.verdict in (Verdict.WORKS, Verdict.RISKY), short


@pytest.mark.parametrize(
    ("text", "horovod"),
    [
        ("", "0.28.1"),
        ("torch=2.13", "0.28.1"),
        ("torch=1.10.0 python=3.9.5", "0.28.1"),
        ("torch=1.7.1 cuda=11.1.1", "0.21.3"),
        ("torch=2.14", "0.28.1"),
        ("torch=1.7.1 horovod=0.28.1", "0.28.1"),
    ],
)
def test_horovod_is_the_newest_that_somebody_had_with_the_rest(text: str, horovod: str) -> None:
    assert judge(parse(text.split())).parts["horovod"] == horovod


def test_what_is_unproven_is_named() -> None:
    judged = judge(parse(["gcc=11.3", "torch=2.13", "python=3.11"]))
    assert (judged.verdict, judged.unproven) == (Verdict.UNKNOWN, ("gcc",))
    assert judged.proof and judged.proof.source == "envkit install pytorch-2.13-cpu"
    nothing = judge(parse(["horovod=0.29", "impi=1"]))
    assert (nothing.verdict, nothing.unproven, nothing.proof) == (Verdict.UNKNOWN, ("horovod", "impi"), None)


def test_the_newest_horovod_is_one_that_does_not_fail() -> None:
    """The CI of 0.20 and later had 1.6.0.post0, which has the headers that 1.6.0 lacks."""
    assert judge({"mxnet": "1.6.0"}).parts["horovod"] == "0.19.5"
    assert judge({"mxnet": "1.6.0.post0"}).parts["horovod"] == "0.23.0"
    assert judge({"mxnet": "1.5.1", "horovod": "0.28.1"}).verdict is Verdict.FAILS


def test_measures_that_are_taken() -> None:
    parts = parse(["torch=2.13", "gcc=12.2"])
    assert judge(parts).verdict is Verdict.WORKS
    assert judge(parts, ["cxx17", "missing-includes"]).verdict is Verdict.WORKS
    assert judge(parts, []).verdict is Verdict.FAILS
    assert judge(parse(["torch=2.13", "gcc=13.2"]), ["cxx17"]).verdict is Verdict.FAILS
    assert judge(parse(["tensorflow=2.21"]), ["legacy-keras", "no-xla-ops"]).verdict is Verdict.WORKS
    assert judge(parse(["tensorflow=2.21"]), ["legacy-keras", "xla-headers"]).verdict is Verdict.WORKS
    assert judge(parse(["tensorflow=2.21"]), ["legacy-keras"]).verdict is Verdict.FAILS
    assert judge(parse(["tensorflow=2.21", "keras=3.12"]), ["keras3", "no-xla-ops"]).verdict is Verdict.WORKS
    assert judge(parse(["tensorflow=2.21", "keras=3.12"]), ["no-xla-ops"]).verdict is Verdict.FAILS


def chosen(text: str, here: MachineParts = CPU) -> Complete:
    found = best(parse(text.split()), here)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        ("", "pytorch-2.13-cpu"),
        ("tensorflow=2", "tensorflow-2.21-cpu"),
        ("tensorflow=2.15", "tensorflow-2.15-cpu"),
        ("keras=2.15", "tensorflow-2.15-cpu"),
        ("torch=2.13 cuda=13", "pytorch-2.13-cuda"),
        ("rocm=5.7", "tensorflow-2.13-rocm-image"),
    ],
)
def test_the_best_that_has_what_is_asked_for(text: str, stack: str) -> None:
    found = chosen(text)
    assert (found.combination.stack, found.differs) == (stack, ())
    assert found.judgement.verdict is Verdict.WORKS
    assert found.replaced == ()


def test_the_best_is_of_this_machine() -> None:
    assert chosen("").judgement.parts["gcc"] == "12.2.0"
    gpu = MachineParts(accelerator="cuda", parts={**CPU.parts, "capability": "9.0"})
    assert chosen("", gpu).combination.stack == "pytorch-2.13-cuda"
    assert chosen("torch=1", gpu).combination.accelerator == "cpu"  # CUDA 11.7 does not know Hopper
    older = MachineParts(accelerator="cuda", parts={**CPU.parts, "capability": "8.0"})
    assert chosen("torch=1", older).judgement.parts["cuda"] == "11.7.0"
    newer = MachineParts(accelerator="cpu", parts={**CPU.parts, "gcc": "15.1"})
    assert chosen("", newer).combination.stack == "pytorch-2.13-cpu-image"  # whose compiler is its own
    assert best({}, MachineParts(accelerator="cpu", parts={"machine": "aarch64"})) is None
    assert best({"machine": "aarch64"}, CPU) is None


def test_the_nearest_where_none_has_it_all() -> None:
    found = chosen("torch=2.13 cuda=13 gcc=16 python=3.12")
    assert (found.combination.stack, found.differs) == ("pytorch-2.13-cuda", ("gcc", "python"))
    assert chosen("openmpi=3.1.3").differs == ("openmpi",)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("torch=1.11 cuda=11.3", {"torch": "1.12.1", "cuda": "11.7.0"}),
        ("torch=1.11", {"torch": "1.12.0"}),
        ("torch=2.9 cuda=12.6", {"torch": "2.12", "cuda": "13.0"}),
        ("tensorflow=2.14", {"tensorflow": "2.15.1"}),
        ("tensorflow=2.8 cuda=11.4", {"tensorflow": "2.9.1", "cuda": "11.7.0"}),
        ("python=3.8 torch=2.13", {"python": "3.11.7", "torch": "2.13.0"}),
        ("capability=9.0", {"cuda": "13.0", "capability": "9.0"}),
        ("nccl=2.10", {"nccl": "2.12.12"}),
    ],
)
def test_the_nearest_by_distance(text: str, parts: dict[str, str]) -> None:
    found = chosen(text)
    assert {name: found.judgement.parts.get(name) for name in parts} == parts


@pytest.mark.parametrize(
    ("name", "asked", "there", "far"),
    [
        ("torch", "2.13", "2.10", 0.15),
        ("torch", "2.10", "2.13", 0.15),
        ("torch", "2.0", "2.17", 0.85),
        ("torch", "2.0", "2.19", 0.9),  # never as far as another major release
        ("torch", "2.13.0", "2.13.5", 0.01),
        ("torch", "2", "2.0", 0.01),
        ("torch", "1.13", "2.13", 1),
        ("torch", "4.0", "1.20", 3),
        ("gcc", "12", "15", 0.15),
        ("gcc", "15.1", "12.9", 0.15),
        ("gcc", "12.2", "12.3", 0.01),
        ("torch", "2.13", None, 3),
        ("machine", "x86_64", "aarch64", 3),
    ],
)
def test_how_far_a_version_is_from_another(name: str, asked: str, there: str | None, far: float) -> None:
    assert distance(name, asked, there) == pytest.approx(far)


@pytest.mark.parametrize(
    ("wanted", "version", "is_one"),
    [
        (">=2", "2", True),
        ("<3", "2", True),
        ("<2.5", "2", False),  # not the whole series
        (">=2.1", "2", False),
        (">=2.1", "2.1", True),
        ("==2.13.*", "2.13", True),
        ("==2.13.*", "2.13.1", True),
        ("==2.13.*", "2", False),
        (">2.13", "2.14.0rc1", True),
        (">=2.1", "2.1.0.dev20230714", True),
    ],
)
def test_a_rule_is_about_a_series_where_it_is_about_all_of_it(wanted: str, version: str, is_one: bool) -> None:
    assert fits("torch", wanted, version) == is_one


@pytest.mark.parametrize(
    ("name", "version", "asked", "is_one"),
    [
        ("python", "3.11.7", "3.11", True),
        ("python", "3.11.7", "3.11.2", True),
        ("python", "3.11.7", "3", True),
        ("python", "3.11.7", "3.1", False),
        ("torch", "2.13.0+cpu", "2.13.1", True),
        ("torch", "2", "2.13", False),
        ("gcc", "12.2.0", "12.4", True),
        ("gcc", "12.2.0", "13", False),
        ("machine", "x86_64", "x86_64", True),
        ("machine", "x86_64", "aarch64", False),
    ],
)
def test_a_version_is_of_the_release_that_is_asked_for(name: str, version: str, asked: str, is_one: bool) -> None:
    assert covers(name, version, asked) == is_one


@pytest.mark.parametrize(
    ("cure", "measures", "cured"),
    [
        ((), None, False),
        ((("a",),), None, True),
        ((("a",),), [], False),
        ((("a", "b"),), ["a"], False),
        ((("a", "b"),), ["b", "c", "a"], True),
        ((("a",), ("b",)), ["b"], True),
        ((), ["a"], False),
    ],
)
def test_a_rule_is_cured_by_all_of_one_list(
    cure: tuple[tuple[str, ...], ...], measures: list[str] | None, cured: bool
) -> None:
    rule = VersionRule(id="r", when={}, status=RuleStatus.FAILS, evidence=Evidence.OBSERVED, source="s", cure=cure)
    assert is_cured(rule, measures) == cured


def test_what_shows_that_something_works_is_in_the_order_of_its_evidence() -> None:
    order = [list(Evidence).index(one.evidence) for one in proofs()]
    assert order == sorted(order)
    rows = (known().combination, known().evidence, recipes().recipe, images().recipe)
    assert len(order) == sum(map(len, rows))
    for one in known().combination:
        assert one.proof() in proofs()
        assert (one.proof().parts, one.proof().source, one.proof().note) == (one.parts, one.how, one.note)


def test_each_cell_of_a_table_is_a_rule() -> None:
    for table in known().table:
        cells = [(row, cell) for row, cells in table.rows.items() for cell in cells]
        made = [*table.rules()]
        assert [one.id for one in made] == [f"{table.id}-{row}{cell}" for row, cell in cells]
        whens = [{table.of: f"=={row}.*", table.other: cell, **table.given} for row, cell in cells]
        assert [one.when for one in made] == whens
        assert all(
            (one.status, one.evidence, one.source) == (table.status, table.evidence, table.source) for one in made
        )
        assert all(one.note == table.note and one in rules() for one in made)


MACHINES = [
    MachineParts(accelerator=device, parts={"machine": "x86_64", "python": python, "gcc": gcc, **own})
    for device, own in (("cpu", {}), ("cuda", {"capability": "9.0"}), ("cuda", {"capability": "7.0"}), ("rocm", {}))
    for python in ("3.8.10", "3.11.7", "3.12.3", "3.13.1")
    for gcc in ("8.5.0", "12.2.0", "15.1.0")
]


@pytest.mark.integration
@pytest.mark.parametrize("here", MACHINES, ids=lambda here: f"{here.accelerator} {here.parts}")
def test_the_evidence_of_the_best_is_of_the_whole_line(here: MachineParts) -> None:
    """What the line has and its evidence does not is named, and then it does not work here by that evidence."""
    drawn = random.Random(repr(here)).sample(PARTS, 8)
    for part in [{}, *(dict([part]) for part in drawn), {"capability": "9.0"}, {"python": "3.8", "torch": "2.13"}]:
        found = best(part, here)
        if found is None:
            continue
        own, line = found.combination.parts, found.judgement.parts
        assert set(found.replaced) == {name for name in line if not together_in(own, name, line[name])}
        assert found.judgement.verdict is not Verdict.FAILS
        assert not found.replaced or (found.judgement.verdict is Verdict.WORKS) <= together(without_limits(line))
        if {"capability", "cuda", "nccl", "cudnn"} & part.keys():
            assert found.combination.accelerator == "cuda"


def together_in(parts: dict[str, str], name: str, version: str) -> bool:
    wanted = numbers(version)[: known().component[name].series]
    return name in parts and numbers(parts[name])[: len(wanted)] == wanted


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 0),
        (["torch=2.13"], 0),
        (["openmpi=3.1.3"], 1),
        (["torch=2.15"], 9),
        (["torch=2.13", "gcc=13"], 9),
        (["torch==2.13", "cu130"], 0),
        (["python=3.13"], 0),
        (["python=3.14"], 9),
        (["trch=2"], 2),
        (["torch=two"], 2),
    ],
)
def test_exit_codes(words: list[str], code: int, capsys: Output) -> None:
    assert run(["compat", *words]) == code
    said = capsys.readouterr()
    assert said.out.startswith(("works", "fails", "risky", "unknown")) == (code != 2)
    assert said.err.startswith("envkit: ") == (code == 2)


def test_for_people(capsys: Output) -> None:
    run(["compat", "numpy=2.0", "tensorflow=2.17"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("fails Horovod 0.28.1, NumPy 2.0, TensorFlow 2.17")
    assert "inferred NumPy >=2, TensorFlow <2.18 fails: compiled against NumPy 1" in said
    assert "with Horovod patched for Keras 3 (" in said and " or Keras 2: tf-keras with TF_USE_LEGACY_KERAS=1 (" in said
    assert "nearest Horovod 0.28.1, TensorFlow 2." in said and "not as asked" in said


def test_json(capsys: Output) -> None:
    run(["compat", "torch=2.13", "gcc=15", "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(told) == {
        "version",
        "verdict",
        "parts",
        "rules",
        "cures",
        "unproven",
        "proof",
        "best",
        "ranges",
        "silent",
        "against",
    }
    assert (told["version"], told["verdict"], told["unproven"]) == (1, "unknown", ["gcc"])
    assert told["parts"] == {"horovod": "0.28.1", "torch": "2.13", "gcc": "15"}
    by_id = {rule["id"]: rule for rule in told["rules"]}
    assert by_id["torch-cxx17"]["evidence"] == "observed"
    assert by_id["gcc-includes"]["source"] == "https://github.com/horovod/horovod/pull/3957"
    assert [["missing-includes"]] in told["cures"]
    assert told["proof"]["parts"]["torch"] == "2.13.0"
    assert told["proof"]["evidence"] == "observed"
    assert told["best"]["stack"].startswith("pytorch-2.13-cpu")
    assert told["best"]["replaced"] == (["gcc"] if told["best"]["parts"]["gcc"] == "15" else [])


def test_what_is_put_in_is_not_called_observed(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "here", lambda _: CPU)
    for text, said in {
        "torch=2.13 gcc=15": "(observed with GCC 12.2; unknown as it is here)",
        "gpu=H100": "(observed without compute capability of an NVIDIA GPU; built, and verified on CPU tensors; not",
        "torch=2.13 python=3.11.2": "(observed)",
    }.items():
        run(["compat", *text.split()])
        assert said in " ".join(capsys.readouterr().out.split())


def test_the_help_names_every_component(capsys: Output) -> None:
    run(["compat", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"Names: {', '.join(known().component)}. " in said


@pytest.mark.integration
def test_all_of_it_reaches_a_pipe_whatever_the_verdict() -> None:
    """The program ends at once, and text that is not written by then would be lost."""
    for word, code in {"torch=2.13": 0, "openmpi=3.1.3": 1, "torch=2.14": 9}.items():
        done = subprocess.run([sys.executable, "-m", "envkit", "compat", word], capture_output=True, text=True)
        assert done.returncode == code
        assert len(done.stdout) > 200 and done.stdout.endswith("\n")


def test_one_message_of_each_kind(capsys: Output) -> None:
    run(["compat", "tensorlfow=2.15"])
    said = capsys.readouterr().err
    assert said.count("envkit:") == 1
    assert "Did you mean 'tensorflow'?" in said


def test_a_compiler_that_nvcc_refuses_matters_where_horovod_has_kernels() -> None:
    """Before 0.20, nothing of Horovod is compiled by nvcc."""
    parts = {"tensorflow": "1.15.2", "cuda": "10.0", "gcc": "9.1.0"}
    assert "cuda-gcc-10.0>=8" not in {rule.id for rule in judge({"horovod": "0.19.2", **parts}).rules}
    assert "cuda-gcc-10.0>=8" in {rule.id for rule in judge({"horovod": "0.20.3", **parts}).rules}
