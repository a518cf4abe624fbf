"""The configuration files that there are, read, and which value counts: of the variable, else of the nearest file.

From the nearest to the most common one: the project's, the user's, that of this installation of envkit, the system's.
A file with a mistake in it is not used at all.
"""

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envkit.config.keys import KEYS, variables
from envkit.errors import ConfigInvalid
from envkit.system import toml

SYSTEM = Path("/etc/envkit/config.toml")
PROJECT = "envkit.toml"
PREFIX = "ENVKIT_"
ALIKE = 0.75  # of two names, from which on one can be meant by the other
LARGEST = 64_000  # bytes
MOST_DOTS = 200  # in a line: what has more is no key, and takes long to read
MOST_MISTAKES = 10
LOGIN = re.compile("[@?#]")  # what has none of these has no password in a URL
Settings = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Value:
    """The value that counts for a key, and where it is from: a variable, or a file and a line (0: not known)."""

    value: Any
    level: str
    place: str
    line: int = 0

    @property
    def where(self) -> str:
        """The place that it is from, in words."""
        return f"{self.place}:{self.line}" if self.line else self.place


@dataclass(frozen=True, kw_only=True)
class ConfigurationFile:
    """A file of one level; ``state`` is absent, used, refused (others can change it) or invalid, ``why`` says why."""

    level: str
    path: Path
    state: str
    why: tuple[str, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Every value that is set, the files in the order of the levels, the nearest first, and every mistake."""

    values: Mapping[str, Value]
    files: tuple[ConfigurationFile, ...]
    mistakes: tuple[str, ...]

    def get(self, key: str) -> Any:
        """Return the value of a key; None where none is set."""
        setting = self.values.get(key)
        return setting and setting.value

    def defaults(self) -> dict[str, Any]:
        """Return what it says for the options of commands, as click takes it: by command, by parameter."""
        options: dict[str, Any] = {}
        for name, setting in self.values.items():
            for command in KEYS[name].commands:
                if command == "fetch" and setting.value == "auto" and name == "method":
                    continue  # what this machine can have does not count there
                table = options
                for word in command.split():
                    table = table.setdefault(word, {})
                table[KEYS[name].option] = setting.value
        return options


def read(env: Settings = os.environ, folder: Path | None = None) -> Configuration:
    """Return the configuration as it counts for a folder, else for the one that this process is in."""
    from envkit.system import owners

    variable_values, wrong = of_variables(env)
    files = [of_file(*place) for place in places(env)]
    trust = {**first(files), **variable_values}.get("trust")
    if path := project(folder, env):
        files.insert(0, of_file("project", path, owners.known(trust.value if trust else ())))
    mistakes = (*wrong, *(line for file in files if file.state == "invalid" for line in file.why))
    return Configuration(values={**first(files), **variable_values}, files=tuple(files), mistakes=mistakes)


def message() -> str:
    """Return the line that the site has for its users, as it is shown; nothing where there is none."""
    text = read().get("message")
    return f"Your site: {text}" if text else ""


def places(env: Settings, name: str = "config.toml") -> list[tuple[str, Path, Any]]:
    """Return where a file of configuration may be, but for a project's, and whose it may be: level, path, owners."""
    from envkit.system import owners

    root = owners.known(())
    installed = owners.Trusted(users=root.users | {Path(__file__).stat().st_uid}, groups=root.groups)
    own = users_own(env)
    site, system = Path(sys.prefix, "etc/envkit", name), SYSTEM.with_name(name)
    users = [("user", own.with_name(name), root)] if own else []
    return [*users, ("site", site, installed), ("system", system, root)]


def required(env: Settings = os.environ) -> Configuration:
    """Return the configuration. Raises ConfigInvalid where there is a mistake in it."""
    configuration = read(env)
    if error := mistaken(configuration):
        raise error
    return configuration


def mistaken(configuration: Configuration) -> ConfigInvalid | None:
    """Return the mistakes of a configuration, if there are any."""
    if not configuration.mistakes:
        return None
    return ConfigInvalid(
        what="The configuration has a mistake in it.",
        why="\n".join(configuration.mistakes),
        fix="Correct it. 'envkit config' shows each key, and where its value is from.",
    )


def notes(configuration: Configuration, env: Settings = os.environ) -> list[str]:
    """Return what is no mistake, and is likely to be none of what was meant: misspelt variables, unknown names."""
    from envkit.system import owners

    lines = [f"{name} is no variable of envkit's. Did you mean {meant}?" for name, meant in misspelt(env)]
    if trust := configuration.values.get("trust"):
        lines += [f"{trust.where}: 'trust': {text}, so nobody is trusted by it." for text in owners.absent(trust.value)]
    return lines


def misspelt(env: Settings) -> Iterator[tuple[str, str]]:
    """Yield the variables that look like those of a key, and the nearest of these."""
    import difflib

    names = [variable for key in KEYS for variable in variables(key) if variable.startswith(PREFIX)]
    for name in sorted(env):
        if name.startswith(PREFIX) and name not in names:
            own, endings = name.removeprefix(PREFIX), [variable.removeprefix(PREFIX) for variable in names]
            yield from ((name, PREFIX + near) for near in difflib.get_close_matches(own, endings, 1, ALIKE))


def first(files: Iterable[ConfigurationFile]) -> dict[str, Value]:
    """Return the values of several files, the nearest first."""
    values: dict[str, Value] = {}
    for file in files:
        values = {**file.values, **values}
    return values


def users_own(env: Settings) -> Path | None:
    """Return where the user's file is."""
    named = env.get("XDG_CONFIG_HOME", "")
    home = env.get("HOME", "")
    folder = Path(named) if named.startswith("/") else Path(home, ".config") if home.startswith("/") else None
    return folder / "envkit" / "config.toml" if folder else None


def project(folder: Path | None, env: Settings) -> Path | None:
    """Return the file of the project that a folder is in: there or above, up to the home or a repository's root."""
    try:
        start = folder or Path.cwd()
    except OSError:  # the folder has gone
        return None
    for place in (start, *start.parents):
        if os.path.isfile(place / PROJECT):  # noqa: PTH113  (False for what this user cannot look at)
            return place / PROJECT
        if str(place) == env.get("HOME", "").rstrip("/") or os.path.lexists(place / ".git"):
            return None
    return None


def of_variables(env: Settings) -> tuple[dict[str, Value], list[str]]:
    """Return what variables say, and what is wrong with them."""
    values, wrong = dict[str, Value](), list[str]()
    for name, key in KEYS.items():
        variable = next((candidate for candidate in variables(name) if env.get(candidate)), "")
        if not variable:
            continue
        text = env[variable]
        try:
            value = text if name == "prefix" else key.take(key.of_text(text))  # a relative one is judged by who uses it
        except ValueError:
            wrong.append(f"{variable}: expected {key.expected}, found {shown(name, text)}.")
        else:
            values[name] = Value(value=value, level="variable", place=variable)
    return values, wrong


def of_file(level: str, path: Path, trusted: Any) -> ConfigurationFile:
    """Read the file of a level, of which it is said who is trusted."""
    try:
        data = content(path, trusted)
    except ValueError as error:
        return unusable(level, path, str(error))
    if data is None:
        return ConfigurationFile(level=level, path=path, state="absent")
    values, wrong = parsed(data, level, path)
    if wrong:
        return ConfigurationFile(level=level, path=path, state="invalid", why=tuple(wrong))
    return ConfigurationFile(level=level, path=path, state="used", values=values)


def content(path: Path, trusted: Any) -> bytes | None:
    """Return what is in a file, None where there is none. Raises ValueError for one that others can change."""
    from envkit.system import files, owners

    try:
        state, itself = path.stat(), path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"{error.strerror}.") from error
    of_link = owners.stranger(itself, path, trusted, is_open=False) if stat.S_ISLNK(itself.st_mode) else None
    if who := of_link or owners.stranger(state, path, trusted):
        raise ValueError(f"{who[0]}, who may not say what counts for you.")
    if not stat.S_ISREG(state.st_mode) or state.st_size > LARGEST:
        raise ValueError("It is no plain file of at most 64 kB.")
    try:
        with files.open_plain(path) as stream:
            number = stream.fileno()
            if who := owners.stranger(os.fstat(number), number, trusted):  # another has been put in its place
                raise ValueError(f"{who[0]}, who may not say what counts for you.")
            data = stream.read(LARGEST + 1)
    except OSError as error:
        raise ValueError(f"{error.strerror}.") from error
    if len(data) > LARGEST:
        raise ValueError("It is no plain file of at most 64 kB.")
    return data


def unusable(level: str, path: Path, why: str) -> ConfigurationFile:
    """Return a file that is not used: a project's is left aside, any other is a mistake."""
    if level == "project":
        return ConfigurationFile(level=level, path=path, state="refused", why=(f"{path}: {why}",))
    return ConfigurationFile(level=level, path=path, state="invalid", why=(f"{path}: {why}",))


def parsed(data: bytes, level: str, path: Path) -> tuple[dict[str, Value], list[str]]:
    """Return the values in a file, and what is wrong with it, each with its line."""
    if any(line.count(b".") > MOST_DOTS for line in data.splitlines()):
        return {}, [f"{path}: a line has more than {MOST_DOTS} dots in it."]
    try:
        text, tables = toml.parsed(data, str(path))
    except ValueError as error:
        return {}, [str(error)]
    values, wrong = dict[str, Value](), list[str]()
    for name, value in flat(tables):
        if len(wrong) == MOST_MISTAKES:
            return values, [*wrong, f"{path}: and perhaps more."]
        line = toml.line_of(text, name)
        where = f"{path}:{line}" if line else str(path)
        if problem := refusal(name, value, level):
            wrong.append(f"{where}: {problem}")
        else:
            values[name] = Value(value=KEYS[name].take(value), level=level, place=str(path), line=line)
    return values, wrong


def flat(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the keys, those in a table behind its name; a table that is none of the tables is a value."""
    groups = {name.partition(".")[0] for name in KEYS if "." in name}
    for name, value in tables.items():
        if name in groups and isinstance(value, dict):
            yield from ((f"{name}.{key}", below) for key, below in value.items())
        else:
            yield name, value


def refusal(name: str, value: Any, level: str) -> str:
    """Say what is wrong with a key and its value; nothing if all is right."""
    if name not in KEYS or isinstance(value, dict):
        return unknown(name, is_table=isinstance(value, dict))
    key = KEYS[name]
    if level == "project" and not key.in_project:
        return f"the file of a project may not set '{name}', which says what is run. Set it in your own file."
    try:
        taken = key.take(value)
    except ValueError:
        return f"'{name}': expected {key.expected}, found {shown(name, value)}."
    if level == "project" and name == "environment" and "/" in taken:
        return "'environment': the file of a project may name only an installed environment, not a folder."
    return ""


def shown(name: str, value: Any) -> str:
    """Return what was found for a key as it may be shown: nothing of what may have a password in it."""
    from envkit.system.record import texts

    text = "\n".join(texts(value))
    if LOGIN.search(text) and (name == "cache.from" or "://" in text):
        return "what is not shown, since there may be a password in it"
    return toml.shown(value)


def unknown(name: str, *, is_table: bool = False) -> str:
    """Say that there is no such key or table, and which one is meant."""
    import difflib

    tables = sorted({dotted.partition(".")[0] for dotted in KEYS if "." in dotted})
    if is_table:
        return f"there is no table [{name}]; there is [{'], ['.join(tables)}]."
    if name in tables:
        return f"'{name}' is a table: write [{name}], and its keys below."
    if LOGIN.search(name):
        return "there is no such key; it is not shown, since there may be a password in it."
    last = {dotted.rpartition(".")[2]: dotted for dotted in KEYS}
    if len(name) > 40:
        return f"there is no key {name[:40]!a}..."
    near = difflib.get_close_matches(name, KEYS, 1) or difflib.get_close_matches(name.rpartition(".")[2], last, 1)
    table, _, key = (last.get(near[0], near[0]) if near else "").rpartition(".")
    place = f" in [{table}]" if table else ""
    return f"there is no key {name!a}." + (f" Did you mean '{key}'{place}?" if near else "")
