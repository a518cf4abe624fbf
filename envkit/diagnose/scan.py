"""Finding in a log, in one pass and in little memory, the lines that the rules look for.

All literals of all rules are searched for at once (Aho-Corasick); only a line that has one is looked at closer.
"""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from envkit.diagnose.rule import Rule, Sign, untagged

CHUNK = 1 << 20  # bytes
LONGEST = 4000  # bytes of a line on either side of a hit
DONE = 0  # the place of the sign that all went well
APART = 3000  # bytes between two looks at one line for the same sign
COLOURS = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)")
AT_ONCE_S = 1.5  # of the processor, for a log of any size
AT_MOST_S = 30.0  # what is compressed may have no end
FOREVER = sys.maxsize
BYTES_PER_S = 30_000_000  # of what has been read, which adds to that; most logs are read five times as fast


class OverError(Exception):
    """The time for a log is over."""


class Deadline:
    """When the time for a log is over, AT_MOST_S from now by a clock: by default that of the processor here."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.clock, self.end = clock, clock() + AT_MOST_S

    def require(self) -> None:
        """Require that there is time left. Raises OverError."""
        if self.clock() > self.end:
            raise OverError


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line of a log, or what stands between two carriage returns in it; ``number`` counts lines from 1."""

    number: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A line that shows what a rule is about, the groups of its pattern, and the line above that it asks for."""

    line: LogLine
    groups: Mapping[str, str]
    above: LogLine | None = None


@dataclass(kw_only=True)
class ScannedLog:
    """The findings in a log: the first hit of each rule by its name, the first line of each sign; ``size`` in bytes.

    Where it is not ``whole``, the time for it was over after so many lines and bytes.
    """

    hits: dict[str, Hit] = field(default_factory=dict)
    signs: dict[Sign, LogLine] = field(default_factory=dict)
    lines: int = 0
    size: int = 0
    whole: bool = True


@dataclass(kw_only=True, eq=False)
class WatchedSign:
    """A sign that is looked for. ``always``: every line with it counts; ``is_open``: another one changes something.

    Up to ``seen`` (bytes of the log) it has been looked at. ``place`` is its own among all that are looked for.
    ``last`` is the line where it was seen last, ``before`` the one where it was seen before that.
    """

    sign: Sign
    rule: Rule | None = None
    always: bool = False
    survives: bool = False
    wraps: bool = False
    is_open: bool = True
    seen: int = 0
    place: int = 0
    last: LogLine | None = None
    before: LogLine | None = None


class Search:
    """The search in logs: for rules, the signs that they ask for, and the one that says that all went well.

    To make it takes longer than to read most logs. ``places`` says where in ``watches`` each sign is that no rule is;
    ``groups`` has for each literal the places of those that have it, ``literals`` for each of these the places of its
    literals.
    """

    def __init__(self, rules: Iterable[Rule], done: Sign) -> None:
        from ahocorasick_rs import BytesAhoCorasick, Implementation

        rules, signs = tuple(rules), {done: WatchedSign(sign=done, always=True)}
        for rule in rules:
            for sign in rule.context:
                watch = signs.setdefault(sign, WatchedSign(sign=sign))
                watch.always |= sign == rule.preceded_by
                watch.survives |= rule.survives
        self.places = {sign: place for place, sign in enumerate(signs)}
        of_rules = [WatchedSign(sign=rule, rule=rule, survives=rule.survives, wraps=rule.wraps) for rule in rules]
        self.watches = (*signs.values(), *of_rules)
        wanted: dict[bytes, list[int]] = {}
        for place, watch in enumerate(self.watches):
            for literal in watch.sign.find:
                wanted.setdefault(literal.encode(), []).append(place)
        self.groups = tuple(wanted.values())
        self.literals: list[list[int]] = [[] for _ in self.watches]
        for index, together in enumerate(self.groups):
            for place in together:
                self.literals[place].append(index)
        self.automaton: BytesAhoCorasick = BytesAhoCorasick(list(wanted), implementation=Implementation.DFA)


class Scan:
    """One pass over a log, a chunk of whole lines at a time."""

    def __init__(self, search: Search) -> None:
        self.search, self.automaton = search, search.automaton
        self.seen = ScannedLog()
        self.watched = dict[int, WatchedSign]()
        self.watches = dict[int, list[WatchedSign]]()
        self.noted = dict[int, WatchedSign]()
        self.passed = [0] * len(search.groups)
        self.base = 0

    def watch(self, place: int) -> WatchedSign:
        """Return the sign of a place in this log; most are in none, so each is made where it is first seen."""
        if place not in self.watched:
            self.watched[place] = replace(self.search.watches[place], place=place)
        return self.watched[place]

    def watches_of(self, index: int) -> list[WatchedSign]:
        """Return the signs that have a literal."""
        if index not in self.watches:
            self.watches[index] = [self.watch(place) for place in self.search.groups[index]]
        return self.watches[index]

    def read(self, chunk: bytes) -> None:
        """Look at some whole lines, at each, or each part of a long one, once for each sign."""
        if b"\x1b" in chunk:
            chunk = COLOURS.sub(b"", chunk)
        counted, number, base, passed = 0, self.seen.lines + 1, self.base, self.passed
        until, text, said = 0, "", ""
        for index, start, _ in self.automaton.find_matches_as_indexes(chunk, overlapping=True):
            if base + start < passed[index]:
                continue
            if start >= until:
                number += chunk.count(b"\n", counted, start)
                counted = start
                begin, end = part(chunk, start)
                text = chunk[begin:end].decode(errors="replace").strip()
                said = untagged(text)
                until = min(end, start + APART)
            passed[index] = FOREVER
            watches = self.watches.get(index) or self.watches_of(index)
            for watch in watches:
                if watch.is_open and watch.seen <= base + start:
                    watch.seen = base + until
                    match = watch.sign.fits(f"{said} {untagged(below(chunk, start))}" if watch.wraps else said)
                    if match is not None:
                        self.note(watch, match, LogLine(number=number, text=text))
                if watch.is_open:
                    passed[index] = base + until
        self.base += len(chunk)
        self.seen.lines += chunk.count(b"\n")

    def note(self, watch: WatchedSign, match: re.Match[str], line: LogLine) -> None:
        """Take note of a line that fits a sign."""
        if watch.rule is not None:
            self.hit(watch, watch.rule, line, match)
        elif watch.place == DONE:
            self.forget()
        else:
            watch.before, watch.last, watch.is_open = watch.last, line, watch.always
            self.seen.signs.setdefault(watch.sign, line)
            self.noted[watch.place] = watch

    def hit(self, watch: WatchedSign, rule: Rule, line: LogLine, match: re.Match[str]) -> None:
        """Take note of a rule's line, if the line that it asks for above is there."""
        above = None
        if rule.preceded_by is not None:
            sign = self.watch(self.search.places[rule.preceded_by])
            above = sign.before if rule.is_asked_twice else sign.last
        if rule.preceded_by is not None and (above is None or line.number - above.number > rule.within):
            return
        groups = {name: value or "" for name, value in match.groupdict().items()}
        self.seen.hits[rule.id] = Hit(line=line, groups=groups, above=above)
        watch.is_open = False
        self.noted[watch.place] = watch

    def forget(self) -> None:
        """Forget what was seen so far and did no harm, since it ended well. What survives success is kept."""
        for watch in [watch for watch in self.noted.values() if not watch.survives]:
            del self.noted[watch.place]
            watch.is_open, watch.last, watch.before = True, None, None
            self.seen.signs.pop(watch.sign, None) if watch.rule is None else self.seen.hits.pop(watch.rule.id, None)
            for index in self.search.literals[watch.place]:
                self.passed[index] = 0


def part(chunk: bytes, at: int) -> tuple[int, int]:
    """Return where the line begins and ends that has a place in a chunk, at most LONGEST bytes from there."""
    low, high = max(at - LONGEST, 0), at + LONGEST
    begin = max(chunk.rfind(b"\n", low, at), chunk.rfind(b"\r", low, at), low - 1) + 1
    end = chunk.find(b"\n", at, high)
    end = min(high, len(chunk)) if end < 0 else end
    returned = chunk.find(b"\r", at, end)
    return begin, end if returned < 0 else returned


def below(chunk: bytes, at: int) -> str:
    """Return the line below the one that has a place in a chunk, as far as LONGEST bytes; nothing below the last."""
    begin = chunk.find(b"\n", at, at + LONGEST) + 1
    end = chunk.find(b"\n", begin, begin + LONGEST)
    return chunk[begin : end if end >= 0 else begin + LONGEST].decode(errors="replace").strip() if begin else ""


def scan(blocks: Iterable[bytes], search: Search) -> ScannedLog:
    """Return what a log has of what is looked for, as far as the time for it goes, or its blocks raise OverError."""
    reading, began = Scan(search), time.thread_time()
    try:
        for chunk in whole_lines(blocks):
            if reading.seen.size and time.thread_time() - began > min(
                AT_ONCE_S + reading.seen.size / BYTES_PER_S, AT_MOST_S
            ):
                raise OverError
            reading.seen.size += len(chunk)
            reading.read(chunk)
    except OverError:
        reading.seen.whole = False
    return reading.seen


def whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut blocks anew so that each ends with a line; a line longer than a block is cut with it."""
    rest = bytearray()
    for block in blocks:
        end = block.rfind(b"\n") + 1
        if end:
            yield bytes(rest) + block[:end]
            rest.clear()
        rest += block[end:]
        if len(rest) > CHUNK:
            yield bytes(rest)
            rest.clear()
    if rest:
        yield bytes(rest)


def blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield a stream in blocks; what a pipe has is not waited for to fill one."""
    while block := stream.read(CHUNK):
        yield block
