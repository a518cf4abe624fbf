"""The rules of compat.toml, each by its own examples, and against what the stacks and the recipes of envkit are."""

import re
from itertools import chain
from pathlib import Path

import pytest

from envkit.compat.judge import Verdict, about, judge, parse
from envkit.compat.known import Combination, Evidence, Rule, Status, known
from envkit.resources import recipes
from envkit.stack import find_easyconfig, stacks

RULES = {rule.id: rule for rule in known().rule}
CASES = [(rule, case) for rule in known().rule for case in rule.cases]
OTHERS = [(rule, case) for rule in known().rule for case in rule.others]
COMBINATIONS = known().combination
OWN = [one for one in COMBINATIONS if one.stack]


def named(value: object) -> str | None:
    return value.id if isinstance(value, Rule) else value.how if isinstance(value, Combination) else None


@pytest.mark.parametrize(("rule", "case"), CASES, ids=named)
def test_what_a_rule_is_about(rule: Rule, case: str) -> None:
    judged = judge(parse(case.split()))
    assert rule in judged.rules
    if rule.status is Status.FAILS:
        assert judge(parse(case.split()), ()).verdict is Verdict.FAILS
        assert (judged.verdict is Verdict.FAILS) == any(
            one.status is Status.FAILS and not one.cure for one in judged.rules
        )
        assert all(
            judge(
                parse(case.split()), [*chain.from_iterable(one.cure[0] for one in judged.rules if one.cure), *cure]
            ).verdict
            is not Verdict.FAILS
            for cure in rule.cure
        )
    if rule.status is Status.RISKY:
        assert judged.verdict in (Verdict.RISKY, Verdict.FAILS)
    if rule.status is Status.UNTRIED:
        assert judged.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("rule", "case"), OTHERS, ids=named)
def test_what_a_rule_is_not_about(rule: Rule, case: str) -> None:
    assert rule not in judge(parse(case.split())).rules


def test_every_rule_has_examples_of_both_kinds_evidence_and_a_source() -> None:
    assert len(RULES) == len(known().rule)
    for rule in known().rule:
        assert rule.cases and rule.others and rule.source, rule.id
        assert rule.note or rule.source != "none", rule.id
        assert (rule.source == "none") <= (rule.evidence is Evidence.INFERRED), rule.id


def test_rules_name_what_there_is() -> None:
    for rule in known().rule:
        assert set(rule.when) <= set(known().component)
        assert {*rule.needs, *chain.from_iterable(rule.cure)} <= set(known().measure)
        assert not rule.needs or rule.status is Status.WORKS
        assert not rule.cure or rule.status is Status.FAILS
    used = {name for rule in known().rule for name in (*rule.needs, *chain.from_iterable(rule.cure))}
    assert used == set(known().measure)


@pytest.mark.parametrize("rule", [rule for rule in known().rule if rule.status is Status.WORKS], ids=named)
def test_what_works_takes_the_measures_that_its_failures_need(rule: Rule) -> None:
    """No rule says that something works whose own examples another says to fail without a cure."""
    for case in rule.cases:
        assert judge(parse(case.split())).verdict in (Verdict.WORKS, Verdict.UNKNOWN)
        taken = [name for one in judge(parse(case.split())).rules for name in one.needs]
        failing = judge(parse(case.split()), taken)
        assert failing.verdict is not Verdict.FAILS, [one.id for one in failing.rules]


@pytest.mark.parametrize("one", COMBINATIONS, ids=named)
def test_complete_combinations_work_by_the_rules(one: Combination) -> None:
    assert set(one.measures) <= set(known().measure)
    assert set(one.host) <= set(one.parts) <= set(known().component)
    judged = judge(one.parts, one.measures)
    assert (judged.verdict, judged.unproven) == (Verdict.WORKS, ())
    assert parse(f"{name}={version}" for name, version in one.parts.items()) == one.parts


def test_every_stack_that_was_built_has_its_combination() -> None:
    built = [stack for stack in stacks() if not stack.status.startswith("planned")]
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


PATCHES = {"cxx17", "missing-includes", "assignable-span", "no-xla-ops", "legacy-keras"}


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


def test_recipes_of_easybuild_are_there() -> None:
    named = [one.how.split()[-1] for one in COMBINATIONS if one.how.endswith(".eb")]
    assert named
    for name in named:
        path = find_easyconfig(name)
        assert path is not None
        text = path.read_text()
        [one] = [one for one in COMBINATIONS if one.how.endswith(name)]
        for component, title in (("cuda", "CUDA"), ("nccl", "NCCL"), ("python", "Python"), ("cmake", "CMake")):
            if component in one.parts:
                assert f"('{title}', '{one.parts[component]}'" in text


def test_that_a_rule_needs_every_component_it_names() -> None:
    assert about({"torch": ">=2", "gcc": ">=13"}, {"torch": "2.1", "gcc": "13.1"})
    assert not about({"torch": ">=2", "gcc": ">=13"}, {"torch": "2.1"})


def test_sources_are_addresses_or_say_what_they_are() -> None:
    sources = [*(rule.source for rule in known().rule), *(measure.source for measure in known().measure.values())]
    assert all(source == source.strip() and not Path(source).is_absolute() for source in sources)
