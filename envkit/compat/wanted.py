"""The question: words such as torch=2.13, cu121, foss=2023a and torch>=2.1,<2.3, or a file with what pip says."""

import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Self
from urllib.parse import unquote

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

from envkit.compat.evidence import Struct, known, proofs, recipes
from envkit.compat.judge import (
    ENDLESS,
    Judgement,
    Verdict,
    checked,
    component,
    covers,
    judge,
    names,
    reaches,
    release,
    written,
)
from envkit.compat.words import gpu, system
from envkit.errors import UsageProblem
from envkit.system import files
from envkit.system.addresses import redact

LARGEST = 1_000_000  # bytes of a file that is read
MOST = 300  # combinations that ranges may stand for
CONDITIONS = 50  # of a range
ORDER = (Verdict.WORKS, Verdict.RISKY, Verdict.UNKNOWN, Verdict.FAILS)
OTHERS = frozenset(("arch", "gpu", "os", "py", "sm"))  # words of compat; what pip and conda list so is another package
WORD = re.compile(r"\s*([\w.+-]+?)\s*(~=|==|>=|<=|!=|[<>=])\s*(.*)", re.DOTALL)
RANGE = re.compile(r"[<>~,]|!=|\.\*")
MODULE = re.compile(r"(?<![\w/.+-])([A-Za-z][\w+.-]*)/(\d[\w.+-]*)")
EDITABLE = re.compile(r"(?:-e|--editable)(?:\s*=\s*|\s+|(?=[./~\w]))")
FREEZE = re.compile(r"\s*# Editable [^()]*\(([\w.-]+)={2,3}([^\s()]+)\)\s*")  # pip freeze's; the next line is its -e
SOURCE = re.compile(r"\.{0,2}/|~|\.\.?$|[A-Za-z][\w+.-]*:/|[^\s@:[]*\.(?:whl|tar\.gz|zip)(?=$|[\[#])")
# of what envkit knows, that which a path or an address to pip is likely to be of where its last part is so called
PACKAGES = {"horovod", "torch", "tensorflow", "mxnet", "keras", "numpy", "cmake", "pip", "flatbuffers", "spark"}
MODULES = {"cray-mpich", "mpich", "impi", "rocm"}  # that have modules, besides those that have recipes
MODULE_NAMES = {"gcccore": "gcc", "gcc-native": "gcc", "cray-python": "python"}  # EasyBuild's and Cray's
LINE = re.compile(r"([A-Za-z][\w.-]*)(?:\[[^]]*\])?\s*(.*)")
COLUMN = re.compile(r"(\d\S*)(?:\s.*)?")


class Query(Struct, frozen=True, kw_only=True):
    """Versions by component, and, for those that a range was asked of, the range (PEP 440)."""

    parts: dict[str, str]
    ranges: dict[str, str]


class Told(str):
    """A word that a file tells, and where: ``place`` is FILE:LINE."""

    __slots__ = ("place",)
    place: str

    def __new__(cls, word: str, place: str) -> Self:
        instance = super().__new__(cls, word)
        instance.place = place
        return instance


def parse(words: Iterable[str]) -> Query:
    """Read words. Raises UsageProblem, with what to write, where one means nothing or two contradict each other."""
    parts, ranges, defaults, places = dict[str, str](), dict[str, str](), dict[str, str](), dict[str, str]()
    for word in words:
        place = word.place if isinstance(word, Told) else ""
        with located(place):
            match = WORD.fullmatch(word)
            if match is None:
                cuda = written("cuda", word.strip())
                if cuda == word.strip():
                    if word.strip().lower() not in names():
                        require_no_file(word)
                    name = component(word.strip().lower())
                    raise UsageProblem(what=f"{word!r} has no version.", fix=f"Write it as {name}=VERSION.")
                put(parts, "cuda", cuda, place)
                continue
            given, sign, version = match[1].lower(), match[2], match[3].strip()
            if brought := toolchain(given, version):
                defaults |= {"python": brought["python"]} if "python" in brought else {}
                for name in brought.keys() - {"python"}:
                    put(parts, name, brought[name], f"{given}={version}{', ' if place else ''}{place}")
                continue
            name = component(given)
            places[name] = place
            if not version:
                raise UsageProblem(what=f"{word!r} has no version.", fix=f"Write it as {name}=VERSION.")
            if whole := re.fullmatch(r"([\d.]+)\.\*", version) if sign in ("=", "==") else None:
                version = whole[1]
            if sign not in ("=", "==") or RANGE.search(version):
                text = ranged(name, (sign if sign != "=" else "==") + version)
                ranges[name] = joined(name, ranges.get(name, ""), text, place)
            else:
                for own, what in meant(name, version).items():
                    put(parts, own, what, place)
    if match := re.search(r"\+(cu\d+)$", parts.get("torch", "")):
        cuda = match[1].removeprefix("cu") if len(match[1]) == len("cu12") else checked("cuda", match[1])
        if "cuda" in parts and release(parts["cuda"])[0] != release(cuda)[0]:
            raise contradiction("cuda", parts["cuda"], cuda, f"torch={parts['torch']}")
        parts.setdefault("cuda", cuda)
    if match := re.search(r"\+(cpu|rocm)(\d+(?:\.\d+)*)?$", parts.get("torch", "")):
        if other := next((name for name in ("cuda", "capability", "driver") if name in parts), ""):
            raise UsageProblem(
                what=f"torch={parts['torch']} has no CUDA, and {other}={parts[other]} is asked for with it.",
                fix=f"Leave out {other}, or name a build with CUDA, such as torch=2.13+cu130.",
            )
        if match[2]:
            parts.setdefault("rocm", match[2])
    for name in sorted(ranges.keys() & parts.keys()):
        if not reaches(ranges[name], parts[name]):
            raise contradiction(name, parts[name], ranges[name], places[name])
        if parts[name].replace(".", "").isdigit() and len(release(parts[name])) < known().component[name].series:
            ranges[name] = joined(name, ranges[name], f"=={parts.pop(name)}.*")
        else:
            del ranges[name]
    additions = {name: version for name, version in defaults.items() if name not in parts and name not in ranges}
    return Query(parts={**parts, **additions}, ranges=ranges)


def meant(name: str, version: str) -> Mapping[str, str]:
    """Return the parts that a version, or the name of a GPU or of a system, stands for. Raises UsageProblem."""
    if name in ("capability", "gfx"):
        return gpu(version)
    return {name: system(version) if name == "glibc" else checked(name, version)}


def put(parts: dict[str, str], name: str, version: str, by: str = "") -> None:
    """Add a version. Of two that agree, such as 12 and 12.3, the one that says more is kept."""
    before = parts.get(name, version)
    if not covers(name, version, before) and not covers(name, before, version):
        raise contradiction(name, before, version, by)
    parts[name] = max(before, version, key=len)


def require_no_file(word: str) -> None:
    """Require that a word is no name of a file. Raises UsageProblem, with how a file is read."""
    if os.path.isfile(word):  # noqa: PTH113  (a name that is too long is none)
        fix = f"Read it: envkit compat --from {quote(word)}"
        raise UsageProblem(what=f"{word!r} is a file, and no NAME=VERSION.", fix=fix)


@contextmanager
def located(place: str) -> Iterator[None]:
    """Have what is wrong with a word say where that is, if it is in a file."""
    try:
        yield
    except UsageProblem as error:
        if place and place not in error.what:
            error.what = f"{place}: {error.what}"
        raise


def contradiction(name: str, before: str, version: str, by: str = "") -> UsageProblem:
    """Return the problem of two versions of one component."""
    title = known().component[name].title
    which = f" ({by})" if by else ""
    return UsageProblem(what=f"{title} is asked for twice: {before} and {version}{which}.", fix="Ask for one of them.")


def toolchain(name: str, version: str) -> Mapping[str, str]:
    """Return what a toolchain of EasyBuild brings; nothing where it is the name of none. Raises UsageProblem."""
    toolchains = recipes().toolchain
    of_name = [title.removeprefix(f"{name}-") for title in toolchains if title.startswith(f"{name}-")]
    if of_name and version not in of_name:
        raise UsageProblem(what=f"No toolchain {name}={version} is known.", fix=f"There are: {', '.join(of_name)}.")
    return toolchains[f"{name}-{version}"] if of_name else {}


def ranged(name: str, text: str) -> str:
    """Return a range. Raises UsageProblem where it is none, or where no release is in it."""
    entry, text = known().component[name], text.removesuffix(",")
    try:
        parts = [part.strip() for part in text.split(",")]
        if (
            not all(parts)
            or ENDLESS.search(text)
            or any(condition.operator == "===" for condition in SpecifierSet(text))
        ):
            raise InvalidSpecifier
    except InvalidSpecifier:
        fix = f"Write it as {name}>=2.1,<2.3 (PEP 440)."
        raise UsageProblem(what=f"{name}{text}: this is no range of versions.", fix=fix) from None
    if not entry.releases:
        rangeable = ", ".join(name for name, other in known().component.items() if other.releases)
        raise UsageProblem(
            what=f"A range of {entry.title} cannot be judged: envkit has no list of its releases.",
            fix=f"Ask for one version, {name}=VERSION. Ranges are taken of: {rangeable}.",
        )
    if not inside(name, short(name, text)):
        listed = ", ".join(entry.releases)
        raise UsageProblem(what=f"{name}{text}: no release of {entry.title} is in it.", fix=f"There are: {listed}.")
    return text


def joined(name: str, before: str, text: str, by: str = "") -> str:
    """Return the range that is in both of two. Raises UsageProblem where no release is, as far as can be told."""
    if not before or SpecifierSet(f"{before},{text}") == SpecifierSet(before):
        return before or text
    both = f"{before},{text}"
    if not inside(name, short(name, both)):
        raise contradiction(name, before, text, by)
    return both


def short(name: str, text: str) -> str:
    """Return a range. Raises UsageProblem where it has so many conditions that they would take too long."""
    if len(SpecifierSet(text)) > CONDITIONS:
        title = known().component[name].title
        raise UsageProblem(what=f"The range of {title} has more than {CONDITIONS} conditions.", fix="Write it shorter.")
    return text


def inside(name: str, text: str) -> list[str]:
    """Return the releases that are in a range, or a patch level of which is, the newest first."""
    releases = [".".join(map(str, numbers)) for numbers in reversed(known().component[name].series_of_releases())]
    return [version for version in releases if reaches(text, version)]


def judge_asked(asked: Query) -> Judgement:
    """Judge what is asked for: of ranges the versions that go together best, of those the newest.

    Raises UsageProblem where ranges stand for too many combinations.
    """
    had = [judge({**asked.parts, **chosen}) for chosen in by_evidence(asked)] if asked.ranges else []
    works = [judgement for judgement in had if judgement.verdict is Verdict.WORKS]
    judgements = works or [*had, *(judge({**asked.parts, **chosen}) for chosen in by_release(asked))]
    best = min(ORDER.index(judgement.verdict) for judgement in judgements)
    fitting = [judgement for judgement in judgements if ORDER.index(judgement.verdict) == best]
    return max(fitting, key=lambda one: [release(one.parts[name]) for name in asked.ranges])


def by_evidence(asked: Query) -> list[dict[str, str]]:
    """Return the versions in the ranges that somebody has had with the rest."""
    wanted = {name: SpecifierSet(text) for name, text in asked.ranges.items()}
    choices = list[dict[str, str]]()
    for has in (proof.parts for proof in proofs()):
        fits_all = all(name in has and covers(name, has[name], version) for name, version in asked.parts.items())
        if fits_all and all(name in has and specifier.contains(has[name]) for name, specifier in wanted.items()):
            choices.append({name: has[name] for name in wanted})
    return [choice for number, choice in enumerate(choices) if choice not in choices[:number]]


def by_release(asked: Query) -> Iterator[dict[str, str]]:
    """Yield every choice of releases in the ranges. Raises UsageProblem where there are too many."""
    each = [inside(name, text) for name, text in asked.ranges.items()]
    if (count := math.prod(map(len, each))) > MOST:
        raise UsageProblem(what=f"These ranges are {count} combinations.", fix=f"Narrow them, to {MOST} at most.")
    for versions in itertools.product(*each):
        yield dict(zip(asked.ranges, versions, strict=True))


def of_file(path: Path) -> list[str]:
    """Return the words for what a file tells: of pip freeze, pip list, conda list, requirements, or module list.

    What envkit knows nothing of is left out. Raises UsageProblem where the file cannot be read, or a line about a
    component of envkit's does not say which version it is.
    """
    try:
        text = redact(files.read(path, LARGEST).decode("utf-8-sig"))
    except (OSError, ValueError) as error:
        why = error.strerror or "" if isinstance(error, OSError) else "It is no text."
        raise UsageProblem(what=f"{path} cannot be read.", why=why, fix="Name a text file.") from None
    lines = ((line, f"{path}:{number}") for number, line in joined_lines(text))
    words = [Told(word, place) for line, place in lines for word in of_line(line, place)]
    if not words:
        fix = "It takes what pip freeze, pip list, conda list or module list print, or a requirements file."
        if re.search(r"^dependencies:", text, re.MULTILINE):
            fix = "It seems to be an environment.yml: give what 'conda list' prints where it is installed."
        raise UsageProblem(what=f"{path} names nothing that envkit compat knows.", fix=fix)
    return list(dict.fromkeys(words))


def joined_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with the number of the first one of each, as pip reads them: those that end in a backslash go on.

    The comment in which pip freeze names an editable package and its version stands for the line that follows it.
    """
    begun, parts, editable = 0, list[str](), False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not comment:
            begun = begun or number
            parts.append(line.rstrip("\\"))
            continue
        whole = "".join([*parts, f" {line}" if comment else line])
        if not (editable and EDITABLE.match(whole)):
            match = FREEZE.fullmatch(whole)
            yield begun or number, f"{match[1]}=={match[2]}" if match else whole
        begun, parts, editable = 0, [], bool(FREEZE.fullmatch(whole))


def of_line(line: str, place: str) -> Iterator[str]:
    """Yield the words of a line of a file."""
    line = re.sub(r"(^|\s)#.*", "", line).strip()
    if re.match(r"-[rc]|--(requirement|constraint)\b", line):
        raise unreadable(place, f"{line!r} names another file", "Give what pip freeze prints there")
    editable = EDITABLE.match(line)
    if line.startswith("-") and not editable:
        return
    wanted = re.split(r"(?:^|\s)--", line[editable.end() if editable else 0 :])[0].strip()
    plain, _, marker = (part.strip() for part in re.sub(r"\s;", "\n;", wanted).partition("\n;"))
    if editable or SOURCE.match(plain):
        yield from of_source(plain, marker, place)
        return
    if "://" not in line and "==" not in line and (modules := MODULE.findall(line)):
        yield from of_modules(modules)
        return
    match = LINE.fullmatch(wanted)
    name = match[1].lower().replace("_", "-") if match else ""
    if match is None or name not in names() or name in OTHERS:
        return
    if match[2].startswith("@"):
        if marker:
            raise unreadable(place, f"{name} depends on {marker}", "Give what pip freeze prints there")
        yield from of_address(name, plain.partition("@")[2].strip(), place)
        return
    rest, semicolon, marker = (part.strip() for part in match[2].partition(";"))
    rest = rest[1:-1].strip() if rest.startswith("(") and rest.endswith(")") else rest
    if semicolon:
        raise unreadable(place, f"{name} depends on {marker}", "Give what pip freeze prints there")
    if column := COLUMN.fullmatch(rest):
        yield f"{name}={column[1]}"
    elif WORD.fullmatch(f"{name}{rest}") and not re.match(r"[\w.]", rest):
        yield f"{name}{rest}".replace(" ", "")
    elif not rest:
        raise unreadable(place, f"{name} has no version", "Give what pip freeze prints there")


def of_source(source: str, marker: str, place: str) -> Iterator[str]:
    """Yield the words of a line that is a path or an address alone. What it names may be nothing that compat knows."""
    path = source.partition("#")[0].partition("?")[0]
    if "://" in path:
        path = path.partition("://")[2].partition("/")[2].partition("@")[0]
        if match := re.match(r"([^/]+/[^/]+)/archive/", path):  # what a forge makes of a tag
            path = path if path.endswith(".whl") else match[1]
    last = unquote(path.rstrip("/").rpartition("/")[2].partition("[")[0])
    egg = re.search(r"[#&]egg=([\w.-]+)", source)
    archive = last.endswith((".whl", ".tar.gz", ".zip"))
    name = re.sub(r"-\d.*", "", egg[1] if egg else last).removesuffix(".git").lower().replace("_", "-")
    if name not in names() or name in OTHERS or not (archive or names()[name] in PACKAGES):
        return
    if marker:
        raise unreadable(place, f"{name} depends on {marker}", "Give what pip freeze prints there")
    yield from of_address(name, source, place)


def of_modules(modules: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the words of modules, in whatever case they are named: GCC 12.3.0, PyTorch 2.1.2-foss-2023a, cuda 12.4."""
    modular = {name: entry for name, entry in known().component.items() if entry.recipe or name in MODULES}
    titles = {other: name for name, entry in modular.items() for other in (name, entry.recipe.lower(), *entry.also)}
    for title, version in ((title.lower(), version) for title, version in modules):
        name, plain = MODULE_NAMES.get(title) or titles.get(title), version.partition("-")[0]
        if name and re.fullmatch(r"\d+(\.\d+)*", plain):
            yield f"{name}={plain}"
        elif f"{title}-{version}" in recipes().toolchain:
            yield f"{title}={version}"


def of_address(name: str, address: str, place: str) -> Iterator[str]:
    """Yield the words of a wheel, a source archive or a folder of sources, by its name at the end of an address."""
    path = address.partition("#")[0].partition("?")[0].partition("[")[0].rstrip("/")
    file = unquote(path.rpartition("/")[2])
    if re.match(r"file:|\.{0,2}/|~", path) and not file.endswith((".whl", ".tar.gz", ".zip")):
        file += ".tar.gz"  # a folder that such an archive was unpacked to is called as it is
    tags = frozenset[Tag]()
    try:
        if file.endswith(".whl"):
            own, version, _, tags = parse_wheel_filename(file)
        else:
            own, version = parse_sdist_filename(file)
    except ValueError:  # no such name, or with a number in it that has no end
        own = canonicalize_name("")
    if names().get(own) != names()[name]:
        raise unreadable(place, f"{name} comes from {address or 'an address'}", f"Write {name}=VERSION")
    yield f"{name}={version}"
    pythons = {match[1] for tag in tags if (match := re.fullmatch(r"cp3(\d+)", tag.interpreter)) and tag.abi != "abi3"}
    if len(pythons) == 1:
        yield f"python=3.{pythons.pop()}"


def unreadable(place: str, what: str, fix: str) -> UsageProblem:
    """Return the problem of a line that does not say which version it means."""
    return UsageProblem(what=f"{place}: {what}: which version it is, this does not say.", fix=f"{fix}.")
