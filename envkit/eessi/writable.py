"""A folder for what is written below a repository (``--writable DIR``), of which envkit removes nothing.

::

    DIR/overlay-upper    what was written, as eessi_container.sh calls it, too
        overlay-work     the kernel's own
        lock             held while it is in use
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from envkit.eessi import sessions
from envkit.eessi.access import Access, Probe
from envkit.eessi.binds import Bind
from envkit.errors import HostProblem, UsageProblem
from envkit.knowledge.eessi import Repository, symptom
from envkit.system import mount_namespace

UPPER, WORK, LOCK = "overlay-upper", "overlay-work", "lock"
ODD = re.compile(r"[,:\\\s]")
FOREIGN = re.compile(r"\.wh\..+")  # fuse-overlayfs's marks of what was removed, where it may make no others
STAYS_S = 3.0  # what is left of the last session has so long to end


def prepared(named: str, repository: Repository, probe: Probe, version: str, binds: Sequence[Bind]) -> list[str]:
    """Take a folder, which is made; return the words for mount_namespace.py.

    It is held until the last process that was started from this one has ended. Raises UsageProblem, HostProblem,
    NotWritable.
    """
    if probe.access is Access.APPTAINER:
        raise UsageProblem.of(symptom("not-writable", way=f"--access {probe.access}"))
    if below := next((bind for bind in binds if bind.target.is_relative_to(repository.mount)), None):
        raise UsageProblem.of(symptom("bind-below", bind=below, mount=repository.mount))
    root = probe.root
    for folder in (root, root / "versions", root / "versions" / version) if root is not None else ():
        with suppress(FileNotFoundError):
            state = folder.stat()
            if (state.st_uid, state.st_gid) != (os.geteuid(), os.getegid()):
                raise UsageProblem.of(symptom("not-yours", path=folder))
    place = Path(named).absolute()
    if odd := ODD.search(str(place)):
        raise HostProblem.of(symptom("odd-folder", folder=place, odd=odd[0]))
    sessions.make_private(place, (LOCK,))
    for name in (UPPER, WORK):
        sessions.make_private(place / name, inside=True)
    hold(place)
    if mark := next(foreign(place / UPPER), None):
        raise HostProblem.of(symptom("foreign-mark", path=mark))
    return ["overlay", repository.mount, str(place / UPPER), str(place / WORK)]


def hold(place: Path) -> None:
    """Hold a folder. Raises HostProblem where another session has it, or what is left of one."""
    descriptor = sessions.lock(place / LOCK)
    if descriptor is None:
        raise HostProblem.of(symptom("writable-in-use", folder=place, by="another session"))
    mount_namespace.out_of_the_way(descriptor)  # which a command started by this process keeps
    os.close(descriptor)
    deadline = time.monotonic() + STAYS_S
    while (pid := user_of(place / UPPER)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if pid:
        raise HostProblem.of(symptom("writable-in-use", folder=place, by=f"process {pid}, which an earlier one left"))


def user_of(upper: Path) -> str:
    """Return a process that sees an overlay of a folder; nothing without one."""
    option = f"upperdir={upper}"
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        with suppress(OSError):
            if any(option in re.split("[ ,]", line) for line in path.read_text(errors="replace").splitlines()):
                return path.parent.name
    return ""


def foreign(upper: Path) -> Iterator[Path]:
    """Yield what fuse-overlayfs has left that the kernel's overlay shows as files."""
    for folder, _, names in os.walk(upper):
        yield from (Path(folder, name) for name in names if FOREIGN.fullmatch(name))
