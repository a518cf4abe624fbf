"""Filling a CernVM-FS cache with what modules need, for nodes that reach no server."""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import platformdirs

from envkit.eessi import access, entry, servers
from envkit.eessi.access import Access, Probe
from envkit.eessi.client_cache import held_mb
from envkit.eessi.entry import EntryOptions
from envkit.environments.eessi import EessiEnvironment
from envkit.errors import DiskFull, HostProblem
from envkit.knowledge.eessi import Repository, known, symptom
from envkit.machine.host import writable_parent
from envkit.machine.modules_tool import require_entered
from envkit.system import files, process
from envkit.system.resources import data


class Prefetched(msgspec.Struct, frozen=True, kw_only=True):
    """What was read: files and bytes, into which cache ("" where none is filled, or it is not known)."""

    release: str
    modules: tuple[str, ...]
    files: int
    bytes: int
    cache: str
    limit_mb: int | None
    free_mb: int | None


@dataclass(frozen=True, kw_only=True)
class Cache:
    """Where a client keeps what it reads: ``limit_mb`` is its own limit; None is what is not known, or not set."""

    words: str
    folder: Path | None = None
    limit_mb: int | None = None

    @property
    def free_mb(self) -> int | None:
        """The free space (MB) where it lies."""
        try:
            return shutil.disk_usage(writable_parent(self.folder)).free // 1_000_000 if self.folder else None
        except OSError:
            return None


def prefetch(
    asked: EntryOptions,
    say: Callable[[str], None],
    show: Callable[[int, int], None],
    env: Mapping[str, str] = os.environ,
) -> Prefetched:
    """Read every file that the modules need; ``show`` is told of how many files how many have been read.

    Raises HostProblem, DiskFull, ModuleNotLoaded.
    """
    _, probe, repository = entry.found(asked, None, env)
    cache = cache_of(probe, repository, env)
    way = f"dir:{probe.root}" if probe.access is Access.DIR else str(probe.access)
    inside = entry.enter(replace(asked, access=way), keep=False, env=env)
    sizes = listed(inside, env)
    total = sum(sizes)
    say(f"{len(sizes)} files, {megabytes(total)} MB, to read; {room(cache)}")
    require_room(cache, total)
    read(inside, len(sizes), env, show)
    return Prefetched(
        release=inside.version,
        modules=asked.modules,
        files=len(sizes),
        bytes=total,
        cache=str(cache.folder or ""),
        limit_mb=cache.limit_mb,
        free_mb=cache.free_mb,
    )


def cache_of(probe: Probe, repository: Repository, env: Mapping[str, str]) -> Cache:
    """Return the cache that reading by a way fills. Raises HostProblem where it would be one of a session alone."""
    if probe.access is Access.DIR:
        return Cache(words="a local copy, for which there is no cache")
    if probe.access is Access.NATIVE:
        client = servers.client(env, asked=repository)
        return Cache(words="the cache of this machine's client", folder=client.cache, limit_mb=client.limit_mb)
    program = access.program(env)
    if probe.access is Access.USERNS and program and program.name == "cvmfsexec":
        return Cache(words="the cache of cvmfsexec, whose limit is in its own configuration")
    folder = access.kept_cache(env)
    if folder is None:
        words = symptom("no-kept-cache", access=probe.access)
        raise HostProblem.of(words)
    return Cache(words="the cache that ENVKIT_EESSI_CACHE names, which has no limit of its own", folder=folder)


def room(cache: Cache) -> str:
    """Say what a cache may hold."""
    limit = f"; its limit is {cache.limit_mb} MB" if cache.limit_mb is not None else ""
    free = f"; {cache.free_mb} MB are free there" if cache.free_mb is not None else ""
    return f"into {cache.words}{f' ({cache.folder})' if cache.folder else ''}{limit}{free}"


def require_room(cache: Cache, total: int) -> None:
    """Raise DiskFull for a cache that cannot hold ``total`` bytes; what it holds already may be what is wanted."""
    wanted, free = megabytes(total), cache.free_mb
    too_small = cache.limit_mb is not None and cache.limit_mb < wanted
    if not too_small and (
        free is None or cache.folder is None or free + held_mb(cache.folder, wanted - free) >= wanted
    ):
        return
    words = symptom("cache-small", wanted_mb=wanted, room=room(cache))
    raise DiskFull(what=f"{words.what}.", why=f"{words.why}.", fix=words.fix)


def listed(inside: EessiEnvironment, env: Mapping[str, str]) -> list[int]:
    """Return the size (bytes) of every file that is to be read, found by entering."""
    told = require_entered(process.capture(command(inside, "list"), env=inside.variables(env), timeout_s=3600))
    if told.status or not told.stdout:
        raise HostProblem(what="EESSI could not be entered.", why=told.stderr.strip())
    return [int(line) for line in told.stdout.split()]


def read(inside: EessiEnvironment, count: int, env: Mapping[str, str], show: Callable[[int, int], None]) -> None:
    """Read every file. Raises HostProblem if one cannot be read."""
    folder = platformdirs.user_cache_path("envkit")
    files.make_private(folder)
    log = folder / f"prefetch-{os.getpid()}-{time.time_ns()}.log"
    try:
        status = process.supervise(
            command(inside, "read"), env=inside.variables(env), log=log, watch=lambda: show(done(log), count)
        )
        if status or done(log) != count:
            last = [line for line in log.read_text(errors="replace").splitlines() if not line.isdigit()][-5:]
            words = symptom("not-read", read=done(log), count=count)
            raise HostProblem(what=f"{words.what}.", why="\n".join(last) or f"Status {status}.", fix=words.fix)
    finally:
        log.unlink(missing_ok=True)


def done(log: Path) -> int:
    """Return how many files have been read."""
    text = log.read_text(errors="replace") if log.exists() else ""
    return sum(int(line) for line in text.splitlines() if line.isdigit())


def command(inside: EessiEnvironment, verb: str) -> list[str]:
    """Return the argv that finds or reads the files."""
    script = str(data("environments/shell/prefetch.sh"))
    return inside.command(["sh", script, verb, inside.repository.mount, *known().needed])


def megabytes(size: int) -> int:
    """Return bytes as MB, rounded up."""
    return -(-size // 1_000_000)
