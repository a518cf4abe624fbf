"""Profiles of sites: the folders, variables and scheduler options that images and jobs need there (sites/*.toml)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from envkit.errors import UsageProblem
from envkit.system import files, record, toml
from envkit.system.resources import data


class JobWords(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The needs of a job at a site: words for #SBATCH and #PBS, resources of each chunk of ``select``, and notes.

    ``mpiexec`` are options of PALS's mpiexec. If the key is there, even as an empty list, mpiexec starts the ranks.
    """

    partition: str = ""
    account: str = ""
    sbatch: tuple[str, ...] = ()
    qsub: tuple[str, ...] = ()
    select: tuple[str, ...] = ()
    mpiexec: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One site: folders and files to bind (PATH or SOURCE:TARGET), variables inside, words for srun, those for jobs.

    ``data`` are folders with sets of data such as MNIST, or with a folder for each.
    ``status`` says what was tried there, ``source`` where it is written.
    """

    title: str
    status: str
    source: str
    binds: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    data: tuple[str, ...] = ()
    job: JobWords = JobWords()


def names() -> list[str]:
    """Return the names of the sites that envkit knows."""
    return sorted(path.stem for path in data("machine/sites").glob("*.toml"))


def find(name: str) -> Site:
    """Return a site by its name, or by the path of a file. Raises UsageProblem."""
    path = Path(name) if name.endswith(".toml") else data("machine/sites") / f"{name}.toml"
    try:
        text, tables = toml.parsed(files.read(path, toml.LARGEST), str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageProblem(
            what=f"There is no site {name!r}.",
            why=f"envkit knows: {', '.join(names())}.",
            fix="Give the path of a file of your own (.toml); 'envkit/machine/sites' has examples.",
        ) from error
    except OSError as error:
        raise UsageProblem(
            what=f"{path} cannot be read.", why=f"{error.strerror or error}.", fix="Name a file that you may read."
        ) from error
    except ValueError as error:
        raise none(path, [str(error)]) from error
    if wrong := list(mistakes(tables, text, str(path))):
        raise none(path, wrong)
    return record.convert(tables, Site)


def none(path: Path, wrong: list[str]) -> UsageProblem:
    """Return what is wrong with a file as a failure."""
    return UsageProblem(
        what=f"{path} does not describe a site.",
        why="\n".join(wrong),
        fix="Correct it. docs/sites.md has each key, and a complete file.",
    )


def mistakes(tables: toml.Tables, text: str, path: str) -> Iterator[str]:
    """Yield each mistake in a file, with its line where it has one."""
    job = tables.get("job", {})
    for table, kind, values in (("", Site, tables), ("job", JobWords, job if isinstance(job, dict) else {})):
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        for key, field in fields.items():
            if field.required and key not in values:
                yield f"{path}: the key '{key}' is missing: expected {expected(field.type)}."
        for key, value in values.items():
            name = f"{table}.{key}" if table else key
            where = toml.place(path, text, name)
            if key not in fields:
                yield f"{where}: there is no key {name!a}.{meant(key)}"
                continue
            try:
                record.convert(value, fields[key].type if fields[key].type is not JobWords else dict)
            except msgspec.ValidationError:
                yield f"{where}: '{name}': expected {expected(fields[key].type)}, found {toml.shown(value)}."


def expected(kind: Any) -> str:
    """Say what a value of a type is, in the words of TOML."""
    if kind is str:
        return "a text in quotes"
    if kind is JobWords:
        return "a table: [job], and its keys below"
    if kind == dict[str, str]:
        return 'a table of variables, each with a text in quotes, such as NAME = "1"'
    return 'a list of texts, such as ["one", "two"]'


def meant(key: str) -> str:
    """Say which key is likely to be meant by one that there is not, and in which table it is."""
    import difflib

    tables = {field.name: "" for field in msgspec.structs.fields(Site)}
    tables |= {field.name: " in [job]" for field in msgspec.structs.fields(JobWords)}
    near = difflib.get_close_matches(key, tables, 1)
    return f" Did you mean '{near[0]}'{tables[near[0]]}?" if near else ""
