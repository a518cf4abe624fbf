"""Archives of sessions, as eessi_container.sh --save writes them: unpacked once, and resumed as folders."""

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from envkit.eessi import sessions
from envkit.errors import DiskFull, UsageProblem
from envkit.knowledge.eessi import symptom
from envkit.system import files, process
from envkit.system.files import discard

STARTS = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")  # of what gzip, zstd, bzip2 and xz write
SUFFIXES = (".tgz", ".tar", ".zst")
LIMIT_S = 3600.0


def is_archive(path: Path) -> bool:
    """Say whether a file is an archive, by how it begins, or else by its name."""
    with files.open_plain(path) as stream:
        start = stream.read(512)
    return start.startswith(STARTS) or start[257:262] == b"ustar" or path.suffix in SUFFIXES


def place() -> Path:
    """Return the folder of what is unpacked, on local disk beside the caches; as there if another has its name."""
    return sessions.caches_in(sessions.caches().parent, "-unpacked")


def unpacked(path: Path, say: Callable[[str], None], env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the session in an archive, which is unpacked where it has not been before.

    Raises UsageProblem for an archive of anything else, DiskFull.
    """
    import hashlib

    state = path.stat()
    told = repr((os.path.realpath(path), state.st_size, state.st_mtime_ns))
    sessions.make_private(place())
    folder = (
        place() / f"{path.name.partition('.')[0][:40] or 'session'}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    )
    if folder.is_dir():
        return folder
    say(f"unpacking {path}, {state.st_size // 1_000_000 + 1} MB, into {folder}")
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    sessions.make_private(partial)
    try:
        unpack(path, partial, env)
        inner = list(partial.iterdir())
        found = partial if sessions.is_legacy(partial) else inner[0] if len(inner) == 1 else partial
        if found.is_symlink() or not sessions.is_legacy(found):  # a link's folder would be closed, whosever it is
            words = symptom("archive-other", path=path)
            raise UsageProblem.of(words)
        found.chmod(0o700)
        found.rename(folder)
    finally:
        if partial.exists():
            discard(partial)
    return folder


def unpack(path: Path, folder: Path, env: Mapping[str, str]) -> None:
    """Unpack an archive. Raises UsageProblem, DiskFull."""
    plain = {name: value for name, value in env.items() if name != "TAR_OPTIONS"}
    argv = ["tar", "--no-same-owner", "-C", str(folder), "-xf", str(path.absolute())]
    done = process.capture(argv, env={**plain, "LC_ALL": "C"}, timeout_s=LIMIT_S)
    if done.status == 0:
        return
    last = "\n".join(done.stderr.strip().splitlines()[-3:]) or f"tar ended with {done.status}."
    if os.strerror(errno.ENOSPC) in last or os.strerror(errno.EDQUOT) in last:
        free = shutil.disk_usage(folder).free // 1_000_000
        words = symptom("archive-room", path=path, folder=folder, free_mb=free)
        raise DiskFull.of(words)
    words = symptom("archive-damaged", path=path)
    raise UsageProblem(what=f"{words.what}.", why=last, fix=words.fix)


def clean() -> int:
    """Remove what was unpacked and is not in use; return how much of it there was. Raises HostProblem."""
    removed = 0
    for folder in sessions.folders(place()):
        if sessions.take(folder):
            for one in (sessions.caches() / folder.name, folder):
                if one.is_dir() and not one.is_symlink():
                    discard(one)
            removed += 1
    return removed
