"""The stacks that a site offers besides envkit's own: a file that the configuration names (``stacks``).

In it is a table for each, with the recipe of EasyBuild that it is made by; so a site's own environment has a name, a
line in ``envkit list``, and can be what ``envkit install`` takes where no name is given.
"""

import difflib
import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from envkit.config import configuration as config
from envkit.environments.name_syntax import is_name
from envkit.errors import ConfigInvalid
from envkit.knowledge import methods
from envkit.machine.host import Accelerator
from envkit.system import owners, record, toml

LONGEST_NOTE = 200  # characters
MOST_MB = 10_000_000
MOST_FOLDERS = 2000  # below one of recipes
RELEASE = re.compile(r"\d{4}\.\d{2}(-\d{3})?", re.ASCII)
MACHINE = re.compile(r"[a-z0-9_]{1,20}", re.ASCII)
FORM = "docs/stacks.md has each key, and a complete file."


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A stack of a site: its recipe, what that is for, and what there is to say of it.

    ``easyconfig`` is the path of a recipe, from the folder of the file. Without ``accelerator`` the recipe's name tells
    it. ``method`` is one that builds recipes; ``release`` the one of EESSI that it is built on, by a method that takes
    one. ``default``: it is taken before envkit's own where no stack is named. ``requires`` are build flags that its
    Horovod must have, ``machines`` the machine types that it is for (none: all), ``disk_mb`` the room that it takes,
    about (0: not known).
    """

    easyconfig: str
    framework: str
    accelerator: str = ""
    method: str = methods.usual()
    release: str = ""
    requires: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    default: bool = False
    note: str = ""
    disk_mb: int = 0

    @property
    def device(self) -> str:
        """The accelerator that it is for."""
        return self.accelerator or device_in(Path(self.easyconfig).stem).value


FIELDS = {field.name: field for field in msgspec.structs.fields(Offer)}
CHOICES = {
    "framework": ("pytorch", "tensorflow"),
    "accelerator": tuple(device.value for device in Accelerator),
    "method": tuple(name for name in methods.names() if methods.takes(name, "release") or name == methods.usual()),
}
FLAGS = ("mpi", "gloo", "nccl", "cuda", "rocm")


def offered(own: tuple[str, ...]) -> tuple[tuple[str, Offer], ...]:
    """Return the stacks of the site by name, none without a file; ``own`` are names that are taken.

    Raises ConfigInvalid where the file is not there, has a mistake in it, or can be changed by others.
    """
    settings = config.read()
    value = settings.values.get("stacks")
    if value is None:
        return ()
    path = Path(value.value)
    trust = settings.get("trust") or ()
    trusted = owners.known(trust)
    if value.line:  # whoever may say which file it is may say what is in it
        namer = Path(value.place).stat().st_uid
        trusted = owners.Trusted(users=trusted.users | {namer}, groups=trusted.groups)
    try:
        data = config.content(path, trusted)
    except ValueError as error:
        raise mistaken(f"{path}: {error}") from error
    if data is None:
        raise mistaken(f"{path}: There is no such file; it is named by {value.where}.")
    try:
        offers = read(data, path, own)
    except ValueError as error:
        raise mistaken(str(error)) from error
    recipes = [Path(offer.easyconfig) for _, offer in offers]
    for used in (path, *recipes, *sorted({recipe.parent for recipe in recipes})):
        if why := exposed(used, trusted):
            raise mistaken(why)
    return offers


def exposed(used: Path, trusted: owners.Trusted) -> str:
    """Say what somebody else can change: a file or folder, one above it, a recipe below it; nothing if nobody can.

    eb looks for recipes in folders below, too, and goes where links lead.
    """
    todo, seen = [used], set[Path]()
    while todo:
        path = todo.pop()
        if found := owners.usurper(path, trusted):
            return f"{found[0]}: {found[1]}, who may not say what counts for you."
        try:
            state, real = path.stat(), path.resolve()
        except OSError:  # a link that leads nowhere, or what this user cannot look at, and so cannot be read either
            continue
        if who := owners.stranger(state, path, trusted):
            return f"{path}: {who[0]}, who may not say what counts for you."
        if real in seen or not stat.S_ISDIR(state.st_mode):
            continue
        seen.add(real)
        if len(seen) > MOST_FOLDERS:
            return f"{used}: more than {MOST_FOLDERS} folders are below it. Keep the recipes in one of their own."
        todo += entries(path)
    return ""


def entries(folder: Path) -> list[Path]:
    """Return the folders, recipes and patches in a folder, as far as this user can look at it."""
    try:
        with os.scandir(folder) as found:
            return [Path(one.path) for one in found if one.name.endswith((".eb", ".patch")) or one.is_dir()]
    except OSError:
        return []


def device_in(name: str) -> Accelerator:
    """Return the accelerator that the name of a recipe says it is for."""
    found = re.search(r"(?<![a-z])(cuda|rocm)(?![a-z])", name.lower())
    return Accelerator(found[1]) if found else Accelerator.CPU


def mistaken(why: str) -> ConfigInvalid:
    """Return what is wrong with a file of stacks as a failure."""
    return ConfigInvalid(
        what="The stacks that your site offers cannot be read.", why=why, fix=f"Have it corrected. {FORM}"
    )


@cache
def read(data: bytes, path: Path, own: tuple[str, ...]) -> tuple[tuple[str, Offer], ...]:
    """Return what a file says. Raises ValueError with each mistake in a line."""
    text, tables = toml.parsed(data, str(path))
    offers, wrong, defaults = list[tuple[str, Offer]](), list[str](), dict[tuple[str, str, str], str]()
    for name, table in tables.items():
        found = list(mistakes(name, table, path, own, text))
        wrong += found
        if not found:
            offer = record.convert(table, Offer)
            kind = (offer.method, offer.framework, offer.device)
            if offer.default and (first := defaults.setdefault(kind, name)) != name:
                where = toml.place(path, text, f"{name}.default")
                wrong.append(f"{where}: {name}: 'default': {first} is the one for {' on '.join(kind[1:])} already.")
            recipe = os.path.normpath(path.parent / offer.easyconfig)
            offers.append((name, msgspec.structs.replace(offer, easyconfig=recipe)))
    if wrong:
        raise ValueError("\n".join(wrong))
    return tuple(offers)


def mistakes(name: str, table: Any, path: Path, own: tuple[str, ...], text: str) -> Iterator[str]:
    """Yield what is wrong with the table of a stack, each with its line where it has one."""
    here = toml.place(path, text, name)
    if not isinstance(table, dict):
        yield f"{here}: {name!a} is no table: write [{toml.shown(name)}], and its keys below."
        return
    if not is_name(name) or name.endswith(".eb"):
        yield (
            f"{here}: {name!a} cannot be the name of a stack: it has letters, digits and _ . + -, begins with a "
            "letter, a digit or _, does not end in .eb, and is no longer than 150."
        )
        return
    if name in own:
        yield f"{here}: {name} is a stack of envkit's own: give yours another name."
    if name in CHOICES["framework"]:
        yield f"{here}: {name} means any stack for it: give yours another name."
    if "release" in table and not methods.takes(str(table.get("method")), "release"):
        yield f"{here}: {name}: 'release' is for the method {methods.of_option('release')}."
    is_nested = any(key not in FIELDS and isinstance(value, dict) for key, value in table.items())
    for key, field in FIELDS.items():
        if not is_nested and field.required and key not in table:
            yield f"{here}: {name}: the key '{key}' is missing: expected {expected(key)}."
    for key, value in table.items():
        where = f"{toml.place(path, text, f'{name}.{key}')}: {name}"
        if key not in FIELDS and isinstance(value, dict):
            yield f"{where}: there is no table in a table; a name with a dot takes quotes, as ['{name}.{key}']."
        elif key not in FIELDS:
            near = difflib.get_close_matches(key, FIELDS, 1)
            yield f"{where}: there is no key {key!a}" + (
                f". Did you mean '{near[0]}'?" if near else f"; there are {', '.join(FIELDS)}."
            )
        elif problem := refused(key, value, path):
            yield f"{where}: '{key}': {problem}"


def refused(key: str, value: Any, path: Path) -> str:
    """Say what is wrong with the value of a key; nothing if all is right."""
    try:
        record.convert(value, FIELDS[key].type)
    except msgspec.ValidationError:
        return f"expected {expected(key)}, found {toml.shown(value)}."
    if key == "easyconfig":
        recipe = path.parent / value
        if not value.endswith(".eb") or not is_name(recipe.stem):
            return f"expected {expected(key)}, found {toml.shown(value)}."
        if not os.path.isfile(recipe):  # noqa: PTH113  (False, too, for what this user cannot look at)
            return f"there is no file {recipe}, or you cannot look into its folder."
        return "" if os.access(recipe, os.R_OK) else f"you cannot read {recipe}."
    return "" if is_right(key, value) else f"expected {expected(key)}, found {toml.shown(value)}."


def is_right(key: str, value: Any) -> bool:
    """Say whether a value of the right type is one that its key can have."""
    match key:
        case "requires":
            return all(flag in FLAGS for flag in value)
        case "note":
            return value.isprintable() and len(value) <= LONGEST_NOTE
        case "disk_mb":
            return bool(0 <= value <= MOST_MB)
        case "release":
            return RELEASE.fullmatch(value) is not None
        case "machines":
            return bool(value) and all(MACHINE.fullmatch(name) for name in value)
    return key not in CHOICES or value in CHOICES[key]


def expected(key: str) -> str:
    """Say what the value of a key is."""
    if key in CHOICES:
        return f"one of {', '.join(CHOICES[key])}"
    return {
        "easyconfig": "the path of a recipe, from the folder of this file, such as 'NAME-VERSION.eb'",
        "release": "a release of EESSI, such as '2023.06'",
        "requires": f"a list of build flags: {', '.join(FLAGS)}",
        "machines": "a list of machine types, such as ['x86_64']",
        "default": "true or false",
        "note": f"a line of text of at most {LONGEST_NOTE} characters",
        "disk_mb": f"a whole number of megabytes, not more than {MOST_MB}",
    }[key]
