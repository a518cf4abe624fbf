"""Write tables of the documentation from data: where each stack was built, what of Horovod works with which framework,
what Horovod's own tests give, which sites there are, the keys of a configuration, the options of install and of job.

python scripts/support.py        from envkit/planning/stacks.toml, docs/features.toml, envkit/machine/sites/*.toml,
                                 envkit/knowledge/upstream_known.toml, envkit/config/keys.py and envkit/commands/ into
                                 README.md and docs/
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click

from envkit.commands.install import install
from envkit.commands.job import job
from envkit.config.keys import KEYS
from envkit.knowledge.known import known
from envkit.machine import site
from envkit.planning.stack import Stack, Tried, stacks
from envkit.verify import upstream

ROOT = Path(__file__).resolve().parents[1]
FEATURES = ROOT / "docs" / "features.toml"
PLACES = {
    ROOT / "README.md": "support",
    ROOT / "docs" / "stacks.md": "support",
    ROOT / "docs" / "features.md": "features",
    ROOT / "docs" / "horovod-tests.md": "tests",
    ROOT / "docs" / "sites.md": "sites",
    ROOT / "docs" / "configuration.md": "keys",
    ROOT / "docs" / "install.md": "install",
    ROOT / "docs" / "jobs.md": "job",
}
HEAD = (
    "| stack | state | MPI | Python | machine | on | repeated by | Horovod's own tests |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def rows(stack: Stack) -> Iterator[str]:
    """Yield the lines of a stack: one for each place where it was tried, and for each machine with other Pythons."""
    for one in stack.tried:
        by = one.by.rpartition("::")[2]
        where = f"{one.mpi} | {one.python} | {one.machine} | {one.on} | `{by}`"
        yield f"| `{stack.name}` | verified | {where} | {own_tests(stack, one)} |\n"
    tried = {(one.machine, one.python) for one in stack.tried}
    for machine, pythons in stack.pythons.items() if stack.tried else ():
        if others := [python for python in pythons if (machine, python) not in tried]:
            yield f"| `{stack.name}` | planned | | {', '.join(others)} | {machine} | | | |\n"
    if not stack.tried:
        yield f"| `{stack.name}` | {stack.status} | | | | | | |\n"


def own_tests(stack: Stack, tried: Tried) -> str:
    """What Horovod's own tests gave in a stack where it was tried, in words; nothing where they were not run there."""
    there = known("upstream_known")["stacks"].get(stack.name)
    if there is None or tried.emulated or (there["mpi"], there["python"]) != (tried.mpi, tried.python):
        return ""
    rows = list(upstream.rows(stack.name))
    failed = sum(len(row.failed) for row in rows)
    there_are = upstream.asked({"pytorch": "torch"}.get(stack.framework, stack.framework), stack.requires)
    part = "" if len(rows) == len(there_are) else f", in {len(rows)} of {len(there_are)} runs of files"
    known_cause = " for a known cause" if failed else ""
    return f"{sum(row.passed for row in rows)} pass, {failed} fail{known_cause}{part}"


def tests() -> str:
    """What Horovod's own tests give in each stack where they were run, as Markdown."""
    lines = []
    for name, there in known("upstream_known")["stacks"].items():
        lines += ["", f"## {name}", "", f"{there['mpi']}, Python {there['python']}, two ranks.", ""]
        lines += ["| file | over | pass | fail | skipped | causes |", "|---|---|---|---|---|---|"]
        for row in upstream.rows(name):
            counts = f"{row.passed} | {len(row.failed)} | {row.skipped}"
            lines.append(f"| `{row.file}` | {row.over} | {counts} | {'; '.join(dict.fromkeys(row.failed.values()))} |")
    return "\n".join([*lines[1:], ""])


def table() -> str:
    """The table of all stacks, as Markdown."""
    return HEAD + "".join(line for stack in stacks() for line in rows(stack))


def features() -> str:
    """The table of what becomes of each feature of Horovod, as Markdown."""
    head = "| feature | PyTorch | TensorFlow, Keras 3 |\n|---|---|---|\n"
    rows = tomllib.loads(FEATURES.read_text()).items()
    return head + "".join(f"| {name} | {fate(row, 'pytorch')} | {fate(row, 'tensorflow')} |\n" for name, row in rows)


def fate(row: dict[str, dict[str, str]], framework: str) -> str:
    """What becomes of a feature with a framework, in words; nothing where that has no such thing."""
    if framework not in row:
        return ""
    told = row[framework]
    if "over_gloo" in told:
        return f"works over MPI; limit over Gloo: {told['says']}"
    return f"limit: {told['says']}" if told else "works"


def sites() -> str:
    """The table of envkit's own site files, as Markdown."""
    head = "| `--site` | the cluster | tried |\n|---|---|---|\n"
    found = {name: site.find(name) for name in site.names()}
    return head + "".join(f"| `{name}` | {one.title} | {one.status} |\n" for name, one in found.items())


def keys() -> str:
    """The table of the keys of a configuration file, as Markdown."""
    rows = "".join(
        f"| `{name}` | {in_code(key.text)} | {'yes' if key.in_project else 'no'} |\n" for name, key in KEYS.items()
    )
    return "| key | what it is for | may a project set it? |\n|---|---|---|\n" + rows


def of_install() -> str:
    """The table of the options of ``envkit install``, as Markdown, with the group that its help puts each into."""
    groups = {name: title.removeprefix("Options of ") for title, names in install.groups.items() for name in names}
    rows = (f"| {option} | {text} | {groups.get(name, '')} |\n" for name, (option, text) in options(install))
    return "| option | | of |\n|---|---|---|\n" + "".join(rows)


def of_job() -> str:
    """The table of the options of the commands of ``envkit job``, as Markdown, with the commands that take each."""
    takers = dict[tuple[str, str], list[str]]()
    for command in job.commands.values():
        for _, row in options(command):
            takers.setdefault(row, []).append(str(command.name))
    rows = (
        f"| {option} | {text} | {'all' if len(names) == len(job.commands) else ', '.join(names)} |\n"
        for (option, text), names in takers.items()
    )
    return "| option | | of `envkit job` |\n|---|---|---|\n" + "".join(rows)


def options(command: click.Command) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the options that the help of a command shows: the name of each, then how it is written and what it does."""
    context = click.Context(command)
    for option in command.params:
        if isinstance(option, click.Option) and (record := option.get_help_record(context)):
            yield str(option.name), ("`" + record[0].replace("|", r"\|") + "`", in_code(str(option.help)))


def in_code(text: str) -> str:
    """A text of the help as Markdown: commands, options and variables are code."""
    return re.sub(r"'(envkit [^']*)'|((?<!\S)--[a-z-]+|\$\w+)", lambda match: f"`{match[1] or match[2]}`", text)


def written(text: str, name: str) -> str:
    """A text with the table of a name between its marks. Raises ValueError where they are not there once."""
    makers = {"support": table, "features": features, "tests": tests, "sites": sites, "keys": keys}
    made = {**makers, "install": of_install, "job": of_job}[name]()
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    text, count = re.subn(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: begin + made + end, text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"The marks {begin.strip()} and {end.strip()} are there {count} times.")
    return text


if __name__ == "__main__":
    for place, name in PLACES.items():
        place.write_text(written(place.read_text(), name))
