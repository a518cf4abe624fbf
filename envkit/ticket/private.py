"""Taking out of a report what is private: secrets, names of people and hosts, home folders, addresses.

What stands for one host is the same everywhere in a report, so that it can be followed: <host-1>, <host-2>.
"""

from __future__ import annotations

import functools
import json
import os
import pwd
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from envkit.sources.connection import redact
from envkit.system import toml
from envkit.system.resources import data

SHORTEST = 4  # characters of a secret that is taken out wherever it stands
SURE = 6  # characters at the beginning of a secret by which the rest is known, where a text was cut
NAME = 3  # characters of a user's name that is taken out wherever it stands
URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{1,15}://)([^\s\"'<>(){}]{1,9999})")
IMAGES = ("docker://", "library://", "docker-daemon://", "shub://")  # their first word may be a name, and no server
FOLDED = re.compile(r"([\w.-]+)\[([\d,-]+)\]?")
A_HOST = re.compile(r"[A-Za-z][\w.-]{0,252}")
DOMAIN = re.compile(r"[A-Za-z][\w-]{0,62}(\.[\w-]{1,63}){0,6}\.[A-Za-z]{2,16}")
RANGE = re.compile(r"(?<![\w.<-])[A-Za-z][\w.-]{0,60}\[\d[\d,-]{0,200}\]?")
LISTED = re.compile(r"(?<![\w<./-])[A-Za-z][\w.-]{0,99}(?:\[\d[\d,-]{0,2000}\]?)?")
AFTER = re.compile(r"(<host-\d{1,6}>)(?!\.(?:out|err|log|txt|json|py|sh|so)\b)(?:\.[A-Za-z][\w-]{0,62}){1,8}")
STAND = re.compile(r"(host|server|address|gpu)-\d+|user|account|secret|mail|domain")
EDGES = ("(?<![A-Za-z0-9])", "(?![A-Za-z0-9])")


@functools.cache
def known() -> Mapping[str, Any]:
    """Return what is known of private things."""
    tables: Mapping[str, Any] = toml.read(data("ticket/private.toml"), toml.Tables)
    return tables


class Private:
    """What is private here: of the variables of a session, of the account and this machine, and what is learned."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self.stands = dict[str, str]()
        self.hosts = dict[str, str]()
        self.secrets = sorted({form for value in secrets_of(env) for form in forms(value)}, key=len, reverse=True)
        self.homes = sorted({one.rstrip("/") for one in homes_of(env)}, key=len, reverse=True)
        self.domains = set[str]()
        self.names = dict.fromkeys(accounts_of(env), "<account>") | dict.fromkeys(users_of(env), "<user>")
        for name in hosts_of(env):
            self.host(name)

    def host(self, name: str) -> None:
        """Have the name of a host taken out, and its short form."""
        short = name.partition(".")[0]
        if not A_HOST.fullmatch(name) or len(short) < 2 or short.lower() in known()["host"]["none"]:
            return
        self.hosts |= dict.fromkeys((name, short), self.stand("host", short))
        domain = name.partition(".")[2]
        if DOMAIN.fullmatch(domain) and not re.fullmatch(known()["host"]["public"], domain):
            self.domains.add(domain)

    def person(self, kind: str, name: str) -> None:
        """Have the name of a user or an account taken out wherever it stands, if it can be no other word."""
        if len(name) >= NAME and is_name(name):
            self.names.setdefault(name, f"<{kind}>")

    def stand(self, kind: str, value: str) -> str:
        """Return what stands for a thing of a kind."""
        key = f"{kind} {value}"
        if key not in self.stands:
            self.stands[key] = f"<{kind}-{1 + sum(one.startswith(f'{kind} ') for one in self.stands)}>"
        return self.stands[key]

    def learn(self, text: str) -> None:
        """Take note of the users, accounts and hosts that a text names as launchers, schedulers and NCCL do."""
        for shape in known()["person"]["told"]:
            for match in re.finditer(shape, text, re.MULTILINE):
                for kind, value in told(match):
                    if kind != "hosts":
                        self.person(kind, value.rstrip("."))
                    else:
                        self.in_list(value)
        for pattern in known()["host"]["told"]:
            for match in re.finditer(pattern, text, re.MULTILINE):
                self.in_list(match["host"].rstrip("."))

    def in_list(self, text: str) -> str:
        """Return a list of hosts as what stands for them."""
        return LISTED.sub(self.listed, text)

    def listed(self, match: re.Match[str]) -> str:
        """Return what stands for a host, or for those of a range, of which the first and the last are said."""
        names = [*unfolded(match[0])]
        for name in names:
            self.host(name)
        stands = [self.hosts[name] for name in names if name in self.hosts]
        return match[0] if not stands else stands[0] if len(stands) == 1 else f"{stands[0]}..{stands[-1]}"

    def placed(self, match: re.Match[str]) -> str:
        """Return a place of a name with what stands for it."""
        kept = match.groupdict().get("kept") or ""
        for kind, value in told(match):
            if kind == "hosts":
                return kept + self.in_list(value)
            if value.lower() not in known()["person"]["nobody"] and (is_name(value) or not kept.endswith(" ")):
                return f"{kept}<{kind}>"
        return match[0]

    def out_of(self, text: str) -> str:
        """Return a text without what is private."""
        for value in self.secrets:
            text = without_secret(text, value)
        text = URL.sub(self.url, redact(text))
        for shape in known()["secret"]["shapes"]:
            text = re.sub(shape, kept_and("<secret>"), text)
        for home in self.homes:
            text = re.sub(re.escape(home) + r"(?![\w.-])", "~", text)
        text = re.sub(known()["person"]["mail"], "<mail>", text)
        text = RANGE.sub(lambda match: self.in_list(match[0]) if self.is_range(match[0]) else match[0], text)
        for shape in known()["person"]["told"]:
            text = re.sub(shape, self.placed, text, flags=re.MULTILINE)
        for name in sorted(self.names, key=len, reverse=True):
            text = re.sub(f"{EDGES[0]}{re.escape(name)}{EDGES[1]}", self.names[name], text)
        for name in sorted(self.hosts, key=len, reverse=True):
            text = re.sub(f"{EDGES[0]}{re.escape(name)}{EDGES[1]}", self.hosts[name], text)
        text = AFTER.sub(r"\1", text)
        for domain in sorted(self.domains, key=len, reverse=True):
            text = re.sub(rf"{EDGES[0]}([\w-]{{1,63}}\.){{0,4}}{re.escape(domain)}{EDGES[1]}", "<domain>", text)
        for shape in known()["person"]["shapes"]:
            text = re.sub(shape, kept_and("<user>"), text)
        for shape in known()["host"]["addresses"]:
            text = re.sub(shape, lambda match: self.stand("address", match[0]), text)
        return re.sub(known()["host"]["cards"], lambda match: self.stand("gpu", match[0]), text)

    def is_range(self, word: str) -> bool:
        """Say whether a range is one of hosts that are known."""
        return any(name in self.hosts for name in unfolded(word))

    def url(self, match: re.Match[str]) -> str:
        """Return a URL without user, query and fragment, and without the name of a server that not everybody knows."""
        scheme, rest = match[1], match[2]
        place, slash, path = rest.partition("/")
        if scheme == "file://" or (scheme in IMAGES and "." not in place.partition(":")[0]):
            return match[0]
        host, colon, port = place.rpartition("@")[2].partition(":")
        if A_HOST.fullmatch(host) and not re.fullmatch(known()["host"]["public"], host):
            host = self.hosts.get(host) or self.stand("server", host)
        port = port if re.fullmatch(r"\d{0,5}\W*", port) else "<secret>"  # of a URL that was cut before its @
        return f"{scheme}{host}{colon}{port}{slash}{re.split('[?#]', path)[0]}"

    def out_of_all(self, value: Any, name: str = "") -> Any:
        """Return what JSON can hold without what is private in any text; the value of a secret's name is one."""
        if isinstance(value, str):
            return "<secret>" if value and name and is_secret(name, value) else self.out_of(value)
        if isinstance(value, Mapping):
            return {self.out_of(str(key)): self.out_of_all(one, str(key)) for key, one in value.items()}
        if isinstance(value, list | tuple) and all(isinstance(one, str) and "\n" not in one for one in value):
            return self.out_of("\n".join(value)).split("\n") if value else []
        if isinstance(value, list | tuple):
            return [self.out_of_all(one) for one in value]
        return value


def without_secret(text: str, value: str) -> str:
    """Return a text without a secret, be it cut at its end, or at the beginning of the text."""
    text = text.replace(value, "<secret>")
    if len(value) <= SURE:
        return text
    at = 0
    while (at := text.find(value[:SURE], at)) >= 0:
        same = len(os.path.commonprefix([value, text[at:]]))  # noqa: RUF071  (of characters)
        text = f"{text[:at]}<secret>{text[at + same :]}"
    ends = (value[start:] for start in range(1, len(value) - SURE + 1))
    cut = next((end for end in ends if text.startswith(end)), "")
    return f"<secret>{text[len(cut) :]}" if cut else text


def kept_and(stand: str) -> Any:
    """Return what replaces a match by what is kept of it and what stands for the rest, on each of its lines."""
    return lambda match: (match.groupdict().get("kept") or "") + "\n".join([stand] * (1 + match[0].count("\n")))


def forms(value: str) -> Iterator[str]:
    """Yield a secret as it may be written: plain, in a URL, in JSON, in Python, in a shell; and its lines."""
    yield from (
        value,
        quote(value, safe=""),
        quote(value),
        quote_plus(value),
        json.dumps(value)[1:-1],
        repr(value)[1:-1],
    )
    yield shlex.quote(value)
    yield from (line for line in value.splitlines() if len(line) >= SURE)


def is_secret(name: str, value: str) -> bool:
    """Say whether a variable's value is a secret, by its name; the path of a file is none."""
    told = known()["secret"]
    by_name = re.search(told["variable"], name) and not re.fullmatch(told["unless"], name)
    is_plain = re.fullmatch(told["plain"], value) or (value.startswith("/") and os.path.lexists(value))
    return bool(by_name and name == name.upper()) and not is_plain


def secrets_of(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of variables that are secrets, and users and passwords of URLs in any of them."""
    for name, value in env.items():
        if is_secret(name.upper(), value) and len(value) >= SHORTEST:
            yield value
        for place in re.findall(r"://([^\s/'\"]*)@", value):
            user, _, password = place.partition(":")
            yield from (one for part in (user, password) for one in (part, unquote(part)) if len(one) >= SHORTEST)


def told(match: re.Match[str]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of what a place names, unless that is what stands for one."""
    for kind, value in match.groupdict().items():
        if kind != "kept" and value and not STAND.fullmatch(value):
            yield kind, value


def is_name(word: str) -> bool:
    """Say whether a word can be a name of a person or an account, and nothing else."""
    told = known()["person"]
    return word.lower() not in told["nobody"] and word.lower() not in told["words"].split()


def accounts_of(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the projects that pay."""
    found = (env.get(name, "") for name in known()["person"]["accounts"])
    yield from (name for name in found if len(name) >= NAME and is_name(name))


def users_of(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of this user: the account's, and its owner's."""
    found = [env.get(name, "") for name in known()["person"]["variables"]]
    with suppress(KeyError):
        account = pwd.getpwuid(os.geteuid())
        found += [account.pw_name, account.pw_gecos.split(",")[0], Path(account.pw_dir).name]
    yield from (name for name in found if len(name) >= NAME and name.lower() not in known()["person"]["nobody"])


def homes_of(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the paths of the home folder."""
    named = [env.get("HOME", "")]
    with suppress(KeyError):
        named.append(pwd.getpwuid(os.geteuid()).pw_dir)
    yield from (path for one in named if len(one) > 1 and one.startswith("/") for path in (one, os.path.realpath(one)))


def hosts_of(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of this host, and of those that variables of the session and the job have."""
    yield os.uname().nodename
    for name in known()["host"]["variables"]:
        for word in re.split(r",(?![\d,-]*\])|\s", env.get(name, "")):
            yield from unfolded(word)


def unfolded(word: str) -> Iterable[str]:
    """Return the names in a list as Slurm folds it, n[01-03]; of each range a thousand at most."""
    match = FOLDED.fullmatch(word)
    if match is None:
        return [word]
    ranges = [part.partition("-") for part in match[2].split(",") if part[:1].isdigit()]
    return [
        f"{match[1]}{number:0{len(first)}d}"
        for first, _, last in ranges
        for number in range(int(first), min(int(last or first), int(first) + 999) + 1)
    ]
