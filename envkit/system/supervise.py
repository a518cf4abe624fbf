"""Run one command so that nothing of it outlives the process that asked for it.

``python supervise.py GRACE FD[,FD...] COMMAND...``: the first FD is the reading end of a pipe whose other end the
parent holds open; the others are kept open to the end, for the locks that they hold. The command is stopped, with
every process it started, when the parent closes the pipe or dies in whatever way, or when this process gets SIGTERM or
SIGINT: first SIGTERM, with SIGCONT for those that are stopped, after GRACE seconds SIGKILL (sooner when the parent has
died, since nobody waits then).
Processes that detach themselves are found too, because this process adopts orphans (PR_SET_CHILD_SUBREAPER).
Ends with the command's exit status, 128 + N if it died by signal N, which it says on standard error.
"""

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
HASTE_S = 0.5  # the grace of what nobody waits for; the locks of a parent that died are free already
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def main(arguments: list[str]) -> int:
    """Run the command given on the command line and return its exit status."""
    grace_s, descriptors, command = float(arguments[0]), [int(word) for word in arguments[1].split(",")], arguments[2:]
    pipe = descriptors[0]
    parent = os.getppid()
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    for number in (*STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    child = start(command, libc)
    status: int | None = None
    while status is None:
        ready, _, _ = select.select([pipe, wake_reader], [], [])
        if pipe in ready and not os.read(pipe, 1):
            time.sleep(0.05)  # a parent that dies closes its files a moment before it is gone
            grace_s = grace_s if os.getppid() == parent else HASTE_S
            break
        if wake_reader in ready and set(os.read(wake_reader, 64)) & set(STOP_SIGNALS):
            break
        status = reap().get(child)
    if status is not None and os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        os.write(2, f"envkit: what was started here was ended by {name}.\n".encode())
    ended = stop_descendants(grace_s if status is None else HASTE_S)
    status = ended.get(child, 0) if status is None else status
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def start(command: list[str], libc: ctypes.CDLL) -> int:
    """Start the command, to be killed at once if this process is; return its process id."""
    child = os.fork()
    if child:
        return child
    try:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.set_wakeup_fd(-1)
        for number in (*STOP_SIGNALS, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def reap() -> dict[int, int]:
    """Collect every child that has ended, adopted ones too: process id to wait status."""
    ended: dict[int, int] = {}
    with suppress(ChildProcessError):
        while (pair := os.waitpid(-1, os.WNOHANG))[0]:
            ended[pair[0]] = pair[1]
    return ended


def is_alone() -> bool:
    """Whether this process has no child; being the one that adopts orphans, it then has no descendant at all."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def stop_descendants(grace_s: float) -> dict[int, int]:
    """Stop every process below this one: SIGTERM, after ``grace_s`` seconds SIGKILL, until none is left."""
    deadline = time.monotonic() + grace_s
    signalled: set[int] = set()
    ended = reap()
    if is_alone():
        return ended
    while alive := descendants(os.getpid()):
        late = time.monotonic() > deadline
        for pid in alive if late else alive - signalled:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)  # one that is stopped could not clear away
        signalled |= alive
        time.sleep(0.02)
        ended |= reap()
    return ended | reap()


def descendants(root: int) -> set[int]:
    """Return the process ids below ``root`` that have not ended yet, read from /proc."""
    from pathlib import Path

    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    children.setdefault(int(fields[1]), []).append(int(entry.name))
    pids: set[int] = set()
    queue = [root]
    while queue:
        for pid in children.get(queue.pop(), []):
            pids.add(pid)
            queue.append(pid)
    return pids


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
