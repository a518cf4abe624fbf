"""Whether versions go together, by the rules that are about them. Pure."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from envkit.compat.known import Combination, Rule, Status, Struct, known
from envkit.errors import UsageProblem

NEWEST = "0.28.1"


class Verdict(StrEnum):
    """What is known of a combination; ``works``: with the measures that are named."""

    WORKS = "works"
    FAILS = "fails"
    RISKY = "risky"
    UNKNOWN = "unknown"


class Judgement(Struct, frozen=True, kw_only=True):
    """The verdict on versions by name, the rules it rests on, a complete combination that has them all.

    ``cures`` are lists of measures: one of each has to be taken. ``unproven`` are the parts that are not known to work.
    """

    parts: dict[str, str]
    verdict: Verdict
    rules: tuple[Rule, ...]
    cures: tuple[tuple[tuple[str, ...], ...], ...] = ()
    unproven: tuple[str, ...] = ()
    example: Combination | None = None


def parse(words: Iterable[str]) -> dict[str, str]:
    """Read NAME=VERSION... as versions by component. Raises UsageProblem, with the nearest names."""
    parts = dict[str, str]()
    for word in words:
        given, equals, version = word.partition("=")
        name = component(given.strip().lower())
        if not equals or not version.strip():
            raise UsageProblem(what=f"{word!r} has no version.", fix=f"Write it as {name}=VERSION.")
        if name in parts:
            raise UsageProblem(what=f"{name} is given twice.", fix="Ask for one version at a time.")
        parts[name] = checked(name, version.strip())
    return parts


def component(given: str) -> str:
    """Return the name of a component, for one of its names. Raises UsageProblem."""
    names = {other: name for name, one in known().component.items() for other in (name, *one.also)}
    if given in names:
        return names[given]
    near = difflib.get_close_matches(given, names, 1, 0.5)
    raise UsageProblem(
        what=f"There is no component {given!r}." + (f" Did you mean {near[0]!r}?" if near else ""),
        why=f"envkit knows: {', '.join(known().component)}.",
        fix="Write the combination as NAME=VERSION..., such as torch=2.13 python=3.11.",
    )


def checked(name: str, version: str) -> str:
    """Return a version, or one of the names of what has none. Raises UsageProblem."""
    names = known().component[name].names
    if names and version not in names:
        raise UsageProblem(what=f"{name}={version}: {version!r} is none.", fix=f"There are: {', '.join(names)}.")
    try:
        return version if names else str(Version(version))
    except InvalidVersion:
        fix = f"Write {name}= and numbers with dots, such as {name}=2.13."
        raise UsageProblem(what=f"{name}={version}: {version!r} is no version.", fix=fix) from None


def judge(parts: Mapping[str, str], measures: Sequence[str] | None = None) -> Judgement:
    """Judge versions by component. Horovod is the newest release unless given.

    ``measures`` are those that are taken; None: all that are known.
    """
    parts = {"horovod": NEWEST, **parts}
    found = known()
    rules = tuple(rule for rule in found.rule if about(rule.when, parts))
    failing = [rule for rule in rules if rule.status is Status.FAILS]
    example = next((one for one in found.combination if has(one.parts, parts)), None)
    working = {name for rule in rules if rule.status is Status.WORKS for name in rule.when}
    working |= set(example.parts) if example else set()
    provable = {name for rule in found.rule if rule.status is Status.WORKS for name in rule.when}
    assumed = {"horovod"} if parts["horovod"] == NEWEST else set()
    unproven = tuple(name for name in parts if name in provable - working - assumed)
    verdict = Verdict.WORKS
    if any(not is_cured(rule, measures) for rule in failing):
        verdict = Verdict.FAILS
    elif any(rule.status is Status.RISKY for rule in rules):
        verdict = Verdict.RISKY
    elif unproven:
        verdict = Verdict.UNKNOWN
    return Judgement(
        parts=parts,
        verdict=verdict,
        rules=rules,
        cures=tuple(dict.fromkeys(rule.cure for rule in failing if rule.cure)),
        unproven=unproven,
        example=example,
    )


def is_cured(rule: Rule, measures: Sequence[str] | None) -> bool:
    """Say whether what a rule is about is mended by the measures that are taken; None: by any."""
    if measures is None:
        return bool(rule.cure)
    return any(set(one) <= set(measures) for one in rule.cure)


def about(when: Mapping[str, str], parts: Mapping[str, str]) -> bool:
    """Say whether a rule is about versions."""
    return all(name in parts and fits(name, wanted, parts[name]) for name, wanted in when.items())


def fits(name: str, wanted: str, version: str) -> bool:
    """Say whether a version is one of those that are wanted; a name, whether it is that one."""
    if known().component[name].names:
        return version == wanted
    return SpecifierSet(wanted).contains(version, prereleases=True)


def has(whole: Mapping[str, str], parts: Mapping[str, str]) -> bool:
    """Say whether a combination has every part; 2.13 stands for each 2.13.x."""
    return all(name in whole and agrees(name, whole[name], version) for name, version in parts.items())


def agrees(name: str, version: str, asked: str) -> bool:
    """Say whether a version is what is asked for, as far as that says."""
    if known().component[name].names:
        return version == asked
    return release(version)[: len(release(asked))] == release(asked)[: len(release(version))]


def release(version: str) -> tuple[int, ...]:
    """Return "2.13.0+cpu" as (2, 13, 0)."""
    return Version(version).release
