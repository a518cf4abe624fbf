"""The settings of this machine's pip for indexes and connections.

``pip config list`` knows it best: files and ``PIP_*`` variables. Without any pip, the variables alone count.
"""

import ast
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from threading import Thread

import msgspec

from envkit.errors import HostProblem
from envkit.system.addresses import redact, whole_proxy
from envkit.system.process import CutOffError, TimeLimit, capture, which

PIP_S, MEANWHILE_S = 60.0, 10.0  # it takes half a second
ASKING = list[Thread]()
PRECEDENCE = {"global": 0, "install": 1, "download": 2, ":env:": 3}
SETTING = re.compile(r"^(?P<section>:env:|[\w-]+)\.(?P<name>[\w-]+)=(?P<value>['\"].*)$")
SILENCING = {"PIP_QUIET", "PIP_VERBOSE", "PIP_LOG"}
TRUE = {"1", "true", "t", "yes", "y", "on"}
TIMEOUT_S = 15.0


class PipSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Indexes and connections as pip has them. May hold passwords: never print it.

    ``index_urls`` is empty with pip's ``no-index``; ``timeout_s`` is for each wait, not for a whole download.
    """

    index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    timeout_s: float = TIMEOUT_S


def pip_settings(environ: Mapping[str, str] | None = None) -> PipSettings:
    """Read pip's configuration. Raises HostProblem if pip cannot read it itself."""
    options = chosen_options(os.environ if environ is None else environ)
    index_urls: tuple[str, ...] = ()
    if options.get("no-index", "").lower() not in TRUE:
        index_urls = (
            options.get("index-url") or default_index(),
            *options.get("extra-index-url", "").split(),
        )
    proxy = options.get("proxy")
    return PipSettings(
        index_urls=index_urls,
        find_links=tuple(options.get("find-links", "").split()),
        trusted_hosts=tuple(options.get("trusted-host", "").split()),
        cert=options.get("cert"),
        client_cert=options.get("client-cert"),
        proxy=whole_proxy(proxy) if proxy else None,
        timeout_s=float(options.get("timeout") or options.get("default-timeout") or TIMEOUT_S),
    )


def default_index() -> str:
    """Return the index that is used where pip is told of none."""
    from unearth import PackageFinder

    return PackageFinder().sources[0]["url"]


def chosen_options(env: Mapping[str, str]) -> dict[str, str]:
    """Return the options that count for a download, by name. Raises HostProblem as pip_settings does."""
    chosen: dict[str, tuple[int, str]] = {}
    for section, name, value in configured(env):
        rank = PRECEDENCE.get(section)
        if rank is not None and value and rank >= chosen.get(name, (-1, ""))[0]:
            chosen[name] = (rank, value)
    return {name: value for name, (_, value) in chosen.items()}


def configured(env: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield section, name and value of each setting. Raises HostProblem if pip cannot read its own configuration."""
    pip = pip_command()
    if not pip:
        for name, value in env.items():
            if name.startswith("PIP_"):
                yield ":env:", name.removeprefix("PIP_").lower().replace("_", "-"), value
        return
    for thread in ASKING:
        thread.join()
    for line in listed(tuple(pip), audible(env)).splitlines():
        if match := SETTING.match(line):
            yield match["section"], match["name"], str(ast.literal_eval(match["value"]))


@contextmanager
def meanwhile() -> Iterator[None]:
    """Have pip asked, which takes half a second, beside what is done; it ends with the block, answered or not."""
    pip, limit = pip_command(), TimeLimit(MEANWHILE_S)

    def ask() -> None:
        with suppress(HostProblem, CutOffError, OSError), limit.held():  # who needs the answer asks again, and is told
            listed(tuple(pip), audible(os.environ))

    thread = Thread(target=ask, daemon=True)
    if pip:
        with suppress(RuntimeError):  # the limit of this user's processes
            thread.start()
            ASKING.append(thread)
    try:
        yield
    finally:
        limit.end()
        ASKING.clear()


def audible(env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the settings with which pip prints what it is asked for."""
    return tuple((name, value) for name, value in env.items() if name not in SILENCING)


@cache
def listed(pip: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> str:
    """Return what pip lists of its configuration, which it is asked once. Raises HostProblem as ``configured``."""
    done = capture([*pip, "config", "list"], env=dict(env), timeout_s=PIP_S)
    if done.status == 124:  # it was stopped
        raise HostProblem(
            what=f"pip has not said within {PIP_S:.0f} s how it is configured.",
            why=f"'{' '.join(pip)} config list' was stopped.",
            fix="The machine, or the file system of that Python, is very slow now: try again later.",
        )
    if done.status:
        raise HostProblem(
            what="pip cannot read its own configuration.",
            why=redact("\n".join(done.stderr.strip().splitlines()[-3:])),
            fix="'python -m pip config debug' names the files: correct the one that is wrong.",
        )
    return done.stdout


def pip_command() -> list[str]:
    """Return how this machine's pip is called; nothing where there is none."""
    if find_spec("pip"):
        return [sys.executable, "-P", "-m", "pip"]
    program = which("pip3") or which("pip")
    return [program] if program else []
