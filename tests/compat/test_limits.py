"""GPUs, drivers and systems: they make combinations fail, and never one work that has no evidence."""

import itertools
import json
import random
import re

import pytest

from envkit.cli import run
from envkit.compat.evidence import RuleStatus, known, limiting, proofs, rules
from envkit.compat.judge import Verdict, allows_all, judge, limiting_rules, release, within
from envkit.compat.wanted import parse
from envkit.compat.words import gpu
from envkit.knowledge.known import known as knowledge

CUDAS = [".".join(map(str, one)) for one in known().component["cuda"].series_of_releases()]
MODELS = [(name, one) for one in knowledge("gpu")["model"] for name in one["names"]]
# The first and the last capability that nvcc has a target for, by its documentation (--gpu-architecture), from a
# release on; written down here a second time, apart from the rules. Code for a target runs on later ones of its major.
TARGETS = {
    "7": (2, 5.2),
    "8": (2, 6.2),
    "9": (3, 7.2),
    "10": (3, 7.5),
    "11": (3.5, 8.9),
    "11.8": (3.5, 9.0),
    "12": (5, 9.0),
    "12.8": (5, 12.1),
    "13": (7.5, 12.1),
}


def makes_code(cuda: str, capability: str) -> bool:
    """Say whether there is a target that such a GPU runs code of, by TARGETS."""
    first, last = max((key, ends) for key, ends in ((tuple(map(int, k.split("."))), v) for k, v in TARGETS.items())
                      if key <= release(cuda))[1]  # fmt: skip
    wanted = float(capability)
    if int(wanted) == 11:
        return release(cuda) >= (13,)
    return first <= wanted < int(last) + 1


@pytest.mark.integration
@pytest.mark.parametrize(("name", "model"), MODELS, ids=lambda one: one if isinstance(one, str) else "")
def test_each_gpu_with_each_cuda(name: str, model: dict[str, str]) -> None:
    told = parse([f"gpu={name}"])
    assert told.parts == {one: value for one, value in model.items() if one != "names"}
    assert parse([f"gpu=NVIDIA {name.upper()}"]) == parse([f"gpu={name.lower().replace(' ', '-')}"]) == told
    for cuda in CUDAS if "capability" in model else ():
        failing = [rule for rule in judge({"cuda": cuda, **told.parts}).rules if rule.status is RuleStatus.FAILS]
        assert (not failing) == makes_code(cuda, told.parts["capability"]), (cuda, [rule.id for rule in failing])


def test_no_name_is_of_two_kinds() -> None:
    plain = [re.sub(r"\W", "", name).lower() for name, _ in MODELS]
    assert len(plain) == len(set(plain))
    assert {one.get("gfx") for _, one in MODELS} - {None} == set(known().component["gfx"].names)
    assert gpu("sm_90a") == {"capability": "9.0"}


SYSTEMS = [
    (f"{name}{release}", glibc)
    for one in knowledge("systems")["system"]
    for name in one["names"]
    for release, glibc in one["glibc"].items()
    if release[0].isdigit()
]


@pytest.mark.parametrize(("text", "glibc"), SYSTEMS)
def test_each_system(text: str, glibc: str) -> None:
    assert parse([f"os={text}"]).parts == {"glibc": glibc}
    assert (judge({"torch": "2.7", "glibc": glibc}).verdict is Verdict.FAILS) == (release(glibc) < (2, 28))


@pytest.mark.parametrize("cuda", CUDAS)
def test_each_cuda_has_its_lowest_driver(cuda: str) -> None:
    least = [rule.when["driver"] for rule in rules() if "driver" in rule.when and "cuda" in rule.when
             if within(rule.when["cuda"], f"{cuda}.0")]  # fmt: skip
    assert len(least) == 1
    number = least[0].removeprefix("<")
    older = f"{int(number.partition('.')[0]) - 1}.99"
    assert judge({"cuda": cuda, "driver": older}).verdict is Verdict.FAILS
    assert judge({"cuda": cuda, "driver": number}).verdict is not Verdict.FAILS


LIMITS = [
    {"capability": "8.0"}, {"capability": "7.0"}, {"capability": "3.7"}, {"capability": "10.0"}, {"capability": "12.0"},
    {"driver": "450.80.2"}, {"driver": "535.104"}, {"driver": "580.65"}, {"glibc": "2.17"}, {"glibc": "2.34"},
    {"capability": "9.0", "driver": "535.104", "glibc": "2.35"},
]  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_limit_never_makes_anything_better(limits: dict[str, str]) -> None:
    """Of parts of known evidence, all of it and at random: what works with a limit works without it, and by a proof
    that has CUDA, and against which no rule is."""
    order = [Verdict.WORKS, Verdict.RISKY, Verdict.UNKNOWN, Verdict.FAILS]
    chance = random.Random(str(limits))
    for proof in chance.sample(proofs(), 60):
        own = {name: version for name, version in proof.parts.items() if chance.random() < 0.6}
        for parts in (proof.parts, own):
            plain, found = judge(parts), judge(parts | limits)
            if plain.verdict in (Verdict.WORKS, Verdict.UNKNOWN):
                assert order.index(found.verdict) >= order.index(plain.verdict) or found.verdict is Verdict.RISKY
            if found.verdict is Verdict.WORKS:
                assert plain.verdict is Verdict.WORKS
                assert set(found.silent) == set(limits)
                assert found.proof is not None and allows_all(found.proof, limits)
                assert "cuda" in found.proof.parts or set(limits) == {"glibc"}
                assert not found.against
                shown = judge({**found.proof.parts, **limits}, found.proof.taken())
                assert shown.verdict is judge(found.proof.parts, found.proof.taken()).verdict
            if found.verdict is Verdict.FAILS and plain.verdict is not Verdict.FAILS:
                assert any(set(limits) & rule.when.keys() for rule in found.rules if rule.status is RuleStatus.FAILS)


def test_known_good_combinations_stay_with_a_gpu_in_range() -> None:
    good = ["torch=2.13 cuda=13", "torch=1.13.1 cuda=11.7 gcc=11.3 python=3.10", "tensorflow=2.9.1 cuda=11.7"]
    for text, name in itertools.product(good, ("a100", "a40", "l4", "RTX 3090", "RTX 4090")):
        found = judge(parse([*text.split(), f"gpu={name}", "driver=580.95", "os=rocky9"]).parts)
        assert (found.verdict, found.silent) == (Verdict.WORKS, ("capability", "driver", "glibc")), (text, name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch=2.13 gpu=v100", "unknown"),  # evidence has CUDA 13 or none
        ("torch=2.8 cuda=12 gpu=b200", "unknown"),  # CUDA 12.0 does not know it, 12.8 does
        ("torch=2.8 cuda=12 gpu=a100", "works"),
        ("cuda=12 gpu=k80", "fails"),
        ("torch=2.13 driver=535.104", "unknown"),
        ("torch=2.13 cuda=13 driver=535.104", "fails"),
        ("torch=2.12 cuda=12.9 gpu=v100", "risky"),
        ("tensorflow=2.15.0 gpu=h100", "works"),
        ("gpu=k80 tensorflow=2.21", "unknown"),
        ("torch=2.6 os=centos7", "works"),
        ("torch=2.7 os=centos7", "fails"),
        ("tensorflow=2.11 gpu=mi250x", "works"),
        ("tensorflow=2.13 rocm=5.7 gpu=mi300x", "risky"),
        ("tensorflow=2.13 rocm=5.7 gpu=mi100", "unknown"),
        ("torch=2.13 gpu=mi250x", "unknown"),
        ("gpu=gh200", "risky"),
    ],
)
def test_verdicts(text: str, expected: str) -> None:
    assert judge(parse(text.split()).parts).verdict.value == expected


def test_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run(["compat", "torch=2.13", "gpu=a100"])
    said = " ".join(capsys.readouterr().out.split())
    assert "note no evidence is of this very GPU: all that is known is that the CUDA of the evidence makes code" in said
    assert "all of it" not in said
    run(["compat", "torch=2.13", "driver=535.104"])
    said = " ".join(capsys.readouterr().out.split())
    assert "nobody is known to have had NVIDIA driver 535.104 together with" in said
    assert "against what that evidence has: CUDA ==13.*, NVIDIA driver <580 fails" in said
    run(["compat", "torch=2.13", "gpu=a100", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["silent"], told["unproven"], told["against"]) == (["capability"], [], [])


def test_what_limits_is_in_no_evidence_and_has_rules() -> None:
    assert limiting() == {"capability", "driver", "glibc", "protobuf"}
    assert {name for rule in limiting_rules(frozenset(known().component)) for name in rule.when} >= limiting()
