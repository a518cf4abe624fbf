"""The connection of a rank to its launcher, kept open when the process that made it has ended.

A launcher that speaks PMIx takes a connection that is lost for the death of the rank, and ends all the others: Slurm
does it with SIGKILL, so that nobody would be left to report what happened.
"""

import importlib
import os
import re
import signal
import socket
import time
from typing import Any, Mapping, Optional

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PIDFD_OPEN, PIDFD_GETFD = 434, 438
SERVER = re.compile(r"tcp[46]?://.*:(\d+)$")
LONGEST_S = 60.0
AFTER_S = 2.0


class CopiedDescriptor:
    """A copy of the descriptor of another process, once it has been had; needs Linux 5.6."""

    def __init__(self, env: Mapping[str, str]) -> None:
        matches = [SERVER.search(env[name]) for name in sorted(env) if name.startswith("PMIX_SERVER_URI")]
        self.port = next((int(match.group(1)) for match in matches if match), 0)
        self.held = None  # type: Optional[socket.socket]

    def hold(self, pid: int) -> None:
        """Get hold of the connection of a process to the launcher, if it has one by now."""
        if self.port and self.held is None:
            try:
                self.held = copied(pid, self.port)
            except (ImportError, AttributeError, OSError):
                pass

    def keep(self, folder: str) -> None:
        """Keep what is held, as a process of its own, until the folder is gone; the ranks end soon after."""
        os.setsid()
        let_go_of_all_but(self.held.fileno() if self.held else -1)
        deadline = time.time() + LONGEST_S
        while os.path.exists(folder) and time.time() < deadline:
            time.sleep(0.1)
        time.sleep(AFTER_S)


def let_go_of_all_but(kept: int) -> None:
    """Close every other descriptor, and take no notice of the signals that end a job."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) != kept:
                os.close(int(name))
        except OSError:
            pass


def copied(pid: int, port: int) -> Optional[socket.socket]:
    """A copy of the first connection of a process to a port. Raises OSError, ImportError, AttributeError."""
    libc = importlib.import_module("ctypes").CDLL(None)
    process = libc.syscall(PIDFD_OPEN, pid, 0)
    if process < 0:
        return None
    try:
        folder = "/proc/%d/fd" % pid
        numbers = [int(name) for name in os.listdir(folder) if is_socket(os.path.join(folder, name))]
        copies = (libc.syscall(PIDFD_GETFD, process, number, 0) for number in numbers)
        return next(
            (connection for connection in map(opened, copies) if connection and leads_to(connection, port)), None
        )
    finally:
        os.close(process)


def is_socket(path: str) -> bool:
    try:
        return os.readlink(path).startswith("socket:")
    except OSError:
        return False


def opened(descriptor: int) -> Optional[socket.socket]:
    return socket.socket(fileno=descriptor) if descriptor >= 0 else None


def leads_to(connection: socket.socket, port: int) -> bool:
    """Whether a socket is connected to a port; closed if it is not."""
    try:
        peer = connection.getpeername()  # type: Any
    except OSError:
        peer = None
    if isinstance(peer, tuple) and peer[1] == port:
        return True
    connection.close()
    return False
