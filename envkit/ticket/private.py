"""Taking out of a report what is private: secrets, names of people and hosts, home folders, addresses.

What stands for one host is the same everywhere in a report, so that it can be followed: <host-1>, <host-2>.
"""

from __future__ import annotations

import os
import pwd
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from envkit.system.addresses import redact
from envkit.ticket import names, secrets
from envkit.ticket.names import DOMAIN, STANDS
from envkit.ticket.secrets import STAND, is_secret, known

NAME = 3  # characters of a user's name that is taken out wherever it stands
URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]{1,15}://)([^\s\"'<>(){}]{1,9999})")
IMAGES = ("docker://", "library://", "docker-daemon://", "shub://")  # their first word may be a name, and no server
FOLDED = re.compile(r"([\w.-]+)\[([\d,-]+)\]?")
A_HOST = re.compile(r"[A-Za-z][\w.-]{0,252}")
RANGE = re.compile(r"(?<![\w.<-])[A-Za-z][\w.-]{0,60}\[\d[\d,-]{0,200}\]?")
LISTED = re.compile(r"(?<![\w<./-])[A-Za-z][\w.-]{0,99}(?:\[\d[\d,-]{0,2000}\]?)?")
DOTTED = re.compile(r"(?<![\w.-])([A-Za-z][\w-]{1,62})\.([A-Za-z][\w-]{0,62}(?:\.[\w-]{1,63}){1,6})(?![\w-])")
BELOW = re.compile(r"(?:(?<![\w.-])(?:[\w-]{1,63}\.){1,4})?<domain>")
A_FILE = (
    r"\.(?:out|err|log|txt|json|py|sh|so|gz|h5|pt|ya?ml|csv|np[yz]|pkl|tar|toml|cfg|ini|conf|cc?|cpp|h|lua|eb|sif)\b"
)
AFTER = re.compile(rf"(<host-\d{{1,6}}>)(?!{A_FILE})(?:\.(?:[A-Za-z][\w-]{{0,62}}|<domain>)){{1,8}}")
REMEMBERED = 50_000  # texts that come again, as those of ranks that say the same


class Redactor:
    """The private things here: of the variables of a session, of the account and this machine, and what is learned."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self.stands, self.numbers = dict[tuple[str, str], str](), Counter[str]()
        self.hosts = dict[str, str]()
        self.names = names.Names()
        self.secrets = secrets.Secrets(env)
        self.homes = sorted({home.rstrip("/") for home in homes_of(env)}, key=len, reverse=True)
        self.cleared = dict[str, str]()
        for kind, several in (("user", users_of(env)), ("account", accounts_of(env))):
            for name in several:
                self.person(kind, name)
        for domain in names.domains():
            self.domain(domain)
        for name in hosts_of(env):
            self.host(name)

    def host(self, name: str) -> None:
        """Have the name of a host taken out, and its short form; a word that is others', too, where a host's stands."""
        short = name.partition(".")[0]
        if not A_HOST.fullmatch(name) or len(short) < 2 or short.lower() in known()["host"]["none"]:
            return
        for form in (name, short):
            self.hosts[form] = self.stand("host", short)
            if is_name(form):
                self.names.add(form, self.hosts[form])
        self.domain(name.partition(".")[2])

    def domain(self, domain: str) -> None:
        """Have the domain of a site taken out, with what stands before it, but for one that everybody knows."""
        is_one = DOMAIN.fullmatch(domain) and not re.search(f"{A_FILE}$", domain)
        if is_one and not re.fullmatch(known()["host"]["public"], domain):
            self.names.add(domain, "<domain>")

    def person(self, kind: str, name: str) -> None:
        """Have the name of a user or an account taken out wherever it stands, if it can be no other word."""
        if len(name) >= NAME and is_name(name):
            self.names.add(name, f"<{kind}>")

    def stand(self, kind: str, value: str) -> str:
        """Return what stands for a thing of a kind."""
        if (kind, value) not in self.stands:
            self.numbers[kind] += 1
            self.stands[kind, value] = f"<{kind}-{self.numbers[kind]}>"
        return self.stands[kind, value]

    def learn(self, text: str) -> None:
        """Take note of the users, accounts and hosts that a text names as launchers, schedulers and NCCL do."""
        text = secrets.stripped(text)
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
        for match in DOTTED.finditer(text):
            if match[1] in self.hosts and any(map(str.isdigit, match[1])):
                self.domain(match[2])
        self.cleared.clear()

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
        if text not in self.cleared:
            if len(self.cleared) >= REMEMBERED:
                self.cleared.clear()
            self.cleared[text] = self.clear(text)
        return self.cleared[text]

    def clear(self, text: str) -> str:
        """Return a text without what is private, looked at anew."""
        text = self.secrets.without_packed(self.secrets.out_of(text))
        text = secrets.without_shapes(URL.sub(self.url, redact(text)))
        for home in self.homes:
            text = re.sub(re.escape(home) + r"(?![\w.-])", "~", text)
        text = re.sub(known()["person"]["mail"], "<mail>", text)
        text = RANGE.sub(lambda match: self.in_list(match[0]) if self.is_range(match[0]) else match[0], text)
        for shape in known()["person"]["told"]:
            text = re.sub(shape, self.placed, text, flags=re.MULTILINE)
        text = AFTER.sub(r"\1", BELOW.sub("<domain>", self.names.out_of(text)))
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
        if not re.fullmatch(r"\d{0,5}\W*", port):  # of a URL that was cut before its @, or has a / in its password
            return f"{scheme}{host}:{STAND}"
        if re.search(known()["secret"]["url"], match[0]):
            return f"{scheme}{host}{colon}{port}/{STAND}"
        return f"{scheme}{host}{colon}{port}{slash}{re.split('[?#]', path)[0]}"

    def out_of_all(self, value: Any, name: str = "") -> Any:
        """Return what JSON can hold without what is private in any text; the value of a secret's name is one."""
        if isinstance(value, str):
            if value and name and is_secret(name, value):
                return STAND
            if name == "host" and value in self.hosts:
                return self.hosts[value]
            return value if value.lower() in names.vocabulary() else self.out_of(value)
        if isinstance(value, Mapping):
            return {self.key(str(key)): self.out_of_all(inner, str(key)) for key, inner in value.items()}
        if isinstance(value, list | tuple) and all(isinstance(item, str) and "\n" not in item for item in value):
            return self.out_of("\n".join(value)).split("\n") if value else []
        if isinstance(value, list | tuple):
            return [self.out_of_all(item) for item in value]
        return value

    def key(self, key: str) -> str:
        """Return a key without what is private; one of envkit's own stays."""
        return key if key.lower() in names.vocabulary() else self.out_of(key)


def kept_and(stand: str) -> Any:
    """Return what replaces a match by what is kept of it and what stands for the rest, on each of its lines."""
    return lambda match: (match.groupdict().get("kept") or "") + "\n".join([stand] * (1 + match[0].count("\n")))


def told(match: re.Match[str]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of what a place names, unless that is what stands for one."""
    for kind, value in match.groupdict().items():
        if kind != "kept" and value and not STANDS.fullmatch(value):
            yield kind, value


def is_name(word: str) -> bool:
    """Say whether a word can be a name of a person or an account, and nothing else."""
    table = known()["person"]
    return word.lower() not in {*table["nobody"], *table["words"].split(), *names.vocabulary()}


def accounts_of(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the projects that pay."""
    yield from (env.get(name, "") for name in known()["person"]["accounts"])


def users_of(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of this user: the account's, and its owner's."""
    users = [env.get(name, "") for name in known()["person"]["variables"]]
    with suppress(KeyError):
        account = pwd.getpwuid(os.geteuid())
        users += [account.pw_name, account.pw_gecos.split(",")[0], Path(account.pw_dir).name]
    yield from users


def homes_of(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the paths of the home folder."""
    named = [env.get("HOME", "")]
    with suppress(KeyError):
        named.append(pwd.getpwuid(os.geteuid()).pw_dir)
    yield from (
        path for home in named if len(home) > 1 and home.startswith("/") for path in (home, os.path.realpath(home))
    )


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
