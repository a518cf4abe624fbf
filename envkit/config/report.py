"""The report of ``envkit config``, as a table and as JSON, whose form is described by a schema."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from envkit.config.configuration import Configuration, Value
from envkit.config.keys import KEYS
from envkit.report.paper import Paper
from envkit.system import addresses

VERSION = 1
HEADER = ("KEY", "VALUE", "FROM")


class Level(StrEnum):
    """Where a value is from; of the levels the first that sets a key counts."""

    VARIABLE = "variable"
    PROJECT = "project"
    USER = "user"
    SITE = "site"
    SYSTEM = "system"
    DEFAULT = "default"


class FileState(StrEnum):
    """What becomes of a file: there is none; it is used; others can change it; there is a mistake in it."""

    ABSENT = "absent"
    USED = "used"
    REFUSED = "refused"
    INVALID = "invalid"


class ConfiguredKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key: what it is for, its value, and the variable or file and line (0: not known) that this is from."""

    key: str
    text: str
    value: str | int | tuple[str, ...] | None
    level: Level
    place: str
    line: int


class ReportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file, and why it is not used."""

    level: Level
    path: str
    state: FileState
    why: tuple[str, ...]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration: the version of its form, which changes with it, every key, every file, every mistake."""

    version: int
    settings: tuple[ConfiguredKey, ...]
    files: tuple[ReportedFile, ...]
    mistakes: tuple[str, ...]


def report(configuration: Configuration) -> Report:
    """Return what there is to show."""
    none = Value(value=None, level="default", place="")
    counts = {key: configuration.values.get(key, none) for key in KEYS}
    settings = tuple(configured(key, value) for key, value in counts.items())
    files = tuple(
        ReportedFile(level=Level(file.level), path=str(file.path), state=FileState(file.state), why=file.why)
        for file in configuration.files
    )
    return Report(version=VERSION, settings=settings, files=files, mistakes=configuration.mistakes)


def configured(key: str, setting: Value) -> ConfiguredKey:
    """Return a key as it may be shown: addresses without their passwords."""
    value = (
        tuple(map(without_password, setting.value))
        if isinstance(setting.value, tuple)
        else without_password(setting.value)
    )
    return ConfiguredKey(
        key=key, text=KEYS[key].text, value=value, level=Level(setting.level), place=setting.place, line=setting.line
    )


def without_password(value: Any) -> Any:
    """Return a value as it may be shown: a URL without its password."""
    return addresses.shown(value) if isinstance(value, str) and "://" in value else value


def to_json(full_report: Report) -> str:
    """Return it as JSON."""
    return msgspec.json.format(msgspec.json.encode(full_report)).decode()


def of_keys(full_report: Report, paper: Paper) -> list[str]:
    """Return the table of the keys; where that is too wide, the paths of files stand below it."""
    whole = Paper(width=1000).table(
        HEADER, [(setting.key, shown(setting), place(setting)) for setting in full_report.settings]
    )
    if max(map(len, whole)) <= paper.width:
        return paper.table(HEADER, [(setting.key, shown(setting), place(setting)) for setting in full_report.settings])
    rows = [
        (setting.key, shown(setting), f"{setting.level}, line {setting.line}" if setting.line else place(setting))
        for setting in full_report.settings
    ]
    used = [
        line
        for file in full_report.files
        if file.state is FileState.USED
        for line in paper.paragraph(file.level, "dim", file.path)
    ]
    return [*paper.table(HEADER, rows), *([""] if used else []), *used]


def shown(configured_key: ConfiguredKey) -> str:
    """Return a value in words."""
    return (
        ", ".join(configured_key.value)
        if isinstance(configured_key.value, tuple)
        else "-"
        if configured_key.value is None
        else str(configured_key.value)
    )


def place(configured_key: ConfiguredKey) -> str:
    """Return the level that a value is from, and where exactly."""
    where = f"{configured_key.place}:{configured_key.line}" if configured_key.line else configured_key.place
    return f"{configured_key.level}: {where}" if where else str(configured_key.level)


def of_files(full_report: Report, paper: Paper) -> list[str]:
    """Return the table of the files, and of those that are refused why."""
    rows = [(str(file.level), file.path, str(file.state)) for file in full_report.files]
    refused = [line for file in full_report.files if file.state is FileState.REFUSED for line in file.why]
    return [*paper.table(("LEVEL", "FILE", "STATE"), rows), *refused]
