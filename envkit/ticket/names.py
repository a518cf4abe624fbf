"""Names taken out of a text in one pass, however many they are; and the words that are no names: envkit's own."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from envkit.system import files, toml
from envkit.system.resources import data

STANDS = re.compile(r"(host|server|address|gpu)-\d+|user|account|secret|mail|domain")
RUN = re.compile(rf"<(?:{STANDS.pattern})>|[A-Za-z0-9]+|[^\W\dA-Za-z_]+")
WORD = re.compile(r"[A-Za-z0-9]+")
EDGE = re.compile(r"[A-Za-z0-9]")
DOMAIN = re.compile(r"[A-Za-z][\w-]{0,62}(\.[\w-]{1,63}){0,6}\.[A-Za-z]{2,16}")
NAMED_IN = (Path("/etc/hosts"), Path("/etc/resolv.conf"))
LARGEST = 1 << 20  # bytes of one of them


class Names:
    """Names, and what stands for each; the longest is taken at a place, and none within a longer word."""

    def __init__(self) -> None:
        self.stands = dict[str, str]()
        self.by_run = dict[str, dict[int, set[int]]]()  # of the first run of letters: where it begins, and how long

    def add(self, name: str, stand: str) -> None:
        """Take a name up; one that is there keeps what stands for it."""
        run = RUN.search(name)
        if run is not None and name not in self.stands:
            self.stands[name] = stand
            self.by_run.setdefault(run[0], {}).setdefault(run.start(), set()).add(len(name))

    def out_of(self, text: str) -> str:
        """Return a text with what stands for each name in its place."""
        parts, done = list[str](), 0
        for run in RUN.finditer(text):
            end, begin = max(self.places(text, run, done), default=(0, 0))
            if end:
                parts += (text[done:begin], self.stands[text[begin:end]])
                done = end
        return "".join((*parts, text[done:]))

    def places(self, text: str, run: re.Match[str], done: int) -> Iterator[tuple[int, int]]:
        """Yield the end and the beginning of each name whose first run of letters is this one of a text."""
        for before, lengths in self.by_run.get(run[0], {}).items():
            begin = run.start() - before
            if begin >= done and not (begin and EDGE.match(text, begin - 1)):
                ends = (begin + length for length in lengths if not EDGE.match(text, begin + length))
                yield from ((end, begin) for end in ends if text[begin:end] in self.stands)


@functools.cache
def vocabulary() -> frozenset[str]:
    """Return the words of envkit's own that are in reports: keys and values of JSON, ids of checks, rules, launchers.

    Of those that have several words each is one, too: such a word says nothing of who it may be the name of as well.
    """
    import msgspec

    from envkit.diagnose import rules
    from envkit.doctor.report import Report as Doctor
    from envkit.environments.lockfile import Lock
    from envkit.install.listing import Listing
    from envkit.methods.registry import NAMES, receipt_of
    from envkit.verify.report import Report

    schemas = msgspec.json.schema_components([Report, Doctor, Lock, Listing, *map(receipt_of, NAMES)])[1]
    words = {word for schema in schemas.values() for word in fixed(schema)} | {rule.id for rule in rules()}
    for path in sorted(data("verify/checks").glob("*.toml")):
        words |= toml.read(path, toml.Tables).keys()
    words |= {row["name"] for row in json.loads(data("inside/probe/launchers.json").read_bytes())}
    return frozenset(part.lower() for word in words for part in (word, *WORD.findall(word)))


def fixed(schema: Any) -> Iterator[str]:
    """Yield the keys, and the values out of a few, that a JSON schema names."""
    if isinstance(schema, Mapping):
        yield from schema.get("properties", {})
        yield from (value for value in (*schema.get("enum", ()), schema.get("const")) if isinstance(value, str))
        for inner in schema.values():
            yield from fixed(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from fixed(inner)


def domains() -> Iterator[str]:
    """Yield the domains of this machine: of its own name, those that its resolver searches, and those above them."""
    name = os.uname().nodename
    lines = [line.partition("#")[0].split() for path in NAMED_IN for line in read(path).splitlines()]
    candidates = [name.partition(".")[2]]
    own = f"{name.partition('.')[0]}."
    candidates += [word.partition(".")[2] for line in lines for word in line if word.startswith(own)]
    candidates += [word for line in lines if line[:1] in (["search"], ["domain"]) for word in line[1:]]
    for domain in candidates:
        labels = domain.strip(".").split(".")
        yield from (".".join(labels[at:]) for at in range(min(len(labels) - 1, 6)))


def read(path: Path) -> str:
    """Return what a file of the system says, nothing where it cannot be read."""
    with suppress(OSError):
        return files.read(path, LARGEST).decode(errors="replace")
    return ""
