"""The ways to EESSI's repository on this machine: each is tried, and says why it fits or not."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path

from envkit.eessi import release
from envkit.eessi.client_cache import is_warm
from envkit.eessi.release import Release
from envkit.eessi.time_limit import LIMIT_S, with_time_limit
from envkit.errors import HostProblem, Problem, UsageProblem
from envkit.knowledge.eessi import Repository, known, symptom, usual
from envkit.machine import runtime
from envkit.system import process
from envkit.system.resources import data

UNANSWERED = ("server-dead", "proxy-dead", "proxies-needed")


class Access(StrEnum):
    """How the repository is reached.

    native: it is mounted. dir: a local copy, shown in a user namespace. userns: the host's cvmfs2 or cvmfsexec, in one.
    apptainer: the client in an image.
    """

    NATIVE = "native"
    DIR = "dir"
    USERNS = "userns"
    APPTAINER = "apptainer"


@dataclass(frozen=True, kw_only=True)
class AccessRequest:
    """What is looked for: a release, and a folder that is said to hold a copy; how long a mount may take to answer.

    The release is one of ``repository``.
    ``cache`` is what a client that envkit starts would keep what it reads in.
    """

    version: str
    copy: Path | None
    env: Mapping[str, str]
    repository: Repository = field(default_factory=usual)
    patience_s: float = LIMIT_S
    cache: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a probe found: ``problem`` is None where the way fits; ``root`` is where the repository can be read now."""

    access: Access
    problem: Problem | None
    why: str = ""
    root: Path | None = None


def select(wanted: AccessRequest, forced: Access | None, first: Access | None = None) -> Probe:
    """Return the first way that fits, or the one that is forced; ``first`` is tried before the others.

    Raises HostProblem, which holds the reason of each, and UsageProblem for a release that there is none of.
    """
    order = [forced] if forced else sorted(Access, key=lambda access: access is not first)
    failed = list[Probe]()
    for access in order:
        probe = PROBES[access](wanted)
        if probe.problem is None:
            return probe
        if probe.root is not None:
            require_release(probe.root, wanted.version, wanted.repository)
        failed.append(probe)
    if forced:
        found = failed[0].problem
        assert found is not None  # noqa: S101
        fix = f"{found.fix} Leave --access out to take the first way that works."
        raise HostProblem(what=f"--access {forced}: {found.what}.", why=found.why, fix=fix)
    name = "EESSI's repository" if wanted.repository.is_usual else wanted.repository.name
    raise HostProblem(
        what=f"There is no way to {name} on this machine.",
        why="\n".join(f"{probe.access}: {line}" for probe in failed for line in lines(probe)),
        fix="One way is enough; each line says what it takes.",
    )


def lines(probe: Probe) -> Iterator[str]:
    """Yield why a way does not fit, and what to do about it."""
    if probe.problem:
        yield f"{probe.problem.what}{f' ({probe.problem.why})' if probe.problem.why else ''}. {probe.problem.fix}"


def require_release(root: Path, version: str, repository: Repository) -> None:
    """Raise UsageProblem for a release that the repository does not have."""
    there = with_time_limit(root / "versions", lambda _: release.versions(root))
    if version not in there:
        raise UsageProblem(
            what=f"{repository.title} has no release {version}.",
            fix=f"Use --release with one of: {', '.join(there) or 'none'}.",
        )


def native(wanted: AccessRequest) -> Probe:
    """Look whether the repository is mounted, by a process that may hang."""
    path = Path(wanted.repository.mount)
    env, limit_s = {**wanted.env, "LC_ALL": "C"}, wanted.patience_s
    release_, machine = path / "versions" / wanted.version, platform.machine()
    read = [one.format(release=release_, machine=machine) for one in known().reached]
    done = process.capture(["sh", str(data("environments/shell/read_paths.sh")), *read], env=env, timeout_s=limit_s)
    if done.status == 0:
        return Probe(access=Access.NATIVE, problem=None, why=f"{path} is mounted", root=path)
    if done.status == 124:
        hung = done.stdout.strip().rpartition("\n")[2] or path
        return Probe(access=Access.NATIVE, problem=symptom("mount-hangs", path=hung, seconds=f"{limit_s:.0f}"))
    told = process.capture(["ls", "-A", "--", str(path)], env=env, timeout_s=max(limit_s - done.seconds, 1))
    reason = done.stderr + told.stderr
    if told.status == 124:
        problem = symptom("mount-hangs", path=path, seconds=f"{limit_s:.0f}")
    elif "Transport endpoint is not connected" in reason or "Socket not connected" in reason:
        problem = symptom("mount-dead", path=path)
    elif told.status and "No such file" in told.stderr:
        problem = symptom("not-mounted", path=path)
    elif told.status:
        problem = symptom("mount-unreadable", path=path, reason=told.stderr.strip().rpartition(": ")[2])
    elif "versions" not in told.stdout.split():
        problem = symptom("mount-empty", path=path, repository=wanted.repository.name)
    else:
        return Probe(access=Access.NATIVE, problem=symptom("no-release", version=wanted.version, path=path), root=path)
    return Probe(access=Access.NATIVE, problem=problem)


def local_copy(wanted: AccessRequest) -> Probe:
    """Look whether there is a local copy, and whether it can be shown where EESSI expects it."""
    if wanted.copy is None:
        how = f"{'export ENVKIT_EESSI_DIR=FOLDER, or ' if wanted.repository.is_usual else ''}--access dir:FOLDER"
        return Probe(access=Access.DIR, problem=symptom("no-copy", how=how))
    if not Release(root=wanted.copy, version=wanted.version).init.is_dir():
        problem = symptom("copy-wrong", path=wanted.copy, version=wanted.version, repository=wanted.repository.name)
        whole = (wanted.copy / "versions").is_dir()
        return Probe(access=Access.DIR, problem=problem, root=wanted.copy if whole else None)
    return Probe(access=Access.DIR, problem=no_namespace(), why=f"{wanted.copy} is a copy of it", root=wanted.copy)


def userns(wanted: AccessRequest) -> Probe:
    """Look whether a client of the host can mount the repository in a user namespace."""
    client = program(wanted.env)
    if client is None:
        return Probe(access=Access.USERNS, problem=symptom("no-client"))
    problem = no_fuse() or no_namespace()
    return by_client(
        wanted, Probe(access=Access.USERNS, problem=problem, why=f"{client} mounts it in a user namespace")
    )


def by_apptainer(wanted: AccessRequest) -> Probe:
    """Look whether Apptainer and the client in an image can mount the repository."""
    found = runtime.find(wanted.env.get("PATH"))
    if found is None:
        return Probe(access=Access.APPTAINER, problem=symptom("no-runtime"))
    if not wanted.env.get("ENVKIT_EESSI_IMAGE"):
        return Probe(access=Access.APPTAINER, problem=symptom("no-image"))
    problem = no_fuse() or (no_namespace() if os.geteuid() else None)
    why = f"{found.family} {found.version} mounts it from an image"
    return by_client(wanted, Probe(access=Access.APPTAINER, problem=problem, why=why))


def by_client(wanted: AccessRequest, probe: Probe) -> Probe:
    """Return a way by a client that envkit starts, with what keeps it from the servers.

    Where they do not answer, a client mounts from a cache that it has mounted from before.
    """
    if probe.problem:
        return probe
    problem, cache = no_servers(wanted.repository, wanted.env), kept_cache(wanted.env) or wanted.cache
    if problem and problem.id in UNANSWERED and cache and is_warm(cache, wanted.repository.name):
        told = f"{probe.why} from its cache alone, since {problem.what}; what is not in it cannot be read"
        return replace(probe, why=told)
    return replace(probe, problem=problem)


PROBES = {
    Access.NATIVE: native,
    Access.DIR: local_copy,
    Access.USERNS: userns,
    Access.APPTAINER: by_apptainer,
}


def program(env: Mapping[str, str]) -> Path | None:
    """Return the CernVM-FS client on PATH: cvmfs2, else cvmfsexec."""
    found = (process.which(name, path=env.get("PATH")) for name in ("cvmfs2", "cvmfsexec"))
    return next((Path(path) for path in found if path), None)


def kept_cache(env: Mapping[str, str]) -> Path | None:
    """Return the folder that clients which envkit starts keep what they read in, whoever else uses it."""
    return Path(env["ENVKIT_EESSI_CACHE"]).absolute() if env.get("ENVKIT_EESSI_CACHE") else None


def namespace_words() -> list[str]:
    """Return how mount_namespace.py is started."""
    return [sys.executable, "-I", "-S", str(data("system/mount_namespace.py"))]


@cache
def no_namespace() -> Problem | None:
    """Say whether this user can make no user namespace, by making one."""
    done = process.capture([*namespace_words(), "try"], timeout_s=20)
    reason = done.stderr.strip().removeprefix("envkit: ").rstrip(".") or f"status {done.status}"
    return None if done.status == 0 else symptom("no-namespace", reason=reason)


def no_fuse() -> Problem | None:
    """Say whether this user may not use FUSE."""
    return None if os.access("/dev/fuse", os.R_OK | os.W_OK) else symptom("no-fuse")


def no_servers(repository: Repository, env: Mapping[str, str]) -> Problem | None:
    """Say what keeps a client from the repository's servers, by asking them; not where it has a filled cache."""
    kept = kept_cache(env)
    if kept is not None and is_warm(kept, repository.name):
        return None
    names = ("CVMFS_SERVER_URL", "CVMFS_HTTP_PROXY", "http_proxy")
    return asked_servers(repository, tuple((name, env[name]) for name in names if env.get(name)))


@cache
def asked_servers(repository: Repository, settings: tuple[tuple[str, str], ...]) -> Problem | None:
    """Ask the servers, once for the ways that need them."""
    from envkit.eessi import servers

    return servers.problem(servers.client(dict(settings), asked=repository))
