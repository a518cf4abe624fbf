"""The keys of a configuration file: what each value has to be, and for which options of which commands it is."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from envkit.knowledge import methods
from envkit.knowledge.mpi import FAMILIES

Take = Callable[[Any], Any]  # returns a value as it is used; raises ValueError with what was expected
BATCH = ("job", "install", "verify", "doctor")
CHOOSING = ("install", "fetch", "export image", "export patches")
WORD = re.compile(r"[A-Za-z0-9_][\w.,@+:/-]*", re.ASCII)  # of a scheduler: it becomes a word of a script
TIME = re.compile(r"\d{1,9}(:\d{1,9}){0,2}|\d{1,9}-\d{1,9}(:\d{1,9}){0,2}", re.ASCII)
GPUS = re.compile(r"([\w.-]+:)?\d{1,9}", re.ASCII)
LONGEST = 300  # characters of a line for people
MODULE = re.compile(r"\.?[A-Za-z0-9_][A-Za-z0-9_.+@=~/-]*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key: what it is for, its ``take``, and the ``commands`` that have its option, as a parameter called ``option``.

    ``of_text`` makes of the text of a variable what a file would have. Without commands it counts wherever envkit asks
    for it. ``in_project``: the file of a project may set it, for it neither says what is run nor who is trusted.
    ``variables``: the first of them that is set comes before every file.
    """

    text: str
    take: Take
    expected: str
    of_text: Callable[[str], Any] = str
    option: str = ""
    commands: tuple[str, ...] = ()
    in_project: bool = True
    variables: tuple[str, ...] = ()


def one_of(*choices: str) -> tuple[Take, str]:
    """One of some words."""

    def take(value: Any) -> str:
        if value not in choices:
            raise ValueError
        return str(value)

    return take, f"one of {', '.join(choices)}"


def family_of_mpi(value: Any) -> str:
    """A family of MPI, in small letters or capitals."""
    if not isinstance(value, str) or value.lower() not in FAMILIES:
        raise ValueError
    return value.lower()


def count(most: int) -> tuple[Take, str]:
    """A whole number of things, up to more than anybody means: a project's file may not have a million started."""

    def take(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError
        return value

    return take, f"a whole number from 1 to {most}"


def digits(text: str) -> int | str:
    """The number that a text is, else the text."""
    return int(text) if text.isascii() and text.isdecimal() else text


def matching(pattern: re.Pattern[str]) -> Take:
    """A text of a pattern, or a number where its digits are one."""

    def take(value: Any) -> str:
        text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(text, str) or not pattern.fullmatch(text):
            raise ValueError
        return text

    return take


def place(value: Any) -> str:
    """A path that means the same wherever one is, or several with colons between."""
    if not isinstance(value, str) or not value.isprintable() or not value:
        raise ValueError
    if not all(word.startswith(("/", "~/")) for word in value.split(":")):
        raise ValueError
    return value


def site(value: Any) -> str:
    """The name of a site that envkit knows, or where its file is."""
    if isinstance(value, str) and re.fullmatch(r"[\w-]+", value, re.ASCII):
        return value
    return tables_file(value)


def tables_file(value: Any) -> str:
    """Where a file in TOML is."""
    import os

    path = place(value)
    if ":" in path or not path.endswith(".toml"):
        raise ValueError
    return os.path.expanduser(path)  # noqa: PTH111


def environment(value: Any) -> str:
    """The name of an environment, or where a virtual environment is."""
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_][\w.+-]*", value, re.ASCII):
        return value
    import os

    return os.path.expanduser(place(value))  # noqa: PTH111


def sentence(value: Any) -> str:
    """A line for people to read."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > LONGEST:
        raise ValueError
    return value.strip()


def several(pattern: str) -> Take:
    """Several words of a pattern."""
    form = re.compile(pattern, re.ASCII)

    def take(value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(word, str) and form.fullmatch(word) for word in value):
            raise ValueError
        return tuple(value)

    return take


def split(text: str) -> list[str]:
    """The words of a text with commas or blanks between."""
    return text.replace(",", " ").split()


def split_at_commas(text: str) -> list[str]:
    """The paths and URLs of a text with commas between; a path may have blanks in it."""
    return [word.strip() for word in text.split(",") if word.strip()]


METHOD, FRAMEWORK, ACCELERATOR, MPI = (
    one_of(methods.AUTO, *methods.names()), one_of("pytorch", "tensorflow"),
    one_of("auto", "cpu", "cuda", "rocm"), (family_of_mpi, f"one of {', '.join(FAMILIES)}"),
)  # fmt: skip
JOBS, RANKS, CPUS, NODES = count(1024), count(4096), count(4096), count(1_000_000)
NAME = "letters, digits and _ . , @ + : / -"

KEYS: Mapping[str, Key] = {
    "prefix": Key(
        text="Where environments live; several with colons between.",
        take=place, expected='an absolute path, or one that begins with ~/, such as "/sw/envkit:~/envkit"',
        in_project=False, variables=("ENVKIT_PREFIX", "EBU_USER_PREFIX"),
    ),
    "trust": Key(
        text="Whose prefixes are used besides your own and root's: users, and groups with an @.",
        take=several(r"@?[^\s,@][^\s,]*"), of_text=split,
        expected='a list of users, and of groups with an @, such as ["@proj7"]',
        in_project=False,
    ),
    "environment": Key(
        text="The environment to use when a command names none.",
        take=environment, expected="the name of an environment, or the absolute path of a virtual environment",
    ),
    "method": Key(
        text="How to install an environment.",
        take=METHOD[0], expected=METHOD[1], option="method", commands=("install", "fetch"),
    ),
    "framework": Key(
        text="The framework to build Horovod for.",
        take=FRAMEWORK[0], expected=FRAMEWORK[1], option="framework", commands=CHOOSING,
    ),
    "accelerator": Key(
        text="The device to build for.",
        take=ACCELERATOR[0], expected=ACCELERATOR[1], option="accelerator", commands=CHOOSING,
    ),
    "mpi": Key(
        text="The family of MPI to compile Horovod with, where a stack can have it.",
        take=MPI[0], expected=MPI[1], option="mpi", commands=("install",),
    ),
    "jobs": Key(
        text="How many files to compile at a time.",
        take=JOBS[0], of_text=digits, expected=JOBS[1], option="jobs", commands=("install", "upgrade"),
    ),
    "load": Key(
        text="Modules of the site to load before a build and on entering.",
        take=several(MODULE.pattern), of_text=split, expected='a list of modules, such as ["PrgEnv-gnu"]',
        option="load", commands=("install", "fetch", "export image", "doctor"), in_project=False,
    ),
    "site": Key(
        text="What the site needs of images and jobs: a name, or a file (.toml).",
        take=site, expected="the name of a site, or the absolute path of a file (.toml)",
        option="site", commands=(*BATCH, "data"), in_project=False,
    ),
    "stacks": Key(
        text="The stacks that your site offers besides envkit's own: a file (.toml).",
        take=tables_file, expected='the absolute path of a file (.toml), such as "/sw/envkit/stacks.toml"',
        in_project=False,
    ),
    "message": Key(
        text="A line for your users, such as whom to ask: doctor, install, and a failed verify show it.",
        take=sentence, expected=f"a line of text of at most {LONGEST} characters", in_project=False,
    ),
    "ranks": Key(
        text="How many ranks 'envkit verify' starts outside of a job.",
        take=RANKS[0], of_text=digits, expected=RANKS[1],
    ),
    "cache.from": Key(
        text="The caches that a build of Horovod is taken from, in this order: folders, buckets, registries and URLs.",
        take=several(r"(/|~/)[^\x00-\x1f]*[^\x00-\x20]|(https?://|s3://|oci://)\S+"), of_text=split_at_commas,
        expected='a list of absolute paths and URLs, such as ["/project/envkit-cache", "s3://builds/envkit"]',
        in_project=False,
    ),
    "cache.keys": Key(
        text="The public keys of whose signatures count there.",
        take=several(r"(/|~/)[^\x00-\x1f]*[^\x00-\x20]"), of_text=split_at_commas,
        expected='a list of absolute paths, such as ["/sw/envkit/cache.pub"]',
        in_project=False,
    ),
    "job.nodes": Key(
        text="How many nodes a job has.",
        take=NODES[0], of_text=digits, expected=NODES[1], option="nodes", commands=("job",),
    ),
    "job.ranks-per-node": Key(
        text="How many ranks each of its nodes has.",
        take=RANKS[0], of_text=digits, expected=RANKS[1], option="ranks_per_node", commands=("job",),
    ),
    "job.gpus-per-node": Key(
        text="How many GPUs each of its nodes has for its ranks.",
        take=matching(GPUS), expected='a number, or TYPE:NUMBER, such as "a100:4"',
        option="gpus_per_node", commands=("job", "verify"),
    ),
    "job.cpus-per-rank": Key(
        text="How many CPUs each rank is bound to.",
        take=CPUS[0], of_text=digits, expected=CPUS[1], option="cpus_per_rank", commands=("job",),
    ),
    "job.time": Key(
        text="Its time limit.",
        take=matching(TIME), expected='minutes, "H:MM:SS" or "D-HH:MM:SS"', option="time", commands=("job",),
    ),
    "job.account": Key(
        text="The account to charge.",
        take=matching(WORD), expected=f"the name of an account: {NAME}", option="account", commands=BATCH,
    ),
    "job.partition": Key(
        text="The partition, or the queue of PBS.",
        take=matching(WORD), expected=f"the name of a partition or queue: {NAME}", option="partition", commands=BATCH,
    ),
}  # fmt: skip


def variables(name: str) -> tuple[str, ...]:
    """Return the variables that stand for a key."""
    return KEYS[name].variables or ("ENVKIT_" + re.sub(r"\W", "_", name).upper(),)
