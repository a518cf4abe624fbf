"""The best complete combination that agrees with what is asked for, on this machine. Pure."""

from collections.abc import Iterator, Mapping

from envkit.compat.evidence import Combination, Evidence, Struct, combinations, known, limiting
from envkit.compat.judge import Judgement, Verdict, covers, judge, reaches, release

FRAMEWORKS = ("torch", "tensorflow")
EVIDENCE = tuple(Evidence)
GPU = "capability"
OF_CUDA = {"cuda", "cudnn", "nccl", "driver", GPU}
OF_ROCM = {"rocm", "gfx"}
ABSENT = 3.0  # how far away a combination is that lacks a part; another major release is 1 away for each between


class MachineParts(Struct, frozen=True, kw_only=True):
    """The parts of a combination that are this machine's own, and what computes on it (cpu, cuda or rocm)."""

    accelerator: str
    parts: dict[str, str]


class Complete(Struct, frozen=True, kw_only=True):
    """A combination with this machine's own parts put in, what is known of it then, what was asked otherwise.

    ``replaced`` are the parts that were put in and that nobody is known to have had in it: its evidence is of others.
    """

    combination: Combination
    judgement: Judgement
    differs: tuple[str, ...]
    replaced: tuple[str, ...]


def best(asked: Mapping[str, str], here: MachineParts, ranges: Mapping[str, str] | None = None) -> Complete | None:
    """Return the combination that has what is asked for, or the one nearest to it; of several the newest that works.

    Of what a range was asked for (``ranges``) every version in it is as asked. It is for the device that is asked for,
    else for this machine's GPUs where there is one. None where none is for this machine.
    """
    ranked = sorted(fitting(asked, here, ranges or {}), key=lambda one: rank(one, asked, here))
    return ranked[0] if ranked else None


def fitting(asked: Mapping[str, str], here: MachineParts, ranges: Mapping[str, str]) -> Iterator[Complete]:
    """Yield the combinations that this machine can have and that are not known to fail, as it would have them."""
    device = "rocm" if OF_ROCM & asked.keys() else "cuda" if OF_CUDA & asked.keys() else None
    for combination in combinations():
        if combination.accelerator not in ((device,) if device else ("cpu", here.accelerator)):
            continue
        own = {*combination.host, "machine", *limited(combination)}
        for given in (here.parts | dict(asked), here.parts | {"machine": asked.get("machine", here.parts["machine"])}):
            whole = combination.parts | {name: version for name, version in given.items() if name in own}
            judgement = judge(whole, combination.proof().taken())
            if whole["machine"] == combination.parts["machine"] and judgement.verdict is not Verdict.FAILS:
                yield Complete(
                    combination=combination,
                    judgement=judgement,
                    differs=tuple(name for name in asked if not is_as_asked(whole, name, asked, ranges)),
                    replaced=tuple(name for name in whole if not has(combination.parts, name, whole[name])),
                )
                break


def limited(combination: Combination) -> Iterator[str]:
    """Yield what limits a combination: the GPU, its driver, the system."""
    for name in sorted(limiting()):
        limits = known().component[name].limits
        if not limits or limits in combination.parts:
            yield name


def is_as_asked(parts: Mapping[str, str], name: str, asked: Mapping[str, str], ranges: Mapping[str, str]) -> bool:
    """Say whether a part is as asked: in its range, if there is one."""
    if name in ranges:
        return name in parts and reaches(ranges[name], parts[name])
    return has(parts, name, asked[name])


def has(parts: Mapping[str, str], name: str, version: str) -> bool:
    """Say whether a part is among others, in another patch level at most."""
    return name in parts and covers(name, parts[name], version)


def rank(complete: Complete, asked: Mapping[str, str], here: MachineParts) -> tuple[object, ...]:
    """Order combinations: the nearest to what is asked for; the GPU; what works; the newest."""
    parts = complete.combination.parts
    framework = next(name for name in FRAMEWORKS if name in parts)
    return (
        bool({"mxnet", *FRAMEWORKS} & (asked.keys() - parts.keys())),
        sum(distance(name, asked[name], complete.judgement.parts.get(name)) for name in complete.differs),
        complete.combination.accelerator != here.accelerator,
        list(Verdict).index(complete.judgement.verdict),
        FRAMEWORKS.index(framework),
        [-number for number in release(parts[framework])],
        EVIDENCE.index(complete.combination.evidence),
    )


def distance(name: str, asked: str, version: str | None) -> float:
    """Return how far a version is from what is asked for: 1 for each major release, a part of 1 within one."""
    if version is None or known().component[name].names:
        return ABSENT
    wanted, given = ([*release(text), 0, 0] for text in (asked, version))
    if known().component[name].series == 1:
        wanted, given = [0, *wanted], [0, *given]
    return abs(wanted[0] - given[0]) or min(abs(wanted[1] - given[1]) / 20 or 0.01, 0.9)
