"""Secrets: which variables have them, in which forms they are written, and what is one by its shape or its place."""

from __future__ import annotations

import base64
import functools
import html
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from envkit.sources.addresses import IN_URL, login, logins, redact
from envkit.system import toml
from envkit.system.resources import data
from envkit.ticket.names import vocabulary

SHORTEST = 4  # characters of a secret that is taken out wherever it stands
SURE = 6  # characters at the beginning of a secret by which the rest is known, where a text was cut
LONG, LINES = 4096, 200  # characters of a secret whose forms that are coded twice are looked for, lines of any
STAND = "<secret>"
PACKED = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/_-]{16,9999}={0,2}(?![A-Za-z0-9+/=_-])")
PERCENT = re.compile(r"%[0-9A-F]{2}")
URL_SAFE = {ord("+"): "-", ord("/"): "_"}
Coding = Callable[[str], str]


@functools.cache
def known() -> Mapping[str, Any]:
    """Return what is known of private things."""
    tables: Mapping[str, Any] = toml.read(data("ticket/private.toml"), toml.Tables)
    return tables


@functools.cache
def shapes() -> tuple[re.Pattern[str], ...]:
    """Return what a secret is by its shape or by what stands before it, which is the group "kept"."""
    told = known()["secret"]
    return tuple(re.compile(functools.reduce(filled, told["parts"].items(), one)) for one in told["shapes"])


def filled(shape: str, part: tuple[str, str]) -> str:
    """Return a pattern with one of its parts put in."""
    return shape.replace(f"<{part[0]}>", part[1])


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


class Secrets:
    """The secrets of a session's variables, in the forms in which they may be written."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.values = {*secrets_of(env)}
        self.by_start = dict[str, list[str]]()
        for form, start in dict(sure for value in self.values for sure in forms(value)).items():
            self.by_start.setdefault(start, []).append(form)
        self.by_head = dict[str, list[str]]()
        for start in self.by_start:
            self.by_head.setdefault(start[:SHORTEST], []).append(start)

    def out_of(self, text: str) -> str:
        """Return a text without them, be one cut at its end, or at the beginning of the text."""
        parts, at = list[str](), 0
        if cut := max((len(end) for end in self.ends(text)), default=0):
            parts, at = [STAND], cut
        for place, start in sorted(self.places(text)):
            if place >= at:
                same = max(alike(form, text, place) for form in self.by_start[start])
                parts += (text[at:place], STAND)
                at = place + same
        return "".join((*parts, text[at:]))

    def without(self, text: str) -> str:
        """Return a text without them, and without what is a secret of others by its shape or its place."""
        return without_shapes(redact(without_packed(self.out_of(text))))

    def places(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield where in a text the beginning of one stands."""
        for at in range(len(text) - SHORTEST + 1 if self.by_head else 0):
            for start in self.by_head.get(text[at : at + SHORTEST], ()):
                if text.startswith(start, at):
                    yield at, start

    def ends(self, text: str) -> Iterator[str]:
        """Yield the ends of them that a text begins with."""
        for value in self.values:
            begin = value.find(text[:SURE], 1) if len(text) >= SURE else -1
            while begin > 0:
                if text.startswith(value[begin:]):
                    yield value[begin:]
                begin = value.find(text[:SURE], begin + 1)


def alike(form: str, text: str, place: int) -> int:
    """Return how many characters of a form stand at a place of a text."""
    return len(os.path.commonprefix([form, text[place : place + len(form)]]))  # noqa: RUF071  (of characters)


def forms(value: str) -> Iterator[tuple[str, str]]:
    """Yield a secret as it may be written, and by which beginning that is known where it was cut.

    It is written as it is, coded once or twice for what it stands in, or packed; and so are its lines.
    """
    for one in {value, *(line for line in value.splitlines()[:LINES] if len(line) >= SURE)}:
        once = {(one, one[:SURE]), *(coded(coding, one, one[:SURE]) for coding in CODINGS)}
        twice = {coded(coding, *pair) for coding in CODINGS for pair in once if len(one) <= LONG}
        deep = {coded(CODINGS[0], *pair) for pair in twice}  # JSON in JSON in JSON, or in a page
        for form, start in {*once, *twice, *deep, *(pack for pair in once for pack in packed(*pair))}:
            yield form, start if form.startswith(start) else form


def coded(coding: Coding, value: str, start: str) -> tuple[str, str]:
    """Return a secret and its beginning as a coding writes them; as they are where it has no word for them."""
    with suppress(UnicodeError):
        return coding(value), coding(start)
    return value, start


def packed(value: str, start: str) -> Iterator[tuple[str, str]]:
    """Yield what is the same of a text in base64, wherever in a longer one it begins, and it in hexadecimal digits."""
    whole, first = (one.encode(errors="surrogateescape") for one in (value, start))
    for before in range(3):
        long, short = in_base64(whole, before), in_base64(first, before)
        if len(long) >= SURE:
            yield long, short
            yield long.translate(URL_SAFE), short.translate(URL_SAFE)
    yield whole.hex(), first.hex()
    yield whole.hex().upper(), first.hex().upper()


def in_base64(content: bytes, before: int) -> str:
    """Return what bytes are in base64 behind so many others, whatever these are."""
    text = base64.b64encode(b"\0" * before + content).decode()
    return text[-(-before * 4 // 3) : (before + len(content)) * 4 // 3]


def is_secret(name: str, value: str) -> bool:
    """Say whether a variable's value is a secret, by its name; the path of a file is none."""
    told = known()["secret"]
    by_name = name == name.upper() and re.search(told["variable"], name) and not re.fullmatch(told["unless"], name)
    is_plain = re.fullmatch(told["plain"], value) or (value.startswith("/") and os.path.lexists(value))
    return bool(by_name or re.fullmatch(told["key"], name)) and not is_plain


def secrets_of(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of variables that are secrets, and users and passwords of addresses in any of them.

    One without a scheme is looked for where the name tells an address: of two modules, a:b@c may be the names.
    """
    for name, value in env.items():
        if is_secret(name.upper(), value) and len(value) >= SHORTEST and value.lower() not in vocabulary():
            yield value
        told = known()["secret"]
        without_scheme = [*logins(value)] if re.search(told["address"], name) else []
        without_scheme += re.findall(r"^[^\s/:'\"]+(?=@)", value) if re.search(told["proxy"], name) else []
        if "://" in value or re.search(told["address"], name):
            without_scheme.append(login(value))
        for place in (*IN_URL.findall(value), *without_scheme):
            user, _, password = place.partition(":")
            yield from (one for part in (user, password) for one in (part, unquote(part)) if len(one) >= SHORTEST)


def without_shapes(text: str) -> str:
    """Return a text without what is a secret by its shape or its place."""
    for shape in shapes():
        text = shape.sub(stand_in, text)
    return text


def without_packed(text: str) -> str:
    """Return a text without what is in base64 and has a secret in it, by its shape."""
    return PACKED.sub(unpacked, text)


def stand_in(match: re.Match[str]) -> str:
    """Return what is kept of a match, and what stands for the rest, on each of its lines."""
    return (match.groupdict().get("kept") or "") + "\n".join([STAND] * (1 + match[0].count("\n")))


def unpacked(match: re.Match[str]) -> str:
    """Return what stands for a text in base64 that has a secret in it, by its shape; any other as it is."""
    text = match[0].rstrip("=").replace("-", "+").replace("_", "/")
    with suppress(ValueError):
        inside = base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode()
        return STAND if inside.isascii() and without_shapes(inside) != inside else match[0]
    return match[0]
