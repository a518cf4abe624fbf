"""The rules of compat.toml, each by its own examples, and against what the stacks and the recipes of envkit are."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from runpy import run_path

import pytest

import envkit
from envkit.compat.evidence import (
    Combination,
    Evidence,
    RuleStatus,
    RuleTable,
    combinations,
    known,
    limiting,
    proofs,
    rules,
)
from envkit.compat.evidence import recipes as recipes_json
from envkit.compat.judge import Verdict, about, judge
from envkit.compat.wanted import parse as asked_for
from envkit.planning.stack import stacks
from envkit.system.resources import data, easybuild_collection, recipes


def parse(words: Iterable[str]) -> dict[str, str]:
    return asked_for(words).parts


RULES = {rule.id: rule for rule in rules()}
CASES = [(rule, case) for rule in known().rule for case in rule.cases]
OTHERS = [(rule, case) for rule in known().rule for case in rule.others]
COMBINATIONS = combinations()
OWN = [one for one in COMBINATIONS if one.stack]


def named(value: object) -> str | None:
    return value.how if isinstance(value, Combination) else None


def test_what_a_rule_is_about() -> None:
    for rule, case in CASES:
        judged, told = judge(parse(case.split())), (rule.id, case)
        assert rule in judged.rules, told
        if rule.status is RuleStatus.FAILS:
            assert judge(parse(case.split()), ()).verdict is Verdict.FAILS, told
            fails = any(one.status is RuleStatus.FAILS and not one.cure for one in judged.rules)
            assert (judged.verdict is Verdict.FAILS) == fails, told
            others = [*chain.from_iterable(one.cure[0] for one in judged.rules if one.cure)]
            for cure in rule.cure:
                assert judge(parse(case.split()), [*others, *cure]).verdict is not Verdict.FAILS, told
        if rule.status is RuleStatus.RISKY:
            assert judged.verdict in (Verdict.RISKY, Verdict.FAILS), told
        if rule.status is RuleStatus.UNTRIED:
            assert judged.verdict is Verdict.UNKNOWN, told


def test_what_a_rule_is_not_about() -> None:
    for rule, case in OTHERS:
        assert rule not in judge(parse(case.split())).rules, (rule.id, case)


def test_every_rule_has_examples_of_both_kinds_evidence_and_a_source() -> None:
    assert len(RULES) == len(rules())
    for rule in known().rule:
        assert rule.cases and rule.others and rule.source, rule.id
        assert rule.note or rule.source != "none", rule.id
        assert (rule.source == "none") <= (rule.evidence is Evidence.INFERRED), rule.id


def test_rules_and_evidence_name_what_there_is() -> None:
    for rule in rules():
        assert set(rule.when) <= set(known().component)
        assert set(chain.from_iterable(rule.cure)) <= set(known().measure)
        assert not rule.cure or rule.status is RuleStatus.FAILS
    for proof in proofs():
        assert set(proof.parts) <= set(known().component)
        assert set(proof.taken()) <= set(known().measure)
        assert not set(proof.measures) & set(proof.besides)
        assert not limiting() & set(proof.parts)
    cures = {name for rule in rules() for name in chain.from_iterable(rule.cure)}
    assert cures | {name for proof in proofs() for name in proof.taken()} == set(known().measure)


@pytest.mark.parametrize("table", known().table, ids=lambda table: table.id)
def test_what_a_cell_of_a_table_is_about(table: RuleTable) -> None:
    """Just outside of what is told of a release it fails, just inside it does not: by this table."""
    for release, cell in ((release, cell) for release, row in table.rows.items() for cell in row):
        told = f"{table.id}-{release}{cell}"
        rule = RULES[told]
        bound, _, above = cell.partition(",")
        sign, major, minor = re.fullmatch(r"(<|>=)(\d+)(?:\.(\d+))?", bound).groups()  # type: ignore[union-attr]
        if above:
            assert sign == ">=" and above.startswith("<"), told
            assert rule not in judge({table.of: release, table.other: above[1:]}).rules, told
        end = f"{major}.{minor or 0}"
        before = f"{major}.{int(minor) - 1}" if minor and minor != "0" else f"{int(major) - 1}.9"
        outside, inside = (before, end) if sign == "<" else (end, before)
        assert judge({table.of: release, table.other: outside}).verdict is Verdict.FAILS, told
        assert rule in judge({table.of: release, table.other: outside}).rules, told
        assert rule in judge({table.of: f"{release}.7", table.other: outside}).rules, told
        assert rule not in judge({table.of: release, table.other: inside}).rules, told
        assert rule not in judge({table.of: f"{release}9", table.other: outside}).rules, told


PROOFS = (Evidence.OBSERVED, Evidence.CI, Evidence.RECIPE, Evidence.REPORT)


@pytest.mark.parametrize("evidence", PROOFS)
def test_what_somebody_has_had_fails_by_no_rule(evidence: Evidence) -> None:
    """Nothing is refused that was built, with the measures that were taken; and experience alone is evidence."""
    of_this = [proof for proof in proofs() if proof.evidence is evidence]
    assert of_this
    for proof in of_this:
        assert proof.parts["horovod"], proof
        judged = judge(proof.parts, proof.taken())
        failing = [rule.id for rule in judged.rules if rule.status is RuleStatus.FAILS]
        is_risky = any(rule.status is RuleStatus.RISKY for rule in judged.rules)
        expected = (Verdict.RISKY if is_risky else Verdict.WORKS, ())
        assert (judged.verdict, judged.unproven) == expected, (proof, failing)


def test_experience_alone_is_evidence() -> None:
    assert {proof.evidence for proof in proofs()} == set(PROOFS)


@pytest.mark.parametrize("one", COMBINATIONS, ids=named)
def test_complete_combinations_work_by_the_rules(one: Combination) -> None:
    assert set(one.measures) <= set(known().measure)
    assert set(one.host) <= set(one.parts) <= set(known().component)
    judged = judge(one.parts, one.proof().taken())
    assert (judged.verdict, judged.unproven) == (Verdict.WORKS, ())
    assert parse(f"{name}={version}" for name, version in one.parts.items()) == one.parts


def test_every_stack_that_was_built_has_its_combination() -> None:
    built = [stack for stack in stacks() if stack.tried and stack.method != "eessi"]  # not on EESSI itself
    assert {one.stack for one in OWN} == {stack.name for stack in built}
    for one in OWN:
        [stack] = [stack for stack in built if stack.name == one.stack]
        assert one.accelerator == stack.accelerator.value
        version = one.parts["torch" if stack.framework == "pytorch" else "tensorflow"]
        assert version.startswith(re.search(r"-(\d+\.\d+)-", stack.name)[1])  # type: ignore[index]
        assert stack.easyconfig.endswith(f"-{version}.eb") or not stack.easyconfig
        assert one.evidence is Evidence.OBSERVED
        assert one.parts["machine"] in (stack.machines or stack.pythons)
        assert one.host == () or one.parts["python"] in stack.pythons["x86_64"]
        assert one.host == () or one.parts["python"] in stack.status


PATCHES = {"cxx17", "missing-includes", "assignable-span", "no-xla-ops", "legacy-keras", "keras3"}


@pytest.mark.parametrize("one", OWN, ids=lambda one: one.stack)
def test_measures_are_the_patches_of_the_recipe(one: Combination) -> None:
    [stack] = [stack for stack in stacks() if stack.name == one.stack]
    if stack.easyconfig:
        text = (recipes("easyconfigs") / stack.easyconfig).read_text()
        taken = set(re.findall(r"Horovod-0\.28\.1_([\w-]+)\.patch", text))
    else:
        own = re.search(r"^ +PATCHES=(.*)$", (recipes("containers") / stack.recipe).read_text(), re.MULTILINE)
        assert own is not None
        taken = set(stack.arguments.get("PATCHES", own[1]).split())
    assert taken & PATCHES == set(one.measures) & PATCHES
    assert ("missing-includes" in taken) == ("gloo-cstdint" in one.measures)  # that patch is both


COLLECTION = sorted((easybuild_collection() / "h" / "Horovod").glob("Horovod-*.eb"))
EVIDENCE = run_path(str(Path(envkit.__file__).parents[1] / "scripts" / "evidence.py"))


def test_the_recipes_are_those_of_the_collection() -> None:
    """scripts/evidence.py writes them."""
    text = data("compat/recipes.json").read_text()
    assert EVIDENCE["written"](EVIDENCE["of_collection"](), json.loads(text)) == text


def test_each_recipe_of_the_collection_can_be_installed() -> None:
    own = [one for one in combinations() if one.how.endswith(".eb")]
    assert [one.how for one in own] == [f"envkit install {path.name}" for path in COLLECTION]
    for one in own:
        assert {"horovod", "python", "gcc", "openmpi", "cmake", "machine"} < one.parts.keys()
        assert (one.accelerator == "cuda") == ("-CUDA-" in one.how)
        assert one.evidence is Evidence.RECIPE
        for name in re.findall(r"(PyTorch|TensorFlow|CUDA)-([\d.]+\d)", one.how):
            assert one.parts[{"PyTorch": "torch"}.get(name[0], name[0].lower())] == name[1]


def test_what_recipes_have_is_what_their_toolchain_brings() -> None:
    """By the versions that EasyBuild's own documentation of its common toolchains has."""
    assert recipes_json().toolchain["foss-2023a"] == {"python": "3.11.3", "gcc": "12.3.0", "openmpi": "4.1.5"}
    assert recipes_json().toolchain["intel-2023a"] == {"python": "3.11.3", "impi": "2021.9.0"}
    assert recipes_json().toolchain["fosscuda-2020b"]["cuda"] == "11.1.1"
    [one] = [one for one in recipes_json().recipe if one.source.endswith("-CUDA-11.7.0-PyTorch-1.13.1.eb")]
    assert one.parts["cudnn"] == "8.4.1.50"
    assert one.parts["numpy"] == "1.22.3"


def test_whose_evidence_there_is() -> None:
    count = Counter(one.of for one in recipes_json().recipe)
    assert count["easybuild"] == len(COLLECTION)
    assert count["easybuild-earlier"] >= 20
    assert count["ci"] >= 300
    assert count["image"] >= 30
    assert count["determined"] >= 40
    assert count["sagemaker"] >= 10
    assert count["open-ce"] >= 35
    assert count["conda-forge"] >= 100


CONFIG = """\
cxx_compiler_version:
  - 7.5.*                      # [x86_64]
  - 7.3.*                      # [ppc64le]
cudnn:
  - 8.1.1.*    # [cudatoolkit == '11.2']
numpy:
  - 1.20.*|1.22.*
python:
  - 3.8   # [not s390x]
  - 3.9
pytorch:
  - 1.10.*
"""


@pytest.mark.parametrize(
    ("name", "found"),
    [("gcc", ["7.5"]), ("python", ["3.8", "3.9"]), ("torch", ["1.10"]), ("cudnn", []), ("numpy", []), ("cmake", [])],
)
def test_the_versions_of_open_ce_that_every_device_has(name: str, found: list[str]) -> None:
    assert EVIDENCE["variants"](CONFIG, name, "x86_64") == found


@pytest.mark.parametrize(
    ("step", "base", "parts"),
    [
        (
            '--build-arg TENSORFLOW_PIP="tensorflow-rocm==2.10.1.540" --build-arg HOROVOD_PIP="horovod==0.28.1"',
            "rocm/pytorch:rocm5.6_ubuntu20.04_py3.8_pytorch_2.0.1",
            {"horovod": "0.28.1", "tensorflow": "2.10.1", "torch": "2.0.1", "python": "3.8", "rocm": "5.6"},
        ),
        (
            'TORCH_PIP="torch==1.12.0+cu113 torchvision==0.13.0+cu113" HOROVOD_PIP="horovod==0.27.0"',
            "determinedai/environments:cuda-11.3-base-gpu",
            {"horovod": "0.27.0", "torch": "1.12.0", "cuda": "11.3"},
        ),
    ],
)
def test_what_a_step_of_determined_s_makefile_names(step: str, base: str, parts: dict[str, str]) -> None:
    assert EVIDENCE["of_arguments"](step, base) == {"machine": "x86_64", **parts}


def test_that_a_rule_needs_every_component_it_names() -> None:
    assert about({"torch": ">=2", "gcc": ">=13"}, {"torch": "2.1", "gcc": "13.1"})
    assert not about({"torch": ">=2", "gcc": ">=13"}, {"torch": "2.1"})


def test_sources_are_addresses_or_say_what_they_are() -> None:
    sources = [
        *(rule.source for rule in rules()),
        *(proof.source for proof in proofs()),
        *(measure.source for measure in known().measure.values()),
    ]
    assert all(source == source.strip() and not Path(source).is_absolute() for source in sources)
