"""Apptainer's definition files: what they take, what they copy, and the layers that they can be built in.

A definition file has stages, a stage has a header and sections. Apptainer itself joins sections of one name and keeps
nothing between two builds. Here a ``%post`` ends a layer: the ``%files`` before it and itself. A layer can be built as
an image of its own, and the next one on top of it, with the same result.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envkit.errors import RecipeInvalid
from envkit.system import files

HEADER = re.compile(r"^(\w+):[ \t]*(.*)$")
SECTION = re.compile(r"^%(\w+)(?:[ \t]+(.*))?$")
ARGUMENT = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section: its name, the words after it, and its text, which begins after the first line."""

    name: str
    words: str
    text: str

    def __str__(self) -> str:
        return f"%{self.name}{' ' if self.words else ''}{self.words}\n{self.text}"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage: its header by keyword, and its sections in the order written."""

    header: Mapping[str, str]
    sections: tuple[Section, ...]

    @property
    def name(self) -> str:
        """The stage's name; empty where it has none."""
        return self.header.get("Stage", "")

    @property
    def arguments(self) -> dict[str, str]:
        """The arguments that ``%arguments`` names, with their defaults."""
        lines = (line.strip() for s in self.sections if s.name == "arguments" for line in s.text.splitlines())
        pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
        return {name.strip(): value.strip() for name, _, value in pairs}

    @property
    def layers(self) -> tuple[tuple[Section, ...], ...]:
        """The sections that make each layer; those that belong to none come with the last."""
        layers: list[list[Section]] = [[]]
        posts = sum(section.name == "post" for section in self.sections)
        for section in self.sections:
            if section.name == "arguments":
                continue
            layers[-1].append(section)
            if section.name == "post":
                posts -= 1
                if posts:
                    layers.append([])
        return tuple(map(tuple, layers))


def read(path: Path) -> tuple[Stage, ...]:
    """Return the stages of a definition file. Raises RecipeInvalid."""
    try:
        lines = files.read(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeInvalid(what=f"The recipe {path} cannot be read.", why=str(error)) from error
    stages: list[tuple[dict[str, str], list[tuple[str, str, list[str]]]]] = []
    for number, line in enumerate(lines, start=1):
        header, section = HEADER.match(line), SECTION.match(line)
        if header and header[1].lower() == "bootstrap":
            stages.append(({"Bootstrap": header[2].strip()}, []))
        elif not stages and line.strip() and not line.startswith("#"):
            raise RecipeInvalid(what=f"{path}:{number}: a recipe begins with Bootstrap:.", why=line)
        elif stages and section:
            stages[-1][1].append((section[1], section[2] or "", []))
        elif stages and not stages[-1][1] and header:
            stages[-1][0][header[1]] = header[2].strip()
        elif stages and stages[-1][1]:
            stages[-1][1][-1][2].append(line)
    if not stages:
        raise RecipeInvalid(what=f"The recipe {path} is empty.")
    return tuple(
        Stage(
            header=header,
            sections=tuple(Section(name=n, words=w, text="\n".join(text).rstrip() + "\n") for n, w, text in contents),
        )
        for header, contents in stages
    )


def write(stages: Sequence[tuple[Mapping[str, str], Sequence[Section]]]) -> str:
    """Return the text of a definition file of headers and sections."""
    parts = []
    for header, sections in stages:
        lines = "".join(f"{keyword}: {value}\n" for keyword, value in header.items())
        parts.append("\n".join((lines, *map(str, sections))))
    return "\n".join(parts)


def filled(text: str, arguments: Mapping[str, str]) -> str:
    """Return a text with its arguments filled in. Raises RecipeInvalid for one that has no value."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in arguments:
            raise RecipeInvalid(
                what=f"The recipe has an argument without a value: {match[1]}.",
                fix=f"Give it one: --build-arg {match[1]}=VALUE",
            )
        return arguments[match[1]]

    return ARGUMENT.sub(value, text)


def copied(sections: Sequence[Section], arguments: Mapping[str, str], folder: Path) -> list[tuple[Path, str]]:
    """Return what ``%files`` takes from the host: each path, relative ones below ``folder``, and its destination."""
    copies = []
    for section in sections:
        if section.name != "files" or section.words:
            continue
        for line in filled(section.text, arguments).splitlines():
            source, _, destination = line.strip().partition(" ")
            if source and not source.startswith("#"):
                copies += [(path, destination.strip() or source) for path in matching(folder, source)]
    return copies


def absolute(section: Section, arguments: Mapping[str, str], folder: Path) -> Section:
    """Return a section of ``%files`` with what it takes from the host as absolute paths; any other as it is."""
    if section.name != "files" or section.words:
        return section
    lines = []
    for line in filled(section.text, arguments).splitlines():
        source, space, destination = line.strip().partition(" ")
        lines.append(f"    {(folder / source).absolute()}{space}{destination}" if source else "")
    return Section(name=section.name, words="", text="\n".join(lines) + "\n")


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files that a pattern of ``%files`` means. Raises RecipeInvalid if there is none."""
    place = (folder / pattern).absolute()
    paths = sorted(place.parent.glob(place.name))
    if not paths:
        raise RecipeInvalid(what=f"The recipe copies {pattern}, and there is no such file.", why=f"In {folder}.")
    return paths
