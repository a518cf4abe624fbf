"""The best complete combination that agrees with what is asked for, on this machine. Pure."""

from collections.abc import Iterator, Mapping

from envkit.compat.judge import Judgement, Verdict, has, judge, release
from envkit.compat.known import Combination, Evidence, Struct, known

FRAMEWORKS = ("torch", "tensorflow")
EVIDENCE = tuple(Evidence)
GPU = "capability"


class Here(Struct, frozen=True, kw_only=True):
    """What this machine has of a combination: what computes (cpu, cuda or rocm), and its own parts."""

    accelerator: str
    parts: dict[str, str]


class Complete(Struct, frozen=True, kw_only=True):
    """A combination with this machine's own parts put in, what is known of it then, what was asked otherwise."""

    combination: Combination
    judgement: Judgement
    differs: tuple[str, ...]


def best(asked: Mapping[str, str], here: Here) -> Complete | None:
    """Return the combination that has what is asked for, or the most of it; of several the newest that works.

    It is for this machine's GPUs where there is one. None where none is for this machine.
    """
    found = sorted(fitting(asked, here), key=lambda one: rank(one, here))
    return found[0] if found else None


def fitting(asked: Mapping[str, str], here: Here) -> Iterator[Complete]:
    """Yield the combinations that this machine can have, as it would have them."""
    for one in known().combination:
        if one.accelerator not in ("cpu", here.accelerator) and not {"cuda", "rocm"} & asked.keys():
            continue
        own = {*one.host, "machine", GPU}
        whole = one.parts | {name: version for name, version in (here.parts | dict(asked)).items() if name in own}
        judgement = judge(whole, one.measures)
        if whole["machine"] == one.parts["machine"] and judgement.verdict is not Verdict.FAILS:
            differs = tuple(name for name, version in asked.items() if not has(whole, {name: version}))
            yield Complete(combination=one, judgement=judgement, differs=differs)


def rank(one: Complete, here: Here) -> tuple[object, ...]:
    """Order combinations: by what differs, frameworks and absent parts first; what works; the GPU; the newest."""
    parts = one.combination.parts
    framework = next(name for name in FRAMEWORKS if name in parts)
    return (
        bool({"mxnet", *FRAMEWORKS} & set(one.differs)),
        sum(name not in parts for name in one.differs),
        len(one.differs),
        list(Verdict).index(one.judgement.verdict),
        one.combination.accelerator != here.accelerator,
        FRAMEWORKS.index(framework),
        [-number for number in release(parts[framework])],
        EVIDENCE.index(one.combination.evidence),
    )
