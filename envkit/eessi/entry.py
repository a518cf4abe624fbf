"""Entering EESSI: from what is asked to an environment, by the way that this machine has, in a session."""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from envkit.eessi import access, repositories, sessions, shared, writable
from envkit.eessi import binds as bound
from envkit.eessi.access import Access, Probe
from envkit.eessi.access_command import WAYS, EntryRequest
from envkit.eessi.release import Release
from envkit.eessi.sessions import SessionFolder, StoredSession
from envkit.environments.eessi import EessiEnvironment
from envkit.errors import HostProblem, UsageProblem
from envkit.inside.probe.started import detect
from envkit.knowledge import foreign
from envkit.knowledge.eessi import Repository, known, symptom
from envkit.machine.host import cpu_target, no_nvidia
from envkit.report.paper import is_quiet
from envkit.report.words import shown

if TYPE_CHECKING:
    from envkit.eessi.listing import Modules

ARCHIVES = (".tgz", ".tar", ".tar.gz", ".tar.zst", ".tar.xz", ".tar.bz2")


@dataclass(frozen=True, kw_only=True)
class EntryOptions:
    """What the command line says; None is what it leaves out.

    ``copy`` is a local copy to look at where nobody names one, ``visible`` what an image is to see of the host,
    ``writable`` a folder for what is written below the repository.
    """

    version: str | None = None
    repository: str | None = None
    modules: tuple[str, ...] = ()
    access: str | None = None
    nvidia: bool = False
    binds: tuple[str, ...] = ()
    resume: str | None = None
    save: str | None = None
    copy: Path | None = None
    visible: tuple[Path, ...] = ()
    writable: str | None = None


def enter(asked: EntryOptions, *, keep: bool, env: Mapping[str, str] = os.environ) -> EessiEnvironment:
    """Return the environment that is asked for; its session is held by this process and those it becomes and starts.

    ``keep``: a session is kept even if nobody has named one. Raises UsageProblem, HostProblem and others.
    """
    if asked.save:
        require_file(Path(asked.save))
    if asked.writable and asked.access == Access.APPTAINER:
        raise UsageProblem.of(symptom("not-writable", way=f"--access {asked.access}"))
    binds = bound.asked(asked.binds, env, say)
    for module in asked.modules:
        require_name(module)
    place = resumed(asked.resume) if asked.resume else None
    before = place.before if place else None
    session, probe, repository = found(
        asked, before, env, lambda repository, version: cache_of(asked, place, repository, version, keep, env)
    )
    if asked.nvidia:
        require_gpu(env)
    mounts = probe.access in (Access.USERNS, Access.APPTAINER)
    is_shared, is_named = can_share(asked, probe.access, place, env), bool(keep or asked.resume or asked.save)
    if mounts and (is_named or not is_shared):
        require_alone(probe.access, env)
    overlay = writable.prepared(asked.writable, repository, probe, session.version, binds) if asked.writable else []
    if place is None and (is_named or (mounts and not is_shared)):
        stem = sessions.stem(session.repository, session.version)
        place = sessions.begin(stem if keep else f"run-{stem}")
    client = shared.joined(repository.name, told_to_client(env)) if is_shared else place
    way = WAYS[probe.access](
        EntryRequest(
            probe=probe,
            place=client,
            session=session,
            repository=repository,
            shared=is_shared,
            binds=binds,
            visible=asked.visible,
            nvidia=asked.nvidia,
            overlay=tuple(overlay),
            env=env,
            say=say,
        )
    )
    session = sessions.dated(msgspec.structs.replace(session, image=way.digest), place)
    if place:
        sessions.write(place, session)
    if asked.save:
        sessions.save(Path(asked.save), session)
    say_findings(probe, place, client, env)
    if overlay:
        say(f"what is written below {repository.mount} goes to {overlay[2]}")
    say_release(asked, session.version, env)
    return EessiEnvironment(
        version=session.version,
        modules=session.modules,
        way=way.words,
        cpu=session.cpu,
        settings=(*way.settings, *settings(probe, place, env)),
        session=place.folder if place else None,
        log=way.log,
        repository=repository,
    )


def resumed(named: str) -> SessionFolder:
    """Take the session of that name, in that folder, or in that file: one that --save wrote, or an archive."""
    from envkit.eessi import archives

    is_archive = sessions.is_file(named) and archives.is_archive(Path(named))
    return sessions.resume(str(archives.unpacked(Path(named), say)) if is_archive else named)


def cache_of(
    asked: EntryOptions,
    place: SessionFolder | None,
    repository: Repository,
    version: str,
    keep: bool,
    env: Mapping[str, str],
) -> Path:
    """Return the cache that a client would have: of the session, of the one that would be begun, or the shared one."""
    if can_share(asked, way_asked(asked.access)[0] or Access.USERNS, place, env):
        return shared.usual(repository.name).cache
    stem = sessions.stem(repository.said, version)
    return (place or sessions.free(stem if keep else f"run-{stem}")).cache


def found(
    asked: EntryOptions,
    before: StoredSession | None,
    env: Mapping[str, str],
    cache: Callable[[Repository, str], Path] | None = None,
) -> tuple[StoredSession, Probe, Repository]:
    """Return what is to be entered, as before where nothing else is asked for, the way to it, and its repository.

    ``cache`` is where a client would keep what it reads of a release.
    """
    repository = repositories.find(asked.repository or (before.repository if before else ""), env)
    if before and before.repository != repository.said:
        was = repositories.find(before.repository, env).name
        words = symptom("other-repository", session=asked.resume, was=was, repository=repository.name)
        raise UsageProblem(what=words.what, fix=words.fix)
    if before and asked.version not in (None, before.version):
        raise UsageProblem(
            what=f"The session {asked.resume} is of {repository.title} {before.version}, not {asked.version}.",
            fix="Leave --release or --resume out.",
        )
    version = asked.version or (before.version if before else repository.release)
    forced, copy = way_asked(asked.access)
    copy = copy or (Path(before.copy) if before and before.copy else copy_of(asked, env, repository))
    first = next((one for one in Access if before and one == before.access), None)
    kept = cache(repository, version) if cache else None
    wanted = access.AccessRequest(version=version, repository=repository, copy=copy, env=env, cache=kept)
    probe = access.select(wanted, forced, first)
    session = StoredSession(
        version=version,
        access=probe.access,
        copy=str(copy) if copy and probe.access is Access.DIR else "",
        image=before.image if before else "",
        repository=repository.said,
        cpu=cpu_target(),
        modules=tuple(dict.fromkeys((*(before.modules if before else ()), *asked.modules))),
    )
    return session, probe, repository


def settings(probe: Probe, place: SessionFolder | None, env: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the variables that hold inside: the home of an old session, and what ranks in a namespace each need."""
    home = {"HOME": str(place.home)} if place and place.home else {}
    apart = known().own_namespace if probe.access is Access.DIR and ranks_on_node(env) != 1 else {}
    return [*home.items(), *((name, value) for name, value in apart.items() if name not in env)]


def ranks_on_node(env: Mapping[str, str]) -> int:
    """Return how many ranks a launcher has started on this node: 1 outside of one, 0 where it does not tell."""
    started = detect(env)
    return 1 if started is None else started.local_size or 0


def can_share(asked: EntryOptions, way: Access, place: SessionFolder | None, env: Mapping[str, str]) -> bool:
    """Say whether the client that mounts it can be that of all who enter on this node: the host's cvmfs2."""
    program = access.program(env)
    by_client = way is Access.USERNS and program is not None and program.name == "cvmfs2"
    return by_client and not asked.writable and not (place and place.has_own_cache)


def told_to_client(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which one client differs from another, and the client."""
    told = {name: env[name] for name in sorted(env) if re.fullmatch(r"CVMFS_\w+|ENVKIT_EESSI_CACHE|http_proxy", name)}
    return told | {"client": str(access.program(env))}


def require_alone(way: Access, env: Mapping[str, str]) -> None:
    """Raise HostProblem for a rank of several on this node."""
    started, size = detect(env), ranks_on_node(env)
    if started and size > 1:
        words = symptom("one-of-many", size=size, title=started.title, access=way)
        raise HostProblem.of(words)


def modules(asked: EntryOptions, env: Mapping[str, str] = os.environ) -> "Modules":
    """Return what a release has; only where it cannot be read from here it is entered."""
    from envkit.eessi import listing

    forced, copy = way_asked(asked.access)
    repository = repositories.find(asked.repository or "", env)
    copy = copy or copy_of(asked, env, repository)
    version = asked.version or repository.release
    if copy and forced in (None, Access.DIR) and Release(root=copy, version=version).init.is_dir():
        return listing.read(Release(root=copy, version=version), listing.machine(env))
    cache = cache_of(asked, None, repository, version, keep=False, env=env)
    wanted = access.AccessRequest(version=version, repository=repository, copy=copy, env=env, cache=cache)
    probe = access.select(wanted, forced)
    if probe.root is not None:
        return listing.read(Release(root=probe.root, version=version), listing.machine(env))
    return listing.read_inside(enter(replace(asked, access=probe.access), keep=False, env=env), version)


def nearest(pattern: str, names: Sequence[str]) -> str:
    """Say of a pattern that matches nothing what is near it, or that no release has it."""
    from envkit.inside import nearest as near_names

    if words := near_names.absent(pattern):
        return f"envkit: {words}"
    near = near_names.nearest(pattern, names)
    return f"envkit: nothing matches {pattern}." + (f" The nearest: {', '.join(near)}" if near else "")


def require_name(module: str) -> None:
    """Raise UsageProblem for what cannot be the name of a module."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.+/-]*", module):
        raise UsageProblem(
            what=f"--load {module!r}: this is no module.", fix="See what there is with 'envkit eessi modules'."
        )


def way_asked(text: str | None) -> tuple[Access | None, Path | None]:
    """Read ``--access``: the way that is forced, and the folder of "dir:FOLDER". Raises UsageProblem."""
    if text is None or text == "auto":
        return None, None
    name, colon, folder = text.partition(":")
    if name not in list(Access) or (colon and (name != Access.DIR or not folder)):
        raise UsageProblem(
            what=f"--access {text}: there is no such way.",
            why=foreign.access(text),
            fix=f"There are: auto, {', '.join(Access)}; with a folder: dir:FOLDER.",
        )
    return Access(name), Path(folder).absolute() if folder else None


def copy_of(
    asked: EntryOptions, env: Mapping[str, str] = os.environ, repository: Repository | None = None
) -> Path | None:
    """Return the local copy that is looked at; ENVKIT_EESSI_DIR names one of EESSI's own repository."""
    if repository and not repository.is_usual:
        return way_asked(asked.access)[1] or (Path(repository.copy) if repository.copy else None)
    return way_asked(asked.access)[1] or copy_named(env) or asked.copy


def copy_named(env: Mapping[str, str]) -> Path | None:
    """Return the local copy that the caller's variable names."""
    return Path(env["ENVKIT_EESSI_DIR"]).absolute() if env.get("ENVKIT_EESSI_DIR") else None


def gone(version: str, copy: Path | None, env: Mapping[str, str] = os.environ) -> str:
    """Say that a release has gone from where the repository can be read on this machine; nothing otherwise."""
    wanted = access.AccessRequest(version=version, copy=copy_named(env) or copy, env=env)
    for probe in (access.native(wanted), access.local_copy(wanted)):
        if probe.root is not None:
            return "" if Release(root=probe.root, version=version).init.is_dir() else f"{probe.root} has no {version}"
    return ""


def require_gpu(env: Mapping[str, str]) -> None:
    """Raise HostProblem where nvidia-smi finds no GPU."""
    if reason := no_nvidia(env):
        words = symptom("no-gpu", reason=reason)
        raise HostProblem.of(words, before="--nvidia: ")


def require_file(path: Path) -> None:
    """Raise UsageProblem for what eessi_container.sh packs its sessions into: envkit writes a small file."""
    if path.is_dir() or path.name.endswith(ARCHIVES):
        words = symptom("save-archive", path=path)
        raise UsageProblem.of(words)


def say_release(asked: EntryOptions, version: str, env: Mapping[str, str]) -> None:
    """Say of a release that EESSI's own variables name, as other tools obey them, that another one is entered."""
    for name in ("EESSI_VERSION", "EESSI_VERSION_OVERRIDE"):
        named = env.get(name, version)
        if named != version and not (asked.version or asked.resume):
            say(f"{name}={named} is set, and does not count: --release {named} enters that one")


def say_findings(
    probe: Probe, place: SessionFolder | None, client: SessionFolder | None, env: Mapping[str, str]
) -> None:
    """Say by which way, in which session, and what of the caller's settings may get in the way."""
    say(f"{probe.why} (--access {probe.access})")
    if place:
        say(f"session {place.name}; --resume {place.name} enters it again")
        if parts := sessions.unused(place.folder):
            words = symptom("parts-unused", folder=place.folder, parts=", ".join(parts))
            say(f"{words.what}. {words.fix}")
    told = os.environ.get("TMPDIR")
    if client and told and Path(told).is_dir() and not client.local.is_relative_to(os.path.realpath(told)):
        say(f"the cache lies in {client.local.parent}, not in TMPDIR: others can change {told} or a folder above it")
    if env.get("LD_LIBRARY_PATH"):
        say(f"LD_LIBRARY_PATH is set, and takes libraries in before EESSI's own: {env['LD_LIBRARY_PATH']}")
    if "xalt" in env.get("LD_PRELOAD", ""):
        say("LD_PRELOAD has XALT's library, which needs the host's C library: it is left out inside")


def say(message: str) -> None:
    """Say something that is not the command's."""
    if not is_quiet():
        print(f"envkit: {shown(message)}", file=sys.stderr)
