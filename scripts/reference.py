"""Write the reference of the documentation from the code: commands, API, stacks, checks of verify, rules of diagnose.

python scripts/reference.py        docs/conf.py calls it, too; what it writes is not kept in git
"""

import dataclasses
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from envkit import api
from envkit.cli import envkit
from envkit.commands import json_types
from envkit.config.keys import KEYS, variables
from envkit.planning import patches
from envkit.planning.stack import stacks
from envkit.system.resources import data
from envkit.verify.report.explained import UNMEASURED, explainable

ROOT = Path(__file__).resolve().parents[1]
AREAS = {
    "build": "Building", "compile": "Compilers and sources", "easybuild": "EasyBuild and modules",
    "gpu": "GPUs and frameworks", "image": "Images", "launch": "Launching", "machine": "The machine",
    "mpi": "MPI libraries", "python": "Python", "run": "Running", "jobs": "Jobs: schedulers and pyxis",
    "unknown": "Unknown causes",
}  # fmt: skip
NO_RULES = ("done", "benign")
ORPHAN = "---\norphan: true\n---\n\n"  # in no list of contents
FORMS = """What commands print with `--json`, each as a JSON Schema (draft 2020-12). `version` changes with the
form; fields may be added without that. Sizes are bytes; dates and times are ISO 8601. Messages for people go to
standard error."""
PATCHES = """What envkit changes in Horovod 0.28.1 before it builds it. `envkit export patches DIR STACK` writes those
of a stack as a series, for those who build Horovod themselves. Each patch says at its head what stands here."""
FILES = """The schemas of `envkit doctor --json` and `envkit verify --json` are files beside the code, and in what pip
installs: `envkit/doctor/report.schema.json`, `envkit/verify/report.schema.json`."""


def write(folder: Path) -> None:
    """Write every page into a folder; what is as it was is left alone, pages of what has gone are removed."""
    pages = {"index.md": index(), **commands(), "api.md": interface(), "json.md": forms(), "stacks.md": all_stacks()}
    pages |= {"configuration.md": configuration(), "patches.md": all_patches(), **checks(), **rules()}
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.rglob("*.md"):
        if str(path.relative_to(folder)) not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def index() -> str:
    """The page that leads to the others."""
    names = ["commands", "configuration", "api", "json", "stacks", "patches", "checks/index", "rules/index"]
    return page("Reference", ["Written from the code.", contents(names)])


def page(title: str, parts: Iterable[str]) -> str:
    """A page: its title, then its parts."""
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def contents(names: Iterable[str]) -> str:
    """A table of contents."""
    return "\n".join(["```{toctree}", ":maxdepth: 1", "", *names, "```"])


def listed(names: Iterable[str]) -> str:
    """Links to pages that are too many for the list of contents at the side of every page."""
    return "\n".join(f"- [{name}]({name}.md)" for name in names)


def code(text: str) -> str:
    """A block of text as it is."""
    return f"````text\n{text.strip(chr(10))}\n````"


def prose(text: str) -> str:
    """A text in which nothing is markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", text)


def commands() -> dict[str, str]:
    """What each command says with --help."""
    parts = [part for name in envkit.list_commands(click.Context(envkit)) for part in command(name)]
    return {"commands.md": page("Commands", parts)}


def command(name: str, above: str = "envkit", group: click.Group = envkit) -> Iterator[str]:
    """The help of a command and of those below it."""
    found = group.get_command(click.Context(group), name)
    if found is None:
        return
    context = click.Context(found, info_name=f"{above} {name}", terminal_width=100, max_content_width=100)
    yield f"## {above} {name}"
    yield code(found.get_help(context))
    if isinstance(found, click.Group):
        for below in found.list_commands(context):
            yield from command(below, f"{above} {name}", found)


def configuration() -> str:
    """Every key of a configuration file."""
    parts = ["What a configuration file can set. A key with a dot is one of a table: `job.time` is `time` in `[job]`."]
    for name, key in KEYS.items():
        where = (
            f"for {', '.join(f'`envkit {one}`' for one in key.commands)}" if key.commands else "wherever it is needed"
        )
        facts = [f"Expected: {prose(key.expected)}.", f"Counts {where}."]
        facts += [f"Variable: {', '.join(f'`{one}`' for one in variables(name))}."]
        facts += [] if key.in_project else ["The file of a project may not set it."]
        parts += [f"## {name}", prose(key.text), "\n".join(f"- {fact}" for fact in facts)]
    return page("Configuration", parts)


def interface() -> str:
    """The functions of ``envkit.api``, then what they return."""
    members = [(name, getattr(api, name)) for name in api.__all__]
    functions = [part for name, one in members if inspect.isfunction(one) for part in (f"## {name}", *function(one))]
    results = [part for name, one in members if dataclasses.is_dataclass(one) for part in (f"### {name}", *result(one))]
    paths = f"`StrPath` is `{api.StrPath}`."
    return page("Python interface", [*described(api), paths, *functions, "## What they return", *results])


def function(one: Any) -> Iterator[str]:
    """The signature of a function and what is said of it."""
    lines = list[str]()
    for parameter in inspect.signature(one).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            lines.append(f"*{parameter.name}: {parameter.annotation}")
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not any(line.startswith("*") for line in lines):
            lines.append("*")
        default = "" if parameter.default is inspect.Parameter.empty else f" = {parameter.default!r}"
        lines.append(f"{parameter.name}: {parameter.annotation}{default}")
    returned = inspect.signature(one).return_annotation
    yield python("\n".join([f"{one.__name__}(", *(f"    {line}," for line in lines), f") -> {returned}"]))
    yield from described(one)


def result(one: Any) -> Iterator[str]:
    """What is said of a result, its fields and its methods."""
    yield from described(one)
    yield python("\n".join(f"{each.name}: {each.type}" for each in dataclasses.fields(one) if each.name[0] != "_"))
    for name, method in vars(one).items():
        if inspect.isfunction(method) and name[0] != "_":
            yield from (f"`{name}()`: {part}" for part in described(method))


def described(one: Any) -> Iterator[str]:
    """The paragraphs of a docstring; what is indented there is code."""
    text = re.sub(r":exc:`([\w ]+?)(?: <[\w.]+>)?`", r"``\1``", inspect.getdoc(one) or "")
    for part in re.split(r"\n\n(?!    )", text):
        if part.startswith("::"):
            yield python(inspect.cleandoc(part.removeprefix("::").strip("\n")))
            continue
        words = re.split(r"``(.+?)``", " ".join(part.split()))
        yield "".join(f"`{word}`" if number % 2 else prose(word) for number, word in enumerate(words))


def python(text: str) -> str:
    """A block of Python."""
    return f"```python\n{text}\n```"


def forms() -> str:
    """The JSON Schema of what each command prints with --json."""
    sys.path.insert(0, str(ROOT))
    from tests import schemas

    parts = [FORMS, FILES]
    for name in sorted({*json_types.TYPES, "show"} - {"doctor", "verify"}):
        made = schemas.schema(f"envkit {name} --json", json_types.type_of(name)).decode()
        parts += [f"## envkit {name}", f"```json\n{made.strip()}\n```"]
    return page("JSON", parts)


def all_stacks() -> str:
    """Every stack, and where it was built and verified."""
    rows = ["| stack | state |", "|---|---|", *(f"| `{one.name}` | {prose(one.status)} |" for one in stacks())]
    return page("Stacks", ["\n".join(rows)])


def all_patches() -> str:
    """Every patch of Horovod: why there is one, what upstream says, how it was tested; which go together."""
    parts = [part for patch in patches.every() for part in (f"## {patch.name}", *patches.described(patch))]
    return page("Horovod's patches", [PATCHES, *parts, "## Which go together", patches.table()])


def tables(folder: Path, leave: Iterable[str] = ()) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the tables of all TOML files of a folder: the file's name, the table's, the table."""
    for path in sorted(folder.glob("*.toml")):
        for name, table in tomllib.loads(path.read_text()).items():
            if name not in leave:
                yield path.stem, name, table


def checks() -> dict[str, str]:
    """A page for each check of verify: what it says when it does not pass, why, and what to do."""
    made: dict[str, list[str]] = {}
    for name, cases in explainable().items():
        made[name] = [prose(UNMEASURED)]
        for case, words in cases.items():
            made[name] += [f"## {case}: {words['status'].upper()}", code(words["message"])]
            made[name] += [f"**{key.title()}.** {prose(words[key])}" for key in ("cause", "remedy") if words.get(key)]
            made[name] += [code("\n".join(words["commands"]))] if words.get("commands") else []
    pages = {f"checks/{name}.md": ORPHAN + page(name, parts) for name, parts in made.items()}
    text = "What `envkit verify` checks. `{names}` stand for what it found."
    pages["checks/index.md"] = page("Checks", [text, listed(sorted(made))])
    return pages


def rules() -> dict[str, str]:
    """A page for each rule of diagnose: its cause, what to do, where that is known from, an example."""
    made: dict[str, str] = {}
    by_area: dict[str, list[str]] = {}
    words = {
        f"{check}.{case}": said for _, check, cases in tables(data("verify/checks")) for case, said in cases.items()
    }
    for area, name, rule in tables(data("diagnose/rules"), NO_RULES):
        of_check = words.get(rule.get("words", ""), {})
        cause, fix = rule.get("cause") or of_check.get("cause", ""), rule.get("fix") or of_check.get("remedy", "")
        parts = [f"**Cause.** {prose(cause)}"] if cause else []
        parts += [f"**Remedy.** {prose(fix)}"] if fix else []
        if source := rule.get("source"):
            parts.append(f"**Source.** {prose(', '.join(source))}")
        if example := rule.get("example"):
            parts += ["## A log that shows it", code(example)]
        made[f"rules/{name}.md"] = ORPHAN + page(name, parts)
        by_area.setdefault(area, []).append(name)
    parts = [part for area, names in by_area.items() for part in (f"## {AREAS[area]}", listed(sorted(names)))]
    made["rules/index.md"] = page("Rules", ["The causes that `envkit diagnose` knows.", *parts])
    return made


if __name__ == "__main__":
    write(ROOT / "docs" / "reference")
