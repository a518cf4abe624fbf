"""Asking CernVM-FS servers directly: what keeps a client from a repository, which itself says "file catalog" to all."""

import base64
import os
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from envkit.errors import Problem
from envkit.knowledge.eessi import Repository, known, symptom, usual
from envkit.system.addresses import SCHEME, shown

CONFIGURATION = Path("/etc/cvmfs")
CACHE = "/var/lib/cvmfs"
LIMIT_S = 5.0
SETTING = re.compile(r"""^\s*(?:export\s+)?(\w+)=(["']?)(.*?)\2\s*(?:#.*)?$""")
PARAMETER = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)")


@dataclass(frozen=True, kw_only=True)
class ServerAnswer:
    """What a server said of a repository: "ok", "missing", "wrong" or "dead", and in words."""

    url: str
    proxy: str
    state: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Client:
    """How a CernVM-FS client of this machine is configured: its files, servers, proxies ("" is none), keys and cache.

    They are those for the ``repository``. ``limit_mb`` is how much the cache may hold; None where there is no limit, or
    none is told.
    """

    repository: str
    files: tuple[Path, ...]
    servers: tuple[str, ...]
    proxies: tuple[str, ...]
    keys: tuple[Path, ...]
    keys_place: str
    cache: Path
    limit_mb: int | None


def client(
    env: Mapping[str, str] = os.environ, folder: Path = CONFIGURATION, *, asked: Repository | None = None
) -> Client:
    """Read the configuration; CVMFS_SERVER_URL and CVMFS_HTTP_PROXY of the caller count more.

    Where neither names a proxy, it is the caller's http_proxy, and none.
    """
    asked = asked or usual()
    repository = asked.name
    domain = repository.partition(".")[2]
    names = (name.format(repository=repository, domain=domain) for name in known().configuration["files"])
    files = tuple(path for name in names for path in sorted(folder.glob(name)))
    settings = dict[str, str]()
    for path in files:
        read(path, settings, env)
    settings |= {name: env[name] for name in ("CVMFS_SERVER_URL", "CVMFS_HTTP_PROXY") if env.get(name)}
    urls = [url.strip() for url in settings.get("CVMFS_SERVER_URL", "").split(";") if is_known(url)]
    urls = urls or list(asked.servers)
    place = (
        asked.key or settings.get("CVMFS_PUBLIC_KEY") or settings.get("CVMFS_KEYS_DIR") or str(folder / "keys" / domain)
    )
    keys = tuple(key for part in place.split(":") for key in keys_in(Path(part)))
    return Client(
        repository=repository,
        files=files,
        servers=tuple(url.replace("@fqrn@", repository).replace("@org@", domain) for url in urls),
        proxies=tuple(proxies(settings.get("CVMFS_HTTP_PROXY") or f"{env.get('http_proxy', '')};DIRECT")),
        keys=keys,
        keys_place=place,
        cache=Path(settings.get("CVMFS_ALIEN_CACHE") or settings.get("CVMFS_CACHE_BASE") or CACHE),
        limit_mb=int(limit) if (limit := settings.get("CVMFS_QUOTA_LIMIT", "")).isdigit() else None,
    )


def read(path: Path, settings: dict[str, str], env: Mapping[str, str]) -> None:
    """Add the settings in a file of CernVM-FS, which are assignments of a shell, to those of the files before it."""
    for line in path.read_text(errors="replace").splitlines():
        if match := SETTING.match(line):
            name, quote, text = match.groups()
            settings[name] = text if quote == "'" else expanded(text, {**env, **settings})


def expanded(text: str, values: Mapping[str, str]) -> str:
    """Return a text with its parameters put in, as a shell has them: $NAME, ${NAME}, ${NAME:-OTHERWISE}."""
    return PARAMETER.sub(lambda match: values.get(match[1] or match[3], "") or match[2] or "", text)


def is_known(word: str) -> bool:
    """Say whether a word of a setting is a value; what a shell would have to run for is none."""
    return bool(word.strip()) and "$" not in word and "`" not in word


def keys_in(place: Path) -> Iterable[Path]:
    """Return the public keys in a folder, or the key itself."""
    return sorted(place.glob("*.pub")) if place.is_dir() else [place] if place.is_file() else []


def proxies(text: str) -> list[str]:
    """Return the proxies of CVMFS_HTTP_PROXY in order, "" for DIRECT; those to be discovered are left out."""
    words = [word.strip() for word in re.split(r"[;|]", text)]
    return ["" if word == "DIRECT" else word for word in words if is_known(word) and word != "auto"] or [""]


def problem(configured: Client) -> Problem | None:
    """Say what keeps a client of this configuration from the repository; None if nothing does."""
    repository, urls = configured.repository, ", ".join(map(shown, configured.servers))
    for named in configured.proxies:
        if named and not is_address(named):
            return symptom("proxy-malformed", proxy=hidden(named))
    answers = ask(configured, configured.proxies)
    states = {answer.state: answer for answer in answers}
    if good := states.get("ok"):
        return key_problem(configured, good)
    if missing := states.get("missing"):
        return symptom("unknown-repository", repository=repository, urls=urls, reason=missing.reason)
    if wrong := states.get("wrong"):
        return symptom("wrong-answer", repository=repository, urls=urls, reason=wrong.reason)
    dead = answers[0]
    refusing = [answer for answer in answers if answer.proxy and not listens(answer.proxy)]
    if refusing:
        proxy = refusing[0]
        direct = any(answer.state == "ok" for answer in ask(configured, ("",)))
        words = {
            "proxy": hidden(proxy.proxy),
            "reason": proxy.reason,
            "repository": repository,
            "urls": urls,
        }
        return symptom("proxy-dead" if direct else "proxies-needed", **words)
    return symptom("server-dead", repository=repository, urls=urls, reason=dead.reason)


def ask(configured: Client, through: Sequence[str]) -> list[ServerAnswer]:
    """Ask every server through every proxy, at the same time."""
    from concurrent.futures import ThreadPoolExecutor

    pairs = [(url, proxy) for proxy in through[:3] for url in configured.servers[:4]]
    with ThreadPoolExecutor(len(pairs)) as pool:
        return list(pool.map(lambda pair: published(configured.repository, *pair), pairs))


def published(repository: str, url: str, proxy: str) -> ServerAnswer:
    """Fetch what a server publishes of the repository."""
    import http.client  # entering a mount asks no server
    import urllib.error

    try:
        text = fetch(f"{url}/.cvmfspublished", proxy)
    except urllib.error.HTTPError as error:
        state = {404: "missing", 502: "dead", 503: "dead", 504: "dead"}.get(error.code, "wrong")
        return ServerAnswer(url=url, proxy=proxy, state=state, reason=f"HTTP status {error.code} {error.reason}")
    except http.client.InvalidURL:  # what it says may be a part of a password
        return ServerAnswer(url=url, proxy=proxy, state="dead", reason="it is no address")
    except http.client.HTTPException as error:
        reason = f"it does not speak HTTP ({type(error).__name__}: {str(error)[:80]!r})"
        return ServerAnswer(url=url, proxy=proxy, state="wrong", reason=reason)
    except (OSError, ValueError) as error:
        return ServerAnswer(url=url, proxy=proxy, state="dead", reason=str(getattr(error, "reason", error)))
    name = re.search(rb"^N(\S+)$", text.partition(b"\n--\n")[0], re.MULTILINE)
    if name is None:
        return ServerAnswer(url=url, proxy=proxy, state="wrong", reason=f"it begins with {text[:40]!r}")
    told = name[1].decode(errors="replace")
    if told != repository:
        return ServerAnswer(url=url, proxy=proxy, state="wrong", reason=f"it is of {told}")
    return ServerAnswer(url=url, proxy=proxy, state="ok")


def fetch(url: str, proxy: str) -> bytes:
    """Fetch a small file by HTTP alone, through a proxy or none. Raises OSError, ValueError and HTTPException."""
    import urllib.request

    if urlsplit(url).scheme != "http":
        raise ValueError(f"{shown(url)} is not http, which CernVM-FS needs for its proxies")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": proxy} if proxy else {}))
    with opener.open(url, timeout=LIMIT_S) as answer:
        content: bytes = answer.read(1 << 20)
    return content


def is_address(proxy: str) -> bool:
    """Say whether a proxy is written as CernVM-FS takes it: http://HOST:PORT, or HOST:PORT."""
    try:
        parts = address(proxy)
        is_host = bool(parts.hostname) and (parts.port or 1) > 0 and " " not in proxy
        return is_host and parts.scheme in ("http", "https") and "@" not in parts.path + parts.query + parts.fragment
    except ValueError:
        return False


def address(proxy: str) -> SplitResult:
    """Return the parts of a proxy. Raises ValueError."""
    return urlsplit(proxy if "//" in proxy else f"http://{proxy}")


def hidden(proxy: str) -> str:
    """Return a proxy without its password: all before its last @, and what is no port behind a colon."""
    begin = SCHEME.match(proxy)
    scheme, rest = (begin[0], proxy[begin.end() :]) if begin else ("", proxy)
    host = f"***@{rest.rpartition('@')[2]}" if "@" in rest else rest
    return scheme + re.sub(r"(?<=[^:\[]):(?!\d{1,5}/?$|[^/]*\]).*", ":***", host)


def listens(proxy: str) -> bool:
    """Say whether anything listens at the address of a proxy."""
    parts = address(proxy)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 3128), LIMIT_S).close()
    except (OSError, ValueError):
        return False
    return True


def key_problem(configured: Client, answer: ServerAnswer) -> Problem | None:
    """Say whether the keys here verify the whitelist of a server that answers."""
    import http.client

    if not configured.files and not configured.keys:  # no client is configured here: the image brings its keys
        return None
    if not configured.keys:
        return symptom("no-key", keys=configured.keys_place)
    try:
        whitelist = fetch(f"{answer.url}/.cvmfswhitelist", answer.proxy)
    except (OSError, ValueError, http.client.HTTPException):
        return None
    if any(verifies(whitelist, key.read_text(errors="replace")) for key in configured.keys):
        return None
    return symptom("wrong-key", keys=configured.keys_place, repository=configured.repository, urls=shown(answer.url))


def verifies(whitelist: bytes, key: str) -> bool:
    """Say whether a whitelist was signed with the private half of a key (RSA, PKCS#1 v1.5 of the SHA-1 in hex)."""
    import hashlib

    body, _, rest = whitelist.partition(b"--\n")
    told, _, signature = rest.partition(b"\n")
    try:
        modulus, exponent = rsa_numbers(key)
    except (ValueError, IndexError):
        return False
    length = (modulus.bit_length() + 7) // 8
    plain = pow(int.from_bytes(signature[:length]), exponent, modulus).to_bytes(length)
    digest = hashlib.sha1(body, usedforsecurity=False).hexdigest().encode()
    return told.startswith(digest) and plain == b"\0\1" + b"\xff" * (length - len(told) - 3) + b"\0" + told


def rsa_numbers(pem: str) -> tuple[int, int]:
    """Return modulus and exponent of a public key in PEM. Raises ValueError and IndexError for anything else."""
    match = re.search(r"-----BEGIN PUBLIC KEY-----(.*?)-----END", pem, re.DOTALL)
    content = base64.b64decode("".join(match[1].split())) if match else b""
    _, bits = parts(parts(content)[0])
    modulus, exponent = parts(parts(bits[1:])[0])
    return int.from_bytes(modulus), int.from_bytes(exponent)


def parts(content: bytes) -> list[bytes]:
    """Return the contents of the DER values that follow each other."""
    found = []
    while content:
        length, start = content[1], 2
        if length & 0x80:
            start += length & 0x7F
            length = int.from_bytes(content[2:start])
        found.append(content[start : start + length])
        content = content[start + length :]
    return found
