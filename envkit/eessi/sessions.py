"""Sessions: what was entered, kept under a name, so that it can be entered again.

::

    STATE/envkit/eessi/NAME/session.json    what was entered
                            loaded          the modules that were loaded when its shell ended
                            target          the CPU target that EESSI chose
                            lock            held while it is in use; the kernel drops it with the last process
    TMPDIR/envkit-eessi-UID/NAME/           its CernVM-FS cache, on local disk, where it has one of its own
                                            (shared.py); where somebody else has taken that name, in
                                            envkit-eessi-UID-SECRET

A folder that eessi_container.sh has left is taken as a session, too: its home directory and its cache are used.
"""

import errno
import fcntl
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import msgspec

from envkit import __version__
from envkit.environments import trust
from envkit.errors import HostProblem, NotWritable, UsageProblem
from envkit.knowledge.eessi import symptom, usual
from envkit.system import files, mount_namespace, record, temporary
from envkit.system.files import discard, require_own, require_plain, require_private

NAME = re.compile(r"[\w][\w.+-]*")
SHARED = re.compile(r"shared-[0-9a-f]{12}(-\d+)?")  # as shared.py names places
LEGACY = ("home", "var-lib-cvmfs", "var-run-cvmfs")
FILES = ("lock", "session.json", "loaded", "target")  # of a session
DAMAGED = "damaged"  # in the folder of a client: its cache is to be put aside
LOCAL_FILES = (  # of its client, and of shared mounts
    *("alike", "users", "joining", "held", "holder", "said", "envkit.conf", "causes", DAMAGED, "repository.pub"),
    *("cvmfs2.log", "cvmfs2.syslog", "cvmfs2.syslog.1"),
)
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """What was entered: the release, how it was reached (by which local copy, by which image), the CPU, the modules.

    ``repository`` is "" for EESSI's own.
    """

    version: str
    access: str
    cpu: str
    modules: tuple[str, ...]
    copy: str = ""
    image: str = ""
    repository: str = ""
    created: str = ""
    envkit: str = __version__


@dataclass(frozen=True, kw_only=True)
class SessionFolder:
    """The folder of a session that this process holds, with what was entered in it the last time."""

    folder: Path
    before: StoredSession | None

    @property
    def name(self) -> str:
        """The name to resume it by; the path of a folder that lies elsewhere."""
        return self.folder.name if self.folder.parent == root() else str(self.folder)

    @property
    def local(self) -> Path:
        """The folder on local disk for what the client writes."""
        return caches() / self.folder.name

    @property
    def log(self) -> Path:
        """Where its client writes what it has to say."""
        return self.local / "cvmfs2.log"

    @property
    def syslog(self) -> Path:
        """Where its client writes what it would tell the system's log (CVMFS_USYSLOG)."""
        return self.log.with_suffix(".syslog")

    @property
    def cache(self) -> Path:
        """The folder of its CernVM-FS cache."""
        legacy = self.folder / "var-lib-cvmfs"
        return legacy if legacy.is_dir() else self.local / "lib"

    @property
    def has_own_cache(self) -> bool:
        """Whether eessi_container.sh made its cache."""
        return self.cache.parent != self.local

    @property
    def sockets(self) -> Path:
        """The folder of its client's sockets."""
        legacy = self.folder / "var-run-cvmfs"
        return legacy if legacy.is_dir() else self.local / "run"

    @property
    def home(self) -> Path | None:
        """The home directory that eessi_container.sh made in it."""
        legacy = self.folder / "home"
        return legacy if self.folder.parent != root() and legacy.is_dir() else None


def root(env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the sessions."""
    state = env.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "envkit" / "eessi"


def caches() -> Path:
    """Return the folder of the caches, on local disk; another one where somebody else has taken its name.

    Where others who are not trusted can rename what is in TMPDIR, it lies in the user's own cache. Raises HostProblem.
    """
    return caches_in(temporary.usual_place(trust.trusted()))


@cache
def caches_in(folder: Path, of: str = "") -> Path:
    """Return it, or that ``of`` something else, the same for as long as this process lives."""
    usual = folder / f"envkit-eessi-{os.getuid()}{of}"
    if not os.path.lexists(usual) or files.is_own_folder(usual):
        return usual
    return folder / f"{usual.name}-{temporary.unguessable('eessi' + of, platform.node())}"


def resume(named: str) -> SessionFolder:
    """Take the session of that name, which may be new, or that folder, or begin one from a file that --save wrote.

    Only what has a / in it is a folder or a file. Raises UsageProblem and HostProblem.
    """
    if is_file(named):
        saved = decoded(Path(named))
        return replace(begin(stem(saved.repository, saved.version)), before=saved)
    folder = Path(named).absolute() if "/" in named else root() / require_name(named)
    if "/" in named and not (is_session(folder) or is_legacy(folder)):
        raise UsageProblem(
            what=f"--resume {named}: this folder holds no session.",
            why="It has neither a session.json nor what eessi_container.sh leaves (home, var-lib-cvmfs).",
            fix="See the sessions there are with 'envkit eessi list'.",
        )
    if not take(folder):
        raise HostProblem(
            what=f"The session {named} is in use.",
            why="Two at a time would share one CernVM-FS cache, and the second would wait for the first.",
            fix="Leave --resume out to begin another, or end the one that uses it.",
        )
    return SessionFolder(folder=folder, before=read(folder))


def is_file(named: str) -> bool:
    """Say whether a word means a file: what lies in the current folder takes the place of no name."""
    return "/" in named and Path(named).is_file()


def require_name(named: str) -> str:
    """Return the name of a session. Raises UsageProblem for none, or for a new one that a file here has as well."""
    is_here = Path(named).is_file() and not (root() / named).is_dir()
    if not NAME.fullmatch(named) or is_here:
        raise UsageProblem(
            what=f"--resume {named!r}: there is no session of this name, but a file in the current folder."
            if is_here
            else f"--resume {named!r}: this is no name.",
            fix=f"For the file, if you trust who wrote it: --resume ./{named}\nFor a new session, use another name."
            if is_here
            else "Use letters, digits and . _ - + only.",
        )
    return named


def unused(folder: Path) -> list[str]:
    """Return what eessi_container.sh has left in its folder that is not seen inside: what was built, or injected."""
    found = [*folder.glob("*/overlay-upper"), folder / "opt-eessi", *folder.glob("*/opt-eessi")]
    return [str(path.relative_to(folder)) for path in found if path.is_dir() and any(path.iterdir())]


def free(stem: str) -> SessionFolder:
    """Return the session that ``begin`` would take now; it is not held."""
    number = 1
    while in_use(name := stem if number == 1 else f"{stem}-{number}"):
        number += 1
    return SessionFolder(folder=root() / name, before=None)


def stem(repository: str, version: str) -> str:
    """Return what sessions of a release are named after."""
    return f"{repository}-{version}" if repository else version


def begin(stem: str) -> SessionFolder:
    """Take the first session named after ``stem`` that is not in use; what it was before is forgotten."""
    number = 1
    while not take(folder := root() / (stem if number == 1 else f"{stem}-{number}")):
        number += 1
    for name in ("loaded", "target"):
        (folder / name).unlink(missing_ok=True)
    return SessionFolder(folder=folder, before=None)


def clean_shared() -> int:
    """Remove the caches that are shared and nobody uses now; return how many there were. Raises HostProblem."""
    removed = 0
    for folder in folders(caches()):
        if not SHARED.fullmatch(folder.name) or (root() / folder.name).exists():
            continue
        with suppress(FileNotFoundError):  # another one removes it
            require_own_files(folder, LOCAL_FILES)
            descriptor = lock(folder / "users")
            if descriptor is None:
                continue
            if not mount_namespace.is_held(folder):
                discard(folder)
                removed += 1
            os.close(descriptor)
    return removed


def take(folder: Path) -> bool:
    """Hold a session until the last process that was started from this one ends; return False if another has it.

    Raises HostProblem, NotWritable.
    """
    if folder.parent in (root(), caches()):
        make_private(folder.parent)
    make_private(folder, FILES)
    descriptor = lock(folder / "lock")
    if descriptor is None:
        return False
    mount_namespace.out_of_the_way(descriptor)  # which a command started by this process keeps
    os.close(descriptor)
    return True


def lock(path: Path) -> int | None:
    """Lock a file, which is made; return its descriptor, None if another process has it locked.

    Where its file system has no locks (Lustre without -o flock, some NFS), a file among the caches stands for it: these
    are on local disk, and what may not be shared is one of them. Raises HostProblem where those have no locks either.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        if error.errno not in NO_LOCKS:
            raise
        if path.parent == caches():
            words = symptom("no-locks", folder=caches(), reason=error.strerror)
            raise HostProblem.of(words) from error
        make_private(caches())
        import hashlib

        return lock(caches() / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:20]}.lock")
    return descriptor


def make_private(folder: Path, files: Iterable[str] = (), *, inside: bool = False) -> None:
    """Make a folder of this user's alone, in which ``files`` can be written without anything else being changed.

    ``inside``: of such a folder, so that its mode does not count. Raises HostProblem if it is not so, NotWritable if it
    cannot be made.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        require_own(folder) if inside else require_own_files(folder, files)
    except OSError as error:
        raise NotWritable(
            what=f"{folder} cannot be made.",
            why=f"{error.strerror or error}.",
            fix="Set XDG_STATE_HOME (sessions) or TMPDIR (their caches) to a folder of your own.",
        ) from error


def require_own_files(folder: Path, files: Iterable[str] = ()) -> None:
    """Demand a folder of this user's alone, in which ``files`` are plain ones. Raises HostProblem, OSError."""
    try:
        require_private(folder)
    except HostProblem as error:
        if folder in (root(), caches()):
            error.fix += f"\nFor another one: export {'XDG_STATE_HOME' if folder == root() else 'TMPDIR'}=FOLDER"
        raise
    for name in files:
        require_plain(folder / name)


def folders(place: Path) -> list[Path]:
    """Return the folders in one of this user's alone, links left out; none if it is not there. Raises HostProblem."""
    with suppress(FileNotFoundError, NotADirectoryError):
        require_own_files(place)
        return sorted(path for path in place.iterdir() if path.is_dir() and not path.is_symlink())
    return []


def is_session(folder: Path) -> bool:
    """Say whether a folder has been entered by envkit."""
    return (folder / "session.json").is_file()


def is_legacy(folder: Path) -> bool:
    """Say whether eessi_container.sh has left a folder."""
    return any((folder / name).is_dir() for name in LEGACY)


def plain_text(path: Path) -> str:
    """Return what is in a plain file; nothing if it is not there. Raises HostProblem for anything else."""
    require_plain(path)
    with suppress(FileNotFoundError):
        return files.read(path).decode(errors="replace")
    return ""


def read(folder: Path) -> StoredSession | None:
    """Return what was entered, with the modules that its shell had loaded at its end; None if it is new."""
    if not is_session(folder):
        return None
    found = decoded(folder / "session.json")
    if (folder / "loaded").exists():
        loaded = plain_text(folder / "loaded").strip().split(":")
        return msgspec.structs.replace(found, modules=tuple(m for m in loaded if m and not m.startswith("EESSI/")))
    return found


def decoded(path: Path) -> StoredSession:
    """Read a session from a file. Raises HostProblem, also for one with a local copy by a relative path."""
    try:
        found = record.read(path, StoredSession)
        if found.copy and not found.copy.startswith("/"):
            raise msgspec.ValidationError(f"Its local copy {found.copy!a} is no absolute path")
    except (OSError, msgspec.DecodeError) as error:
        raise HostProblem(
            what=f"{path} holds no session that can be read.",
            why=str(error),
            fix="Give another file or folder, or leave --resume out to begin a session.",
        ) from error
    return found


def dated(session: StoredSession, place: SessionFolder | None) -> StoredSession:
    """Return a session with the time when it was begun."""
    begun = place.before.created if place and place.before else ""
    return msgspec.structs.replace(session, created=begun or datetime.now(UTC).isoformat(timespec="seconds"))


def write(place: SessionFolder, session: StoredSession) -> None:
    """Keep what is entered now."""
    save(place.folder / "session.json", session)
    (place.folder / "loaded").unlink(missing_ok=True)


def save(path: Path, session: StoredSession) -> None:
    """Write a session to a file. Raises NotWritable."""
    fix = files.ANOTHER if path.name != "session.json" else "Free some room, or set XDG_STATE_HOME to another folder."
    files.deliver(path, msgspec.json.format(msgspec.json.encode(session)) + b"\n", "The session", fix=fix)


def names() -> list[str]:
    """Return the names of the sessions there are, those that cannot be read among them. Raises HostProblem."""
    return [path.name for path in folders(root())]


def clean(name: str) -> bool:
    """Remove a session and its cache; return False if it is in use.

    Raises UsageProblem for one that is not there, HostProblem for what another user may have put in its place.
    """
    if name not in names():
        there = ", ".join(names()) or "none"
        raise UsageProblem(what=f"There is no session {name!r}.", fix=f"There are: {there}.")
    place = root() / name
    if not take(place):
        return False
    with suppress(FileNotFoundError):
        require_own_files(caches())
        discard(caches() / name)
    discard(place)
    return True


def in_use(name: str) -> bool:
    """Say whether a process holds a session."""
    return is_held(root() / name)


def is_held(folder: Path) -> bool:
    """Say whether a process holds the session in a folder."""
    path = folder / "lock"
    try:
        require_plain(path)
        descriptor = lock(path) if path.exists() else -1
    except (OSError, HostProblem):
        return False
    if descriptor is None:
        return True
    if descriptor >= 0:
        os.close(descriptor)
    return False


class ListedSession(msgspec.Struct, frozen=True, kw_only=True):
    """One line of ``envkit eessi list``."""

    name: str
    repository: str
    release: str
    access: str
    target: str
    modules: tuple[str, ...]
    created: str
    in_use: bool


def entries(say: Callable[[str], None]) -> list[ListedSession]:
    """Return what there is to say of every session; ``say`` is told of one that cannot be read. Raises HostProblem."""
    found = []
    for name in names():
        try:
            require_own_files(root() / name, FILES)
            if session := read(root() / name):
                found.append(entry(name, session))
        except HostProblem as error:
            say(f"{error.what} {error.why}")
    return found


def entry(name: str, session: StoredSession) -> ListedSession:
    """Return what there is to say of a session."""
    target = plain_text(root() / name / "target").strip() or session.cpu
    return ListedSession(
        name=name,
        repository=session.repository or usual().name,
        release=session.version,
        access=session.access,
        target=target,
        modules=session.modules,
        created=session.created,
        in_use=in_use(name),
    )
