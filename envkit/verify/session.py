"""The place where the ranks of one verification meet: a folder that all nodes see, under a name that all ranks know."""

from __future__ import annotations

import os
import resource
import shlex
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envkit.environments import trust
from envkit.errors import HostProblem, NotWritable, UsageProblem
from envkit.inside.probe.node import private
from envkit.inside.probe.started import Started
from envkit.system import files, temporary

LEAST = (  # bytes: limit, option of ulimit, what surely is not enough
    ("RLIMIT_FSIZE", "f", 4 << 20, "No file may become larger than"),
    ("RLIMIT_AS", "v", 1 << 30, "No process may have a larger address space than"),
)
ROOM_OF_RANK = 1 << 20  # bytes, for what it finds
FILES_OF_RANK, FILES_OF_MPI = 2, 16  # less is surely not enough
ROOM_OF_MPI = 9 << 20  # bytes: without them Open MPI's PMIx has not the two segments of 4 MiB that it wants, and hangs


@dataclass(frozen=True, kw_only=True)
class Session:
    """The name, which folders on nodes have, and the shared folder, which exists and is private to this user."""

    name: str
    shared: Path


def of_ranks(started: Started, size: int, chosen: Path | None) -> Session:
    """The session of ranks that a launcher started, the same in each. Raises NotWritable, UsageProblem, HostProblem.

    Its folders have a name that nobody else can take before; but a shared one that others cannot write to, where the
    nodes may have different homes, has one that all of them know.
    """
    import hashlib

    require_limits()
    require_room(ROOM_OF_RANK, FILES_OF_RANK)
    if not started.local_rank:
        temporary.sweep(temporary.offered())
    words = (started.title, str(started.job))
    name, common_name = temporary.unguessable(*words), hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
    if started.local_size == size and chosen is None:
        return opened(name, name, [temporary.usual_place(trust.trusted())])
    places = shared_places(chosen)
    return opened(name, common_name if chosen is not None and is_closed(chosen) else name, places)


def of_starter(several_hosts: bool, chosen: Path | None) -> Session:
    """A session for ranks that are still to be started. Raises NotWritable, UsageProblem, HostProblem."""
    require_limits()
    require_room(ROOM_OF_MPI, FILES_OF_MPI)
    places = shared_places(chosen) if several_hosts or chosen else [temporary.usual_place(trust.trusted())]
    temporary.sweep(dict.fromkeys((*places, *temporary.offered())))
    name = temporary.own_name()
    return opened(name, name, places)


def is_closed(folder: Path) -> bool:
    """Whether nobody but this user, and root, can make anything in a folder."""
    state = folder.stat()
    return state.st_uid in (0, os.geteuid()) and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def shared_places(chosen: Path | None) -> list[Path]:
    """The folders that all nodes probably see, best first: none that nobody has named and others can change."""
    if chosen is not None:
        if not chosen.is_dir():
            raise UsageProblem(what=f"--shared: there is no folder {chosen} on {os.uname().nodename}.")
        return [chosen]
    from platformdirs import user_cache_path

    here = temporary.kept_apart(Path.cwd(), trust.trusted())
    return [user_cache_path("envkit"), *([here] if here else [])]


def require_limits() -> None:
    """Refuse a session that allows so little that no rank can work in it, or report. Raises HostProblem."""
    for name, option, least, what in LEAST:
        soft, hard = resource.getrlimit(getattr(resource, name))
        if soft != resource.RLIM_INFINITY and soft < least:
            is_soft = hard == resource.RLIM_INFINITY or hard >= least
            raise HostProblem(
                what=f"{what} {soft:,} bytes in this session (ulimit -{option}, {name}), too little for any rank.",
                why="The shell that this was started in, or the job, allows no more.",
                fix=f"ulimit -S{option} hard"
                if is_soft
                else f"Start a new session, or a job that allows more. As root, here: ulimit -{option} unlimited",
            )


def require_room(least: int, files_least: int) -> None:
    """Refuse a folder for temporary files in which so many bytes and files are not free. Raises HostProblem."""
    folder = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    with suppress(OSError):
        state = os.statvfs(folder)
        free = state.f_frsize * (state.f_bavail if os.geteuid() else state.f_bfree)
        inodes = state.f_favail if os.geteuid() else state.f_ffree
        is_read_only, lacks = bool(state.f_flag & os.ST_RDONLY), state.f_blocks and free < least
        place, here = f"{folder}, the folder for temporary files (TMPDIR)", shlex.quote(folder)
        if is_read_only and lacks:
            what, mend = f"{place}, is read-only.", ""
        elif state.f_files and inodes < files_least:
            what = f"There is no room in {place}, for more than {inodes} files or folders (inodes), and at least "
            what, mend = f"{what}{files_least} are needed.", f"Remove files from it (see 'df -i {here}'), or "
        elif lacks:
            what = f"There is no room in {place}: {free:,} bytes are free, and {least:,} are needed."
            mend = f"Make room in it (see 'df -h {here}'), or "
        else:
            return
        raise HostProblem(
            what=what,
            why="The ranks leave there what they find, and MPI memory that they share. Without room for it they "
            "fail, or hang.",
            fix=f"{mend}{'name' if mend else 'Name'} another folder of this node: export TMPDIR=DIR",
        )


def opened(name: str, shared: str, places: list[Path]) -> Session:
    """Make the session's folder, ``shared``, in the first place that can be written. Raises NotWritable."""
    tried = []
    for place in places:
        try:
            files.make_private(place)
            return Session(name=name, shared=Path(private(str(place / f"envkit-verify-{os.getuid()}-{shared}"))))
        except OSError as error:
            tried.append(f"{place}: {error.strerror}")
    raise NotWritable(
        what="There is no folder in which the ranks could leave what they find.",
        why="; ".join(tried),
        fix="Name one that all nodes see and that you may write to: --shared DIR; if all ranks are on this node, "
        "export TMPDIR=DIR does. The current folder is another, if nobody can change it but you and those whom "
        "ENVKIT_TRUST names.",
    )


def has_gone(meeting: Session) -> HostProblem:
    """Return what is to be said where the folder has gone in which the ranks leave what they find."""
    place = meeting.shared.parent
    lost = meeting.shared if place.is_dir() else place
    return HostProblem(
        what=f"No verdict is known here: {lost}, where the ranks leave what they find, has gone.",
        why="Something has removed it while they ran: a script that clears away folders for temporary files, a job "
        "that has ended, or another rank that took this one for gone.",
        fix="Verify again, with TMPDIR, or --shared, in a place that nothing clears meanwhile.",
    )
