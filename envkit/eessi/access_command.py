"""What stands before the shell that enters EESSI, for each way to its repository."""

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envkit.eessi import access, sessions
from envkit.eessi import binds as bound
from envkit.eessi.access import Access, Probe
from envkit.eessi.binds import Bind
from envkit.eessi.client_cache import limit_mb
from envkit.eessi.sessions import DAMAGED, SessionFolder, StoredSession
from envkit.errors import HostProblem, UsageProblem
from envkit.knowledge.eessi import Repository, causes, symptom
from envkit.machine import runtime
from envkit.system import files, mount_namespace
from envkit.system.resources import PACKAGE, data

CLIENT = "/.envkit/client"  # in an image; Apptainer splits the words of --fusemount at spaces, so it has none
# In the folder of a client: what it is told, and the key of a repository that its configuration does not know.
CONFIGURATION, KEY = "envkit.conf", "repository.pub"
LARGEST_KEY = 64_000  # bytes


@dataclass(frozen=True, kw_only=True)
class EntryRequest:
    """What is about to be entered, by the way that was found; ``say`` tells the user what takes long.

    ``place`` is where its client has its cache: that of the session, or with ``shared`` that of all who enter on this
    node. ``overlay`` are the words by which it can be written to, if it can.
    """

    probe: Probe
    place: SessionFolder | None
    session: StoredSession
    repository: Repository
    shared: bool
    binds: tuple[Bind, ...]
    visible: tuple[Path, ...]
    nvidia: bool
    overlay: tuple[str, ...]
    env: Mapping[str, str]
    say: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class AccessCommand:
    """The words before the shell, variables for them, the image's digest and the client's log, where there are any."""

    words: tuple[str, ...]
    settings: tuple[tuple[str, str], ...] = ()
    digest: str = ""
    log: Path | None = None


def by_native(entry: EntryRequest) -> AccessCommand:
    """The repository is there; a namespace is made for binds alone."""
    problem = access.no_namespace() if entry.overlay or bound.for_namespace(entry.binds) else None
    words = bound.for_namespace(bound.fitting(entry.binds, entry.say, has_namespace=problem is None))
    words = [*words, *entry.overlay]
    if words and problem:
        raise HostProblem(what=f"--{'writable' if entry.overlay else 'bind'}: {problem.what}.", fix=problem.fix)
    return AccessCommand(words=(*access.namespace_words(), *words, "--") if words else ())


def by_copy(entry: EntryRequest) -> AccessCommand:
    """A namespace shows the copy where EESSI expects it."""
    shown = bound.fitting(entry.binds, entry.say)
    words = ["bind", str(entry.probe.root), entry.repository.mount, *bound.for_namespace(shown), *entry.overlay]
    return AccessCommand(words=(*access.namespace_words(), *words, "--"))


def by_client(entry: EntryRequest) -> AccessCommand:
    """The host's client mounts it in a namespace; who shares it has what is bound in one of its own within."""
    from envkit.eessi.servers import client

    program, place, repository = access.program(entry.env), prepared(entry), entry.repository
    assert program is not None  # noqa: S101  (the probe has found it)
    words = bound.for_namespace(bound.fitting(entry.binds, entry.say))
    if program.name == "cvmfsexec":
        if entry.overlay:
            raise UsageProblem.of(symptom("not-writable", way=program))
        require_unused(program)
        inner = [
            "bash",
            "--noprofile",
            "--norc",
            str(data("environments/shell/aside.sh")),
            str(program),
            repository.name,
            "--",
        ]
        return AccessCommand(words=(*access.namespace_words(), *words, "--", *inner) if words else tuple(inner))
    settings = place.local / CONFIGURATION
    is_told = entry.shared and settings.exists() and mount_namespace.is_held(place.local)
    if not is_told:
        write_settings(entry, place, place.local, place.cache, place.sockets)
    files = ":".join(map(str, (*client(entry.env, asked=repository).files, settings)))
    mount = ["mount", str(place.log), repository.mount, str(program), "-f", "-o", f"config={files}"]
    own = [] if access.kept_cache(entry.env) else ["cache", str(place.cache)]
    mount = [*own, *mount, repository.name, repository.mount, "--"]
    if entry.shared:
        within = [*access.namespace_words(), *words, "--"] if words else []
        words = ["shared", str(place.local), *mount, *within]
    else:
        words = [*words, *entry.overlay, *mount]
    return AccessCommand(words=(*access.namespace_words(), *words), log=place.log)


def require_unused(program: Path) -> None:
    """Hold a cvmfsexec, which has one cache for all that it enters. Raises HostProblem if another session has it."""
    import hashlib

    key = hashlib.sha256(os.fsencode(program.resolve())).hexdigest()[:20]
    if not sessions.take(sessions.caches() / f"cvmfsexec-{key}"):
        raise HostProblem(
            what=f"{program} is in use by another session.",
            why="It has one CernVM-FS cache, and the second to use it would wait for the first.",
            fix="End the other session, make a second cvmfsexec, or use --access apptainer.",
        )


def by_image(entry: EntryRequest) -> AccessCommand:
    """Apptainer has the client in an image mount it."""
    from envkit.eessi import image

    tool, place = runtime.require(), prepared(entry)
    found, digest = image.find(tool, entry.env, entry.say, entry.session.image)
    inside = Path("/var/lib/cvmfs"), Path("/var/run/cvmfs")
    settings = write_settings(entry, place, Path(CLIENT), *inside)
    binds = [f"{place.cache}:{inside[0]}", f"{place.sockets}:{inside[1]}", f"{settings}:/etc/cvmfs/default.local"]
    binds += [f"{PACKAGE}:{PACKAGE}:ro", f"{place.folder}:{place.folder}", f"{place.local}:{place.local}"]
    binds += [f"{place.local}:{CLIENT}", f"{data('environments/shell/client.sh')}:{CLIENT}.sh:ro"]
    binds += [
        f"{path}:{path}" for path in (*entry.visible, access.kept_cache(entry.env)) if path not in (None, Path("/"))
    ]
    words = [str(tool.path), "--silent", "exec", *(["--userns"] if os.geteuid() == 0 else [])]
    words += [*(["--nv"] if entry.nvidia else []), *(["--home", str(place.home)] if place.home else [])]
    words += [word for bind in (*binds, *map(str, entry.binds)) for word in ("--bind", bind)]
    client = f"sh {CLIENT}.sh {CLIENT}/{place.log.name} cvmfs2 {entry.repository.name} {entry.repository.mount}"
    words += ["--fusemount", f"container:{client}", str(found)]
    cachedir = entry.env.get("APPTAINER_CACHEDIR") or entry.env.get("SINGULARITY_CACHEDIR")
    changed = dict.fromkeys((name for name in bound.VARIABLES if name in entry.env), "")  # they are among the words
    changed |= {"APPTAINER_CACHEDIR": cachedir} if cachedir else {}
    return AccessCommand(words=tuple(words), settings=tuple(changed.items()), digest=digest, log=place.log)


WAYS: dict[Access, Callable[[EntryRequest], AccessCommand]] = {
    Access.NATIVE: by_native,
    Access.DIR: by_copy,
    Access.USERNS: by_client,
    Access.APPTAINER: by_image,
}


def prepared(entry: EntryRequest) -> SessionFolder:
    """Return the session, with folders on local disk for its client, this user's alone."""
    assert entry.place is not None  # noqa: S101  (what has a cache has a session)
    sessions.make_private(sessions.caches())
    sessions.make_private(entry.place.local, sessions.LOCAL_FILES)
    for folder in (entry.place.cache, entry.place.sockets):
        sessions.make_private(folder, inside=True)
    mark = entry.place.local / DAMAGED
    if mark.exists() and not entry.shared:  # else its keeper sees to it, which knows that no client runs
        words = symptom("cache-aside", aside=mount_namespace.put_aside(entry.place.cache))
        mark.unlink(missing_ok=True)
        entry.say(f"{words.what}. {words.fix}")
    return entry.place


def write_settings(entry: EntryRequest, place: SessionFolder, local: Path, cache: Path, sockets: Path) -> Path:
    """Write what the client of a session is told beyond its configuration: its own cache, its log, and the proxy.

    ``local``, ``cache`` and ``sockets`` are the folders as the client sees them.

    Beside it is what its words mean, for a shell. Raises DiskFull.
    """
    from envkit.eessi.servers import client

    env, found = entry.env, client(entry.env, asked=entry.repository)
    lines = {
        "CVMFS_CACHE_BASE": cache,
        "CVMFS_RELOAD_SOCKETS": sockets,
        "CVMFS_SHARED_CACHE": "no",
        "CVMFS_CLIENT_PROFILE": "single",
        "CVMFS_USYSLOG": local / place.syslog.name,
        "CVMFS_HTTP_PROXY": ";".join(proxy or "DIRECT" for proxy in found.proxies),
    }
    if urls := env.get("CVMFS_SERVER_URL") or (not entry.repository.is_usual and ";".join(found.servers)):
        lines["CVMFS_SERVER_URL"] = urls
    if entry.overlay:
        lines["CVMFS_CLAIM_OWNERSHIP"] = "yes"
    if entry.repository.key:
        files.write(place.local / KEY, key_of(entry.repository), own=True, mode=0o600)
        lines["CVMFS_PUBLIC_KEY"] = local / KEY
    if kept := access.kept_cache(env):  # which no client cleans: others use it
        kept.mkdir(parents=True, exist_ok=True)
        lines |= {"CVMFS_ALIEN_CACHE": kept, "CVMFS_QUOTA_LIMIT": "-1"}
    else:
        lines["CVMFS_QUOTA_LIMIT"] = str(limit_mb(place.cache, found.limit_mb))
    meant = "".join(f"{said}\t{one.id}\t{one.what}\t{one.why}\t{one.fix}\n" for one in causes() for said in one.says)
    files.write(place.local / "causes", meant.encode(), own=True, mode=0o600)
    path = place.local / CONFIGURATION
    text = "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in lines.items())
    files.write(path, text.encode(), own=True, mode=0o600)  # a proxy may have a password
    return path


def key_of(repository: Repository) -> bytes:
    """Return the public key that the entry of a repository names. Raises HostProblem."""
    try:
        return files.read(Path(repository.key), LARGEST_KEY)
    except OSError as error:
        words = symptom("key-unreadable", path=repository.key, repository=repository.name, reason=error.strerror)
        raise HostProblem(what=f"{words.what}.", fix=words.fix) from error
