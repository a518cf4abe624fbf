"""The rules about failures, in rules/*.toml, and how a rule reads a line."""

import re
from functools import cache

import msgspec

from envkit.knowledge.known import catalogue
from envkit.system import record, toml
from envkit.system.resources import data

SIGNS = ("done", "benign")
OWN_TIME = r"[\s|-]{0,6}(?:[^\d\s|][^\s|]{0,60}[\s|]{1,4}){0,3}\[?(?:ERROR|CRITICAL|FATAL)\b(?!\s{0,4}:)"
TAG = r"""(?:
    \[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?[ ](?!OWN_TIME)
      (?:std(?:out|err)[ ][FP][ ]|[0-9a-f]{2}[OE][ +])?
    | [A-Z][a-z]{2}[ ][ \d]\d[ ]\d\d:\d\d:\d\d[ ](?:[\w.-]{1,100}[ ](?:kernel|[\w./@-]{1,100}\[\d{1,10}\]):[ ])?
    | \#\d{1,4}[ ]\d{1,6}\.\d{1,4}[ ] | [A-Za-z][\w.-]{0,60}[_-]\d{1,4}[ ]{1,60}\|[ ]
    | (?:[A-Z][a-z]{2}[ ][A-Z][a-z]{2}[ ][ \d]\d[ ]\d\d:\d\d:\d\d[ ]\d{4})?
      (?:\[[\w.@,:-]{1,120}\](?:\[[\w.-]{1,100}:\d{1,10}\])?)?<std(?:out|err|diag)>:
    | \[\d{1,7}\][ ] | \d{1,7}:[ ]
    | \[(?:rank|default|trainer|worker)\d{1,7}\]:
    | \((?:[\w.]{1,100}[ ])?pid=\d{1,10}(?:,[ ]ip=[\w.:]{1,60})?\)[ ]
    | \[pod/[\w./-]{1,300}\][ ]
)\s{0,20}"""
TAGS = re.compile(f"(?:{TAG.replace('OWN_TIME', OWN_TIME)}){{1,4}}", re.VERBOSE)


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """A line that has one of the literals ``find`` and fits the regular expression ``pattern``.

    What fits each of ``then`` must stand behind what fits the one before it: so none needs '.*' between two parts, and
    each takes a time that grows as the line does, whatever is in that.
    """

    find: tuple[str, ...]
    pattern: str = ""
    then: tuple[str, ...] = ()

    def fits(self, line: str) -> re.Match[str] | None:
        """Return the last match in a line that has one of the literals."""
        match = compiled(self.pattern).search(line)
        for pattern in self.then:
            match = match and compiled(pattern).search(line, match.end())
        return match


def untagged(line: str) -> str:
    """Return a line without what launchers and collectors of logs put in front of it: whose it is, and when.

    These are mpirun --tag-output and --timestamp-output, horovodrun ([0]<stderr>:), mpiexec -l ([0]), srun --label
    (0:), torchrun and PyTorch ([rank0]:), Ray, kubectl and containerd, docker compose, BuildKit (#12 34.56), GitLab,
    syslog, and the daemons of Slurm. A time in front of a level is the program's own.
    """
    match = TAGS.match(line)
    return line[match.end() :] if match else line


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return what a regular expression finds with."""
    return re.compile(pattern)


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions that must hold where the log was written; every entry counts.

    ``package`` and ``program`` have versions ("torch": ">=2.1"), ``no_package`` and ``no_program`` are not there,
    ``no_header`` is in none of the usual folders. ``extension`` is the state of Horovod's: "absent" or "cut".
    ``full`` names a folder with no room.
    """

    package: dict[str, str] = {}
    program: dict[str, str] = {}
    no_package: tuple[str, ...] = ()
    no_program: tuple[str, ...] = ()
    no_header: str = ""
    extension: str = ""
    full: str = ""


class Rule(Sign, frozen=True, kw_only=True):
    """One known failure: the line that shows it, what confirms it, the words for it.

    ``preceded_by`` must stand at most ``within`` lines above (if it has the rule's own literals: such a line twice),
    ``also`` anywhere, ``unless`` nowhere. Without
    ``proof``, a line anywhere, and ``machine``, that is enough; else one of them makes the rule certain. A lower
    ``order`` outranks an earlier line. ``survives`` is for a failure that ends in success; ``unknown`` for one without
    a known cause; ``quiet`` for one that the machine alone shows; ``bare`` for a line that proves nothing, as a
    signal's.
    ``wraps``: the pattern sees the line below, too, behind a blank. ``explains`` names rules whose lines below are
    echoes of this one; with ``anywhere`` those above, too: another rank may tell of it first. ``library``: the group
    "missing" is one of the "files" or "symbols" that are known.
    Names in braces are groups of ``pattern``. ``words`` is the CHECK.CASE whose cause and remedy are the rule's, too.
    """

    id: str
    about: str
    cause: str
    fix: str
    example: str
    source: tuple[str, ...]
    near: tuple[str, ...] = ()
    preceded_by: Sign | None = None
    within: int = 4
    also: Sign | None = None
    unless: Sign | None = None
    proof: Sign | None = None
    machine: Conditions | None = None
    order: int = 1
    survives: bool = False
    unknown: bool = False
    bare: bool = False
    quiet: bool = False
    wraps: bool = False
    explains: tuple[str, ...] = ()
    anywhere: bool = False
    library: str = ""
    words: str = ""

    def fits(self, line: str) -> re.Match[str] | None:
        """Return the last match in a line, unless that says itself that it does no harm."""
        match = super().fits(line)
        return None if match is not None and benign().fits(line) else match

    @property
    def is_asked_twice(self) -> bool:
        """Whether the line must stand there twice."""
        return self.preceded_by is not None and self.preceded_by.find == self.find

    @property
    def context(self) -> tuple[Sign, ...]:
        """The signs that it asks for besides its own line."""
        return tuple(sign for sign in (self.preceded_by, self.also, self.unless, self.proof) if sign is not None)


@cache
def rules() -> tuple[Rule, ...]:
    """Return every rule."""
    files = sorted(data("diagnose/rules").glob("*.toml"))
    tables = [(file.stem, toml.read(file, toml.Tables)) for file in files]
    return tuple(
        parse_rule(name, about, table) for about, rules in tables for name, table in rules.items() if name not in SIGNS
    )


def parse_rule(name: str, about: str, table: dict[str, object]) -> Rule:
    """Return a rule, with the words of the check that it names."""
    check, _, case = str(table.get("words", "")).partition(".")
    words = catalogue()[check][case] if check else {}
    texts = {"cause": words.get("cause", ""), "fix": words.get("remedy", "")}
    return record.convert({"id": name, "about": about, **texts, **table}, Rule)


def done() -> Sign:
    """Return the sign that what stands above it went well."""
    return signs()["done"]


def benign() -> Sign:
    """Return the sign that a line does no harm, whatever it has besides."""
    return signs()["benign"]


@cache
def signs() -> dict[str, Sign]:
    """Return the signs that are no rules."""
    table = toml.read(data("diagnose/rules/build.toml"), toml.Tables)
    return record.convert({name: table[name] for name in SIGNS}, dict[str, Sign])
