"""Finding in a log, in one pass and in little memory, the lines that the rules look for.

All literals of all rules are searched for at once (Aho-Corasick); only a line that has one is looked at closer.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

from envkit.diagnose.known import Rule, Sign

CHUNK = 1 << 20  # bytes
LONGEST = 4000  # bytes of a line on either side of a hit
COLOURS = re.compile(rb"\x1b\[[0-9;]*[mK]|\x1b\]8;[^\x07\x1b]*(?:\x07|\x1b\\)")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a log; ``number`` counts from 1."""

    number: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A line that shows what a rule is about, the groups of its pattern, and the line above that it asks for."""

    line: Line
    groups: Mapping[str, str]
    above: Line | None = None


@dataclass(kw_only=True)
class Seen:
    """What a log has: the first hit of each rule by its name, the first line of each sign; ``size`` in bytes."""

    hits: dict[str, Hit] = field(default_factory=dict)
    signs: dict[Sign, Line] = field(default_factory=dict)
    lines: int = 0
    size: int = 0


@dataclass(kw_only=True, eq=False)
class Watch:
    """A sign that is looked for. ``always``: every line with it counts; ``is_open``: another one changes something."""

    sign: Sign
    rule: Rule | None = None
    always: bool = False
    survives: bool = False
    is_open: bool = True
    last: Line | None = None


class Scan:
    """One pass over a log, a chunk of whole lines at a time."""

    def __init__(self, rules: Iterable[Rule], done: Sign) -> None:
        from ahocorasick_rs import BytesAhoCorasick, Implementation

        self.seen = Seen()
        self.done = Watch(sign=done, always=True)
        self.context = {done: self.done}
        watches = [self.watch(rule) for rule in rules]
        wanted: dict[bytes, list[Watch]] = {}
        for watch in (*self.context.values(), *watches):
            for literal in watch.sign.find:
                wanted.setdefault(literal.encode(), []).append(watch)
        self.watches = list(wanted.values())
        self.automaton = BytesAhoCorasick(list(wanted), implementation=Implementation.DFA)

    def watch(self, rule: Rule) -> Watch:
        """Return the watch of a rule, and begin those of its context."""
        for sign in rule.context:
            watch = self.context.setdefault(sign, Watch(sign=sign))
            watch.always |= sign == rule.below
            watch.survives |= rule.survives
        return Watch(sign=rule, rule=rule, survives=rule.survives)

    def read(self, chunk: bytes) -> None:
        """Look at some whole lines."""
        if b"\x1b" in chunk:
            chunk = COLOURS.sub(b"", chunk)
        counted, number = 0, self.seen.lines + 1
        for index, start, _ in self.automaton.find_matches_as_indexes(chunk, overlapping=True):
            watches = [watch for watch in self.watches[index] if watch.is_open]
            if watches:
                begin = chunk.rfind(b"\n", 0, start) + 1
                number += chunk.count(b"\n", counted, begin)
                counted = max(counted, begin)
                end = chunk.find(b"\n", start)
                end = len(chunk) if end < 0 else end
                text = chunk[max(begin, start - LONGEST) : min(end, start + LONGEST)].decode(errors="replace")
                self.look(Line(number=number, text=text.strip()), watches)
        self.seen.lines += chunk.count(b"\n")

    def look(self, line: Line, watches: Iterable[Watch]) -> None:
        """Take note of a line that has a literal of each of these, if it fits them."""
        for watch in watches:
            match = watch.sign.fits(line.text)
            if match is None:
                continue
            if watch.rule is not None:
                self.hit(watch, watch.rule, line, match)
            elif watch is self.done:
                self.forget()
            else:
                watch.last, watch.is_open = line, watch.always
                self.seen.signs.setdefault(watch.sign, line)

    def hit(self, watch: Watch, rule: Rule, line: Line, match: re.Match[str]) -> None:
        """Take note of a rule's line, if the line that it asks for above is there."""
        above = self.context[rule.below].last if rule.below is not None else None
        if rule.below is not None and (above is None or line.number - above.number > rule.within):
            return
        groups = {name: value or "" for name, value in match.groupdict().items()}
        self.seen.hits[rule.id] = Hit(line=line, groups=groups, above=above)
        watch.is_open = False

    def forget(self) -> None:
        """What was seen so far did no harm: it ended well. What survives success is kept."""
        for watch in {watch for watches in self.watches for watch in watches if not watch.survives}:
            watch.is_open, watch.last = True, None
            self.seen.signs.pop(watch.sign, None) if watch.rule is None else self.seen.hits.pop(watch.rule.id, None)


def scan(blocks: Iterable[bytes], rules: Iterable[Rule], done: Sign) -> Seen:
    """Return what a log has of what rules look for."""
    one = Scan(rules, done)
    for chunk in whole_lines(blocks):
        one.seen.size += len(chunk)
        one.read(chunk)
    return one.seen


def whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut blocks anew so that each ends with a line; a line longer than a block is cut with it."""
    rest = b""
    for block in blocks:
        end = block.rfind(b"\n") + 1
        if end:
            yield rest + block[:end]
            rest = block[end:]
        else:
            rest += block
        if len(rest) > CHUNK:
            yield rest
            rest = b""
    if rest:
        yield rest


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield a stream in blocks; what a pipe has is not waited for to fill one."""
    while block := stream.read(CHUNK):
        yield block
