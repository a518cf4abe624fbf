"""Secrets: which variables have them, in which forms they are written, and what is one by its shape or its place."""

from __future__ import annotations

import base64
import functools
import html
import json
import os
import re
import shlex
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from envkit.report.words import plain
from envkit.system import toml
from envkit.system.addresses import IN_URL, OF_ADDRESSES, login, logins, redact
from envkit.system.resources import data
from envkit.ticket.names import vocabulary

SHORTEST = 4  # characters of a secret that is taken out wherever it stands
SURE = 6  # characters at the beginning of a secret by which the rest is known, where a text was cut
LONG, LINES = 4096, 200  # characters of a secret whose forms that are coded twice are looked for, lines of any
DEEP = 2  # how often a text in base64 is unpacked
STAND = "<secret>"
PACKED = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/_-]{16,9999}={0,2}(?![A-Za-z0-9+/=_-])")
PERCENT = re.compile(r"%[0-9A-F]{2}")
URL_SAFE = {ord("+"): "-", ord("/"): "_"}
BLANK = re.compile(r"\s+")
# Escape sequences of a terminal, of those that plain() takes out whole the long ones, and colours as logs write them.
ESCAPE = re.compile(
    r"\x1b[]PX^_][^\x07\x1b\x9c\n\r]*(?:\x07|\x1b\\|\x9c)|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\`-~]"
    r"|(?:\\x1[bB]|\\u001[bB]|\\033|\\e|\^\[)\[[0-9;]{0,20}[A-Za-z]"
)
INVISIBLE = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
POINTS = ("&#{};", "&#x{:x};", "&#x{:X};", r"\u{:04x}", r"\u{:04X}")
NONE, PLAIN = "", string.ascii_letters + string.digits
Coding = Callable[[str], str]


@functools.cache
def known() -> Mapping[str, Any]:
    """Return what is known of private things."""
    tables: Mapping[str, Any] = toml.read(data("ticket/private.toml"), toml.Tables)
    return tables


@functools.cache
def shapes() -> tuple[re.Pattern[str], ...]:
    """Return what a secret is by its shape or by what stands before it, which is the group "kept"."""
    table = known()["secret"]
    return tuple(re.compile(functools.reduce(filled, table["parts"].items(), shape)) for shape in table["shapes"])


def filled(shape: str, part: tuple[str, str]) -> str:
    """Return a pattern with one of its parts put in."""
    return shape.replace(f"<{part[0]}>", part[1])


def in_pairs(between: str, value: bytes) -> str:
    """Return bytes in hexadecimal digits, with something between."""
    return value.hex(":").replace(":", between)


def numbered(form: str, kept: str, value: str) -> str:
    """Return a text with each character as a number, but for those that are kept."""
    return "".join(character if character in kept else in_numbers(form, character) for character in value)


@functools.cache
def in_numbers(form: str, text: str) -> str:
    """Return a character as a number, its place in Unicode, or as those of its bytes."""
    numbers: Iterable[int] = [ord(text)] if form in POINTS else text.encode(errors="surrogateescape")
    return "".join(map(form.format, numbers))


CODINGS: tuple[Coding, ...] = (
    lambda value: json.dumps(value)[1:-1],
    lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    lambda value: json.dumps(value)[1:-1].replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e"),
    lambda value: repr(value)[1:-1],
    lambda value: html.escape(value),
    lambda value: html.escape(value).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
    lambda value: html.escape(value, quote=False),
    lambda value: quote(value, safe=""),
    lambda value: quote(value),
    lambda value: quote_plus(value),
    lambda value: PERCENT.sub(lambda match: match[0].lower(), quote(value, safe="")),
    shlex.quote,
)


# Bytes in hexadecimal digits with something between, as tools write them.
HEXADECIMAL: tuple[Callable[[bytes], str], ...] = (
    *(functools.partial(in_pairs, between) for between in (":", " ", "-", " 0x", ",0x", ", 0x")),
    lambda value: value.hex(" ", -2),
    lambda value: f"{value[:1].hex()} {value[1:].hex(' ', -2)}",
)
# Those that write each character as a number: of its bytes, of its place in Unicode; and all of them, or all odd ones.
NUMBERED: tuple[Coding, ...] = tuple(
    functools.partial(numbered, form, kept)
    for form in ("%{:02X}", "%{:02x}", r"\x{:02x}", r"\x{:02X}", r"\{:03o}", *POINTS)
    for kept in (NONE, PLAIN)
)


class Secrets:
    """The secrets of a session's variables, in the forms in which they may be written.

    A form is found by its beginning, both without blanks: lines are wrapped anywhere. With it is kept how much of the
    form that beginning is.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        self.values = {text for value in secrets_of(env) for text in (value, stripped(value))}
        self.by_start = dict[str, list[tuple[str, int]]]()
        for form, start in dict(sure for value in self.values for sure in forms(value)).items():
            if key := squeezed(start if len(squeezed(start)) >= SHORTEST else form):
                self.by_start.setdefault(key, []).append((form, len(start)))
        self.by_head = dict[str, list[str]]()
        for start in self.by_start:
            self.by_head.setdefault(start[:SHORTEST], []).append(start)

    def out_of(self, text: str) -> str:
        """Return a text without them and without escape sequences, be one cut, or wrapped over several lines."""
        text, parts, at = stripped(text), list[str](), 0
        if cut := max((len(end) for end in self.ends(text)), default=0):
            parts, at = [STAND], cut
        for place, starts in self.places(text):
            end = max(self.reaches(text, place, starts), default=0) if place >= at else 0
            if end:
                parts += (text[at:place], "\n".join([STAND] * (1 + text.count("\n", place, end))))
                at = end
        return "".join((*parts, text[at:]))

    def without(self, text: str, deep: int = DEEP) -> str:
        """Return a text without them, and without what is a secret of others by its shape or its place."""
        return without_shapes(redact(self.without_packed(self.out_of(text), deep)))

    def without_packed(self, text: str, deep: int = DEEP) -> str:
        """Return a text without what is in base64, once or more often, and has a secret in it."""
        return PACKED.sub(lambda match: self.unpacked(match[0], deep), text) if deep else text

    def unpacked(self, word: str, deep: int) -> str:
        """Return what stands for a text in base64 that has a secret in it; any other as it is."""
        text = word.rstrip("=").replace("-", "+").replace("_", "/")
        text = text[: len(text) - (len(text) % 4 == 1)]
        with suppress(ValueError):
            inside = base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode("ascii")
            return STAND if self.without(inside, deep - 1) != stripped(inside) else word
        return word

    def places(self, text: str) -> Iterator[tuple[int, list[str]]]:
        """Yield where in a text the beginnings of some may stand, whatever blanks are in these."""
        close = squeezed(text)
        matches = list[tuple[int, list[str]]]()
        for at in range(len(close) - SHORTEST + 1 if self.by_head else 0):
            starts = self.by_head.get(close[at : at + SHORTEST])
            if starts and (here := [start for start in starts if close.startswith(start, at)]):
                matches.append((at, here))
        if matches:
            yield from placed(matches, text)

    def reaches(self, text: str, place: int, starts: list[str]) -> Iterator[int]:
        """Yield where those end that begin at a place of a text, of which enough is there."""
        for start in starts:
            for form, least in self.by_start[start]:
                same, end = reach(form, text, place)
                if same >= least:
                    yield end

    def ends(self, text: str) -> Iterator[str]:
        """Yield the ends of them that a text begins with."""
        for value in self.values:
            begin = value.find(text[:SURE], 1) if len(text) >= SURE else -1
            while begin > 0:
                if text.startswith(value[begin:]):
                    yield value[begin:]
                begin = value.find(text[:SURE], begin + 1)


def stripped(text: str) -> str:
    """Return a text without escape sequences and without what is not seen, either of which may cut a secret."""
    text = plain(ESCAPE.sub("", text))
    return text if text.isascii() else INVISIBLE.sub("", text)


def squeezed(text: str) -> str:
    """Return a text without blanks and without ends of lines."""
    return "".join(text.split())


def placed(places: list[tuple[int, list[str]]], text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield what was found in a text without its blanks with the place in the text itself."""
    words, before, at = re.finditer(r"\S+", text), 0, 0
    for place, starts in places:
        while place >= before:
            word = next(words)
            at, before = word.end() - before - len(word[0]), before + len(word[0])
        yield at + place, starts


def reach(form: str, text: str, place: int) -> tuple[int, int]:
    """Return how much of a form stands at a place of a text, and where that ends.

    Where the text goes on in another line, the form may have blanks, or none.
    """
    if text.startswith(form, place):
        return len(form), place + len(form)
    of, at, end = 0, place, place
    while of < len(form) and at < len(text):
        blank = BLANK.match(text, at)
        if blank and (form[of].isspace() or "\n" in blank[0]):
            at, of = blank.end(), len(form) - len(form[of:].lstrip())
        elif text[at] == form[of]:
            of, at, end = of + 1, at + 1, at + 1
        else:
            break
    return of, end


def forms(value: str) -> Iterator[tuple[str, str]]:
    """Yield a secret as it may be written, and by which beginning that is known where it was cut.

    It is written as it is, coded once or twice for what it stands in, packed, or as numbers; and so are its lines.
    """
    for text in {value, *(line for line in value.splitlines()[:LINES] if len(line) >= SURE)}:
        once = {(text, text[:SURE]), *(coded(coding, text, text[:SURE]) for coding in CODINGS)}
        twice = {coded(coding, *pair) for coding in CODINGS for pair in once if len(text) <= LONG}
        deep = {coded(CODINGS[0], *pair) for pair in twice}  # JSON in JSON in JSON, or in a page
        packs = {pack for pair in once for pack in packed(*pair)}
        rare = {pack for pack in rarely(text, text[:SURE]) if len(text) <= LONG}
        for form, start in {*once, *twice, *deep, *packs, *rare}:
            yield form, start if form.startswith(start) else form


def coded(coding: Coding, value: str, start: str) -> tuple[str, str]:
    """Return a secret and its beginning as a coding writes them; as they are where it has no word for them."""
    with suppress(UnicodeError):
        return coding(value), coding(start)
    return value, start


def packed(value: str, start: str) -> Iterator[tuple[str, str]]:
    """Yield a text in base64, wherever in a longer one it begins, and in hexadecimal digits."""
    yield from in_base(64, value, start)
    yield from in_hexadecimal((bytes.hex,), value, start)


def rarely(value: str, start: str) -> Iterator[tuple[str, str]]:
    """Yield a text in base32, in base64 twice, in hexadecimal digits with something between, and as numbers."""
    yield from in_base(32, value, start)
    for pair in in_base(64, value, start):
        yield from in_base(64, *pair)
    yield from in_hexadecimal(HEXADECIMAL, value, start)
    yield from (coded(coding, value, start) for coding in NUMBERED)


def in_hexadecimal(ways: Iterable[Callable[[bytes], str]], value: str, start: str) -> Iterator[tuple[str, str]]:
    """Yield a text in hexadecimal digits, in some ways, both small and large."""
    whole, first = (text.encode(errors="surrogateescape") for text in (value, start))
    for words in ways:
        long, short = words(whole), words(first)
        yield long, short
        yield long.upper().replace("0X", "0x"), short.upper().replace("0X", "0x")


def in_base(base: int, value: str, start: str) -> Iterator[tuple[str, str]]:
    """Yield what is the same of a text in base64 or base32, wherever in a longer one it begins."""
    whole, first = (text.encode(errors="surrogateescape") for text in (value, start))
    for before in range(3 if base == 64 else 5):
        long, short = (behind(before, base, content) for content in (whole, first))
        if len(long) >= SURE:
            yield long, short
            yield (long.translate(URL_SAFE), short.translate(URL_SAFE)) if base == 64 else (long.lower(), short.lower())


def behind(before: int, base: int, content: bytes) -> str:
    """Return what bytes are in base64 or base32 behind so many others, whatever these are."""
    encode, of, to = (base64.b64encode, 3, 4) if base == 64 else (base64.b32encode, 5, 8)
    text = encode(b"\0" * before + content).decode()
    return text[-(-before * to // of) : (before + len(content)) * to // of]


def is_secret(name: str, value: str) -> bool:
    """Say whether a variable's value is a secret, by its name; the path of a file is none."""
    table = known()["secret"]
    by_name = name == name.upper() and re.search(table["variable"], name) and not re.fullmatch(table["unless"], name)
    is_plain = re.fullmatch(table["plain"], value) or (value.startswith("/") and os.path.lexists(value))
    return bool(by_name or re.fullmatch(table["key"], name)) and not is_plain


def secrets_of(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of variables that are secrets, and what is one in any of them by its shape or as a login.

    A login without a scheme is looked for where the name tells an address: of two modules, a:b@c may be the names.
    """
    for name, value in env.items():
        yield from shaped(value)
        if is_secret(name.upper(), value) and len(value) >= SHORTEST and value.lower() not in vocabulary():
            yield value
        table = known()["secret"]
        without_scheme = [*logins(value)] if OF_ADDRESSES.search(name) else []
        without_scheme += re.findall(r"^[^\s/:'\"]+(?=@)", value) if re.search(table["proxy"], name) else []
        if "://" in value or OF_ADDRESSES.search(name):
            without_scheme += map(login, value.split())
        for place in (*IN_URL.findall(value), *without_scheme):
            user, _, password = place.partition(":")
            yield from (form for part in (user, password) for form in (part, unquote(part)) if len(form) >= SHORTEST)


def shaped(value: str) -> Iterator[str]:
    """Yield the parts of a text that are secrets by their shape or by what stands before them."""
    for shape in shapes() if len(value) <= LONG else ():
        for match in shape.finditer(value):
            part = match[0].removeprefix(match.groupdict().get("kept") or "").strip("\"'")
            if len(part) > SURE and part.lower() not in vocabulary():
                yield part


def without_shapes(text: str) -> str:
    """Return a text without what is a secret by its shape or its place."""
    for shape in shapes():
        text = shape.sub(stand_in, text)
    return text


def stand_in(match: re.Match[str]) -> str:
    """Return what is kept of a match, and what stands for the rest, on each of its lines."""
    return (match.groupdict().get("kept") or "") + "\n".join([STAND] * (1 + match[0].count("\n")))
