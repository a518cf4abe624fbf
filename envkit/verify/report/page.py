"""The report as one HTML file that needs nothing else: no script, no other file, no network."""

from __future__ import annotations

import time
from collections.abc import Iterator

import envkit.report.words as words
from envkit.binary.build_flags import FLAGS
from envkit.report.render import rendered
from envkit.verify.facts import RankFacts
from envkit.verify.report.model import RankRow, Report, raw_rate, records
from envkit.verify.report.plots import bandwidth_plot, scaling_plots, timeline

MAPPED_RANKS = 256
SHOWN_HOSTS = 64
SHOWN_ODD = 64
SHOWN_STACKS = 4
SHOWN_VALUES = 3


def html(report: Report) -> str:
    """The whole page."""
    facts = sorted(records(report), key=lambda record: (record.framework, record.rank is None, record.rank or 0))
    return rendered(
        "page.html",
        report=report,
        flags=FLAGS,
        began=began(facts),
        groups=report.alike(SHOWN_HOSTS),
        hosts_words=words.count(len({row.name for row in report.hosts}), "host"),
        shown_hosts=SHOWN_HOSTS,
        mapped=ranks_by_host(report),
        odd=report.odd,
        shown_odd=SHOWN_ODD,
        unproved=report.skipped(required=True),
        skipped=report.skipped(required=False),
        flag=words.flag,
        raw_rate=raw_rate,
        timeline=timeline(facts),
        bandwidth=bandwidth_plot(report.bandwidth) if report.bandwidth else None,
        scaling=scaling_plots(report.scaling),
        software=list(software(facts)),
        variables=variables(facts),
        stacks=stacks(facts),
    )


def began(facts: list[RankFacts]) -> str:
    """Return the time at which the first rank began, or nothing where none did."""
    begun = [record.phases[0].at for record in facts if record.phases]
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(min(begun))) if begun else ""


def ranks_by_host(report: Report) -> dict[str, list[RankRow]]:
    """The ranks by host, where they are few enough to be drawn."""
    by_host: dict[str, list[RankRow]] = {}
    for row in report.ranks if len(report.ranks) <= MAPPED_RANKS else ():
        by_host.setdefault(row.host, []).append(row)
    return by_host


def software(facts: list[RankFacts]) -> Iterator[tuple[str, str]]:
    """Return the software that ran, each with the values that any rank told."""
    by_name: dict[str, dict[str, None]] = {}
    for record in facts:
        for name, value in of_rank(record):
            by_name.setdefault(name, {})[value] = None
    for name, values in by_name.items():
        shown = list(values)[:SHOWN_VALUES]
        more = f" and {len(values) - len(shown)} more" if len(values) > len(shown) else ""
        yield name, "; ".join(shown) + more


def of_rank(facts: RankFacts) -> Iterator[tuple[str, str]]:
    """Return the software that a rank told of, each with its version or place."""
    if facts.python and facts.python.version:
        yield "Python", f"{facts.python.version} ({facts.python.executable})"
    if facts.horovod and facts.horovod.path:
        yield "Horovod", f"{facts.horovod.version or 'unknown version'} ({facts.horovod.path})"
    if facts.imported and facts.imported.version:
        yield facts.framework, f"{facts.imported.version} ({facts.imported.path})"
    yield from (
        (name, version) for name, version in facts.installed.items() if name not in {"horovod", facts.framework}
    )
    for library, paths in facts.libraries.items():
        yield library, paths if isinstance(paths, str) else ", ".join(paths)
    if facts.compiled and (compiled := facts.compiled).error is None:
        built_for = {"CUDA": compiled.cuda, "ROCm": compiled.rocm, "NCCL": compiled.nccl}
        versions = [f"{name} {version}" for name, version in built_for.items() if isinstance(version, str)]
        yield f"{facts.framework} compiled for", ", ".join(versions) or "CPUs"
    yield from of_node(facts)


def of_node(facts: RankFacts) -> Iterator[tuple[str, str]]:
    """Return the kernel, cores, container, GPU driver and network of a rank's node."""
    if (machine := facts.machine) and machine.kernel:
        yield "kernel", f"{machine.kernel}, {machine.architecture}, {machine.libc}"
        yield "cores per host", str(machine.cores or "unknown")
        if machine.container:
            yield "container", machine.container
    if (gpus := facts.node_gpus) and (drivers := [gpus.nvidia_driver, gpus.amd_driver]) != [None, None]:
        yield "GPU driver", ", ".join(filter(None, drivers))
    if fabric := facts.fabric:
        cards = [
            *(f"InfiniBand {device.name}" for device in fabric.infiniband),
            *(f"Slingshot {name}" for name in fabric.cxi),
        ]
        cards += [interface.name for interface in fabric.interfaces if interface.up and interface.kind == "physical"]
        yield "network", ", ".join(cards) or "none but the loopback"


def variables(facts: list[RankFacts]) -> dict[str, str]:
    """The environment variables that the probe keeps; where ranks differ, how many values there are."""
    by_name: dict[str, set[str]] = {}
    for record in facts:
        for name, value in record.environment.items():
            by_name.setdefault(name, set()).add(value)
    return {
        name: next(iter(values)) if len(values) == 1 else f"{len(values)} values"
        for name, values in sorted(by_name.items())
    }


def stacks(facts: list[RankFacts]) -> list[tuple[str, str]]:
    """The Python stacks of ranks that did not end well, each with the ranks that have it."""
    ranks: dict[str, list[str]] = {}
    for record in facts:
        if record.ended and record.ended.stack:
            ranks.setdefault(record.ended.stack, []).append(record.label)
    return [
        (", ".join(labels[:SHOWN_VALUES]) + (", ..." if len(labels) > SHOWN_VALUES else ""), stack)
        for stack, labels in list(ranks.items())[:SHOWN_STACKS]
    ]
