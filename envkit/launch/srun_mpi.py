"""How srun and an MPI find each other: the type of ``srun --mpi``, and the library of Slurm that an MPI asks for."""

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from envkit.binary.loader import read_loader_cache
from envkit.environments.receipt import Mpi
from envkit.launch.table import table
from envkit.system import process

LOADER_CACHE = Path("/etc/ld.so.cache")
FOLDERS = ("lib", "lib64", "lib/slurm", "lib64/slurm", *(f"lib/{arch}-linux-gnu" for arch in ("x86_64", "aarch64")))
EXPORT, TYPE = "--export=", "--mpi="


@cache
def listed() -> tuple[tuple[str, ...], str]:
    """Return the types that ``srun --mpi=list`` names, and what it said last. Its errors may name types, too."""
    answer = process.capture(["srun", "--mpi=list"], timeout_s=20)
    said = f"{answer.stdout}\n{answer.stderr}".strip().splitlines()
    lines = [re.sub(r".*versions available:", "", line) for line in said if not re.search(r"\berror\b", line)]
    found = re.findall(r"\b(pmix(?:_v\d+)?|pmi2|cray_shasta)\b", "\n".join(lines))
    return tuple(dict.fromkeys(found)), said[-1].strip() if said else ""


def row(mpi: Mpi | None) -> Mapping[str, Any]:
    """Return the row of an MPI, which is empty where there is none."""
    found: Mapping[str, Any] = table()["mpi"].get(mpi.family if mpi else "", {})
    return found


def api(kind: str) -> str:
    """Return the type of srun --mpi without the version of its plugin: pmix for pmix_v4."""
    return kind.partition("_v")[0]


def numbers(version: str) -> list[int]:
    """Return the numbers of a version; none of one that is not known."""
    return [int(number) for number in re.findall(r"\d+", version)]


def speaks(mpi: Mpi | None) -> tuple[str, ...]:
    """Return the types of ``srun --mpi`` that an MPI of this version speaks."""
    first, version = row(mpi).get("since", {}), numbers(mpi.version if mpi else "")
    return tuple(kind for kind in row(mpi).get("speaks", ()) if version >= numbers(first.get(api(kind), "")))


def common(mpi: Mpi | None, env: Mapping[str, str]) -> list[str]:
    """Return the types that both an MPI and this srun speak, but for those that the caller's settings rule out."""
    asked = env.get(row(mpi).get("chosen_by", ""), "").strip()
    return [kind for kind in speaks(mpi) if kind in listed()[0] and asked in ("", "auto", api(kind))]


def chosen(mpi: Mpi | None, env: Mapping[str, str] = os.environ) -> str:
    """Return the first type that both an MPI and this srun speak, or nothing."""
    needs = "library" in row(mpi)
    return next((kind for kind in common(mpi, env) if not needs or library(mpi, kind, env)), "")


def chosen_for_job(mpi: Mpi | None) -> str:
    """Return what ``chosen`` does, for a job; the first that the MPI speaks where no srun here tells its own."""
    if listed()[0] or "library" in row(mpi):
        return chosen(mpi)
    return next(iter(speaks(mpi)), "")


def why_not(mpi: Mpi, env: Mapping[str, str] = os.environ) -> str:
    """Say why srun cannot start the ranks of an MPI here."""
    types, said = listed()
    both, settings = dict.fromkeys(map(api, common(mpi, env))), row(mpi)
    if not types:
        return f"srun --mpi=list names no type here: {said or 'it prints nothing'}"
    named = [name for key in ("chosen_by", "variable") if (name := settings.get(key)) and env.get(name)]
    if named and any(kind in types for kind in speaks(mpi)):
        values = " and ".join(f"{name} is {env[name]}" for name in named)
        return f"{values}, by which {mpi.family} does not start under srun here ({', '.join(types)})"
    if both:
        names = " or ".join(settings["library"][kind][0] for kind in both)
        return f"Slurm has no {names} here, which {mpi.family} asks for under srun"
    return f"srun here does not speak what {mpi.family} does ({', '.join(types)})"


def library(mpi: Mpi | None, kind: str, env: Mapping[str, str]) -> str:
    """Return the library by which an MPI speaks a type with Slurm: as its variable names it, or where Slurm has it.

    One of PMI-1 that is named does not count: with that, only one rank of a node starts.
    """
    names = row(mpi).get("library", {})
    given = env.get(row(mpi).get("variable", ""), "").strip()
    if given and any(is_of(given, other) for other in names):
        return given if is_of(given, api(kind)) and ("/" not in given or Path(given).is_file()) else ""
    srun = process.which("srun", path=env.get("PATH"))
    root = Path(srun).resolve().parent.parent if srun else Path("/usr")
    cached = read_loader_cache(LOADER_CACHE.read_bytes()) if LOADER_CACHE.is_file() else {}
    for name in names.get(api(kind), ()):
        places = [*(root / folder / name for folder in FOLDERS), *cached.get(name, ())]
        if found := next((place for place in places if place.is_file() and "," not in str(place)), None):
            return str(found)
    return ""


def is_of(path: str, kind: str) -> bool:
    """Say whether a library is one for a type, by its name."""
    return f"lib{kind}." in Path(path).name


def for_job(mpi: Mpi | None, own: Sequence[str], *, is_image: bool = False) -> tuple[str, tuple[str, ...]]:
    """Return the type of ``srun --mpi`` for a job, nothing where srun cannot start its ranks, and other words for srun.

    A type among the site's ``own`` words is taken. In an image there is no library of Slurm's.
    """
    words = joined(own)
    named = [word.removeprefix(TYPE) for word in words if word.startswith(TYPE)]
    is_out = mpi is None or (is_image and "library" in row(mpi))
    kind = "" if is_out else named[-1] if named else chosen_for_job(mpi)
    others = [word for word in words if not word.startswith(TYPE)]
    return kind, merged([*exported(mpi, kind=kind), *others])


def joined(words: Sequence[str]) -> list[str]:
    """Return words for srun with --mpi and --export as one word each."""
    made = list[str]()
    for word in words:
        if made and made[-1] in ("--mpi", "--export"):
            made[-1] += f"={word}"
        else:
            made.append(word)
    return made


def exported(mpi: Mpi | None, env: Mapping[str, str] = os.environ, kind: str | None = None) -> tuple[str, ...]:
    """Return the word for srun that names Slurm's library to an MPI which asks for it; without srun it must not be set.

    With it ranks that nobody has started, or the MPI's own launcher, would seek Slurm and fail. ``kind`` is the type of
    ``srun --mpi``, else that which is chosen.
    """
    variable, kind = row(mpi).get("variable", ""), chosen(mpi, env) if kind is None else kind
    found = library(mpi, kind, env) if kind and variable else ""
    return (f"{EXPORT}ALL,{variable}={found}",) if found else ()


def merged(words: Sequence[str]) -> tuple[str, ...]:
    """Return words for srun, of which only the last ``--export`` would count, with one that says what all say.

    Whether all else is exported is as the last says, and so is a variable that it sets.
    """
    words = joined(words)
    exports = [word.removeprefix(EXPORT) for word in words if word.startswith(EXPORT)]
    if len(exports) < 2:
        return tuple(words)
    *before, last = exports
    is_set = {part.partition("=")[0] for part in last.split(",")}
    each = (part for export in before for part in export.split(",") if part not in ("", "ALL", "NONE", "NIL"))
    parts = [part for part in each if part.partition("=")[0] not in is_set]
    whole = ",".join([*([] if last in ("NONE", "NIL") else [last]), *parts]) or last
    return (*(word for word in words if not word.startswith(EXPORT)), f"{EXPORT}{whole}")
