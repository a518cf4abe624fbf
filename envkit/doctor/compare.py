"""How a compute node differs from the host that asked it. Pure."""

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from envkit.doctor.facts import Facts, NodeFacts
from envkit.doctor.report import Comparison, Difference, Report
from envkit.doctor.rules import problem
from envkit.doctor.terminal import lines
from envkit.errors import Problem

Fact = TypeVar("Fact", bound=msgspec.Struct)
NOT_TOLD = "not known"


def with_comparison(node: Report, here: Report) -> Report:
    """Return the report on a node with what differs from another host, and what that means for an installation."""
    comparison = Comparison(node=name(node), here=name(here), differences=tuple(differences(node, here)))
    return msgspec.structs.replace(node, notes=(*node.notes, *notes(node.facts, here.facts)), comparison=comparison)


def name(report: Report) -> str:
    """Name the host of a report."""
    return report.facts.node.hostname if report.facts.node else NOT_TOLD


def differences(node: Report, here: Report) -> Iterator[Difference]:
    """Yield what differs, as it is told of each: first the facts, then what becomes of each method."""
    facts = texts(node.facts), texts(here.facts)
    lasting = texts(steady(node.facts)), texts(steady(here.facts))
    for label in dict.fromkeys((*facts[0], *facts[1])):
        if lasting[0].get(label) != lasting[1].get(label):
            yield Difference(what=label, node=facts[0].get(label, NOT_TOLD), here=facts[1].get(label, NOT_TOLD))
    for verdict, other in zip(node.methods, here.methods, strict=True):
        if verdict.state != other.state:
            yield Difference(
                what=verdict.method, node=f"{verdict.state}: {verdict.why}", here=f"{other.state}: {other.why}"
            )


def texts(facts: Facts) -> dict[str, str]:
    """Return what is told of a host, by label."""
    by_label = dict[str, list[str]]()
    for label, text in lines(facts):
        by_label.setdefault(label, []).append(text)
    return {label: "; ".join(parts) for label, parts in by_label.items()}


def steady(facts: Facts) -> Facts:
    """Return facts without what differs between any two hosts, and from one second to the next."""
    return changed(
        facts,
        node=steady_node(facts.node) if facts.node else None,
        schedulers=tuple(changed(scheduler, job=False) for scheduler in facts.schedulers or ()),
        room=changed(facts.room, free_mb=0, inodes=None) if facts.room else None,
        indexes=tuple(changed(index, problem="silent" if index.problem else "") for index in facts.indexes or ()),
    )


def steady_node(node: NodeFacts) -> NodeFacts:
    """Return a node without its name, its addresses, and how full its memory is."""
    fabric = changed(node.fabric, interfaces=dict.fromkeys(node.fabric.interfaces))
    return changed(node, hostname="", shm_free=0, fabric=fabric)


def changed(fact: Fact, **changes: object) -> Fact:
    """Return a fact with changes."""
    return msgspec.structs.replace(fact, **changes)


def notes(node: Facts, here: Facts) -> Iterator[Problem]:
    """Yield what a difference means for an installation that is begun on the other host."""
    if node.cpu and here.cpu and node.cpu.target != here.cpu.target:
        yield problem("other-cpu", node=node.cpu.target, here=here.cpu.target)
    if node.builder and here.builder and node.builder.accelerator != here.builder.accelerator:
        yield problem("other-gpu", node=node.builder.accelerator, here=here.builder.accelerator)
