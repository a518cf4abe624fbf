"""Whether versions go together, by the rules that are about them. Pure."""

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from itertools import chain

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from envkit.compat.evidence import Evidence, Proof, RuleStatus, Struct, VersionRule, known, limiting, proofs, rules
from envkit.errors import UsageProblem

NEWEST = "0.28.1"
LAST = 9999  # more than any release of a series
ENDLESS = re.compile(r"\d{19}")  # in no version; Python makes no number of some thousand digits
NEAR = 0.87  # how alike a name has to be for a hint


class Verdict(StrEnum):
    """The verdict on a combination; ``works``: somebody has had all of it, with the measures that are named."""

    WORKS = "works"
    FAILS = "fails"
    RISKY = "risky"
    UNKNOWN = "unknown"


class Judgement(Struct, frozen=True, kw_only=True):
    """The verdict on versions by name, the rules it rests on, and what somebody is known to have had together.

    ``proof`` has every part but those that are ``unproven``: all of them, or, where nobody is known to have had them
    all, the most. ``cures`` are lists of measures: one of each has to be taken. ``silent`` are the parts that only
    limit the others: the proof does not name them, and no rule is against them and it. ``against`` are the rules that
    are against those of them that are unproven, by what the proof has besides.
    """

    parts: dict[str, str]
    verdict: Verdict
    rules: tuple[VersionRule, ...]
    cures: tuple[tuple[tuple[str, ...], ...], ...] = ()
    unproven: tuple[str, ...] = ()
    proof: Proof | None = None
    silent: tuple[str, ...] = ()
    against: tuple[VersionRule, ...] = ()


@cache
def names() -> Mapping[str, str]:
    """Return every component by each of its names."""
    return {other: name for name, entry in known().component.items() for other in (name, *entry.also)}


def component(given: str) -> str:
    """Return the name of a component, for one of its names. Raises UsageProblem."""
    if given in names():
        return names()[given]
    near = difflib.get_close_matches(given, names(), 1, NEAR)
    raise UsageProblem(
        what=f"There is no component {given!r}." + (f" Did you mean {near[0]!r}?" if near else ""),
        why=f"envkit knows: {', '.join(known().component)}.",
        fix="Write the combination as NAME=VERSION..., such as torch=2.13 python=3.11.",
    )


def written(name: str, version: str) -> str:
    """Return a version as versions of that component are written: 9.0 for sm_90, 12.1 for cu121."""
    entry = known().component[name]
    version = entry.alias.get(version.lower(), version)
    match = re.fullmatch(entry.pattern, version.lower()) if entry.pattern else None
    return match.expand(entry.value) if match else version


def checked(name: str, version: str) -> str:
    """Return a version, or one of the names of what has none. Raises UsageProblem."""
    version, entry = written(name, version), known().component[name]
    if entry.names and version not in entry.names:
        raise UsageProblem(what=f"{name}={version}: {version!r} is none.", fix=f"There are: {', '.join(entry.names)}.")
    try:
        if not entry.names and (ENDLESS.search(version) or Version(version).epoch):
            raise InvalidVersion
        return version if entry.names else str(Version(version))
    except InvalidVersion:
        also = f", or one of: {', '.join(entry.alias)}" if entry.alias else ""
        fix = f"Write {name}= and numbers with dots, such as {name}=2.13{also}."
        raise UsageProblem(what=f"{name}={version}: {version!r} is no version.", fix=fix) from None


def judge(parts: Mapping[str, str], measures: Sequence[str] | None = None) -> Judgement:
    """Judge versions by component. Horovod is, unless given, the newest release that somebody has had with all others.

    It works where somebody is known to have had all parts together, and where no rule says otherwise. ``measures`` are
    those that are taken; None: all that are known.
    """
    parts = {"horovod": newest(parts), **parts}
    limits, own = sorted(limiting() & parts.keys()), [name for name in parts if name not in limiting()]
    shown = Counter(chain.from_iterable(showing(name, parts[name]) for name in own))
    most = max(shown.values(), default=0)
    nearest = [proofs()[index] for index in sorted(shown) if shown[index] == most] or list(proofs())
    if limits:
        nearest.sort(key=lambda one: (not allows_all(one, parts), not has_limited(one, parts)))
    proof = nearest[0]
    silent = tuple(name for name in limits if most and allows(proof, name, parts))
    unproven = tuple(name for name, version in parts.items() if name not in silent and not shows(proof, name, version))
    meant = parts if unproven else {name: exact(name, parts[name], proof.parts.get(name, "")) for name in parts}
    applying = (*nonexistent(parts), *(rule for rule in rules_of(frozenset(meant)) if about(rule.when, meant)))
    failing = [rule for rule in applying if rule.status is RuleStatus.FAILS]
    verdict = Verdict.WORKS
    if any(not is_cured(rule, measures) for rule in failing):
        verdict = Verdict.FAILS
    elif any(rule.status is RuleStatus.RISKY for rule in applying):
        verdict = Verdict.RISKY
    elif unproven:
        verdict = Verdict.UNKNOWN
    return Judgement(
        parts=parts,
        verdict=verdict,
        rules=applying,
        cures=tuple(dict.fromkeys(rule.cure for rule in failing if rule.cure)),
        unproven=unproven,
        proof=proof if most else None,
        silent=silent,
        against=tuple(rule for rule in opposing(proof, parts) if rule not in applying) if most and limits else (),
    )


def allows_all(proof: Proof, parts: Mapping[str, str]) -> bool:
    """Say whether no rule is against what somebody has had, with what limits it among other parts."""
    return has_limited(proof, parts) and not opposing(proof, parts)


def has_limited(proof: Proof, parts: Mapping[str, str]) -> bool:
    """Say whether what somebody has had has what is limited by other parts: for a GPU and its driver, CUDA."""
    return {known().component[name].limits for name in limiting() & parts.keys()} <= {"", *proof.parts}


def allows(proof: Proof, name: str, parts: Mapping[str, str]) -> bool:
    """Say whether no rule is against what somebody has had, with the part of that name, which limits it."""
    is_there = known().component[name].limits in ("", *proof.parts)
    return is_there and not any(name in rule.when for rule in opposing(proof, parts))


def opposing(proof: Proof, parts: Mapping[str, str]) -> tuple[VersionRule, ...]:
    """Return the rules that are against what somebody has had, with what limits it among other parts.

    Of a whole series, such as CUDA 12, a rule is enough that is about one of its releases.
    """
    whole = proof.parts | {name: parts[name] for name in limiting() & parts.keys()}
    return tuple(
        rule
        for rule in limiting_rules(frozenset(whole))
        if all(may_fit(name, wanted, whole[name]) for name, wanted in rule.when.items())
    )


@lru_cache(maxsize=10_000)
def rules_of(names: frozenset[str]) -> tuple[VersionRule, ...]:
    """Return the rules that are about these components and no others."""
    return tuple(rule for rule in rules() if rule.when.keys() <= names)


@lru_cache(maxsize=10_000)
def limiting_rules(names: frozenset[str]) -> tuple[VersionRule, ...]:
    """Return the rules that are about these components, one of which only limits others."""
    return tuple(r for r in rules_of(names) if limiting() & r.when.keys() and r.status is not RuleStatus.UNTRIED)


@lru_cache(maxsize=10_000)
def may_fit(name: str, wanted: str, version: str) -> bool:
    """Say whether a version, or one that it stands for, is one of those that are wanted; or a name."""
    return version == wanted if known().component[name].names else reaches(wanted, version)


def nonexistent(parts: Mapping[str, str]) -> Iterator[VersionRule]:
    """Yield a rule for each version that there has never been."""
    for name, version in parts.items():
        entry = known().component[name]
        if not entry.names and entry.never(release(version)):
            yield VersionRule(
                id=f"{name}-never",
                when={name: f"=={version}"},
                status=RuleStatus.FAILS,
                evidence=Evidence.DOCS,
                note=f"there has been no such release of {entry.title}",
                source="its list of releases",
            )


def newest(parts: Mapping[str, str]) -> str:
    """Return the newest Horovod that somebody has had with all of these parts; the newest of all where nobody has.

    Another patch level of a part may be what was had: a Horovod that is known to fail with this one is passed over.
    """
    own = {name: version for name, version in parts.items() if name not in limiting()}
    shown = set(range(len(proofs()))).intersection(*(showing(name, version) for name, version in own.items()))
    having = [proofs()[index] for index in sorted(shown)]
    if len(own) < len(parts):
        having = [proof for proof in having if allows_all(proof, parts)] or having
    versions = sorted({proof.parts["horovod"] for proof in having}, key=release, reverse=True) or [NEWEST]
    return next((version for version in versions if not refused({**parts, "horovod": version})), versions[0])


def refused(parts: Mapping[str, str]) -> bool:
    """Say whether a rule that nothing mends is against versions."""
    failing = (rule for rule in rules_of(frozenset(parts)) if rule.status is RuleStatus.FAILS and not rule.cure)
    return any(about(rule.when, parts) for rule in failing)


@lru_cache(maxsize=10_000)
def showing(name: str, asked: str) -> frozenset[int]:
    """Return which of the proofs show a part, by their place among them."""
    return frozenset(index for index, proof in enumerate(proofs()) if shows(proof, name, asked))


def shows(proof: Proof, name: str, asked: str) -> bool:
    """Say whether somebody is known to have had this part with the others; another patch level of it will do."""
    return name in proof.parts and covers(name, proof.parts[name], asked)


def covers(name: str, version: str, asked: str) -> bool:
    """Say whether a version is of the release that is asked for.

    3.11.7 is of 3.11 and of 3, 2.13.0 of 2.13.1, and 12 not of 12.4: each component says which numbers tell releases
    apart.
    """
    entry = known().component[name]
    if entry.names:
        return version == asked
    wanted = release(asked)[: entry.series]
    return release(version)[: len(wanted)] == wanted


def exact(name: str, asked: str, version: str) -> str:
    """Return what is asked for, or the version, if any, that it stands for where it names a whole series, such as 2."""
    entry = known().component[name]
    return asked if entry.names or not version or len(release(asked)) >= entry.series else version


def is_cured(rule: VersionRule, measures: Sequence[str] | None) -> bool:
    """Say whether what a rule is about is mended by the measures that are taken; None: by any."""
    if measures is None:
        return bool(rule.cure)
    return any(set(cure) <= set(measures) for cure in rule.cure)


def about(when: Mapping[str, str], parts: Mapping[str, str]) -> bool:
    """Say whether a rule is about versions."""
    return when.keys() <= parts.keys() and all(fits(name, wanted, parts[name]) for name, wanted in when.items())


@lru_cache(maxsize=10_000)
def fits(name: str, wanted: str, version: str) -> bool:
    """Say whether a version is one of those that are wanted, and a whole series only where its ends are; or a name.

    A nightly build or a release candidate counts as the release that it precedes.
    """
    entry = known().component[name]
    if entry.names:
        return version == wanted
    version = Version(version).base_version if Version(version).is_prerelease else version
    ends = [version] if len(release(version)) >= entry.series else [f"{version}.0", f"{version}.{LAST}"]
    return all(within(wanted, end) for end in ends)


@cache
def release(version: str) -> tuple[int, ...]:
    """Return "2.13.0+cpu" as (2, 13, 0)."""
    return Version(version).release


def reaches(text: str, version: str) -> bool:
    """Say whether a version, or one that begins with it, is in a range.

    Tried are its first and last patch level, and those that the range names, with their neighbours.
    """
    wanted, numbers = SpecifierSet(text), release(version)
    if wanted.contains(version, prereleases=True):
        return True
    if len(numbers) > 2:
        return False
    ends = [release(condition.version.removesuffix(".*")) for condition in wanted]
    near = [(*end[:-1], end[-1] + step) for end in ends for step in (-1, 0, 1) if end[-1] + step >= 0]
    tried = [
        (*numbers, 0),
        (*numbers, LAST),
        *(neighbour for neighbour in near if neighbour[: len(numbers)] == numbers),
    ]
    return any(wanted.contains(".".join(map(str, candidate))) for candidate in tried)


@cache
def within(wanted: str, version: str) -> bool:
    """Say whether a version is one of those of a specifier."""
    return SpecifierSet(wanted).contains(version, prereleases=True)
