"""The records of one node: kept on the node, and brought together in one file where all nodes can see it.

On a node's own file system, `envkit-UID-SESSION-NODE/` holds a record per rank. In the shared folder every node
has one file, NODE.json: {"version": 2, "node": ..., "written": ..., "complete": ..., "common": {facts that are the
same in every rank}, "ranks": [{the other facts}, ...]}. One rank's watchdog at a time, whoever holds the lock,
writes it; if it dies, another takes over. A file named `stop` there says that a rank has ended badly, and one on the
node that it is time to stop waiting for it. One named `again` says that a rank was started which had ended before.
"""

import fcntl
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from typing import Any, Dict, List, Optional, Set

from .process import command_line, state
from .record import Record, read

VERSION = 2
WRITE_S = 5.0
EARLY_S = 10.0
EARLY_WRITE_S = 0.5
BEREAVED_S = 2.5
LEFT_S = 8.0  # an operation that this Horovod has not fails in every rank, in one sooner than in another
LAST_S = 20.0
QUICK_S = 0.1
EARLIER_S = 60.0
ORPHANED_S = 3.0  # for ranks whose launcher was killed to end
LOOK_S = 1.0
PAUSED = 5  # looks at which a rank's watchdog was stopped, or had gone
ALARM = "stop"
AGAIN = "again"
BAD = ("signal", "timeout", "terminated", "aborted")
CARRYING = ("MPI_LOCALRANKID", "HOROVOD_HOSTNAME", "OMPI_COMM_WORLD_RANK")  # of launchers that carry variables along
STARTED_ON = "ENVKIT_STARTED_ON"  # the host name of the node on which the launcher was started
NEEDED = ("horovod", "import", "load", "init")


def name_of_node() -> str:
    """Return the name of this node; Slurm's name first, since several of its nodes may share one host name.

    The launcher of MPICH and Intel MPI, and horovodrun, which may call Open MPI's, take the variables of the node that
    they were started on to every other one: there it is the host name. What started them tells which node that was.
    """
    own, of_slurm = socket.gethostname(), os.environ.get("SLURMD_NODENAME", "")
    may_be_carried = any(name in os.environ for name in CARRYING)
    is_own = own.partition(".")[0] in (of_slurm.partition(".")[0], os.environ.get(STARTED_ON, "").partition(".")[0])
    return of_slurm if of_slurm and (is_own or not may_be_carried) else own


def started_here() -> Dict[str, str]:
    """The variable by which ranks on this node call it as this process does."""
    return {STARTED_ON: socket.gethostname()}


def file_name() -> str:
    """Return the name of this node's file."""
    return plain(name_of_node()) + ".json"


def plain(text: str) -> str:
    return re.sub(r"[^\w.-]", "_", text)


def local_folder(session: str, shared: str) -> str:
    """The folder on this node that holds a session's records, made if need be. Raises OSError.

    Where another user has taken its name everywhere on the node, it lies in the shared folder.
    """
    error = None  # type: Optional[OSError]
    for path in local_folders(session, shared, os.environ.get("TMPDIR")):
        try:
            return private(path)
        except OSError as failed:
            error = failed
    raise error or OSError("no folder for temporary files")


def local_folders(session: str, shared: str, temporary: Optional[str]) -> List[str]:
    """Return where that folder may lie, the likeliest first; `temporary` is the ranks' TMPDIR.

    Where others can rename it, it lies only if there is nothing else.
    """
    name = "envkit-%d-%s-%s" % (os.getuid(), plain(session), plain(name_of_node()))
    places = (temporary, usual_place(), "/dev/shm", shared)
    bases = {base: 0 for base in places if base and os.path.isdir(base)}
    return [os.path.join(base, name) for base in sorted(bases, key=is_open)]


def usual_place() -> Optional[str]:
    """The folder for temporary files, None where none can be written to."""
    try:
        return tempfile.gettempdir()
    except OSError:
        return None


def is_open(folder: str) -> bool:
    """Whether others can rename what lies in a folder: they may write to it, and it is not sticky."""
    mode = os.stat(folder).st_mode
    return bool(mode & (stat.S_IWGRP | stat.S_IWOTH)) and not mode & stat.S_ISVTX


def private(path: str) -> str:
    """Make a folder that only this user can enter. Raises OSError for one that is another's."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise
    return path


def tell_again(shared: str, rank: int) -> None:
    """Tell it in the shared folder if a rank of this number has ended on this node before, in the same session."""
    try:
        with open(os.path.join(shared, file_name())) as stream:
            content = json.load(stream)
        records = [dict(content["common"], **record) for record in content["ranks"]]
        if any("ended" in record and (record["started"] or {}).get("rank") == rank for record in records):
            touch(os.path.join(shared, AGAIN))
    except (OSError, ValueError, KeyError):  # nothing was written yet
        pass


class NodeView:
    """This rank's view of its node."""

    def __init__(self, session: str, shared: str, ranks: int, leave: bool = False, local: str = "") -> None:
        self.leave = leave
        self.local = local or local_folder(session, shared)
        self.shared = shared
        self.ranks = ranks
        self.lock = None  # type: Optional[int]
        self.written = 0.0
        self.began = time.time()
        self.bad_since = 0.0
        self.left_since = 0.0
        self.looked = 0.0
        self.seen = set()  # type: Set[int]
        self.paused = {}  # type: Dict[int, int]

    def holds(self) -> bool:
        """Whether this process is the one that writes for the node; tries to become it."""
        if self.lock is None:
            lock = os.open(os.path.join(self.local, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                return False
            self.lock = lock
        return True

    def stopped(self) -> bool:
        """Whether the ranks here should stop waiting; writes for the node where that is due."""
        try:
            if self.holds():
                self.lead()
        except OSError:  # no room is left, which may pass
            return self.has_gone()
        return os.path.exists(os.path.join(self.local, "stop"))

    def has_gone(self) -> bool:
        """Whether there is nobody to tell anything: a rank that was told to stop has cleared away, or something has."""
        return not (os.path.isdir(self.local) and os.path.isdir(self.shared))

    def lead(self) -> None:
        """Say that the ranks here should stop waiting if they should, and write where that is due. Raises OSError."""
        now = time.time()
        records = self.records()
        self.heed(records)
        self.look(records)
        self.left_since = (self.left_since or now) if is_left_alone(records) else 0.0
        waits = ((self.bad_since, BEREAVED_S), (self.left_since, LEFT_S))
        if self.is_paused() or any(since and now - since > patience for since, patience in waits):
            touch(os.path.join(self.local, "stop"))
        if now - self.written > (EARLY_WRITE_S if now - self.began < EARLY_S else WRITE_S):
            self.write(records)

    def heed(self, records: List[Dict[str, Any]]) -> None:
        """Tell the other nodes of a rank that ended badly, and note since when one is known of."""
        alarm = os.path.join(self.shared, ALARM)
        if not self.bad_since and any(ended_badly(record) for record in records):
            touch(alarm)
        if not self.bad_since and is_newer(alarm, self.began - EARLIER_S):
            self.bad_since = time.time()

    def look(self, records: List[Dict[str, Any]]) -> None:
        """Count, once a second, how often in a row the watchdog of a rank was found stopped, or had gone.

        Only one that was seen before has gone: those of another namespace of processes are never seen.
        """
        if time.time() - self.looked > LOOK_S:
            self.looked = time.time()
            waiting = [record["pid"] for record in records if "ended" not in record]
            states = {pid: state(pid)["state"] for pid in waiting}
            own = command_line(os.getpid())
            self.seen.update(pid for pid in waiting if pid not in self.seen and command_line(pid) == own)
            bad = [pid for pid in waiting if states[pid] == "T" or (pid in self.seen and states[pid] in (None, "Z"))]
            self.paused = {pid: self.paused.get(pid, 0) + 1 for pid in bad}
            if self.is_paused():
                touch(os.path.join(self.shared, ALARM))

    def is_paused(self) -> bool:
        """Whether a rank here was stopped and does not go on, or has gone without a word."""
        return any(looks >= PAUSED for looks in self.paused.values())

    def has_come(self, record: Dict[str, Any]) -> bool:
        """Whether nothing more is to be expected of a rank."""
        return "ended" in record or self.paused.get(record["pid"], 0) >= PAUSED

    def records(self) -> List[Dict[str, Any]]:
        """Return what the ranks of this node have stated so far."""
        names = sorted(name for name in os.listdir(self.local) if name.endswith(".jsonl"))
        contents = [read(os.path.join(self.local, name)) for name in names]
        return [record for record in contents if record]

    def finish(self, quick: bool) -> None:
        """Wait for this node's other ranks if this process writes for it, then write; `quick`: with hardly a wait.

        Raises OSError where it cannot, unless there is nobody any more to write for.
        """
        try:
            self.conclude(quick)
        except OSError:
            if not self.has_gone():
                raise

    def conclude(self, quick: bool) -> None:
        if not self.holds():
            return
        deadline = time.time() + (QUICK_S if quick else LAST_S)
        records = self.records()
        while not self.complete(records) and time.time() < deadline:
            if any("ended" not in record for record in records) and not quick and not self.stopped():
                deadline = time.time() + LAST_S
            time.sleep(0.01)
            records = self.records()
        self.write(records)
        self.heed(records)
        if self.complete(records) and not self.leave:
            shutil.rmtree(self.local, ignore_errors=True)

    def complete(self, records: List[Dict[str, Any]]) -> bool:
        return len(records) >= max(self.ranks, 1) and all(map(self.has_come, records))

    def write(self, records: List[Dict[str, Any]]) -> None:
        """Put the node's file into the shared folder, by rename."""
        self.written = time.time()
        for record in records:
            if "ended" not in record:
                record["state"] = state(record["pid"])["state"]
        shared = common(records)
        ranks = [{name: fact for name, fact in record.items() if name not in shared} for record in records]
        content = {
            "version": VERSION,
            "node": name_of_node(),
            "written": self.written,
            "complete": self.complete(records),
            "common": shared,
            "ranks": ranks,
        }
        path = os.path.join(self.shared, file_name())
        partial = "%s.%d.partial" % (path, os.getpid())
        with open(partial, "w") as stream:
            json.dump(content, stream)
        os.replace(partial, path)


def salvage(session: str, shared: str, temporary: Optional[str] = None) -> None:
    """Write for this node what its ranks left, once none of them lives to do so, or not if one stays; raises OSError.

    `temporary` is the ranks' TMPDIR; without one, or where that is full, they have left it in /tmp. What another user
    has made under the name of their folder is left alone, as the ranks have done.
    """
    bases = (temporary, os.environ.get("TMPDIR"), "/tmp")
    places = {path: 0 for base in bases for path in local_folders(session, shared, base) if os.path.isdir(path)}
    for local in places:
        try:
            private(local)
        except OSError:
            continue
        node = NodeView(session, shared, 0, local=local)
        if comes_to_hold(node):
            records = node.records()
            if records:
                node.write(records)
            shutil.rmtree(local, ignore_errors=True)


def comes_to_hold(node: NodeView) -> bool:
    """Whether this process writes for a node as soon as none of its ranks does, and none has cleared away."""
    deadline = time.time() + ORPHANED_S
    try:
        while not node.holds() and time.time() < deadline:
            time.sleep(0.02)
    except FileNotFoundError:
        return False
    return node.lock is not None


def tell_end(node: NodeView, rank: int, begin: Dict[str, Any], ended: Dict[str, Any], quick: bool) -> None:
    """State how a rank ended whose watchdog has not said so; write for the node if nobody else does. Raises OSError.

    `begin` are the facts of its record if it has none.
    """
    names = [name for name in os.listdir(node.local) if name.endswith(".jsonl") and name.split("-")[1] == str(rank)]
    path = os.path.join(node.local, (names or ["%s-%d-%d.jsonl" % (begin["framework"], rank, begin["pid"])])[0])
    facts = read(path) if names else None
    if facts and "ended" in facts:
        return
    if names:
        with open(path, "rb+") as stream:
            stream.truncate(stream.read().rfind(b"\n") + 1)  # a line that was cut
    record = Record(path)
    if not facts:
        record.line(begin=begin)
    record.line(ended=ended)
    node.finish(quick)
    if node.lock is not None:
        os.close(node.lock)


def common(records: List[Dict[str, Any]]) -> Dict[str, Any]:
    """The facts that all these records have in common."""
    if len(records) < 2:
        return {}
    first, rest = records[0], records[1:]
    return {name: fact for name, fact in first.items() if all(name in r and r[name] == fact for r in rest)}


def ended_badly(record: Dict[str, Any]) -> bool:
    """Whether a rank has ended so that the others wait in vain: with a signal or a status, or with nothing to init."""
    ended = record.get("ended")
    failed = any(isinstance(record.get(name), dict) and "error" in record[name] for name in NEEDED)
    return bool(ended and (ended["how"] in BAD or ended.get("status") or failed))


def holds_error(fact: Any) -> bool:
    """Whether a fact, or a part of it, is an error."""
    return isinstance(fact, dict) and ("error" in fact or any(map(holds_error, fact.values())))


def is_left_alone(records: List[Dict[str, Any]]) -> bool:
    """Whether a rank failed in a step that another is still in: it waits for what never comes."""
    failed = {name for record in records for name, fact in record.items() if holds_error(fact)}
    return any(record["phase"] in failed - record.keys() and "ended" not in record for record in records)


def is_newer(path: str, moment: float) -> bool:
    """Whether a file is there and not one of an earlier session of the same name."""
    try:
        return os.stat(path).st_mtime > moment
    except OSError:
        return False


def touch(path: str) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:
        pass
